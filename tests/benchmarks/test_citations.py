"""Stored answers are cited again without a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import measure
from benchmarks.citations import AGAIN, Row, read_table, write_table
from benchmarks.quality.real_documents import Fact, load_facts

pytestmark = pytest.mark.benchmarks


def fact_and_text(tmp_path: Path) -> Fact:
    fact = load_facts("passages/english.toml")[0]
    (tmp_path / fact.document).write_text(f"{fact.passage}\n\nThis is about something else.\n")
    return fact


def row(fact: Fact, model: str, sentence: str, kind: str, passage: str = "") -> Row:
    right = "yes" if passage else ""
    return Row("english-0", model, fact.document, fact.question, sentence, kind, "", passage, right)


def again(tmp_path: Path) -> list[Row]:
    arguments = ["citations", "--again", "--texts", str(tmp_path)]
    assert measure([*arguments, "--out", str(tmp_path / "new.tsv")]) == 0
    return read_table(tmp_path / AGAIN)


def test_stored_answers_are_cited_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fact = fact_and_text(tmp_path)
    quoted = "is a sentence that nobody wrote"
    rows = [row(fact, "facts", fact.answer, "none"), row(fact, "a", quoted, "quotation", quoted)]
    write_table(tmp_path / "some.tsv", rows)

    (found,) = again(tmp_path)
    assert (found.sentence, found.kind, found.right) == (fact.answer, "support", "")
    printed = capsys.readouterr().out
    assert "support: 1\n" in printed
    assert f"gone: {quoted}" in printed

    write_table(tmp_path / AGAIN, [row(fact, "facts", found.sentence, "support", found.passage)])
    assert len(again(tmp_path)) == 1
    assert "support: 1, 1 of 1 judged right" in capsys.readouterr().out


def test_a_hidden_passage_is_not_cited(tmp_path: Path) -> None:
    fact = fact_and_text(tmp_path)
    write_table(tmp_path / "some-hidden.tsv", [row(fact, "facts", fact.answer, "none")])
    assert again(tmp_path) == []
