"""Runs turns in a process that may not have more than so much memory; a child of the tests.

`python -m tests.engine.limited LIMIT TARGET DRAFT GATES MODE...` asks of a text about so many gates
in each mode (`full!` is full despite memory), and prints what came of each turn as a JSON line.
LIMIT is RLIMIT_DATA, in bytes: what is allocated beyond it is not had, and MLX's workers end the
process then. A control group would do as well, but takes rights that tests rarely have.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path

from app.chat import wording


def main(limit: int, target: Path, draft: Path, gates: int, modes: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    from app.engine.backend.memory_probes import LinuxProbe, SystemPressure
    from app.estimate import plan
    from app.protocol.commands import Ask
    from app.protocol.events import Loaded
    from app.protocol.options import Mode, Sampling
    from app.protocol.prompt import Document, Message, Role
    from tests.engine.driver import Driver

    class Probe(LinuxProbe):
        """Without the system's own word: other programs may keep it busy."""

        def _level(self) -> SystemPressure:
            return SystemPressure.NORMAL

    plan.MIN_SKIPPABLE = 1 << 20  # auto would read in full
    driver = Driver(step=None, probe=Probe())
    loaded = driver.load(target, draft)
    assert isinstance(loaded, Loaded), loaded
    text = " ".join(f"The code of gate {n} is {n * 37 % 1009}." for n in range(gates))
    message = Message(Role.USER, "What is the code of gate 7?", (Document("g", text),))
    for mode in modes:
        sampling, dare = Sampling(max_tokens=4), mode.endswith("!")
        ask = Ask((message,), Mode(mode.rstrip("!")), 0.1, sampling)
        ask = replace(ask, skip_memory_check=dare)
        event = driver.run(ask)
        said = [wording.in_words(e).get("message", "") for e in driver.events]
        used = re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
        kinds = [type(e).__name__ for e in driver.events]
        line = {"event": kinds[-1], "kinds": kinds, "said": [s for s in said if s]}
        statistics = getattr(event, "statistics", None)
        if statistics is not None:
            line |= {"reading": str(statistics.reading), "fallback": bool(statistics.fallback)}
            line |= {"kept": statistics.read_tokens, "prompt": statistics.prompt_tokens}
            line |= {"reason": wording.reasons(statistics.reasons), "peak": statistics.peak_bytes}
            line |= {"seconds": {str(p.phase): p.seconds for p in statistics.phases}}
        sys.stdout.write(json.dumps(line | {"data": int(used[1]) * 1024}) + "\n")
        sys.stdout.flush()
    driver.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
