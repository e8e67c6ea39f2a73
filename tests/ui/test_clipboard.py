"""Ctrl+V takes the system's clipboard, where there is one."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from app.protocol.commands import Load
from app.ui.app import SpecchatApp
from app.ui.terminal import SystemClipboard, system_clipboard
from tests.fakes import FakeEngine
from tests.ui.helpers import DOCUMENT, SMALL, until, until_shown


class ScriptedClipboard:
    """The twin of `SystemClipboard`."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read(self) -> Future[str | None]:
        future: Future[str | None] = Future()
        future.set_result(self.text)
        return future

    def write(self, text: str) -> None:
        self.text = text


def app_on(clipboard: ScriptedClipboard | None) -> SpecchatApp:
    return SpecchatApp(FakeEngine(), Load("target", "draft"), clipboard=clipboard)


@pytest.mark.asyncio
async def test_short_text_is_typed_and_long_text_is_a_chip() -> None:
    clipboard = ScriptedClipboard("one\r\ntwo\x1b")
    app = app_on(clipboard)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("ctrl+v")
        await until(pilot, lambda: app.chat.composer.box.text == "one\ntwo␛")
        clipboard.text = DOCUMENT
        await pilot.press("ctrl+v")
        await until_shown(pilot, "Paste 1 · 102 KB")
        assert app.chat.composer.chips.attached[0].documents[0].text == DOCUMENT


@pytest.mark.asyncio
@pytest.mark.parametrize("clipboard", [None, ScriptedClipboard(None)])
async def test_without_it_what_was_cut_here_is_pasted(
    clipboard: ScriptedClipboard | None,
) -> None:
    app = app_on(clipboard)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("a", "b", "ctrl+x", "c", "ctrl+v")
        await until(pilot, lambda: app.chat.composer.box.text == "cab")


@pytest.mark.asyncio
async def test_what_is_copied_here_is_what_is_pasted() -> None:
    clipboard = ScriptedClipboard("older")
    app = app_on(clipboard)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("a", "b", "ctrl+x", "ctrl+v")
        await until(pilot, lambda: app.chat.composer.box.text == "ab")
        assert clipboard.text == "ab"


def program(path: Path, code: str) -> list[str]:
    path.write_text(code)
    return [sys.executable, str(path)]


def test_the_programs_are_run(tmp_path: Path) -> None:
    held = tmp_path / "held"
    reads = program(tmp_path / "r.py", f"import sys; print(open({str(held)!r}).read(), end='')")
    writes = program(
        tmp_path / "w.py", f"import sys; open({str(held)!r}, 'w').write(sys.stdin.read())"
    )
    clipboard = SystemClipboard(reads, writes)
    clipboard.write("text é")
    assert clipboard.read().result() == "text é"


@pytest.mark.parametrize("code", ["", "import sys; print('x'); sys.exit(1)"])
def test_nothing_and_failure_are_none(tmp_path: Path, code: str) -> None:
    assert SystemClipboard(program(tmp_path / "r.py", code), []).read().result() is None
    assert SystemClipboard([str(tmp_path / "absent")], []).read().result() is None


def test_without_a_display_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert system_clipboard() is None
