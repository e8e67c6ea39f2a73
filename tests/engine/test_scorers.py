"""The default scorers: a draft's attention, and its combination with the built-in scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt, PromptText
from app.engine.scorers import choice
from app.engine.scorers.attention import AttentionScorer
from app.engine.scorers.choice import (
    ChooseScorer,
    JoinedScorer,
    choose_scorer,
    importance_for_target,
)
from app.engine.scorers.scorer import Scorer
from app.models.embedded import draft_path, target_path
from app.protocol.commands import Ask, CachePolicy, Load
from app.protocol.events import Finished, Loaded, PhaseProgress, Selected
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason, Phase, Reading
from app.util.assets import assets_path
from tests import tiny
from tests.engine.driver import Driver, question

LICENCE = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
DOCUMENT = Document("gpl", LICENCE[18500:25000])
REWORDED, PASSAGE = "How many days do I have to fix a violation?", "prior to 30 days after"
Spans = tuple[tuple[int, int], ...]
Select = Callable[[ChooseScorer], Spans]


class Chosen:
    """A `choose_scorer` that returns `wanted` if set, else the product's choice."""

    def __init__(self) -> None:
        self.wanted: ChooseScorer = choose_scorer

    def __call__(self, pair: ModelPair, tokens: int) -> Scorer:
        return self.wanted(pair, tokens)


def by_both(pair: ModelPair, tokens: int) -> Scorer:
    return JoinedScorer(AttentionScorer())


def by_attention(pair: ModelPair, tokens: int) -> Scorer:
    return AttentionScorer()


@pytest.fixture(scope="module")
def chosen() -> Chosen:
    return Chosen()


@pytest.fixture(scope="module")
def shared(chosen: Chosen) -> Iterator[Driver]:
    driver = Driver(64, choose_scorer=chosen)
    driver.load(target_path(), draft_path())
    yield driver
    driver.close()


@pytest.fixture
def driver(shared: Driver, chosen: Chosen) -> Driver:
    chosen.wanted = choose_scorer
    return shared.fresh()


@pytest.fixture
def selected(driver: Driver, chosen: Chosen) -> Select:
    def selected(wanted: ChooseScorer) -> Spans:
        chosen.wanted = wanted
        message = Message(Role.USER, REWORDED, (DOCUMENT,))
        ask = replace(question(Mode.SPARSE, 0.2, tokens=2), messages=(message,))
        finished = driver.answer(ask)
        assert finished.statistics.fallback is None
        assert finished.statistics.reading is Reading.SPARSE
        return tuple((text.start, text.end) for text in driver.of(Selected)[-1].texts)

    return selected


def test_a_reworded_question_finds_its_passage(selected: Select) -> None:
    at = DOCUMENT.text.index(PASSAGE)
    spans = selected(by_both)
    assert any(start <= at and at + len(PASSAGE) <= end for start, end in spans)


