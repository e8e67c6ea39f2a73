"""What is read for a question about a document as a whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.engine.model.prompt import Prompt
from app.engine.pair_loader import load_pair
from app.engine.scorers.overview import BEGINNING, evenly_spread, overview_importance
from app.engine.scorers.selection import adaptive_keep, select
from app.models.embedded import target_path
from app.protocol.commands import Load
from app.protocol.events import Loaded, PhaseProgress, Selected
from app.protocol.options import Mode
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Phase, Reading
from app.util.assets import assets_path
from tests.engine.driver import Driver, question
from tests.tables import table

QUESTION = "What is this about?"
LICENCE = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
CHUNK = 32


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    lines = "".join(f"{number};{number * 7};red\n" for number in range(400))
    documents = (Document("gpl", LICENCE), Document("table.csv", lines))
    return load_pair(Load(str(target_path()))).prompts.build(
        (Message(Role.USER, QUESTION, documents),)
    )


@table("count", [1, 2, 3, 64, 100, 1000])
def test_the_highest_scores_are_evenly_spread(count: int) -> None:
    order = np.argsort(-evenly_spread(count))
    assert sorted(order) == list(range(count))
    for share in (0.05, 0.1, 0.3, 0.5):
        top = np.sort(order[: max(int(share * count), 2)])
        gaps = np.diff([0, *top, count - 1])
        assert gaps.max() <= 2 * count / len(top) + 2


def test_beginnings_come_first_then_headings_then_an_even_spread(prompt: Prompt) -> None:
    importance = overview_importance(prompt, CHUNK)
    assert not importance[prompt.pinned].any()
    licence, table = (text for text in prompt.texts if text.document is not None)
    for text in (licence, table):
        beginning = importance[text.first : text.first + BEGINNING * CHUNK]
        assert beginning.min() >= np.sort(importance)[-2 * BEGINNING * CHUNK]
    heading = licence.first + int(
        np.searchsorted(licence.starts, LICENCE.index("  8. Termination."), side="right")
    )
    rows = importance[table.first + BEGINNING * CHUNK : table.first + len(table.starts) - 1]
    assert importance[heading] > rows.max(), "rows are no headings"


@pytest.mark.parametrize("keep", [0.1, 0.2])
def test_no_large_part_of_the_document_is_left_out(prompt: Prompt, keep: float) -> None:
    importance = overview_importance(prompt, CHUNK)
    (licence, *_) = (text for text in prompt.texts if text.document is not None)
    positions = select(importance, prompt.pinned, keep).positions
    first, last = licence.first, licence.first + len(licence.starts) - 1
    own = positions[(first <= positions) & (positions < last)]
    assert np.diff([first, *own, last]).max() < 0.25 * (last - first)
    assert 0.05 < adaptive_keep(importance, prompt.pinned) < 0.4


def test_a_turn_about_the_whole_document_reads_its_beginning_and_scores_nothing() -> None:
    driver = Driver(64)
    try:
        driver.engine.send(Load(str(target_path())))
        driver.until(Loaded)
        message = Message(Role.USER, QUESTION, (Document("gpl", LICENCE[:12000]),))
        ask = replace(question(Mode.SPARSE, 0.1, tokens=2), messages=(message,))
        finished = driver.answer(ask)
        assert finished.statistics.fallback is None
        assert finished.statistics.reading is Reading.SPARSE
        assert all(e.phase is not Phase.SCORE for e in driver.of(PhaseProgress))
        assert any(each.start == 0 for each in driver.of(Selected)[-1].texts)
    finally:
        driver.close()
