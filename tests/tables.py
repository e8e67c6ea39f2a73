"""Tables of cases: as one test, or a tenth of them in the quick tier."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.outcomes import Failed


def table(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `pytest.mark.parametrize`, but as one test: it tries every row, and names those that
    fail. For tests that leave nothing behind: the rows share the test's fixtures."""
    keys = [name.strip() for name in names.split(",")]
    given = [tuple(row) if len(keys) > 1 else (row,) for row in rows]
    assert given, "a table without rows tests nothing"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def every_row(**fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            for number, row in enumerate(given, 1):
                try:
                    test(**dict(zip(keys, row, strict=True)), **fixtures)
                except (Exception, Failed) as error:
                    failed[f"row {number} of {len(given)}: {row!r:.300}"] = error
            if failed:
                first = next(iter(failed.values()))
                for name in failed:
                    first.add_note(name)
                raise first

        @functools.wraps(test)
        async def every_row_awaited(**fixtures: Any) -> None:
            for number, row in enumerate(given, 1):
                try:
                    await test(**dict(zip(keys, row, strict=True)), **fixtures)
                except (Exception, Failed) as error:
                    error.add_note(f"row {number} of {len(given)}: {row!r:.300}")
                    raise

        chosen: Any = every_row_awaited if inspect.iscoroutinefunction(test) else every_row
        signature = inspect.signature(test)
        assert set(keys) <= set(signature.parameters), f"{keys} are not parameters"
        rest = [value for key, value in signature.parameters.items() if key not in keys]
        chosen.__signature__ = signature.replace(parameters=rest)
        return chosen

    return decorate


def tenth(rows: Iterable[Any]) -> list[Any]:
    """Rows for `pytest.mark.parametrize`: every tenth is quick, the others are slow."""
    return [
        row if number % 10 == 0 else slow(*(row if isinstance(row, tuple) else (row,)))
        for number, row in enumerate(rows)
    ]


def slow(*values: Any) -> Any:
    """A row of `pytest.mark.parametrize` that only the slow tier tries."""
    return pytest.param(*values, marks=pytest.mark.slow)
