"""Measures how a log that is too large to be read whole is read: processor time, and peak memory of
a process of its own.

    python -m benchmarks.large_log [--megabytes 2000] [--folder FOLDER]

The log is written first, and deleted at the end. It has lines of eight kinds, and two that occur
once. `specchat ask` runs with the demo model.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

SERVICES = ("auth", "billing", "cart", "search", "mail", "queue", "ledger", "media", "gateway")
MESSAGES = (
    "request {} served in {} ms",
    "connection from 10.0.{}.{} accepted",
    "cache miss for key user:{}:{}",
    "retry {} of job {} scheduled",
    "disk array: {} of {} drives answer, no fault was found",
    "token for user {} refreshed after {} s",
    "ERROR timeout while waiting for upstream {} ({} ms)",
    "WARN slow query {} took {} ms",
)
ONCE = {
    0.2: "2026-11-07 03:12:55 vault CRITICAL seal broken by operator heron-42, code E7731\n",
    0.9: "2026-11-21 17:45:01 ledger ERROR transfer 9917-XK rejected: balance 1,830.55 too low\n",
}
"""Lines that occur once, by the share of the file before them."""
LINES = 600
"""Different lines in a piece of the log."""
PIECE = 1 << 20
READ = """
import sys
from app.ingest.reader import read
(result,) = read([sys.argv[1]], questions=sys.argv[2:]).results
lines = {each.line + each.text.count("\\n", 0, each.text.find(mark)): mark
         for mark in ("heron-42", "9917-XK") for each in result.texts if mark in each.text}
print(sum(len(each.text) for each in result.texts), "characters", lines or "")
"""
QUESTIONS = (
    "Who broke the seal of the vault?",
    "Why was transfer 9917-XK rejected on 21 November?",
    "How many errors are there?",
    "What happened?",
)


def write_log(path: Path, size: int) -> None:
    rng, at, once = random.Random(1), datetime(2026, 11, 1), dict(ONCE)
    with path.open("w") as log:
        while log.tell() < size:
            lines = []
            for _ in range(LINES):
                at += timedelta(milliseconds=97)
                message = rng.choice(MESSAGES).format(rng.randrange(100_000), rng.randrange(9_999))
                lines.append(f"{at:%Y-%m-%d %H:%M:%S} {rng.choice(SERVICES)} {message}\n")
            text = "".join(lines)
            log.write(text * (PIECE // len(text)))
            for share in [each for each in once if log.tell() >= each * size]:
                log.write(once.pop(share))


def measure(label: str, command: list[str], silent: bool = False) -> None:
    """Run a command, and print the processor time and the peak memory of its process."""
    print(f"{label}: ", end="", flush=True)
    silence = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    actions = silence if silent else []
    process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    _, status, used = os.wait4(process, 0)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    seconds = used.ru_utime + used.ru_stime
    print(f"  {seconds:.1f} s of processor time, peak {peak / 1e6:.0f} MB, status {status}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_log", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2_000, help="size of the log")
    parser.add_argument("--folder", type=Path, help="where it is written for a moment")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "huge.log"
        write_log(path, options.megabytes * 1_000_000)
        print(f"{path.stat().st_size / 1e6:,.0f} MB")
        read = [sys.executable, "-c", READ]
        for part in ("#-500", "#100-200", "#1000000-1000500"):
            measure(f"read {part}", [*read, f"{path}{part}"])
        for question in QUESTIONS:
            measure(f"search, {question!r}", [*read, str(path), question])
        small = Path(folder) / "small.log"
        small.write_bytes(path.open("rb").read(100_000))
        for file in (small, path):
            ask = [sys.executable, "-m", "app", "ask", "-f", str(file), QUESTIONS[1]]
            measure(f"specchat ask, {file.name}", ask, silent=True)


if __name__ == "__main__":
    main()
