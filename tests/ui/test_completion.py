"""Files after `@` and commands after `/`, through the whole app."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.chat.conversation import Question
from app.ingest.walk import DirListing, FolderEntry
from app.ui.completion import MAX_SHOWN, PathCompleter, commands, word_before
from app.ui.models.screen import ModelsScreen
from app.ui.spans.screen import SearchLine, SpansScreen
from tests.fakes import FakeEngine, Story
from tests.ingest.helpers import written
from tests.tables import slow, table
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    ask,
    box_text,
    in_one_read,
    kept_app,
    paste,
    screen_text,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the app is started in."""
    written(tmp_path / "contract.txt", "Clause.\n" * 20)
    written(tmp_path / "src" / "a.py", "print()\n")
    written(tmp_path / "src" / "deep" / "b.py", "pass\n")
    written(tmp_path / "My notes.txt", "Note.\n")
    written(tmp_path / ".hidden", "No.\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ------------------------------------------------------------------------------ files


@asynccontextmanager
async def noting(
    size: tuple[int, int] = SMALL,
) -> AsyncIterator[tuple[Pilot[None], list[Question]]]:
    """The app, and the questions that would be asked: no engine gets them."""
    async with started(size=size) as pilot:
        questions: list[Question] = []
        pilot.app.chat.asking.ask = lambda chat, question, edits=None: questions.append(question)
        yield pilot, questions


async def test_a_file_is_chosen_and_asked_about(start: Path) -> None:
    engine = FakeEngine(Story(answer="Yes."))
    written(start / "every.txt", "Five euros.\n")
    async with started(engine) as pilot:
        await pilot.press("@")
        await until_shown(pilot, "contract.txt", "src/", "My notes.txt")
        assert ".hidden" not in screen_text(pilot)
        await pilot.press("c", "t", "enter")
        await until_shown(pilot, "▣ contract.txt · 160 B · 20 lines")
        assert box_text(pilot) == ""
        assert not pilot.app.query_one("#completions").display
        await ask(pilot, engine, "What?")
        (document,) = engine.asks[0].messages[0].documents
        assert (document.name, document.text) == ("contract.txt", "Clause.\n" * 20)
        await until_shown(pilot, "▣ contract.txt  160 B")
        # Keys typed ahead wait for the names and for the file.
        in_one_read(pilot, "@sr\tde\tb.\tWhat is it?\r")
        await until(pilot, lambda: len(engine.asks) == 2)
        message = engine.asks[1].messages[-1]
        assert message.text == "What is it?"
        assert [(each.name, each.text) for each in message.documents] == [("b.py", "pass\n")]
        # A path that is being typed is no question about the whole text.
        await until(pilot, lambda: not pilot.app.chat.readiness.busy)
        await pilot.press("@")
        await pilot.press(*"every")
        await until_shown(pilot, "every.txt")
        assert "seems to need the whole text" not in screen_text(pilot)
        await pilot.press("enter")
        await until_shown(pilot, "▣ every.txt")
        assert "seems to need the whole text" not in screen_text(pilot)


async def test_up_down_tab_escape_and_a_click(start: Path) -> None:
    async with started() as pilot:
        await pilot.press("s", "e", "e", "space", "@")
        await until_shown(pilot, "contract.txt")
        await pilot.press("up", "tab")
        await until(pilot, lambda: box_text(pilot) == "see @src/")
        await until_shown(pilot, "./  this folder", "a.py", "deep/")
        await pilot.press("down", "down", "enter")
        await until_shown(pilot, "▣ deep/ · 1 file")
        assert box_text(pilot) == "see "
        await pilot.press("@")
        await until_shown(pilot, "  contract.txt")
        await pilot.press("escape")
        await until(pilot, lambda: not pilot.app.query_one("#completions").display)
        await pilot.press("c", "o")
        assert box_text(pilot) == "see @co"
        assert not pilot.app.query_one("#completions").display
        # A space in a name, and a click.
        await pilot.press("ctrl+u", "@")
        await until_shown(pilot, "My notes.txt")
        choices = pilot.app.query_one("#completions")
        lines = screen_text(pilot).splitlines()
        row = next(n for n, line in enumerate(lines) if "My notes.txt" in line)
        await pilot.click(choices, offset=(6, row - choices.region.y))
        await until_shown(pilot, "▣ My notes.txt · 6 B · 1 line")
        # A missing folder is reported.
        await pilot.press(*"@nowhere/")
        await until_shown(pilot, "There is no folder")
        # Hostile names are shown as symbols.
        written(start / "x\x1b[31m[@click=app.quit]\u202e.txt", "text\n")
        await pilot.press("escape", "ctrl+u", "@", "x", "\\")
        await pilot.press("backspace")
        await until_shown(pilot, "x␛[31m[@click=app.quit]⟨RLO⟩.txt")
        await pilot.press("enter")
        await until_shown(pilot, "▣ x\\x1b[31m[@click=app.quit]⟨RLO⟩.txt")
        assert pilot.app.is_running


async def test_a_part_of_a_file_is_chosen(start: Path) -> None:
    written(start / "plan.md", "# Plan\n\n## Next steps\nBuy.\n\n## Costs\nMany.\n")
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine) as pilot:
        await pilot.press("@")
        await until_shown(pilot, "plan.md")
        await pilot.press("p", "l", "#")
        await until(pilot, lambda: box_text(pilot) == "@plan.md#")
        await until_shown(pilot, "#Plan", "#Next steps  line 3", "lines 1 to 7, such as #2")
        await pilot.press("n", "enter")
        await until_shown(pilot, "▣ plan.md#Next steps · ")
        assert box_text(pilot) == ""
        await pilot.press(*"@contract.txt#")
        await until_shown(pilot, "lines 1 to 20")
        await pilot.press(*"3-4")
        await until_shown(pilot, "#3-4")
        await pilot.press("tab")
        await until_shown(pilot, "▣ contract.txt#3-4 · ")
        await ask(pilot, engine, "What?")
        documents = engine.asks[0].messages[0].documents
        assert [(each.name, each.text, each.line) for each in documents] == [
            ("plan.md#Next steps", "## Next steps\nBuy.\n\n", 3),
            ("contract.txt#3-4", "Clause.\n" * 2, 3),
        ]
        # A name with a hash is completed as a name.
        written(start / "contract.txt#2", "Two.\n")
        await pilot.press("@")
        await until_shown(pilot, "contract.txt#2")
        await pilot.press(*"contract.txt#", "enter")
        await until_shown(pilot, "▣ contract.txt#2 · ")


