"""Auto mode's guard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.protocol.commands import Ask
from app.protocol.events import Finished, Loaded, Planned
from app.protocol.options import Mode, Tuning
from app.protocol.prompt import Document, Message, Role
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Reading, Statistics
from tests import tiny
from tests.engine.driver import TEXT, Driver, question


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("models") / "target", "qwen3", 0)


@pytest.fixture(scope="module")
def driver(target: Path) -> Iterator[Driver]:
    driver = Driver()
    assert isinstance(driver.load(target, target), Loaded)
    yield driver
    driver.close()


def _statistics(finished: Finished) -> Statistics:
    assert finished.statistics is not None
    return finished.statistics


def _asked(text: str, mode: Mode) -> Ask:
    message = Message(Role.USER, text, (Document("gates.txt", TEXT),))
    return replace(question(mode=mode, tokens=2), messages=(message,), tuning=Tuning(dense_below=0))


def test_auto_mode_reads_everything_when_the_question_counts(driver: Driver) -> None:
    statistics = _statistics(driver.answer(_asked("How many gates are there?", Mode.AUTO)))
    planned = driver.of(Planned)[-1]
    assert statistics.reading is planned.reading is Reading.DENSE
    assert (planned.guard,) == planned.reasons == statistics.reasons
    assert planned.guard == Reason(ReasonCode.NEEDS_EVERY_TOKEN, {"words": "how many"})


def test_the_guard_leaves_other_questions_and_other_modes_alone(driver: Driver) -> None:
    for text, mode in (
        ("What is the code of gate 7?", Mode.AUTO),
        ("How many gates are there?", Mode.SPARSE),
    ):
        statistics = _statistics(driver.answer(_asked(text, mode)))
        assert statistics.reading is Reading.SPARSE
        assert driver.of(Planned)[-1].guard is None
