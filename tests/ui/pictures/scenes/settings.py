"""The settings, all and found, and what was wrong in their file."""

from __future__ import annotations

from tests.ingest.helpers import written
from tests.ui.pictures.stage import Stage


async def all_of_them(stage: Stage) -> None:
    async with stage.opened():
        await stage.shown("ready")
        await stage.press("f2")
        await stage.shown("Settings")
        await stage.press("down", "down")
        await stage.take("all")
        await stage.press("escape")
        await stage.press("f2", *"theme", "down")
        await stage.shown("appearance.theme")
        await stage.take("found")
        await stage.press("enter")
        await stage.shown("nord")
        await stage.take("choice")
    written(
        stage.home / ".config" / "specchat" / "settings.toml",
        "[reading]\nkeep = 7\n\n[appearance]\ntheem = 'nord'\n",
    )
    async with stage.opened():
        await stage.shown("ready", "see F2.")
        await stage.take("wrong")
        await stage.press("f2")
        await stage.shown("theem")
        await stage.take("wrong-lines")
