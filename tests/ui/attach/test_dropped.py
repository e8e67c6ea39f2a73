"""Files that are dropped on the terminal, as terminals paste their paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from app.ui.attach.dropped import dropped_paths, may_be_paths
from app.ui.terminal_input import PasteSafeParser
from tests.fakes import FakeEngine
from tests.tables import table
from tests.ui.helpers import box_text, paste, started, until, until_gone, until_shown

ONE, TWO, QUOTE, FOLDER = "contract.txt", "My file.txt", "it's 5% of.txt", "a folder"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (ONE, TWO, QUOTE):
        (tmp_path / name).write_text(f"The rent of {name} is 950 euros a month.\n")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "notes.md").write_text("# Notes\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


DROPPED = [
    ("{0}/contract.txt", [ONE]),
    ("'{0}/contract.txt' ", [ONE]),
    ('"{0}/My file.txt"', [TWO]),
    ("{0}/My\\ file.txt ", [TWO]),
    ("{0}/My file.txt ", [TWO]),
    ("file://{0}/My%20file.txt\r\n", [TWO]),
    ("file://localhost{0}/contract.txt", [ONE]),
    ("file:{0}/contract.txt", [ONE]),
    ("'{0}/it'\\''s 5% of.txt'", [QUOTE]),
    ("file://{0}/it%27s%205%25%20of.txt", [QUOTE]),
    ("{0}/it\\'s\\ 5%\\ of.txt", [QUOTE]),
    ("~/contract.txt", [ONE]),
    ("{0}/a folder/", [FOLDER + "/"]),
    ("{0}/contract.txt {0}/My\\ file.txt", [ONE, TWO]),
    ("'{0}/contract.txt' '{0}/My file.txt' '{0}/a folder'", [ONE, TWO, FOLDER]),
    ("{0}/contract.txt\r{0}/My file.txt\r", [ONE, TWO]),
    ("file://{0}/contract.txt\r\nfile://{0}/My%20file.txt\r\n", [ONE, TWO]),
    ("{0}/missing.txt", []),
    ("{0}/contract.txt {0}/missing.txt", []),
    ("{0}/contract.txt is what I mean", []),
    ("see {0}/contract.txt", []),
    ("file://elsewhere{0}/contract.txt", []),
    ("'{0}/contract.txt", []),
    ("contract.txt", []),
    ("/", []),
    ("~/", []),
    ("/..", []),
    ("", []),
]


@table("pasted, names", DROPPED)
def test_paths_in_a_paste(folder: Path, pasted: str, names: list[str]) -> None:
    text = pasted.format(folder)
    found = dropped_paths(text) if may_be_paths(text) else ()
    assert list(found) == [f"{folder}/{name}" for name in names]


def test_a_name_that_is_not_utf8(folder: Path) -> None:
    path = os.fsencode(folder) + b"/caf\xe9.txt"
    Path(os.fsdecode(path)).write_bytes(b"text")
    assert [*dropped_paths(f"file://{folder}/caf%E9.txt")] == [os.fsdecode(path)]


async def chips(pilot: Pilot[None], number: int) -> None:
    await until(pilot, lambda: len(pilot.app.chat.composer.chips.attached) == number)  # type: ignore[attr-defined]


async def test_dropped_files_become_chips(folder: Path) -> None:
    async with started(FakeEngine()) as pilot:
        await paste(pilot, f"'{folder}/contract.txt' ")
        await until_shown(pilot, "▣ contract.txt")
        assert box_text(pilot) == ""
        # Without brackets, and while another widget has the focus.
        pilot.app.set_focus(None)
        parser = PasteSafeParser()
        assert not [*parser.feed(f"{folder}/My\\ file.txt {folder}/a\\ folder")]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("textual._parser.get_time", lambda: float("inf"))
            (pasted,) = parser.tick()
        assert isinstance(pasted, Paste)
        pilot.app.post_message(pasted)
        await chips(pilot, 3)
        await until_shown(pilot, "▣ My file.txt", "▣ a folder/")
        # Text stays text: a path that does not exist, and one after an @.
        await paste(pilot, f"{folder}/missing.txt")
        await until(pilot, lambda: box_text(pilot) == f"{folder}/missing.txt")
        pilot.app.chat.composer.box.replace_all("")  # type: ignore[attr-defined]
        await pilot.press(*"see @")
        await paste(pilot, f"{folder}/contract.txt")
        await until(pilot, lambda: box_text(pilot) == f"see @{folder}/contract.txt")
        await chips(pilot, 3)


async def test_a_dropped_file_that_cannot_be_read_is_said(folder: Path) -> None:
    (folder / "program").write_bytes(b"\x7fELF\0\0\0\0" * 100)
    async with started(FakeEngine()) as pilot:
        await paste(pilot, f"{folder}/program ")
        await until(pilot, lambda: "program" in box_text(pilot))
        await until_gone(pilot, "reading")
