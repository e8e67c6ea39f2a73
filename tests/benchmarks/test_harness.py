"""The harness that all benchmarks share: repetitions, JSON, the table, Ctrl-C."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from itertools import count

import pytest

from benchmarks.harness import Bench, Column, Options, Progress, Result, Row, Run, columns, run


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
    return Bench("speed", "Speed", measure, lambda result: "*Seconds*, of it.", table)


def seconds(*values: float | None) -> list[Run]:
    return [{"seconds": value} for value in values]


ROWS = Row({"name": "first"}, seconds(3.0, 1.0, 8.0)), Row({"name": "second"}, seconds(2.0, None))


def test_the_first_run_warms_up_and_is_left_out() -> None:
    turns = count()
    assert Progress(3).repeat("x", lambda: next(turns)) == [1, 2, 3]
    assert Progress(2).repeat("x", lambda: next(turns), warm_up=False) == [4, 5]


def test_a_terminal_is_shown_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress(2).repeat("quietly", lambda: 0)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    Progress(2).repeat("4,096 tokens", lambda: 0)
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert lines[1:] == [
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


def test_interrupted_it_prints_the_rows_it_has() -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        run(bench(ROWS[0], stop=True), Options(), False, out)
    assert "first" in out.getvalue()
    for as_json, rows in ((True, ROWS), (False, ())):
        out = io.StringIO()
        with pytest.raises(KeyboardInterrupt):
            run(bench(*rows, stop=True), Options(), as_json, out)
        assert out.getvalue() == ""


def test_a_report_has_fewer_columns_and_no_range_of_one_run() -> None:
    table = bench().table(Result("", {}, [Row({"name": "once"}, seconds(4.0))]), True)
    assert table.markdown() == "|  | s |\n| --- | ---: |\n| once | 4.0 |"
