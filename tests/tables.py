"""Tables of cases: as one test, or as rows that only the slow tier tries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from _pytest.outcomes import Failed, Skipped


def table(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `pytest.mark.parametrize`, but as one test: it tries every row, and names those that
    fail. For tests that leave nothing behind: the rows share the test's fixtures."""
    keys = [name.strip() for name in names.split(",")]
    given = [tuple(row) if len(keys) > 1 else (row,) for row in rows]
    assert given, "a table without rows tests nothing"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def tries() -> Iterator[tuple[dict[str, Any], AbstractContextManager[None]]]:
            """Each row, with a context in which its test runs. Raises the first failure at the end,
            with the rows of all."""
            failed: dict[str, BaseException] = {}

            @contextmanager
            def noted(name: str) -> Iterator[None]:
                try:
                    yield
                except (Exception, Failed) as error:
                    failed[name] = error
                except Skipped as error:
                    raise AssertionError(f"{name} skips: give it a test of its own") from error

            for number, row in enumerate(given, 1):
                name = f"row {number} of {len(given)}: {row!r:.300}"
                yield dict(zip(keys, row, strict=True)), noted(name)
            if failed:
                first = next(iter(failed.values()))
                for name, error in failed.items():
                    first.add_note(f"{name}\n    {type(error).__name__}: {error!s:.300}")
                raise first

        @functools.wraps(test)
        def every_row(**fixtures: Any) -> None:
            for row, noted in tries():
                with noted:
                    test(**row, **fixtures)

        @functools.wraps(test)
        async def every_row_awaited(**fixtures: Any) -> None:
            for row, noted in tries():
                with noted:
                    await test(**row, **fixtures)

        chosen: Any = every_row_awaited if inspect.iscoroutinefunction(test) else every_row
        signature = inspect.signature(test)
        assert set(keys) <= set(signature.parameters), f"{keys} are not parameters"
        rest = [value for key, value in signature.parameters.items() if key not in keys]
        chosen.__signature__ = signature.replace(parameters=rest)
        return chosen

    return decorate


def slow(*values: Any) -> Any:
    """A row of `pytest.mark.parametrize` that only the slow tier tries."""
    return pytest.param(*values, marks=pytest.mark.slow)
