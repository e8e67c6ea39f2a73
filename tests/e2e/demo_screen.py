"""The screen on the scripted engine: to look at it in a terminal, and for the terminal tests.

python tests/e2e/demo_screen.py [--fail-load | --fall-back | --fail] [FOLDER]

With a FOLDER conversations are kept there.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.protocol.commands import Load
from app.protocol.events import CommandFailed, Event, ImportanceMap, PhaseProgress, Token
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import Phase
from app.ui.app import SpecchatApp
from app.ui.start import Start
from tests.fakes import FakeEngine, LoadStory, Story


def pace(event: Event) -> float:
    """Slow enough to be seen, quick enough to be waited for."""
    match event:
        case PhaseProgress(phase=Phase.DECODE):
            return 0.0
        case Token():
            return 0.015
        case PhaseProgress() | ImportanceMap():
            return 0.07
        case _:
            return 0.0


def engine(flags: list[str]) -> FakeEngine:
    story, load = Story(), LoadStory()
    if "--fail-load" in flags:
        missing = Failure(FailureKind.WEIGHTS_DAMAGED, {"folder": "models/none"})
        load = LoadStory(failure=CommandFailed(missing))
    if "--fall-back" in flags:
        story = Story(falls_back="The draft ran out of memory after 50,000 tokens.")
    if "--fail" in flags:
        story = Story(fails_in=Phase.PREFILL)
    return FakeEngine(story, load)


if __name__ == "__main__":
    fake = engine(sys.argv[1:])
    fake.start_thread(pace)
    folder = next((Path(word) for word in sys.argv[1:] if not word.startswith("--")), None)
    pair = Load("models/qwen3-8b-4bit", "models/qwen3-0.6b-4bit")
    SpecchatApp(Start(fake, pair, folder=folder)).run()
