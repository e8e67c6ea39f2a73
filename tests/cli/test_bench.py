"""`specchat bench` and `specchat eval` measure a pair of one's own."""

from __future__ import annotations

import json
from random import Random

import pytest

from app.cli.evaluate import KINDS, document, is_right
from app.cli.main import run


def test_bench_prints_one_table_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--length", "512", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("specchat ")
    assert "embedded with its draft, medians of 1" in out
    for row in ("first word", "tokens read", "tokens a second", "peak memory"):
        assert f"\n{row}" in out
    assert " times as soon as in full." in out


def test_bench_gives_every_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--length", "512", "--runs", "2", "--keep", "0.5", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["target"], measured["draft"]) == ("embedded", "its draft")
    assert len(measured["runs"]) == 2
    for each in measured["runs"]:
        assert each["sparse"]["read_tokens"] < each["full"]["read_tokens"]
        assert each["full"]["prompt_tokens"] == pytest.approx(512, rel=0.25)
        assert each["sparse"]["ttft"] > 0


def test_eval_asks_every_kind_sparsely_and_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "--length", "512", "--n", "1", "--keep", "0.3"]
    assert run([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in results] == [*KINDS]
    found = next(each for each in results if each["kind"] == "needle")
    assert found["full"]["right"]
    assert found["sparse"]["right"]
    assert found["sparse"]["read_fraction"] < 0.6
    assert found["full"]["read_fraction"] == 1.0
    assert run(words) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == [
        "questions",
        "in",
        "full",
        "sparse",
        "lost",
        "read",
        "first",
        "word",
    ]
    assert [line.split()[:2] for line in table[1:4]] == [[kind, "1"] for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_asked_stands_in_the_text(kind: str) -> None:
    for seed in range(20):
        task = KINDS[kind](Random(seed))
        text = document(task, 600, Random(seed))
        assert all(text.count(line) == 1 for line in task.lines)
        assert kind == "count" or is_right(text, task.expected)
        assert kind != "count" or text.count("is marked LATE.") == int(task.expected)


@pytest.mark.parametrize(
    ("answer", "right"),
    [("It is 42.", True), ("142", False), ("42,\n7", True), ("forty-two", False), ("", False)],
)
def test_a_right_answer_has_the_value_as_a_word(answer: str, right: bool) -> None:
    assert is_right(answer, "42") is right


@pytest.mark.parametrize(
    "words", ["bench --length 5", "bench --keep 2", "eval --n 0", "bench --target nope"]
)
def test_what_cannot_be_measured_is_one_sentence(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert capsys.readouterr().err.count("\n") == 1