MISSING = [
    "what is @gone.txt about?",
    "@gone.txt#3-4",
    "@src/gone",
    "(see)\n@~/gone-from-home and @contract.txt",
]
NAMED = [
    ("@contract.txt Which clause?", "Which clause?", ["contract.txt"]),
    ("Which clause? @My\\ notes.txt", "Which clause?", ["My notes.txt"]),
    (
        "@src what runs, and @contract.txt?",
        "what runs, and contract.txt?",
        ["a.py", "contract.txt"],
    ),
    (
        "What is in @contract.txt#3,5-6?",
        "What is in contract.txt#3,5-6?",
        ["contract.txt#3,5-6"],
    ),
    ("of @contract.txt, @src/ or @all?", "of contract.txt, src or @all?", ["contract.txt"]),
]


async def test_files_that_a_question_names(start: Path) -> None:
    """They are attached before it is sent; those that are missing are reported first, and text
    that names none is sent at once."""
    async with noting() as (pilot, questions):
        await pilot.press(*"@zzz")
        await until(pilot, lambda: not pilot.app.query_one("#completions").display)
        await pilot.press("enter")
        await until(pilot, lambda: questions)
        assert questions.pop().text == "@zzz"
        for text in MISSING:
            await paste(pilot, text)
            await pilot.press("enter")
            await until_shown(pilot, "There is no file or folder '", "Press Enter again to send")
            assert (box_text(pilot), questions) == (text, [])
            await pilot.press("enter")
            await until(pilot, lambda: questions, text)
            assert questions.pop().text == text.replace("@contract", "contract")
            await until_gone(pilot, "There is no file or folder '")
        for text, asked, files in NAMED:
            await paste(pilot, text)
            await pilot.press("enter")
            await until(pilot, lambda: questions, text)
            question = questions.pop()
            assert question.text == asked
            names = " ".join(each.name for each in question.documents)
            assert all(name in names for name in files), text
            assert box_text(pilot) == ""
        for text in ("@zzz", "me@home.org", "by @c"):
            await paste(pilot, text)
            await pilot.press("enter")
            await until(pilot, lambda: questions, text)
            questions.clear()
        # A file alone is attached, and nothing is asked.
        await paste(pilot, "@contract.txt")
        await pilot.press("enter")
        await until_shown(pilot, "contract.txt", "20 lines")
        assert (box_text(pilot), questions) == ("", [])


