"""The screen's tests run on a quicker Textual."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui import quick


@pytest.fixture(scope="session", autouse=True)
def quick_textual() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick.install(patch)
        yield
