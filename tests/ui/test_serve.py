"""F5 and `/serve`: other programs may ask, or no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import UserError
from app.protocol.commands import Ask, Load
from app.protocol.engine import OnAnswered
from app.protocol.events import Finished, Token
from app.protocol.prompt import Message, Role
from app.protocol.stats import FinishReason
from app.settings.definitions import find
from app.ui.app import SpecchatApp
from app.ui.start import Start
from tests.fakes import FakeEngine
from tests.ui.helpers import SMALL, screen_text, until, until_gone, until_shown


class Scripted:
    """A server that needs its packages first."""

    def __init__(self) -> None:
        self.status, self.stopped = "", False
        self.port: int | None = None
        self.installed = False
        self.answered: OnAnswered | None = None

    def report_answers(self, on_answered: OnAnswered) -> None:
        self.answered = on_answered

    def switch(self) -> str:
        if not self.installed:
            raise UserError("The server's packages are not installed", "`pip` does it")
        self.port = None if self.port else 8321
        return "Other programs can ask." if self.port else "Server stopped."

    def stop(self) -> None:
        self.stopped = True


async def test_it_is_started_by_key_and_by_name_and_says_what_it_does() -> None:
    server = Scripted()
    app = SpecchatApp(Start(FakeEngine(), Load("target", "draft"), server=server))
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("f5")
        await until_shown(pilot, "The server's packages are not installed: `pip` does it.")
        server.installed = True
        await pilot.press(*"/serve", "enter")
        await until_shown(pilot, "Other programs can ask.")
        await pilot.press("a")
        await until_gone(pilot, "Other programs can ask.")
        await until_shown(pilot, "specchat · serving :8321")
        server.status = "Answering another program."
        await until_shown(pilot, server.status)
        server.status = ""
        await until_gone(pilot, "Answering another program.")
        assert "a" in screen_text(pilot)
        await pilot.press("f5")
        await until_gone(pilot, "serving :8321")
    app.shutdown()
    assert server.stopped


async def test_requests_become_conversations_only_if_the_setting_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Scripted()
    app = SpecchatApp(Start(FakeEngine(), Load("target", "draft"), folder=tmp_path, server=server))

    def answered(question: str) -> None:
        assert server.answered
        end = Finished(1, FinishReason.STOP, "Paris.", (7,), None)
        server.answered(Ask((Message(Role.USER, question),)), [Token(1, (7,), "Paris."), end])

    async with app.run_test(size=(120, 40)) as pilot:
        repository = app.chat.open_chats.repository
        await until(pilot, lambda: repository.writable)
        answered("What is not saved?")
        await pilot.pause(0.2)
        app.settings.change(find("storage.save_requests"), True)
        answered("What is the capital?")
        await until_shown(pilot, "What is the capital?")
        stored = await repository.read(lambda store: store.conversations())
        assert [each.title for each in stored] == ["What is the capital?"]

        def broken(*given: object) -> None:
            raise ValueError("zip() argument 2 is longer")

        monkeypatch.setattr(repository, "save_request", broken)
        answered("What is odd?")
        await until_shown(pilot, "was not saved: See specchat.log.")
    app.shutdown()
