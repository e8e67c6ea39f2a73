"""F2: what is set there holds at once, and at the next start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from app.protocol.commands import CachePolicy
from app.protocol.options import BackgroundPolicy, Mode
from app.settings.definitions import all_settings, find
from app.settings.file import SettingsFile
from app.ui.app import SpecchatApp
from app.ui.settings.form import ChoiceScreen, SettingRow
from app.ui.settings.screen import SettingsScreen
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import (
    SMALL,
    app_with,
    ask,
    kept_app,
    paste,
    screen_text,
    type_in,
    until,
    until_gone,
    until_shown,
)

KEEP, MODE = find("reading.keep"), find("reading.mode")
BACKGROUND = find("reading.background_reading")
NARROW = (60, 20)


@pytest.fixture
def file(tmp_path: Path) -> SettingsFile:
    return SettingsFile(tmp_path / "config" / "settings.toml")


def on_disk(file: SettingsFile) -> str:
    assert file.path is not None
    return file.path.read_text() if file.path.exists() else ""


async def go(pilot: Pilot[None], key: str) -> SettingRow:
    """Open the settings at one of them."""
    assert isinstance(pilot.app, SpecchatApp)
    pilot.app.show_setting(find(key))
    return await _focused(pilot, key)


async def _focused(pilot: Pilot[None], key: str) -> SettingRow:
    def is_focused() -> bool:
        focused = pilot.app.focused
        return isinstance(focused, SettingRow) and focused.setting.key == key

    await until(pilot, is_focused, key)
    assert isinstance(pilot.app.focused, SettingRow)
    return pilot.app.focused


async def test_every_setting_is_there_and_is_described(file: SettingsFile) -> None:
    async with app_with(FakeEngine(), file).run_test(size=SMALL) as pilot:
        await pilot.press("f2")
        await until_shown(pilot, "Settings  ", "settings.toml", "● auto", "‹ auto ›")
        for setting in all_settings():
            await pilot.press("down")
            await _focused(pilot, setting.key)
            await until_shown(pilot, setting.doc.split()[0], setting.key, "default ")
        await pilot.press("f2")
        await until(pilot, lambda: not isinstance(pilot.app.screen, SettingsScreen))
        assert on_disk(file) == ""
        # The model's own value comes below the least.
        await pilot.press("f2", *"temperature", "enter")
        await _focused(pilot, "answers.temperature")
        await until_shown(pilot, "‹ the model's own ›")
        await pilot.press("right")
        await until_shown(pilot, "‹ 0 ›", "default the model's")
        await until(pilot, lambda: "temperature = 0" in on_disk(file), "the save")
        await pilot.press("right")
        await until_shown(pilot, "‹ 0.1 ›")
        await pilot.press("left", "left")
        await until_shown(pilot, "‹ the model's own ›")


async def test_it_is_searched_and_changed_by_keys(file: SettingsFile) -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with app_with(engine, file).run_test(size=NARROW) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press("f2", *"mode")
        await until_gone(pilot, "Animations")
        await pilot.press("enter", "right")
        await until_shown(pilot, "• Mode", "● sparse")
        await until(pilot, lambda: 'mode = "sparse"' in on_disk(file), "the save")
        await pilot.press(*"nonsense")  # a letter begins another search
        await until(pilot, lambda: pilot.app.screen.query_one(Input).value == "nonsense")
        await until_shown(pilot, "No setting matches.")
        await pilot.press("escape", *"keep", "down", "down")
        await _focused(pilot, "reading.keep")
        await pilot.press("right", "pageup", "left")
        await until_shown(pilot, "‹ 0.1 ›")
        await pilot.press("7", "enter")
        await until_shown(pilot, "'Keep' must be a number from 0 to 1, or 'auto'.", "‹ 0.1 ›")
        await pilot.press("0", ".", "4", "5", "6", "backspace", "enter")
        await until_shown(pilot, "‹ 0.45 ›")
        await until(pilot, lambda: "keep = 0.45" in on_disk(file), "the save")
        await pilot.press("escape", "escape")
        await until_shown(pilot, "next: SPARSE 45%")
        await ask(pilot, engine)
        assert (engine.asks[0].mode, engine.asks[0].keep_ratio) == (Mode.SPARSE, 0.45)


async def test_it_is_changed_by_the_mouse(file: SettingsFile) -> None:
    async with app_with(FakeEngine(), file).run_test(size=(100, 40)) as pilot:
        row = await go(pilot, "appearance.animations")

        def drawn() -> str:
            lines = screen_text(pilot).splitlines()
            return next((line for line in lines if "Animations  " in line), "")

        await until(pilot, lambda: "● on  ○ off" in drawn(), "the row")
        x = drawn().index("○ off")
        await pilot.click(row, offset=(x - row.region.x, 0))
        await until_shown(pilot, "○ on  ● off", "default on")
        assert pilot.app.animation_level == "none"
        await until(pilot, lambda: "animations = false" in on_disk(file), "the save")
        x = next(line for line in screen_text(pilot).splitlines() if "default on" in line)
        await pilot.click(row, offset=(x.index("default on") - row.region.x + 2, 0))
        await until(pilot, lambda: "● on  ○ off" in drawn(), "the default")
        assert pilot.app.animation_level == "full"
        await until(pilot, lambda: "animations = false" not in on_disk(file), "the save")
        # Many choices are shown in a list.
        await go(pilot, "appearance.theme")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceScreen))
        await until_shown(pilot, "● auto", "○ nord")
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: pilot.app.theme == "specchat-light")
        await until_shown(pilot, "‹ specchat-light ›")
        await pilot.press("right")
        await until(pilot, lambda: pilot.app.theme == "atom-one-dark")
        await pilot.press("ctrl+d")
        await until(pilot, lambda: pilot.app.theme == "specchat")
        await until(pilot, lambda: file.path and file.path.exists() and not file.has_unsaved)
    app = app_with(FakeEngine(), SettingsFile(file.path))
    assert app.theme == "specchat"


async def test_settings_of_the_engine_and_of_the_store_reach_them(
    tmp_path: Path, file: SettingsFile
) -> None:
    engine, snapshots = FakeEngine(Story(answer="Short.")), str(tmp_path / "snapshots")
    file.set(BACKGROUND, BackgroundPolicy.ALWAYS)
    file.set(find("storage.trash_days"), 9)
    async with kept_app(tmp_path, engine, settings=file) as (pilot, app):
        first = CachePolicy(BackgroundPolicy.ALWAYS, snapshot_folder=snapshots)
        timed, *others = engine.sent(CachePolicy)  # before the store is open
        assert (timed, others) == (replace(first, snapshot_folder=None, disk_budget=0), [first])
        app.settings.change(BACKGROUND, BackgroundPolicy.OFF)
        app.settings.change(find("storage.disk_cache_gb"), 30)
        app.settings.change(find("storage.memory_cache_gb"), 2)
        app.settings.change(find("answers.temperature"), 0.7)
        app.settings.change(find("answers.top_p"), 0.9)
        last = CachePolicy(BackgroundPolicy.OFF, 2_000_000_000, snapshots, 30_000_000_000)
        assert engine.sent(CachePolicy)[-1] == last
        assert len(engine.sent(CachePolicy)) == 5
        await ask(pilot, engine)
        sampling = engine.asks[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 0.9, 512)
        # Those of the store reach it.
        app.settings.change(find("documents.max_document_size_mb"), 1)
        await paste(pilot, "too long\n" * 130_000)
        await type_in(pilot, "What?")
        await pilot.press("enter")
        await until_shown(pilot, "is larger than 1 MB", "Paste 1")
        app.settings.change(find("documents.max_document_size_mb"), 2)
        await pilot.press("enter")
        await until(pilot, lambda: len(app._engine.asks) == 2, "the question")  # type: ignore[attr-defined]
        await pilot.press("ctrl+o")
        await until_shown(pilot, "1 conversation")
        await pilot.press("ctrl+d")
        await until_shown(pilot, "to the trash (kept for 9 days)")


async def test_a_default_moves_what_nobody_chose_and_nothing_else(tmp_path: Path) -> None:
    app = app_with(FakeEngine())
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "next: AUTO")
        app.settings.change(MODE, Mode.FULL)
        await until_shown(pilot, "next: FULL  (^T auto)")
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: AUTO  (^T in full)")
        app.settings.change(MODE, Mode.SPARSE)
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: FULL")
        await pilot.press("ctrl+g", "3", "5", "enter")
        app.settings.change(KEEP, 0.5)
        await until_shown(pilot, "next: SPARSE 35%")
        # Files are read within the limits that are set.
        for name in ("a.txt", "b.txt"):
            (tmp_path / name).write_text("words\n")
        app.settings.change(find("documents.max_files"), 1)
        app.chat.attachments.attach(str(tmp_path), "")
        await until(pilot, lambda: app.chat.composer.chips.attached, "the chip")
        assert len(app.chat.composer.chips.attached[0].texts) == 1


async def test_invalid_settings_are_reported_and_unsaved_ones_still_apply(
    file: SettingsFile,
) -> None:
    assert file.path is not None
    file.path.parent.mkdir()
    file.path.write_text("[reading]\nkeep = 0.5\nmode = 'fast'\nkeep = 0.6\n")
    wrong = SettingsFile(file.path)
    app = app_with(FakeEngine(), wrong)
    async with app.run_test(size=(100, 40)) as pilot:
        await until_shown(pilot, "Line 4 of", "1 more problem: see F2.")
        assert app.chat.view.next_mode.keep == 0.5
        await go(pilot, "reading.background_reading")
        await until_shown(pilot, "'keep = 0.6'", "'reading.mode'")
        await pilot.press("right")
        await until_shown(pilot, "'reading.background_reading' applies only until")
        assert app.settings.values.reading.background_reading is BackgroundPolicy.ALWAYS
        assert wrong.path is not None
        assert wrong.path.read_text().endswith("keep = 0.6\n")
        wrong.path.write_text("[reading]\nkeep = 0.5\n")
        await pilot.press("up")
        await pilot.press("right")
        await until(pilot, lambda: not wrong.has_unsaved, "the next save")
        await until_gone(pilot, "applies only")
        assert 'background_reading = "always"' in wrong.path.read_text()