@pytest.mark.slow
def test_joined_scoring_is_the_default_for_larger_drafts(
    selected: Select, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = selected(by_attention)
    assert selected(choose_scorer) == alone
    monkeypatch.setattr(choice, "JOINED_FROM", 0)
    assert selected(choose_scorer) == selected(by_both) != alone


@pytest.mark.slow
def test_a_prompt_too_long_for_the_small_draft_is_scored_by_both(
    selected: Select, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, alone = selected(by_both), selected(by_attention)
    assert selected(choose_scorer) == alone
    monkeypatch.setattr(choice, "ALONE_UP_TO", 100)
    assert selected(choose_scorer) == joined != alone


def test_without_memory_for_the_encoder_attention_decides(
    selected: Select, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = selected(by_attention)
    monkeypatch.setattr(choice, "ENCODER_BYTES", memory.free() + (1 << 40))
    assert selected(by_both) == alone


def test_progress_never_goes_back_and_scoring_can_be_cancelled(
    driver: Driver, selected: Select
) -> None:
    selected(by_both)
    done = [e.done for e in driver.of(PhaseProgress) if e.phase is Phase.SCORE]
    assert done == sorted(done)
    assert done[-1] > 0
    driver.cancel_when(lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.SCORE)
    ask = question(Mode.SPARSE, 0.2)
    other = Document("other", LICENCE[:8000])
    finished = driver.answer(replace(ask, messages=(Message(Role.USER, REWORDED, (other,)),)))
    assert finished.finish_reason is FinishReason.CANCELLED


@pytest.mark.slow
def test_a_repeated_turn_selects_the_same_after_a_cancel(driver: Driver, chosen: Chosen) -> None:
    chosen.wanted = by_both

    def ask(conversation: str) -> Ask:
        message = Message(Role.USER, REWORDED, (DOCUMENT,))
        asked = question(Mode.SPARSE, 0.3)
        return replace(asked, messages=(message,), conversation=conversation)

    def spans() -> tuple[tuple[int, int], ...]:
        return tuple((span.start, span.end) for span in driver.of(Selected)[-1].spans)

    driver.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    whole = driver.answer(ask("whole"))
    expected = spans()
    driver.cancel_when(
        lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.PREFILL and e.done > 100
    )
    assert driver.answer(ask("stopped")).finish_reason is FinishReason.CANCELLED
    driver.on_event = lambda event: None
    again = driver.answer(ask("stopped"))
    assert again.statistics.reused_tokens > 100
    assert spans() == expected
    assert again.generated_ids == whole.generated_ids


Starts = NDArray[np.int64]
PAIR = Load(str(target_path()), str(draft_path()))
SCRIPTS = "\n".join(
    [
        "The gate number of the east wing is 5120, and it opens at noon.",
        "Номер восточных ворот — 5120, они открываются в полдень.",
        "東門の番号は五一二〇で、正午に開きます。",
        "رقم البوابة الشرقية هو 5120 وتفتح عند الظهر.",
        "Das Osttor trägt die Nummer 5120 und öffnet um zwölf. 🙂👩‍👩‍👧",
    ]
    * 12
)


def prompt_of(starts: Starts, draft: Prompt | None = None, first: int = 0) -> Prompt:
    """A prompt of one document after `first` template tokens."""
    ids = np.zeros(first + len(starts) - 1, np.int32)
    text = PromptText(0, 0, False, first, starts)
    return Prompt(ids, (), {(0, 0): starts}, texts=(text,), for_draft=draft)


TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=12)
"""Number of tokens that start at each character (0: it belongs to the previous token)."""
GRID = 12
"""Subdivisions of a character, for tokens that are parts of one."""


def starts_of(counts: list[int]) -> Starts:
    return np.array(
        [*np.repeat(np.arange(len(counts)), [counts[0] or 1, *counts[1:]]), len(counts)]
    )


def tokens_on_grid(starts: Starts) -> NDArray[np.intp]:
    """The index of the token for each subdivision of the text."""
    found: list[int] = []
    for start in np.unique(starts[:-1]):
        tokens = np.flatnonzero(starts[:-1] == start)
        width = starts[starts > start].min() - start
        found += np.repeat(tokens, GRID * width // len(tokens)).tolist()
    return np.array(found)


@given(TOKENS, st.data(), st.integers(0, 3), st.integers(0, 3))
def test_importance_is_transferred_by_characters(
    counts: list[int], data: st.DataObject, before: int, before_draft: int
) -> None:
    same_length = st.lists(st.integers(0, 4), min_size=len(counts), max_size=len(counts))
    ours, theirs = starts_of(counts), starts_of(data.draw(same_length))
    scores = np.arange(1.0, len(theirs), dtype=np.float32)
    prompt = prompt_of(ours, prompt_of(theirs, first=before_draft), before)
    found = importance_for_target(
        np.concatenate([np.ones(before_draft, np.float32), scores]), prompt
    )
    assert (found[:before] == 0).all()
    own, by_draft = tokens_on_grid(ours), scores[tokens_on_grid(theirs)]
    expected = [by_draft[own == token].mean() for token in range(len(ours) - 1)]
    assert found[before:] == pytest.approx(expected, rel=1e-5)


def test_text_that_the_draft_does_not_read_has_no_importance() -> None:
    starts = np.arange(4, dtype=np.int64)
    thinking = PromptText(1, None, True, 3, starts)
    prompt = replace(prompt_of(starts), ids=np.zeros(6, np.int32))
    prompt = replace(prompt, texts=(*prompt.texts, thinking), for_draft=prompt_of(starts))
    found = importance_for_target(np.ones(3, np.float32), prompt)
    assert found.tolist() == [1, 1, 1, 0, 0, 0]


def answers(load: Load, documents: tuple[Document, ...]) -> list[tuple[Finished, Selected]]:
    """The selections of two turns of a conversation."""
    driver, found = Driver(64), []
    try:
        driver.engine.send(load)
        event = driver.until(Loaded)
        assert event.dense_only is None
        messages: tuple[Message, ...] = ()
        for turn, text in enumerate(["What is the number of the east gate?", "When?"], start=1):
            messages += (Message(Role.USER, text, documents if turn == 1 else ()),)
            ask = replace(question(), messages=messages, conversation="c")
            finished = driver.answer(replace(ask, mode=Mode.SPARSE, keep_ratio=0.2))
            assert finished.statistics.fallback is None
            assert finished.statistics.reading is Reading.SPARSE
            ids = finished.generated_ids
            messages += (Message(Role.ASSISTANT, finished.text, token_ids=ids),)
            found.append((finished, driver.of(Selected)[-1]))
    finally:
        driver.close()
    return found


@pytest.mark.slow
def test_a_draft_with_the_targets_tokenizer_selects_the_same_as_a_foreign_one() -> None:
    """Tests five scripts, two turns and two documents; the answers are the same, too."""
    documents = (Document("gates.txt", SCRIPTS), Document("again.txt", SCRIPTS[::-1]))
    own = answers(PAIR, documents)
    foreign = answers(replace(PAIR, foreign_draft=True), documents)
    for (ours, selected), (theirs, by_foreign) in zip(own, foreign, strict=True):
        assert [(s.start, s.end) for s in selected.spans] == [
            (s.start, s.end) for s in by_foreign.spans
        ]
        assert selected.texts == by_foreign.texts
        assert ours.generated_ids == theirs.generated_ids


def test_the_embedded_draft_selects_for_a_target_that_reads_bytes(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    target = tiny.save(tmp_path / "target", "llama", template=template)
    load = Load(str(target), str(draft_path()), foreign_draft=True)
    text = SCRIPTS[: len(SCRIPTS) // 2]
    for _, selected in answers(load, (Document("gates.txt", text),)):
        read = "".join(text[each.start : each.end] for each in selected.texts)
        assert "5120" in read
        assert len(read.encode()) < 0.4 * len(text.encode())
