"""What CI prints at its end."""

from __future__ import annotations

import pytest

from tests.conftest import slowest_files


def test_the_slowest_files_come_first() -> None:
    def report(name: str, duration: float) -> pytest.TestReport:
        return pytest.TestReport(name, ("", 0, ""), {}, "passed", None, "call", duration=duration)

    reports = [report("a.py::one", 1.0), report("b.py::two", 3.0), report("a.py::three", 0.5)]
    reports += [report("a.py::three", 2.0)]  # its setup
    assert [line.split() for line in slowest_files(reports)] == [
        ["3.5", "s", "2", "a.py"],
        ["3.0", "s", "1", "b.py"],
    ]
