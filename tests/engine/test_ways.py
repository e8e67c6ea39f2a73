"""Other ways to read: floors, snapped chunks, a forced answer, and auto mode's guard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load

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


def test_a_forced_answer_is_measured_not_written(driver: Driver, target: Path) -> None:
    forced = "The code of gate 7 is 57."
    finished = driver.answer(replace(question(mode=Mode.FULL), forced_answer=forced))
    assert finished.text == forced
    model, tokenizer = load(str(target))[:2]
    prompt = list(driver.of(Planned)[-1].prompt_ids)
    answer = tokenizer.encode(forced, add_special_tokens=False)
    logits = model(mx.array([prompt + answer]))[0, len(prompt) - 1 : -1].astype(mx.float32)
    likely = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    losses = [-float(likely[i, token].item()) for i, token in enumerate(answer)]
    assert _statistics(finished).forced_loss == pytest.approx(np.mean(losses), rel=1e-3)
    kept = driver.answer(replace(question(keep=1.0), forced_answer=forced))
    assert _statistics(kept).forced_loss == pytest.approx(np.mean(losses), rel=1e-3)
    sparse = driver.answer(replace(question(keep=0.1), forced_answer=forced))
    assert _statistics(sparse).forced_loss != pytest.approx(np.mean(losses), rel=1e-3)


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
