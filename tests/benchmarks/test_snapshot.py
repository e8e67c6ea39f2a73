"""Measures what it says."""

from __future__ import annotations

from benchmarks import snapshot
from benchmarks.harness import Options
from tests.benchmarks.measuring import measured, printed


def test_saving_and_loading_are_measured_beside_the_disk() -> None:
    rows = measured(snapshot.BENCH, Options(2, megabytes=10)).rows
    assert [row["operation"] for row in rows] == ["save", "disk write", "load", "disk read"]
    for row in rows:
        assert 9.9 < row["megabytes"] < 11
        assert len(row.runs) == 2
        assert min(row.values("rate")) > 0
    save, disk_write, *_ = rows
    assert save.runs[0]["share"] == save.runs[0]["rate"] / disk_write.runs[0]["rate"]


def test_the_table_names_the_machine_and_the_shares() -> None:
    text = printed(snapshot.BENCH, Options(1, megabytes=1))
    for part in ("cores", "save", "load", "of the disk's rate"):
        assert part in text
