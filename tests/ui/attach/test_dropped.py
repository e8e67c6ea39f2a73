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
from tests.ui.helpers import (
    box_text,
    paste,
    screen_text,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)

ONE, TWO, QUOTE, FOLDER = "contract.txt", "My file.txt", "it's 5% of.txt", "a folder"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (ONE, TWO, QUOTE):
        (tmp_path / name).write_text(f"The rent of {name} is 950 euros a month.\n")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "notes.md").write_text("# Notes\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
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
    ("contract.txt#13", ["contract.txt#13"]),
    ("./My file.txt#Next steps ", ["My file.txt#Next steps"]),
    ("{0}/contract.txt#2,5-7", ["contract.txt#2,5-7"]),
    ("~/contract.txt#1", ["contract.txt#1"]),
    ("missing.txt#13", []),
    ("contract.txt#", []),
    ("see contract.txt#13", []),
    ("contract.txt#13\ncontract.txt#14", []),
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


async def test_a_part_that_is_pasted_alone_is_attached(folder: Path) -> None:
    (folder / ONE).write_text("".join(f"Clause {number}.\n" for number in range(1, 30)))
    async with started(FakeEngine()) as pilot:
        await paste(pilot, "contract.txt#13")
        await chips(pilot, 1)
        (attached,) = pilot.app.chat.composer.chips.attached  # type: ignore[attr-defined]
        assert [(each.text, each.line) for each in attached.documents] == [("Clause 13.\n", 13)]
        assert box_text(pilot) == ""


async def test_a_typed_path_is_offered_and_never_attached_silently(folder: Path) -> None:
    async with started(engine := FakeEngine()) as pilot:
        await pilot.press(*"./contract.tx")
        await pilot.pause(0.1)
        assert "not attached" not in screen_text(pilot)
        await pilot.press(*"t What is the rent?")
        await until_shown(pilot, "./contract.txt is not attached: type @ before it to attach it.")
        assert not pilot.app.chat.composer.chips.items  # type: ignore[attr-defined]
        await pilot.press("ctrl+home", "@", "escape", "ctrl+end", "enter")
        await until(pilot, lambda: engine.asks, "the question")
        (message,) = engine.asks[0].messages
        assert [each.name for each in message.documents] == [ONE]
        await pilot.press(*"What else is in contract.txt?")  # it is attached now
        await pilot.pause(0.1)
        assert "not attached" not in screen_text(pilot)


async def test_a_path_is_no_question_about_the_whole_text(folder: Path) -> None:
    advice = "seems to need the whole text"
    async with started(FakeEngine()) as pilot:
        for typed in (
            "./how-many/list_all",
            "@list-all/how-many-are-there.txt",
            "Count all in ./a",
        ):
            await type_in(pilot, typed)
            await pilot.pause()
            assert advice not in screen_text(pilot)
            await pilot.press("ctrl+u", "ctrl+k")
            pilot.app.chat.composer.box.replace_all("")  # type: ignore[attr-defined]
        await type_in(pilot, "How many clauses are there in ./contract.md ?")
        await until_shown(pilot, advice)
