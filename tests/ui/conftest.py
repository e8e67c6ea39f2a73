"""The screen's tests run on a quicker Textual."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.ui import quick


@pytest.fixture(scope="session", autouse=True)
def quick_textual() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick.install(patch)
        yield


@pytest.fixture(autouse=True)
def failed_tasks() -> Iterator[list[logging.LogRecord]]:
    """The tasks of the screen that failed unexpectedly, which the app outlives. A test that expects
    one clears the list."""
    failed: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = failed.append  # type: ignore[method-assign]
    logger = logging.getLogger("app.ui.background")
    logger.addHandler(handler)
    yield failed
    logger.removeHandler(handler)
    assert not failed
