"""The engine's turns on real models and a real text: what comes later, restarts, background
reading, few bits and cancel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from app.chat.sample import sample
from app.protocol.commands import Ask, CachePolicy, Load
from app.protocol.events import BackgroundProgress, Finished, Loaded, Planned, SnapshotRestored
from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason, Reading
from tests.engine import driver as driving
from tests.engine.driver import Driver
from tests.engine.test_engine import BORDERS

pytestmark = pytest.mark.real
SHORT, LONG = 5_000, 9_500
"""Characters: a thousand tokens, and two."""
STEP = 256
"""Tokens: steps that follow the machine's pace round differently, and few bits show it."""
QUESTIONS = ("What is the GPL?", "What does it say about conveying object code?")


@pytest.fixture(params=["smollm2", "gemma3"])
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "LIMIT", 900.0)


def loaded(folder: Path, step: int | None = None, kv_bits: int | None = None) -> Driver:
    """The model is its own draft."""
    driver = Driver(step)
    driver.engine.send(Load(str(folder), str(folder), kv_bits=kv_bits))
    event = driver.until(Loaded)
    assert isinstance(event, Loaded)
    assert event.dense_only is None
    return driver


@pytest.fixture
def driver(folder: Path) -> Iterator[Driver]:
    driver = loaded(folder)
    yield driver
    driver.close()


def ask(turn: int, length: int = LONG, mode: Mode = Mode.SPARSE, tokens: int = 12) -> Ask:
    document = Document("licence.txt", sample().text[:length])
    message = Message(Role.USER, QUESTIONS[0], (document,))
    return Ask((message,), mode, 0.2, Sampling(max_tokens=tokens), conversation="c")


def later(first: Ask, text: str, ids: tuple[int, ...], turn: int) -> Ask:
    answer = Message(Role.ASSISTANT, text, token_ids=ids)
    messages = (*first.messages, answer, Message(Role.USER, QUESTIONS[1]))
    return replace(first, messages=messages)


def test_keeping_everything_is_the_answer_of_plain_mlx_lm(driver: Driver, folder: Path) -> None:
    finished = driver.answer(replace(ask(1), keep_ratio=1.0, conversation=None))
    (planned,) = driver.of(Planned)
    assert finished.statistics
    assert finished.statistics.read_fraction == 1.0
    prompt = mx.array(planned.prompt_ids)
    model, _ = load_model(folder)
    plain = [t for t, _ in generate_step(prompt, model, max_tokens=12, prefill_step_size=256)]
    assert list(finished.generated_ids) == plain[: len(finished.generated_ids)]


@pytest.mark.parametrize("kv_bits", [None, 8, 4])
def test_a_later_turn_recalls_and_is_the_same_after_a_restart(
    folder: Path, tmp_path: Path, kv_bits: int | None
) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path))
    stopped = loaded(folder, STEP, kv_bits)
    stopped.engine.send(policy)
    stopped.answer(ask(1))
    stopped.close()  # saved after the first turn

    running = loaded(folder, STEP, kv_bits)
    first = running.answer(ask(1))
    question = later(ask(1), first.text, first.generated_ids, 2)
    expected = running.answer(question).statistics
    assert expected
    assert expected.fallback is None
    assert expected.reading is Reading.SPARSE
    assert min(expected.reused_tokens, expected.recalled_tokens) > 0
    running.close()

    restarted = loaded(folder, STEP, kv_bits)
    restarted.engine.send(policy)
    second = restarted.answer(question)
    (restored,) = restarted.of(SnapshotRestored)
    assert restored.tokens > 0
    assert second.statistics
    assert second.statistics.reused_tokens == expected.reused_tokens
    assert second.statistics.recalled_tokens == expected.recalled_tokens
    assert second.generated_ids == running.of(Finished)[-1].generated_ids
    restarted.close()


def test_what_was_read_in_the_background_is_what_a_full_reading_reads(driver: Driver) -> None:
    driver.engine.send(CachePolicy(background=BackgroundPolicy.ALWAYS))
    first = driver.answer(ask(1))
    while True:
        event = driver.until(BackgroundProgress)
        assert isinstance(event, BackgroundProgress)
        if event.done == event.total:
            break
    full = replace(later(ask(1), first.text, first.generated_ids, 2), mode=Mode.FULL)
    finished = driver.answer(full)
    assert finished.statistics
    assert finished.statistics.reused_tokens >= event.total
    fresh = driver.answer(replace(full, conversation=None))
    assert fresh.generated_ids == finished.generated_ids


def test_cancelled_at_every_border_the_next_turn_is_as_fresh(folder: Path) -> None:
    driver = loaded(folder, step=128)
    driver.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    fresh = driver.answer(ask(100, SHORT))
    for number, (border, reached) in enumerate(BORDERS.items(), start=1):
        driver.cancel_when(reached)
        question = ask(number, SHORT, tokens=1000 if border == "decoding" else 12)
        stopped = driver.answer(replace(question, conversation=border))
        driver.on_event = lambda event: None
        assert stopped.finish_reason is FinishReason.CANCELLED, border
        again = replace(ask(100 + number, SHORT), conversation=border)
        assert driver.answer(again).generated_ids == fresh.generated_ids, border
    driver.close()
