"""`specchat bench snapshot` measures what it says."""

from __future__ import annotations

import io
import json

from app.bench.snapshot import snapshot


def test_saving_and_loading_are_measured_beside_the_disk() -> None:
    out = io.StringIO()
    assert snapshot(10_000_000, 2, True, out) == 0
    figures = json.loads(out.getvalue())
    assert 9_900_000 < figures["bytes"] < 11_000_000
    for name in ("save", "load", "disk_write", "disk_read"):
        median, least, most = figures[name]
        assert 0 < least <= median <= most


def test_the_table_names_the_machine_and_the_shares() -> None:
    out = io.StringIO()
    snapshot(1_000_000, 1, False, out)
    for part in ("cores", "save / disk", "load / disk"):
        assert part in out.getvalue()
