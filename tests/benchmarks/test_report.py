"""The harness and the report: repetitions, JSON, tables."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from app.errors import UserError
from benchmarks import decode, draft, memory, overhead, planner, serve, snapshot, ttft, turns
from benchmarks import report as module
from benchmarks.__main__ import BENCHES, parser
from benchmarks.harness import Bench, Column, Options, Progress, Result, Row, Run, columns, run
from benchmarks.report import Measured, report, with_figures

ROOT = Path(__file__).parents[2]

# ------------------------------------------------------------------------------ one benchmark


def bench(*rows: Row, stop: bool = False) -> Bench:
    def measure(options: Options, progress: Progress) -> Iterator[Row]:
        yield from rows
        if stop:
            raise KeyboardInterrupt

    table = columns(
        Column("", "name"),
        Column("s", "seconds", ".1f", spread=True),
        Column("worst", "seconds", ".1f", in_report=False, statistic=max),
    )
    return Bench("speed", "how fast", "Speed", measure, lambda result: "*Seconds*, of it.", table)


def seconds(*values: float | None) -> list[Run]:
    return [{"seconds": value} for value in values]


ROWS = Row({"name": "first"}, seconds(3.0, 1.0, 8.0)), Row({"name": "second"}, seconds(2.0, None))


def test_the_warm_up_run_is_excluded() -> None:
    calls = count()
    assert Progress(3).repeat("x", lambda: next(calls)) == [1, 2, 3]
    assert Progress(2).repeat("x", lambda: next(calls), warm_up=False) == [4, 5]


def test_a_terminal_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress(2).repeat("quietly", lambda: 0)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    Progress(2).repeat("4,096 tokens", lambda: 0)
    assert capsys.readouterr().err.split("\r\x1b[K")[1:] == [
        "4,096 tokens: warming up",
        "4,096 tokens: run 1 of 2",
        "4,096 tokens: run 2 of 2",
    ]


def test_the_table_has_medians_their_range_and_the_machine() -> None:
    out = io.StringIO()
    assert run(bench(*ROWS), Options(runs=3), False, out) == 0
    about, _, machine, _, *table = out.getvalue().splitlines()
    assert about == "Seconds, of it."
    assert machine.startswith("Medians of 3. ")
    assert " cores, " in machine
    assert [line.split() for line in table] == [
        ["s", "worst"],
        ["first", "3.0", "(1.0", "to", "8.0)", "8.0"],
        ["second", "2.0", "2.0"],
    ]
    assert len({len(line) for line in table}) == 1


def test_json_has_every_run_and_is_read_back() -> None:
    out = io.StringIO()
    assert run(bench(*ROWS), Options(runs=3, keeps=(0.2,)), True, out) == 0
    content = json.loads(out.getvalue())
    assert content["rows"][0]["figures"] == {"seconds": [3.0, 1.0, 8.0]}
    assert content["options"]["keeps"] == [0.2]
    result = Result.from_json(content)
    assert list(result.rows) == list(ROWS)
    assert json.loads(json.dumps(result.to_json())) == content


@pytest.mark.parametrize(
    ("as_json", "rows", "printed"),
    [(False, ROWS[:1], True), (True, ROWS, False), (False, (), False)],
)
def test_an_interrupted_benchmark_prints_its_rows(
    as_json: bool, rows: tuple[Row, ...], printed: bool
) -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        run(bench(*rows, stop=True), Options(), as_json, out)
    assert ("first" in out.getvalue()) == bool(out.getvalue()) == printed


def test_a_report_has_fewer_columns_and_no_range_of_one_run() -> None:
    table = bench().table(Result("", {}, [Row({"name": "once"}, seconds(4.0))]), True)
    assert table.markdown() == "|  | s |\n| --- | ---: |\n| once | 4.0 |"


# ------------------------------------------------------------------------------ the report


def result(options: dict[str, Any], *rows: Row, machine: str = "a machine") -> Result:
    return Result(machine, options, rows)


DECODE = result(
    {"tokens": 32, "keeps": [0.2]},
    Row(
        {"model": "small", "length": 4096, "selected": 800},
        [
            {"ours": ours, "plain_selected": 100.0, "plain_all": 60.0}
            | {"of_plain_selected": ours / 100, "of_plain_all": ours / 60}
            for ours in (96.0, 90.0, 100.0)
        ],
    ),
)
MEMORY = result(
    {"keeps": [0.2]},
    *(
        Row(
            {"length": length, "selected": length // 5},
            [
                {"plain": 200.0, "dense": 190.0, "sparse": ratio * 200, "ratio": ratio}
                | {"predicted_dense": 210.0, "predicted_sparse": 100.0}
            ],
        )
        for length, ratio in ((4096, 0.5), (8192, 1.1))
    ),
)
TTFT = result(
    {"shapes": ["small"], "scale": 1.0},
    *(
        Row(
            {"length": length, "keep": keep, "selected": int(length * keep)},
            [
                ttft.figures(keep, 4.0, 2.0, sparse, {"score": 0.1, "prefill": 0.3})
                | {"memory": 0.5, "peak": 1}
                for sparse in (0.5, 1.0)
            ],
        )
        for length in (1024, 4096)
        for keep in (0.1, 0.2)
    ),
)
SNAPSHOT = result(
    {"megabytes": 300},
    *(
        Row({"operation": name, "megabytes": 300.0}, [{"rate": rate, "share": share}])
        for name, rate, share in (
            ("save", 0.5, 0.9),
            ("disk write", 0.55, None),
            ("load", 0.5, 0.25),
            ("disk read", 2.0, None),
        )
    ),
)
OVERHEAD = result(
    {},
    *(
        Row(
            {"part": "turn", "tokens": length, "selected": length // 5},
            [
                {"plain_draft": 1.0, "plain_target": 2.0, "plain_dense": dense and 4 * dense}
                | {"dense": dense, "speedup": dense and dense / 2.0, "engine": dense and 4.0}
                | {"sparse": 2.0, "ratio": 1.5}
                | {"score": 0.5, "prefill": 1.5}
            ],
        )
        for length, dense in ((4096, 20.0), (16384, None))
    ),
    Row({"part": "prompt", "tokens": 4096}, [{"building": 0.1, "ttft": 1.0, "share": 0.1}]),
    Row({"part": "selection", "tokens": 131_072}, [{"seconds": 0.0094}]),
)
DRAFT = result(
    {"shapes": ["embedded"]},
    *(
        Row(
            {"length": length},
            [
                dict.fromkeys(("plain", "dense", "sparse", "prefill", "sparse_prefill"), 0.3)
                | {"of_plain": 0.3, "of_dense": of_dense, "of_prefill": 0.3}
            ],
        )
        for length, of_dense in ((8192, 0.9), (32768, 0.3))
    ),
)


PLANNER_TURNS = [
    {"known": 3, "regret": regret, "sparse_chosen": sparse, "near": float(regret <= 1.25)}
    | {"error": error, "error_other": error}
    for regret, sparse, error in (
        (1.0, 1.0, 0.1),
        (1.0, 1.0, 0.1),
        (1.4, 0.0, 0.3),
        (1.0, 0.0, None),
    )
]
PLANNER = result(
    {},
    Row({"pair": "quick", "crossing": 900}, PLANNER_TURNS[:3]),
    Row({"pair": "close", "crossing": None}, PLANNER_TURNS[3:]),
    Row({"pair": "all", "crossing": None}, PLANNER_TURNS),
)
SERVE = result(
    {},
    *(
        Row({"turn": "full, turn 2"}, [{"app": 1.0, "http": r, "ratio": r, "cached": 5.0}])
        for r in (1.05, 1.2)
    ),
)


@pytest.mark.parametrize(
    ("bench", "figures", "met"),
    [
        (decode.BENCH, DECODE, [False, True]),
        (memory.BENCH, MEMORY, [True, False]),
        (snapshot.BENCH, SNAPSHOT, [True, False]),
        (planner.BENCH, PLANNER, [True, False]),
        (serve.BENCH, SERVE, [True, False]),
        (overhead.BENCH, OVERHEAD, [True, True, False, True]),
        (draft.BENCH, DRAFT, [True, True]),
    ],
)
def test_goals_are_computed(bench: Bench, figures: Result, met: list[bool]) -> None:
    assert [goal.met for goal in bench.goals(figures)] == met


def test_goals_name_their_subject() -> None:
    both, _ = overhead.RATIOS[-1]
    assert [goal.goal for goal in overhead.goals(OVERHEAD)] == [
        f"{both}, 4,096 tokens: at least 1.05",
        f"{both}, 16,384 tokens: at least 1.05",
        "building a prompt of 4,096 tokens, embedded pair: under 5 % of TTFT",
        "selecting from 131,072 tokens: under 10 ms",
    ]
    assert all("32,768 tokens" in goal.goal for goal in draft.goals(DRAFT)), "the longest prompt"


def test_tables_show_the_figures() -> None:
    """Speedup by sparse prefill and speed of the engine are separate figures."""
    table = overhead.table(OVERHEAD, True).markdown()
    assert table.count("target prefills everything") == 1, "where it was measured"
    assert "| speedup (dense / sparse turn) | 10.00 (10.00 to 10.00) |" in table
    assert "| engine (mlx-lm / dense turn) | 4.00 (4.00 to 4.00) |" in table
    assert "On a Mac the second is about 1" in overhead.about(OVERHEAD)
    head = ttft.BENCH.table(TTFT, True).markdown().splitlines()[0]
    assert "| mlx-lm, s | dense, s | sparse, s | engine | speedup |" in head
    table = planner.BENCH.table(PLANNER, True).markdown()
    assert "| 67% | 67% | 1.00 (1.00 to 1.40) | 900 |" in table
    assert "| close | 1 |  |  |  |  | 0% | 100% | 1.00 |  |" in table
    later = {"seconds": 0.5, "ratio": 0.25, "prompt": 9040, "reused": 9000, "recalled": 400}
    one = result({}, Row({"turn": "full, turn 2"}, [later]))
    assert (
        "| full, turn 2 | 0.50 | 25.0% | 9,000 | 400 |" in turns.BENCH.table(one, True).markdown()
    )


def test_summary_and_report_match_the_stored_figures() -> None:
    """Fails if one is edited by hand or measured again without `--summary`."""
    stored = json.loads((ROOT / "benchmarks/results/performance/overhead.json").read_text("utf-8"))
    figures = Result.from_json(stored["result"])
    summary = (ROOT / "docs/performance.md").read_text("utf-8")
    assert with_figures(summary, figures) == summary
    page = (ROOT / "benchmarks/results/performance.md").read_text("utf-8")
    for name in ("speedup", "engine", "ratio"):
        assert figures.rows[0].spread(name).text() in summary
        assert figures.rows[0].spread(name).text() in page
    with pytest.raises(ValueError, match="no lines"):
        with_figures("# A text", OVERHEAD)


def of(**results: Result) -> dict[str, Measured]:
    return {
        name: Measured(f"python -m benchmarks {name}", found) for name, found in results.items()
    }


def test_every_section_has_its_command_and_table_or_says_how_to_measure_it() -> None:
    found = of(decode=DECODE, memory=MEMORY, ttft=TTFT, snapshot=SNAPSHOT, overhead=OVERHEAD)
    text = report(BENCHES, found)
    assert report(BENCHES, found) == text
    for bench in BENCHES:
        assert f"## {bench.title}" in text
        assert bench.name in found or f"To measure it: `{bench.command()}`." in text
    assert "```sh\npython -m benchmarks decode\n```" in text
    assert "| small | 4,096 | 800 | 96.0 (90.0 to 100.0) |" in text
    assert "Measured on a machine." in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_failures_and_other_machines_are_named() -> None:
    failed = Measured("python -m benchmarks store", None, "The disk is full (exit status 1).")
    other = result(MEMORY.options, *MEMORY.rows, machine="another")
    text = report(BENCHES, of(decode=DECODE, memory=other) | {"store": failed})
    assert "It failed: The disk is full (exit status 1)." in text
    assert "Measured on another." in text
    assert "Measured on a machine." in text


# ------------------------------------------------------------------------------ all of them


def options(path: Path, *words: str) -> argparse.Namespace:
    return parser().parse_args(["all", "--report", str(path), *words])


@pytest.fixture
def program(tmp_path: Path) -> tuple[str, ...]:
    """A fake benchmark that prints invented figures; `snapshot` fails."""
    figures = tmp_path / "figures.json"
    figures.write_text(json.dumps(DECODE.to_json()))
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\n"
        "if sys.argv[1] == 'snapshot': sys.exit('The disk is full')\n"
        f"print(open({str(figures)!r}).read())\n"
    )
    return (sys.executable, str(script))


def test_a_failed_benchmark_is_reported_and_the_others_are_kept(
    tmp_path: Path, program: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path, all_of = tmp_path / "docs" / "performance.md", module.bench_all
    assert all_of(options(path, "--only", "decode,snapshot"), BENCHES, program) == 1
    text = path.read_text()
    assert "It failed: The disk is full (exit status 1)." in text
    assert "python -m benchmarks decode" in text
    stored = json.loads((path.parent / "performance" / "decode.json").read_text())
    assert Result.from_json(stored["result"]).rows == list(DECODE.rows)
    assert not list(path.parent.rglob("*.part"))
    assert "2/2 python -m benchmarks snapshot" in capsys.readouterr().err
    whole = {"command": "python -m benchmarks snapshot", "result": SNAPSHOT.to_json(), "error": ""}
    (path.parent / "performance" / "snapshot.json").write_text(json.dumps(whole))
    assert all_of(options(path, "--only", "decode"), BENCHES, program) == 0
    assert "It failed" not in path.read_text()


def test_after_a_stop_it_prints_how_to_continue_and_keeps_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_run", stop)
    path = tmp_path / "performance.md"
    path.write_text("before")
    assert module.bench_all(options(path, "--only", "ttft,ui"), BENCHES) == 130
    assert path.read_text() == "before"
    assert "--only ttft,ui" in capsys.readouterr().err


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no benchmark 'speed'"):
        module.bench_all(options(tmp_path / "x.md", "--only", "speed"), BENCHES)


def test_every_entry_is_a_command_line() -> None:
    for bench in BENCHES:
        for quick in (False, True):
            words = [*bench.arguments(quick), "--json"]
            assert parser().parse_args(list(words)).measure == bench.name
