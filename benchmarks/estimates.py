"""How far the first estimate of the time to the first word is from the time it takes, by length.

    python -m benchmarks.estimates [--length 1k,2k,…] [--compare OTHER-CHECKOUT]

`specchat ask` is asked about Python sources of the environment with the demo model and keep auto.
`cold`: the first question ever, with fresh folders. `warm`: the next one, about another text, in a
new process. An estimate is good if neither number is more than 1.5 times the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from sysconfig import get_path
from typing import NamedTuple

from app.cli.options import parse_prompt_length
from app.util.tables import TextTable
from benchmarks.harness import parse_list
from benchmarks.start import name_of
from benchmarks.terminal import own_folders

LENGTHS = "1k,2k,4k,8k,16k,32k,64k,128k"
CHARACTERS = 4.0
"""Of a token, roughly."""
QUESTION = "Where is the certificate of the server verified?"
GOOD = 1.5


class Estimate(NamedTuple):
    tokens: int
    predicted: float
    took: float

    @property
    def factor(self) -> float:
        return self.predicted / self.took

    @property
    def is_good(self) -> bool:
        return 1 / GOOD <= self.factor <= GOOD


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description=__doc__)
    lengths = partial(parse_list, parse=parse_prompt_length)
    options.add_argument("--length", type=lengths, default=lengths(LENGTHS))
    options.add_argument("--compare", type=Path, action="append", default=[])
    chosen = options.parse_args()
    folder = Path(get_path("purelib"))
    sources = sorted((folder / "huggingface_hub").rglob("*.py"))
    sources += sorted((folder / "textual").rglob("*.py"))
    text = "".join(each.read_text(encoding="utf-8") for each in sources)
    checkouts = [Path.cwd(), *(each.resolve() for each in chosen.compare)]
    rows, good = [], dict.fromkeys(checkouts, 0)
    at = 0
    for length in chosen.length:
        parts = []
        for _ in range(2):
            size = round(length * CHARACTERS)
            parts.append(text[at : at + size])
            at = (at + size) % (len(text) // 2)
        for checkout in checkouts:
            with tempfile.TemporaryDirectory() as home:
                environment = {**os.environ, **own_folders(Path(home))}
                environment.pop("PYTHONDONTWRITEBYTECODE", None)
                for when, part in zip(("cold", "warm"), parts, strict=True):
                    found = asked(checkout, environment, part)
                    good[checkout] += found.is_good
                    rows.append(_row(when, checkout, found))
                    sys.stderr.write(f"{'  '.join(rows[-1])}\n")
    titles = ["tokens", "question", "checkout", "estimate", "first word", "factor"]
    print(TextTable(titles, rows).plain())
    for checkout, number in good.items():
        print(f"{name_of(checkout)}: {number} of {2 * len(chosen.length)} within {GOOD} times")
    return 0


def asked(checkout: Path, environment: Mapping[str, str], text: str) -> Estimate:
    """The estimate for a question about `text`, and the seconds to its first word."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        command = [sys.executable, "-m", "app", "ask", "--json", "-f", file.name, QUESTION]
        done = subprocess.run(
            command,
            cwd=checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
    events = {each["event"]: each for each in map(json.loads, done.stdout.splitlines())}
    planned, statistics = events["Planned"], events["Finished"]["statistics"]
    return Estimate(planned["prompt_tokens"], planned["ttft"], statistics["ttft"])


def _row(when: str, checkout: Path, found: Estimate) -> list[str]:
    return [
        f"{found.tokens:,}",
        when,
        name_of(checkout),
        f"{found.predicted:.1f} s",
        f"{found.took:.1f} s",
        f"{found.factor:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
