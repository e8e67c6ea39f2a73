"""F5 and `/serve`: other programs may ask, or no longer."""

from __future__ import annotations

from app.errors import UserError
from app.protocol.commands import Load
from app.ui.app import SpecchatApp
from tests.fakes import FakeEngine
from tests.ui.helpers import SMALL, screen_text, until_gone, until_shown


class Scripted:
    """A server that needs its packages first."""

    def __init__(self) -> None:
        self.status, self.stopped = "", False
        self.installed = False

    def switch(self) -> str:
        if not self.installed:
            raise UserError("The server's packages are not installed", "`pip` does it")
        return "Other programs can ask."

    def stop(self) -> None:
        self.stopped = True


async def test_it_is_started_by_key_and_by_name_and_says_what_it_does() -> None:
    server = Scripted()
    app = SpecchatApp(FakeEngine(), Load("target", "draft"), server=server)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("f5")
        await until_shown(pilot, "The server's packages are not installed: `pip` does it.")
        server.installed = True
        await pilot.press(*"/serve", "enter")
        await until_shown(pilot, "Other programs can ask.")
        await pilot.press("a")
        await until_gone(pilot, "Other programs can ask.")
        server.status = "Answering another program."
        await until_shown(pilot, server.status)
        server.status = ""
        await until_gone(pilot, "Answering another program.")
        assert "a" in screen_text(pilot)
    app.shutdown()
    assert server.stopped