async def test_a_folder_that_never_answers_freezes_nothing(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hangs(path: str, most: int, seconds: float) -> DirListing:
        answers.wait()
        return DirListing(())

    monkeypatch.setattr("app.ingest.walk.list_folder", hangs)
    try:
        async with started() as pilot:
            await pilot.press("@")
            await until_shown(pilot, "reading the folder…")
            await pilot.press("a", "enter", "b")
            await until(pilot, lambda: box_text(pilot) == "@ab")
            await pilot.press("escape")
            await until_gone(pilot, "reading the folder…")
    finally:
        answers.set()


@pytest.mark.parametrize("seed", [1, slow(2)])
async def test_keys_at_random_break_nothing(start: Path, seed: int) -> None:
    """Files chosen, gone into, dismissed, sent and taken away, in any order."""
    chooser = random.Random(seed)
    keys = ["@", "@", "c", "s", "space", "tab", "enter", "up", "down", "escape", "backspace"]
    keys += ["left", "home", "shift+tab", "delete", "ctrl+z", "ctrl+w", "/", ".", "ctrl+n"]
    engine = FakeEngine(Story(answer="One. Two."))
    async with started(engine, (60, 20)) as pilot:
        for _ in range(80):
            await pilot.press(chooser.choice(keys))
            if box_text(pilot).startswith("/"):  # /quit would be right, and the end
                await pilot.press("escape", "ctrl+u")
        assert pilot.app.is_running


# ------------------------------------------------------------------------------ commands


async def test_a_command_is_found_and_run() -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with started(engine) as pilot:
        await pilot.press("/")
        await until_shown(pilot, "/attach", "/again", "Ask the last question again")
        await pilot.press("f", "u", "enter")
        await until_shown(pilot, "next: FULL")
        assert (box_text(pilot), engine.asks) == ("", [])
        in_one_read(pilot, "/help\r")
        await until_shown(pilot, "Ten keys to start with")
        await pilot.press("escape")
        await until_gone(pilot, "Ten keys to start with")
        await pilot.press(*"/attach", "enter")
        await until(pilot, lambda: box_text(pilot) == "@")
        # A whole name is the command however it got there.
        await pilot.press("escape", "ctrl+u")
        await paste(pilot, "/full")
        await pilot.press("enter")
        await until_shown(pilot, "next: AUTO")
        assert (box_text(pilot), engine.asks) == ("", [])
        # Commands are the bindings, and each name is one command.
        every = commands(pilot.app.chat.command_owners())
        names = [each.name for each in every]
        assert len(set(names)) == len(names)
        assert {"attach", "new", "conversations", "keep", "full", "spans", "again"} < set(names)
        assert {"help", "quit", "copy", "edit", "delete", "rename", "export"} < set(names)
        assert {"find", "fold", "skipped", "auto", "models-delete"} < set(names)
        assert all(each.description for each in every)


async def test_text_that_only_begins_like_a_command_is_sent_and_an_unknown_command_is_not() -> None:
    async with noting((100, 24)) as (pilot, questions):
        for text in (
            "/etc/hosts is what?", "/etc/hosts", "/ is root", "/", "/2024", "/new model?"
        ):  # fmt: skip
            await type_in(pilot, text)
            await pilot.press("escape", "enter")
            await until(pilot, lambda: questions, text)
            assert questions.pop().text == text

        # An unknown command stays in the box.
        for text, told in (
            ("/newer", "There is no command /newer. Did you mean /new?"),
            ("/exprot", "There is no command /exprot. Did you mean /export?"),
            (" /sp ", "There is no command /sp. Did you mean /spans?"),
            (
                "/xyzzy",
                "There is no command /xyzzy. Type / to list all. If you add words, it is sent as"
                " a question.",
            ),
        ):
            await paste(pilot, text)
            await pilot.press("enter")
            await until_shown(pilot, told)
            assert (box_text(pilot), questions) == (text, [])
            await pilot.press("end", *" it")
            await until_gone(pilot, told)
            await pilot.press("enter")
            await until(pilot, lambda: questions, text)
            questions.clear()


async def test_commands_of_messages_and_of_other_screens_run_from_the_chat(start: Path) -> None:
    engine = FakeEngine(Story(answer="Short."))
    async with kept_app(start / "data", engine, size=(100, 30)) as (pilot, app):
        await until_shown(pilot, "ready")
        await type_in(pilot, "/copy")
        await pilot.press("enter")
        await until_shown(pilot, "Nothing has been asked yet.")
        await type_in(pilot, "/rename")
        await pilot.press("enter")
        await until_shown(pilot, "0 conversations")
        await pilot.press("escape")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "What?")
        await type_in(pilot, "/copy")
        await pilot.press("enter")
        await until_shown(pilot, "Copied the answer as Markdown: 6 characters.")
        await type_in(pilot, "/Rename")
        await pilot.press("enter")
        await until_shown(pilot, "Title")
        await pilot.press("ctrl+u", *"Foxes", "enter")
        await until(pilot, lambda: re.search("Foxes.*1 question", screen_text(pilot)))
        await pilot.press("escape")
        await until(pilot, lambda: app.chat.open_chats.shown.title == "Foxes")
        await type_in(pilot, "/find")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SpansScreen))
        await until(pilot, lambda: isinstance(app.focused, SearchLine))
        await pilot.press("escape", "escape")
        await type_in(pilot, "/auto")
        await pilot.press("enter")
        await until_shown(pilot, "next: AUTO")
        assert not app.chat.composer.slider.display
        await type_in(pilot, "/models-delete")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))


