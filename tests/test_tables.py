"""The table of cases itself can fail."""

from __future__ import annotations

import pytest

from tests.tables import table


def test_a_failing_row_is_named() -> None:
    tried = []

    @table("number, word", [(1, "one"), (2, "two"), (3, "three"), (4, "four")])
    def check(number: int, word: str) -> None:
        tried.append(number)
        assert len(word) == 3

    with pytest.raises(AssertionError) as caught:
        check()
    assert tried == [1, 2, 3, 4]
    third, fourth = (note.splitlines() for note in caught.value.__notes__)
    assert third[:2] == ["row 3 of 4: (3, 'three')", "    AssertionError: assert 5 == 3"]
    assert fourth[0] == "row 4 of 4: (4, 'four')"


@table("text", ["a", "b"])
def test_a_table_can_use_fixtures(text: str, tmp_path: object) -> None:
    assert tmp_path
    assert text in "ab"


@table("text", ["a", "b"])
async def test_a_table_can_be_asynchronous(text: str) -> None:
    assert text in "ab"


def test_a_name_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(AssertionError, match="are not parameters"):
        table("x", [1])(lambda y: None)
