"""The scorer of CONTRIBUTING.md, as written there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.protocol.events import Selected
from app.protocol.options import Mode
from app.protocol.prompt import Document, Message, Role
from tests import tiny
from tests.engine.driver import Driver, question
from tests.worked_examples import module_of

TEXT = "Nothing is here. " * 40 + "The vault opens at nine. " + "Nothing is here. " * 40


def test_the_scorer_selects_the_words_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of("Add a scorer", "app.engine.scorers.shared_words", monkeypatch)
    driver = Driver(64, choose_scorer=lambda pair, tokens: module.SharedWordsScorer())
    driver.load(tiny.save(tmp_path / "model"))
    message = Message(Role.USER, "When does the vault open?", (Document("a.txt", TEXT),))
    ask = replace(question(Mode.SPARSE, 0.2, tokens=2), messages=(message,))
    statistics = driver.figures(ask)
    assert statistics.fallback is None
    texts = driver.of(Selected)[-1].texts
    at = TEXT.index("The vault")
    assert any(each.start <= at < each.end for each in texts)
    driver.close()
