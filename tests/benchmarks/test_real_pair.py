"""The tables of a real pair, measured on the embedded one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from app.chat.sample import sample
from app.errors import UserError
from app.models.embedded import EMBEDDED
from benchmarks import real_pair
from benchmarks.__main__ import parser
from benchmarks.quality.suites import SUITES, Item, make
from benchmarks.quality.tokens import Tokens
from benchmarks.real_pair import Cell, Figures, Log, measure

pytestmark = pytest.mark.benchmarks

Options = Callable[[str], argparse.Namespace]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options of a table about the embedded pair."""
    monkeypatch.setattr(real_pair, "long_text", lambda: sample().text * 20)
    fixed = ["--target", EMBEDDED, "--drafts", EMBEDDED, "--results", str(tmp_path)]
    return lambda text: parser().parse_args(["pair", *text.split(), *fixed])


def test_a_measurement_is_made_once(tmp_path: Path) -> None:
    path, made = tmp_path / "new" / "table.jsonl", list[int]()

    def figures(subject: str, cell: Cell) -> Figures:
        made.append(cell["length"])
        return {"seconds": cell["length"] / 2, "text": subject}

    cells = [{"length": length, "way": 0.2} for length in (10, 20, 30)]
    Log(path).fill(cells[:2], partial(nullcontext, "pair"), figures)
    Log(path).fill([dict(reversed(cell.items())) for cell in cells], nullcontext[Any], figures)
    assert made == [10, 20, 30]
    assert Log(path).medians(cells) == {"seconds": 10.0}
    assert Log(path).figures(cells[:1]) == [{"seconds": 5.0, "text": "pair"}]
    assert Log(path).figures([{"length": 40, "way": 0.2}]) == []
    Log(path).fill(cells, never, figures)


def never() -> AbstractContextManager[Any]:
    raise AssertionError("nothing is loaded if everything is known")


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path, cells = tmp_path / "table.jsonl", [{"run": number} for number in range(2)]
    Log(path).fill(cells, nullcontext[None], lambda subject, cell: {"seconds": 1.0})
    path.write_text(path.read_text()[:-20])
    assert Log(path).figures(cells) == [{"seconds": 1.0}]
    Log(path).fill(cells, nullcontext[None], lambda subject, cell: {"seconds": 2.0})
    assert Log(path).figures(cells) == [{"seconds": 1.0}, {"seconds": 2.0}]


def test_the_first_word_is_compared_with_full_reading_and_mlx_lm(
    options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(options("first-word --length 512 --keep 0.2 --markdown")) == 0
    records = [
        json.loads(line) for line in (tmp_path / "first-word.jsonl").read_text().splitlines()
    ]
    assert [each["cell"]["way"] for each in records] == ["mlx-lm", "full", 0.2]
    mlx_lm, full, sparse = (each["figures"] for each in records)
    assert mlx_lm["read"] == full["read"] == full["prompt"] > sparse["read"] > 0
    table = capsys.readouterr().out
    faster = full["cpu_seconds"] / sparse["cpu_seconds"]
    assert f"| {faster:.2f} |" in table.replace("  ", " ")
    measure(options("first-word --length 512 --keep 0.2 --markdown --clock"))
    table = capsys.readouterr().out
    assert f"| {full['seconds'] / sparse['seconds']:.2f} |" in table.replace("  ", " ")
    assert table.startswith(f"{records[0]['machine']}\n\n")
    assert len((tmp_path / "first-word.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_the_second_conversation_reuses_the_instructions(options: Options, tmp_path: Path) -> None:
    measure(options("prefix --length 512"))
    lines = (tmp_path / "prefix.jsonl").read_text().splitlines()
    found = {
        (record["cell"]["mode"], record["cell"]["share"]): record["figures"]
        for record in map(json.loads, lines)
    }
    assert found["full", False]["reused"] == found["sparse", False]["reused"] == 0
    assert found["full", True]["reused"] > 1000
    assert found["sparse", True]["reused"] > 1000


def test_answers_are_the_same_with_proposals(options: Options, tmp_path: Path) -> None:
    measure(options("writing --tokens 12"))
    (line,) = (tmp_path / "writing.jsonl").read_text().splitlines()
    figures = json.loads(line)["figures"]
    assert figures["same"] == 1
    assert figures["written"] == 12
    assert figures["plain"] > 0
    assert figures["fast"] > 0


def test_sampled_answers_are_the_same_with_proposals(options: Options, tmp_path: Path) -> None:
    measure(options("writing --tokens 12 --temperature 3 --runs 2"))
    records = [*map(json.loads, (tmp_path / "writing.jsonl").read_text().splitlines())]
    assert [record["figures"]["same"] for record in records] == [1, 1]
    first, second = (record["figures"]["text"] for record in records)
    assert first != second, "the runs have different seeds"


def test_how_much_proposals_could_help(
    options: Options,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="measure `writing` first"):
        measure(options("agreement --tokens 12"))
    measure(options("writing --tokens 12"))
    same = partial(its_own_draft, real_pair.loaded)
    monkeypatch.setattr(real_pair, "loaded", same)
    measure(options("agreement --tokens 12"))
    costs, answer = map(json.loads, (tmp_path / "agreement.jsonl").read_text().splitlines())
    assert costs["figures"]["cost_16"] > 0
    assert costs["figures"]["draft"] > 0
    assert answer["figures"]["of"] in range(10, 14)
    assert answer["figures"]["agreed"] >= answer["figures"]["of"] - 2
    assert "quoting" in capsys.readouterr().out


@contextmanager
def its_own_draft(loaded: Any, target: str, draft: str) -> Iterator[Any]:
    """A pair whose draft is its target."""
    with loaded(target, draft) as pair:
        yield replace(pair, draft=pair.target)


class OneQuestion:
    """Instead of a corpus of documents that must be fetched."""

    def __init__(self, files: object, tokens: Tokens) -> None:
        self._tokens = tokens

    def check(self, suites: object) -> None:
        pass

    def item(self, suite: str, index: int, length: int, seed: int) -> Item:
        item = make(SUITES["lookup"], 0, length, seed, self._tokens.count)
        return replace(item, answer="none of them") if index else item


def test_the_likelihood_of_the_right_answer(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second question expects a wrong answer."""
    monkeypatch.setattr(real_pair, "read_inputs", mock.Mock(return_value=mock.Mock(results=[])))
    monkeypatch.setattr(real_pair, "Corpus", OneQuestion)
    measure(options("likelihood --suite answer-english --length 512 --keep 0.1 --n 2"))
    lines = (tmp_path / "likelihood.jsonl").read_text().splitlines()
    found = {
        (record["cell"]["index"], record["cell"]["way"]): record["figures"]
        for record in map(json.loads, lines)
    }
    for way in ("full", 0.1):
        assert found[1, way]["log"] < -1 < found[0, way]["log"] < 0
    assert found[0, 0.1]["read"] < 0.5 < found[0, "full"]["read"] == 1


def test_what_is_selected_in_two_number_formats(
    options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(options("scores --length 512 --keep 0.2"))
    (record,) = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
    same, of = record["figures"]["same"], record["figures"]["of"]
    assert 0 < same <= of < 512
    assert f"{same / of:.1%}" in capsys.readouterr().out


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(options: Options) -> None:
    with pytest.raises(UserError, match="131,071 tokens before the answer"):
        measure(options("first-word --length 128k --keep 0.5"))
