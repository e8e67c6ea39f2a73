"""The `quality` command: table, files, invalid options, exit status and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app import paths
from app.cli import main
from app.models.embedded import target_path
from app.protocol.commands import Ask
from app.protocol.options import Mode
from app.protocol.reasons import Reason, ReasonCode
from benchmarks.__main__ import measure
from benchmarks.quality import command as evaluate
from benchmarks.quality.settings import ScoringSwitch
from tests.benchmarks.quality.reader import Reader

pytestmark = pytest.mark.benchmarks


def run(arguments: list[str]) -> int:
    return main.run(arguments, measure)


TEXT = "".join(f"Line {n} says {n * n}.\n" for n in range(400))
SHORT = ["quality", "--suite", "needle-single", "--length", "512", "--keep", "0.2,1", "--n", "3"]
RUNS = 3 * 3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(paths, "cache_path", lambda: folder)
    return folder


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    engine = Reader()

    def made(choose_scorer: ScoringSwitch) -> Reader:
        engine.switch = choose_scorer
        return engine

    monkeypatch.setattr(evaluate, "MlxEngine", made)
    return engine


def test_the_table_goes_to_output(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SHORT, "--scoring", "random,both"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert out.index("512 tokens, scoring both") < out.index("512 tokens, scoring random")
    assert re.search(r"^needle-single +0\.2 +3 +100% +100% +44–100 +0 +0 ", out, re.M)
    assert "At keep 1, all 6 answers equal the dense ones." in out
    assert len(reader.asks) == 3 * 5


def test_results_are_kept_and_fresh_forgets_them(
    reader: Reader, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(SHORT) == 0
    first = capsys.readouterr().out
    assert len(list((cache / "eval").iterdir())) == 1
    assert run(SHORT) == 0
    assert capsys.readouterr().out == first
    assert len(reader.asks) == RUNS
    assert run([*SHORT, "--fresh"]) == 0
    assert len(reader.asks) == 2 * RUNS


def test_saved_results_are_reported_without_their_models(
    reader: Reader, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SHORT, "--report", str(tmp_path / "first.md")]) == 0
    first = capsys.readouterr().out
    (log,) = (cache / "eval").iterdir()
    saved = log.rename(tmp_path / "saved.jsonl")
    again = [*SHORT, "--saved", str(saved), "--report", str(tmp_path / "again.md")]
    assert run(again) == 0
    assert capsys.readouterr().out == first
    texts = [(tmp_path / name).read_text() for name in ("first.md", "again.md")]
    first_report, report = (re.sub("```sh\n.+\n```", "", text) for text in texts)
    assert first_report == report
    assert len(reader.asks) == RUNS
    assert run([*SHORT, "--n", "5", "--saved", str(saved)]) == 0
    assert "6 of 15 runs were not measured." in capsys.readouterr().out


def test_the_first_saved_log_that_has_a_result_counts(
    reader: Reader, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(SHORT) == 0
    expected = capsys.readouterr().out
    (log,) = (cache / "eval").iterdir()
    lines = log.read_text().splitlines(keepends=True)
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    changed = lines[0].replace('"machine": "', '"machine": "another machine, ')
    logs[0].write_text("".join([lines[0], *lines[1::2]]))
    logs[1].write_text("".join([changed, *lines[1:]]))
    report = tmp_path / "report.md"
    saved = [part for path in logs for part in ("--saved", str(path))]
    assert run([*SHORT, *saved, "--report", str(report)]) == 0
    assert capsys.readouterr().out == expected
    assert "; another machine, " in report.read_text()
    assert " ".join(saved) in report.read_text()


def test_sparse_only_skips_dense_reading(
    reader: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 64K tokens, dense reading takes minutes for each item."""
    report, figures = tmp_path / "report.md", tmp_path / "figures.json"
    written = ["--report", str(report), "--json", str(figures)]
    assert run([*SHORT, "--sparse-only", *written]) == 0
    assert {ask.mode for ask in reader.asks} == {Mode.SPARSE}
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "Nothing was read in full" in out
    assert re.search(r"^needle-single +both +512 +0\.2 +3 +3 +44–100 ", out, re.M)
    text = report.read_text()
    assert "# Sparse reading by itself" in text
    assert "| needle-single | both | 512 | 0.2 | 3 | 3 | 44–100 |" in text
    assert " --sparse-only " in text
    (row, *_) = json.loads(figures.read_text())["sparse_only"]
    assert (row["n"], row["right"], row["fell_back"]) == (3, 3, 0)
    # Sparse results are reused when dense ones are added.
    before = len(reader.asks)
    assert run(SHORT) == 0
    assert {ask.mode for ask in reader.asks[before:]} == {Mode.FULL}


