"""A draft with another tokenizer: its importance goes by characters, and where both read the same
tokens nothing changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.model.prompt import Prompt, PromptText
from app.engine.scorers.foreign import importance_for_target
from app.models.embedded import draft_path, target_path
from app.protocol.commands import Load
from app.protocol.events import Finished, Loaded, Selected
from app.protocol.options import Mode
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Reading
from tests import tiny
from tests.engine.driver import Driver, question

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
    """Of one document, after `first` tokens of a template."""
    ids = np.zeros(first + len(starts) - 1, np.int32)
    text = PromptText(0, 0, False, first, starts)
    return Prompt(ids, (), {(0, 0): starts}, texts=(text,), for_draft=draft)


TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=12)
"""How many tokens start at each character; 0: it belongs to the one before."""
GRID = 12
"""Parts of a character, to measure tokens that are parts of one."""


def starts_of(counts: list[int]) -> Starts:
    return np.array(
        [*np.repeat(np.arange(len(counts)), [counts[0] or 1, *counts[1:]]), len(counts)]
    )


def tokens_on_grid(starts: Starts) -> NDArray[np.intp]:
    """The token of each part of the text."""
    found: list[int] = []
    for start in np.unique(starts[:-1]):
        tokens = np.flatnonzero(starts[:-1] == start)
        width = starts[starts > start].min() - start
        found += np.repeat(tokens, GRID * width // len(tokens)).tolist()
    return np.array(found)


@given(TOKENS, st.data(), st.integers(0, 3), st.integers(0, 3))
def test_a_token_is_as_important_as_its_characters(
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


def test_what_the_draft_does_not_read_is_not_important() -> None:
    starts = np.arange(4, dtype=np.int64)
    thinking = PromptText(1, None, True, 3, starts)
    prompt = replace(prompt_of(starts), ids=np.zeros(6, np.int32))
    prompt = replace(prompt, texts=(*prompt.texts, thinking), for_draft=prompt_of(starts))
    found = importance_for_target(np.ones(3, np.float32), prompt)
    assert found.tolist() == [1, 1, 1, 0, 0, 0]


def answers(load: Load, documents: tuple[Document, ...]) -> list[tuple[Finished, Selected]]:
    """Two turns of a conversation, and what they select."""
    driver, found = Driver(64), []
    try:
        driver.engine.send(load)
        event = driver.until(Loaded)
        assert isinstance(event, Loaded)
        assert event.dense_only is None
        messages: tuple[Message, ...] = ()
        for turn, text in enumerate(["What is the number of the east gate?", "When?"], start=1):
            messages += (Message(Role.USER, text, documents if turn == 1 else ()),)
            ask = replace(question(), messages=messages, conversation="c")
            finished = driver.answer(replace(ask, mode=Mode.SPARSE, keep_ratio=0.2))
            assert finished.statistics
            assert finished.statistics.fallback is None
            assert finished.statistics.reading is Reading.SPARSE
            ids = finished.generated_ids
            messages += (Message(Role.ASSISTANT, finished.text, token_ids=ids),)
            found.append((finished, driver.of(Selected)[-1]))
    finally:
        driver.close()
    return found


def test_a_draft_with_the_targets_tokenizer_selects_the_same_as_a_foreign_one() -> None:
    """In five scripts, over two turns and two documents; its answers are the same, too."""
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