LISTING = DirListing(
    (
        FolderEntry(".env", False, "private"),
        FolderEntry("app", True),
        FolderEntry("build", True, "ignored"),
        FolderEntry("My notes.txt", False),
        FolderEntry("README.md", False),
        FolderEntry("reader.py", False),
    )
)


@table(
    "line, word",
    [
        ("@", ""),
        ("see @src/re", "src/re"),
        ("see @My\\ notes", "My\\ notes"),
        ("me@home", None),
        ("@src done", None),
        ("see (@src", None),
        ("@a @b", "b"),
        ("", None),
    ],
)
def test_the_word_at_the_cursor(line: str, word: str | None) -> None:
    assert word_before(line) == word


def names(word: str, listing: DirListing = LISTING) -> list[str]:
    return [each.name for each in PathCompleter("/start").completions(word, listing)]


def test_without_a_name_all_but_hidden_files_are_offered_ignored_ones_last() -> None:
    assert names("") == ["app", "My notes.txt", "reader.py", "README.md", "build"]


@table(
    "word, found",
    [
        ("read", ["reader.py", "README.md"]),
        ("note", ["My notes.txt"]),
        ("rdr", ["reader.py"]),
        ("b", ["build"]),
        ("ad", ["reader.py", "README.md"]),
        ("xyz", []),
        (".", [".", "..", ".env"]),
        ("..", [".."]),
        (".e", [".env"]),
        ("app/", [".", "app", "My notes.txt", "reader.py", "README.md", "build"]),
        ("~", ["~"]),
        ("[", []),
    ],
)
def test_names_are_ranked_by_prefix_then_substring_then_letters(
    word: str, found: list[str]
) -> None:
    assert names(word) == found


def test_a_choice_is_typed_so_that_it_can_be_read_again() -> None:
    (notes,) = PathCompleter("/start").completions("sub/My\\ n", LISTING)
    assert (notes.typed, notes.path) == ("sub/My\\ notes.txt", "/start/sub/My notes.txt")
    assert word_before("see @" + notes.typed) == notes.typed
    app, *_ = PathCompleter("/start").completions("ap", LISTING)
    assert (app.typed, app.path) == ("app/", "/start/app")


@table(
    "word, folder",
    [
        ("re", "/start"),
        ("a/b/re", "/start/a/b"),
        ("../re", "/"),
        ("/etc/ho", "/etc"),
        ("~/x", str(Path.home())),
        ("my\\ a/x", "/start/my a"),
    ],
)
def test_the_folder_that_is_typed(word: str, folder: str) -> None:
    assert PathCompleter("/start").folder(word) == folder


def test_the_number_of_offered_names_is_limited() -> None:
    many = DirListing(tuple(FolderEntry(f"f{number}", False) for number in range(2_000)))
    assert len(names("f", many)) == MAX_SHOWN