def test_only_items_that_were_right_in_full_are_asked_again(
    reader: Reader, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong answer counts against sparse reading only where full reading is right."""
    assert run(SHORT) == 0
    (log,) = (cache / "eval").iterdir()
    before = tmp_path / "before.jsonl"
    right = '"mode": "full", "keep": 1.0, "scoring": "", "right": true'
    wrong = right.replace(', "right": true', "")
    lines = log.read_text().splitlines(keepends=True)
    dense = [line for line in lines if right in line]
    assert len(dense) == 3
    lines[lines.index(dense[1])] = dense[1].replace(right, wrong)
    before.write_text("".join(lines))
    capsys.readouterr()
    report = tmp_path / "again.md"
    again = [*SHORT, "--fresh", "--sparse-only", "--right-in", str(before)]
    reader.asks.clear()
    assert run([*again, "--report", str(report)]) == 0
    assert len(reader.asks) == 4, "two items, at two keeps"
    assert re.search(r"^needle-single +both +512 +0\.2 +2 +2 ", capsys.readouterr().out, re.M)
    assert "only of those answered right in full before" in report.read_text()
    assert f" --right-in {before} " in report.read_text()


def test_pair_embedded_is_the_default_pair(reader: Reader) -> None:
    assert run(SHORT) == 0
    assert run([*SHORT, "--pair", "embedded"]) == 0
    assert run([*SHORT, "--target", "embedded", "--draft", "embedded"]) == 0
    assert len(reader.asks) == RUNS


def test_a_quantised_cache_has_its_own_results(reader: Reader, tmp_path: Path) -> None:
    report = tmp_path / "quality.md"
    assert run(SHORT) == 0
    assert run([*SHORT, "--kv-bits", "8", "--report", str(report)]) == 0
    assert [load.kv_bits for load in reader.loads] == [None, 8]
    assert len(reader.asks) == 2 * RUNS, "nothing of the one is taken for the other"
    assert "cache in 8 bits" in report.read_text()
    assert "--kv-bits 8" in report.read_text()


def test_report_and_json_are_written(reader: Reader, tmp_path: Path) -> None:
    report, data = tmp_path / "quality.md", tmp_path / "quality.json"
    arguments = [*SHORT, "--auto", "--report", str(report), "--json", str(data)]
    assert run(arguments) == 0
    text = report.read_text()
    assert "demo model with demo draft" in text
    assert " cores, " in text
    content = json.loads(data.read_text())
    assert len(content["records"]) == 3 * 4
    assert content["guard"]["unsafe"] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("cache", "quality.json", "quality.md"),
    ]
    before = [p.read_bytes() for p in (report, data)]
    assert run(arguments) == 0
    assert [p.read_bytes() for p in (report, data)] == before


def test_the_command_in_the_report_makes_the_report(reader: Reader, tmp_path: Path) -> None:
    report = tmp_path / "a report.md"
    arguments = [*SHORT, "--held-out", "--tune", "chunk=16", "--seed", "7"]
    assert run([*arguments, "--report", str(report)]) == 0
    text = report.read_text()
    command = re.search("```sh\n(.+)\n```", text)
    assert command is not None
    report.unlink()
    asked = len(reader.asks)
    program, module, name, *again = shlex.split(command[1])
    assert (program, module, name) == ("python", "-m", "benchmarks")
    assert run(again) == 0
    assert report.read_text() == text
    assert len(reader.asks) == asked
    assert {ask.tuning.chunk for ask in reader.asks if ask.mode is Mode.SPARSE} == {16}


def test_every_tuning_parameter_can_be_given(reader: Reader) -> None:
    values = ("chunk=16", "neighbours=0.25", "recall_share=0.75", "read_on=0.0")
    assert run([*SHORT, *(part for value in values for part in ("--tune", value))]) == 0
    tuning = reader.asks[-1].tuning
    given = dict(value.split("=") for value in values)
    assert {name: str(getattr(tuning, name)) for name in given} == given


def test_several_values_are_compared(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SHORT, "--tune", "chunk=16,32", "--tune", "neighbours=0,0.5"]) == 0
    asks = [ask.tuning for ask in reader.asks if ask.mode is Mode.SPARSE]
    tried = {(tuning.chunk, tuning.neighbours) for tuning in asks}
    assert tried == {(16, 0.0), (16, 0.5), (32, 0.0), (32, 0.5)}
    assert "scoring both chunk=16 neighbours=0.0" in capsys.readouterr().out


def test_an_ablation_changes_one_thing_at_a_time(reader: Reader) -> None:
    given = ["--tune", "chunk=16", "--ablate", "read_on=0,0.5", "--ablate", "neighbours=0"]
    assert run([*SHORT, *given]) == 0
    asks = [ask.tuning for ask in reader.asks if ask.mode is Mode.SPARSE]
    tried = {(tuning.chunk, tuning.read_on, tuning.neighbours) for tuning in asks}
    assert tried == {(16, 0.5, 0.5), (16, 0.0, 0.5), (16, 0.5, 0.0)}


REFUSALS = {
    "unknown suite": (
        ["--suite", "needles"],
        "choose from all, needle, answers, passages, dev, needle-single",
    ),
    "no length": (["--length", "4x"], "such as 4096 or 4k"),
    "one of the lengths": (["--length", "1k,,4k"], "'' is not a valid length"),
    "a short length": (["--length", "255"], "at least 256"),
    "keep above 1": (["--keep", "0.2,1.5"], "'1.5' is not a valid keep"),
    "keep is nan": (["--keep", "nan"], "from 0 to 1"),
    "unknown scoring": (
        ["--scoring", "best"],
        "both, joined, random, first, lexical, embedding, builtin",
    ),
    "no items": (["--n", "0"], "not a valid number of items"),
    "half an item": (["--n", "1.5"], "whole number"),
    "a negative seed": (["--seed", "-1"], "'-1' is not a valid seed"),
    "unknown tuning": (["--tune", "width=3"], "NAME from chunk, neighbours"),
    "an unknown thing to ablate": (["--ablate", "width=3"], "NAME from chunk, neighbours"),
    "a tuning without value": (["--tune", "chunk"], "NAME=VALUE"),
    "a chunk of nothing": (["--tune", "chunk=0"], "'0' is not a valid chunk"),
    "neighbours above 1": (["--tune", "neighbours=2"], "from 0 to 1"),
    "three models": (["--pair", "a", "b", "c"], "not 3"),
    "the pair twice": (["--pair", "embedded", "--draft", "embedded"], "given twice"),
    "no such model": (["--pair", "no/model", "embedded"], "no/model"),
    "attention without a draft": (["--target", "{target}", "--scoring", "both"], "needs a draft"),
    "auto with nothing in full": (["--sparse-only", "--auto"], "--auto is compared with"),
    "no file": (["--suite", "real"], "--file"),
    "no suite for a file": (
        ["--file", "{room}/text.txt"],
        "or add hops-in-files, real, real-reworded, passage, passage-reworded, answers, passages",
    ),
    "not the real documents": (
        ["--suite", "real", "--file", "{room}/text.txt"],
        "'gpl-3.0.txt' that is asked about is missing: fetch the documents",
    ),
    "no such file": (["--suite", "real", "--file", "{room}/nothing"], "nothing"),
    "report in no folder": (["--report", "{room}/no/report.md"], "cannot be written"),
    "report is a folder": (["--report", "{room}"], "cannot be written"),
    "json in no folder": (["--json", "{room}/no/out.json"], "cannot be written"),
    "no saved results": (["--saved", "{room}/nothing"], "no results"),
    "other saved results": (["--saved", "{room}/text.txt"], "no results of these suites"),
    "right in nothing": (["--right-in", "{room}/nothing"], "no results"),
    "json is the report": (["--report", "{room}/r.md", "--json", "{room}/r.md"], "two names"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_one_sentence_and_nothing_is_measured(
    reader: Reader, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "text.txt").write_text(TEXT)
    arguments, expected = REFUSALS[case]
    target = str(target_path())
    filled = [a.format(room=room, target=target) for a in arguments]
    assert run([*SHORT, *filled]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("specchat: ")
    assert err.endswith(".\n")
    assert expected in err
    assert reader.asks == []
    assert [p.name for p in room.iterdir()] == ["text.txt"]


def test_a_pair_that_only_reads_densely_is_refused(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.dense_only = Reason(ReasonCode.GAPS_CHANGE_ANSWERS, {"change": 0.05})
    assert run(SHORT) == 2
    assert "there is nothing to compare." in capsys.readouterr().err
    assert reader.asks == []


def test_when_nothing_fits_it_says_why(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    reader.context = 300
    assert run(SHORT) == 2
    out, err = capsys.readouterr()
    assert out == ""
    skipped, problem = err.splitlines()
    assert "3 of 3 items skipped" in skipped
    assert problem == "specchat: Nothing was measured: choose another --length or --suite."


def interrupt(reader: Reader, at: int) -> Callable[[Ask], None]:
    def on_ask(ask: Ask) -> None:
        if len(reader.asks) == at:
            os.kill(os.getpid(), signal.SIGINT)
            reader.turn.cancel()  # the session knows the turn only after `ask`

    return on_ask


def test_a_turn_cancelled_elsewhere_is_a_stop_too(reader: Reader) -> None:
    reader.on_ask = lambda ask: reader.turn.cancel() if len(reader.asks) == 4 else None
    assert run(SHORT) == 130
    assert len(reader.asks) == 4


@pytest.mark.parametrize("at", [1, 5])
def test_ctrl_c_keeps_the_results_and_prints_how_to_continue(
    reader: Reader, tmp_path: Path, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"
    reader.on_ask = interrupt(reader, at)
    before = signal.getsignal(signal.SIGINT)
    assert run([*SHORT, "--report", str(report)]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    out, err = capsys.readouterr()
    assert f"Stopped after {at - 1} of {RUNS} runs; the same command continues" in err
    assert "Nothing was written yet." in err
    assert "needle-single" in out if at > 3 else "Nothing was measured yet." in out
    assert not report.exists()
    reader.on_ask = lambda ask: None
    assert run([*SHORT, "--report", str(report)]) == 0
    assert len(reader.asks) == RUNS + 1, "the one that was stopped is asked again"
    assert report.exists()


def test_failed_turns_are_reported_with_exit_status_0(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.on_ask = lambda ask: (
        "The \x1b[31mmachine is full" if ask.keep_ratio == 0.2 and len(reader.asks) > 1 else None
    )
    assert run(SHORT) == 0
    out = capsys.readouterr().out
    assert "machine is full" in out
    assert "\x1b" not in out


def test_a_terminal_shows_one_line_of_progress(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(SHORT) == 0
    err = capsys.readouterr().err
    assert re.search(r"needle-single 512 · item 2 · 3/9 runs · ETA \d\.\d s", err)
    assert "\n" not in err
    assert err.endswith("\r\x1b[K")


def test_the_embedded_pair_can_be_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs the real engine for a few seconds; other tests check its answers."""
    data = tmp_path / "out.json"
    arguments = ["quality", "--suite", "turns", "--length", "300"]
    arguments += ["--keep", "0.3,1", "--n", "2", "--auto", "--json", str(data)]
    assert run([*arguments, "--scoring", "both,random,lexical"]) == 0
    assert "At keep 1, all 6 answers equal the dense ones." in capsys.readouterr().out
    content = json.loads(data.read_text())
    assert len(content["records"]) == 2 * (1 + 3 * 2 + 1)
    assert [r["failed"] or r["fallback"] for r in content["records"]] == [None] * 16
    for cell in content["cells"]:
        assert 0.3 < cell["read_fraction"] <= (1.0 if cell["keep"] == 1.0 else 0.7)
