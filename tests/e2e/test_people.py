"""The first day of three people, in each size and look once (`tests.e2e.people` records all)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.people import PEOPLE
from tests.e2e.terminal import MARKS

pytestmark = [*MARKS, pytest.mark.slow]


@pytest.mark.parametrize(
    ("person", "size", "look"),
    [
        ("lawyer", "80x24", "light"),
        ("developer", "120x36", "no-color"),
        ("operator", "80x24", "dark"),
    ],
)
def test_no_wall_stands_in_the_way(tmp_path: Path, person: str, size: str, look: str) -> None:
    assert len(PEOPLE[person](tmp_path, size, look)) >= 5
