"""The list of conversations, through the whole app on the scripted engine."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from textual.pilot import Pilot

from app.protocol.commands import DropConversation
from app.protocol.events import Finished, Token
from app.protocol.prompt import Role
from app.store.records import State
from app.store.store import Store
from app.ui.conversations.screen import ConversationsScreen
from tests.fakes import ANSWER, FakeEngine, Story
from tests.store.samples import answer_stats, answered, attach
from tests.tables import slow
from tests.ui.helpers import (
    DOCUMENT,
    ask,
    kept_app,
    paste,
    screen_text,
    type_in,
    until,
    until_gone,
    until_shown,
)


def three(folder: Path) -> None:
    """Conversations 1 to 3; the last one was used last."""
    with Store(folder) as store:
        answered(store, "Lease contract", "The tenant pays for all repairs.")
        answered(store, "Log triage", "It timed out.")
        answered(store, "Repo tour", "Begin with main.")


async def opened_list(pilot: Pilot[None]) -> ConversationsScreen:
    await pilot.press("ctrl+o")
    await until_shown(pilot, "Conversations  3 conversations", "Repo tour")
    screen = pilot.app.screen
    assert isinstance(screen, ConversationsScreen)
    return screen


def lines(pilot: Pilot[None], *titles: str) -> list[str]:
    """The titles in the order in which they are shown."""
    shown = screen_text(pilot).splitlines()
    found = [(number, t) for t in titles for number, line in enumerate(shown) if t in line]
    return [title for _, title in sorted(found)]


FOUND = (
    ("lgtri", ["Log triage"]),
    ("repairs", ["Lease contract"]),
    ("timed ou", ["Log triage"]),
    ("nowhere", []),
)


async def test_the_list_says_what_there_is_and_enter_opens_it(tmp_path: Path) -> None:
    three(tmp_path)
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, app):
        await opened_list(pilot)
        titles = ["Repo tour", "Log triage", "Lease contract"]
        assert lines(pilot, *titles) == titles
        assert screen_text(pilot).count("1 question · 3 KB") == 3
        # Typing finds titles and messages.
        for typed, found in FOUND:
            await pilot.press(*typed)
            await until_shown(pilot, f"{len(found)} of 3 conversations")
            assert lines(pilot, *titles) == found
            if typed == "repairs":
                await until_shown(pilot, "Answer: The tenant pays for all repairs.")
            await pilot.press("escape")
            await until_shown(pilot, "Conversations  3 conversations")
        await pilot.press("escape")
        await until_shown(pilot, "next: AUTO")
        await opened_list(pilot)
        await pilot.press("down", "down", "enter")
        await until_shown(pilot, "The tenant pays for all repairs.", "specchat  Lease contract")
        await ask(pilot, engine, "And who\nmore?")
        assert engine.asks[0].messages[0].text == "Lease contract"
        assert engine.asks[0].conversation == "1"
        await pilot.press("up")
        await until(pilot, lambda: app.chat.composer.box.text == "And who\nmore?")
        await pilot.press("up", "up")
        await until(pilot, lambda: app.chat.composer.box.text == "Lease contract")


async def test_an_answer_goes_on_while_another_conversation_is_shown(tmp_path: Path) -> None:
    three(tmp_path)
    engine = FakeEngine(Story(answer="One two three four."), stepping=True)
    async with kept_app(tmp_path, engine) as (pilot, app):
        await ask(pilot, engine, "Fresh question?")
        engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "One t")
        await pilot.press("ctrl+o")
        await until_shown(pilot, "◆ answering", "4 conversations")
        await pilot.press("down", "enter")
        await until_shown(pilot, "Begin with main.")
        assert "One t" not in screen_text(pilot)
        await type_in(pilot, "Waits?")
        await pilot.press("enter")
        await until_shown(pilot, "queued · Esc takes it back")
        engine.advance_to(lambda event: isinstance(event, Finished))
        await until(pilot, lambda: len(engine.asks) == 2, "the waiting question")
        assert engine.asks[1].conversation == "3"
        asked = [message.text for message in engine.asks[1].messages]
        assert asked == ["Repo tour", "Begin with main.", "Waits?"]
        await pilot.press("ctrl+o", *"Fresh")
        await until_shown(pilot, "1 of 4")
        await pilot.press("enter")
        await until_shown(pilot, "One two three four.", "▸ Read", "specchat  Fresh")
        engine.finish()
        await until(pilot, lambda: app.chat.open_chats.answering is None)
    with Store(tmp_path) as store:
        assert [m.text for m in store.branch(4)] == ["Fresh question?", "One two three four."]
        assert [m.text for m in store.branch(3)][2:] == ["Waits?", "One two three four."]
        assert store.branch(4)[1].state is State.DONE


async def test_coming_back_to_an_answer_that_still_streams(tmp_path: Path) -> None:
    three(tmp_path)
    engine = FakeEngine(stepping=True)
    async with kept_app(tmp_path, engine) as (pilot, app):
        await ask(pilot, engine, "Fresh question?")
        engine.advance_to(lambda event: isinstance(event, Token))
        await pilot.press("ctrl+n")
        await until_gone(pilot, "Fresh question?")
        for _ in range(4):
            engine.advance_to(lambda event: isinstance(event, Token))
        await pilot.press("ctrl+o")
        await until_shown(pilot, "Fresh")
        await pilot.press("enter")
        await until_shown(pilot, 'The "Corresponding Source', "Esc stop")
        await pilot.press("escape")
        await until(pilot, lambda: engine.cancelled == [1])
        engine.finish()
        await until_shown(pilot, "■ stopped · the text is kept")
        assert app.chat.open_chats.answering is None
        # Deleting the one that is answered stops it and leaves it.
        await pilot.press("ctrl+n")
        await until_gone(pilot, "Fresh question?")
        await ask(pilot, engine, "Another question?")
        engine.advance_to(lambda event: isinstance(event, Token))
        await pilot.press("ctrl+o")
        await until_shown(pilot, "◆ answering")
        await pilot.press("ctrl+d")
        await until_shown(pilot, "to the trash", "4 conversations")
        await until(pilot, lambda: engine.cancelled == [1, 2])
        engine.finish()
        await pilot.press("escape")
        await until_shown(pilot, "next: AUTO")
        assert "Another question?" not in screen_text(pilot)
        assert app.chat.open_chats.shown.id is None
    with Store(tmp_path) as store:
        assert store.branch(5)[1].text == ANSWER[:5]


async def test_drafts_stay_with_their_conversations(tmp_path: Path) -> None:
    three(tmp_path)
    async with kept_app(tmp_path) as (pilot, app):
        box = app.chat.composer.box
        await type_in(pilot, "for a new one")
        await pilot.press("ctrl+o")
        await until_shown(pilot, "Repo tour")
        await pilot.press("enter")
        await until_shown(pilot, "Begin with main.")
        assert box.text == ""
        await paste(pilot, DOCUMENT)
        await pilot.press("ctrl+t")
        await type_in(pilot, "for the tour")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: box.text == "for a new one")
        await until_gone(pilot, "Paste 1")
        await until_shown(pilot, "next: AUTO")
        await pilot.press("ctrl+o")
        await until_shown(pilot, "Repo tour")
        await pilot.press("enter")
        await until(pilot, lambda: box.text == "for the tour")
        await until_shown(pilot, "Paste 1 · 102 KB", "next: FULL")


async def test_delete_and_undo(tmp_path: Path) -> None:
    three(tmp_path)
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, _):
        await opened_list(pilot)
        await pilot.press("down", "ctrl+d", "ctrl+d")
        await until_shown(
            pilot, "1 conversation", "Moved 'Lease contract' to the trash (kept for 30 days)"
        )
        await pilot.press("ctrl+z")
        await until_shown(pilot, "2 conversations", "Restored 'Lease contract'.")
        await pilot.press("ctrl+z", "ctrl+z")
        await until_shown(pilot, "3 conversations", "Nothing to undo.")
        await pilot.press("ctrl+d")
        await until_shown(pilot, "2 conversations")
        assert engine.sent(DropConversation) == []
        await pilot.press("escape")
        dropped = DropConversation("2", str(tmp_path / "snapshots"))
        await until(pilot, lambda: engine.sent(DropConversation) == [dropped])
    with Store(tmp_path) as store:
        assert [each.id for each in store.conversations(trashed=True)] == [2]


async def test_rename_pin_duplicate_and_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repo-tour.md").write_text("mine")
    async with kept_app(tmp_path / "data", size=(200, 24)) as (pilot, _):
        await opened_list(pilot)
        await pilot.press("ctrl+e")
        await until_shown(pilot, "Export to file (.md or .json): repo-tour-2.md")
        await pilot.press("enter")
        await until_shown(pilot, f"Exported to '{tmp_path / 'repo-tour-2.md'}'.")
        for name, said in (("x.json", "Exported"), ("repo-tour.md", "already exists")):
            await pilot.press("ctrl+e", "ctrl+u", *name, "enter")
            await until_shown(pilot, said)
        await pilot.press("ctrl+e", "ctrl+u", *"no/where.md", "enter")
        await until_shown(pilot, "cannot be written (No such file or directory)")
        await pilot.press("escape", "escape")
        await until_shown(pilot, "next: AUTO")
        await opened_list(pilot)
        await pilot.press("down", "down", "ctrl+t")
        await until_shown(pilot, "★ Lease contract")
        assert lines(pilot, "Lease contract", "Repo tour", "Log triage")[0] == "Lease contract"
        await pilot.press("ctrl+r")
        await until_shown(pilot, "Title: Lease contract")
        await pilot.press("ctrl+u", *"Flat", "enter")
        await until_shown(pilot, "★ Flat")
        await pilot.press("ctrl+y")
        await until_shown(pilot, "Flat (copy)", "4 conversations")
        await pilot.press("ctrl+r", "ctrl+u", "enter")
        await until_shown(pilot, "A title cannot be empty.")
        await pilot.press("enter")
        await until_shown(pilot, "specchat  Flat (copy)", "all repairs")
    with Store(tmp_path / "data") as store:
        titles = [each.title for each in store.conversations()]
        assert titles == ["Flat", "Flat (copy)", "Repo tour", "Log triage"]
    assert "## You" in (tmp_path / "repo-tour-2.md").read_text()
    assert json.loads((tmp_path / "x.json").read_text())["title"] == "Repo tour"
    assert (tmp_path / "repo-tour.md").read_text() == "mine"


async def test_a_rename_is_stored_if_the_list_is_left_right_away(tmp_path: Path) -> None:
    three(tmp_path)
    busy = Event()
    async with kept_app(tmp_path) as (pilot, app):
        await opened_list(pilot)
        repository = app.chat.open_chats.repository
        waiting = asyncio.create_task(repository.write(lambda store: busy.wait(30)))
        try:
            await pilot.press("down", "down", "ctrl+r", "ctrl+u", *"Flat", "enter", "escape")
            await pilot.press("escape", "escape")  # it seems not to react
        finally:
            busy.set()
        await waiting
        await until_gone(pilot, "3 conversations")
        await pilot.pause(0.1)
        assert app.screen is app.chat
    with Store(tmp_path) as store:
        assert {each.title for each in store.conversations()} == {"Flat", "Repo tour", "Log triage"}


@pytest.mark.slow
async def test_a_second_window_saves_changes_but_no_questions(tmp_path: Path) -> None:
    three(tmp_path)
    with Store(tmp_path):
        async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, _):
            await opened_list(pilot)
            await pilot.press("ctrl+d")
            await until_shown(pilot, "to the trash", "2 conv")
            await pilot.press("ctrl+z")
            await until_shown(pilot, "Restored", "3 conv")
            await pilot.press("enter")
            await until_shown(pilot, "Begin with main.")
            await ask(pilot, engine, "More?")
            await until_shown(pilot, "▸ Read")
            await pilot.press("ctrl+n")
            await until_gone(pilot, "More?")
            await opened_list(pilot)
            await pilot.press("enter")
            await until_shown(pilot, "More?")


async def test_titles_and_snippets_are_text(tmp_path: Path) -> None:
    """And typing selects the best match: not the one that was chosen before, though it is found,
    too."""
    with Store(tmp_path) as store:
        answer = "needle\nthread \x1b]0;x\x07 [bold]b[/]"
        answered(store, "[@click=app.quit]evil[/]\x1b[31m\u202e", answer)
        answered(store, "case31x", "One.")
        answered(store, "case30x alert(1) x", "Another.")
    async with kept_app(tmp_path) as (pilot, app):
        await pilot.press("ctrl+o")
        await until_shown(pilot, "Conversations  3 conversations")
        await until_shown(pilot, "[@click=app.quit]evil[/]␛[31m⟨RLO⟩")
        await pilot.press(*"needle", "space", *"thread")
        await until_shown(pilot, "Answer: needle thread ␛]0;x␇ [bold]b[/]")
        await pilot.press("ctrl+u")
        await paste(pilot, "a\x1b[2J\nb")
        await until_shown(pilot, "a␛[2J b")
        await pilot.press("ctrl+u")
        await until_shown(pilot, "Conversations  3 conversations")
        await pilot.press(*"case31x")
        await until_shown(pilot, "2 of 3", "You: case31x")
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.open_chats.shown.title == "case31x")


def attached(folder: Path, **documents: str) -> None:
    """A conversation with an answer about documents, and another one before and after it."""
    with Store(folder) as store:
        answered(store, "Before", "Nothing.")
        conversation = store.create().id
        files = [(name, text.encode()) for name, text in documents.items()]
        question = store.add_message(
            conversation, Role.USER, "Where is it?", store.attach_all(files)
        )
        reply = store.begin_reply(question.id)
        reply.append("Somewhere.")
        reply.finish(answer_stats())
        store.add_message(conversation, Role.USER, "And then?")
        answered(store, "After", "Nothing.")
        store.wait_for_index()


async def open_list(pilot: Pilot[None]) -> None:
    await pilot.press("ctrl+o")
    await until_shown(pilot, "Conversations  3 conversations")


async def test_typing_finds_documents_and_enter_opens_them_at_the_hit(tmp_path: Path) -> None:
    roof = "filler\n" * 500 + "The zinc gutter leaks.\n"
    attached(tmp_path, roof=roof, walls="Of brick.", log="Nothing but a log.")
    async with kept_app(tmp_path) as (pilot, app):
        await open_list(pilot)
        # Messages come before documents.
        await pilot.press(*"nothing")
        await until_shown(pilot, "2 of 3 conversations · 1 document")
        assert lines(pilot, "▤ log", "Before", "After") in (
            ["Before", "After", "▤ log"],
            ["After", "Before", "▤ log"],
        )
        # A document is not deleted or renamed.
        await pilot.press("ctrl+u", *"gutter")
        await until_shown(pilot, "▤ roof")
        for key in ("ctrl+d", "ctrl+r", "ctrl+t"):
            await pilot.press(key)
            await until_shown(pilot, "This is a document. Enter opens its conversation.")
        await pilot.press("escape")
        await until_shown(pilot, "Conversations  3 conversations")
        await pilot.press(*"zinc gut")
        await until_shown(
            pilot,
            "0 of 3 conversations · 1 document",
            "▤ roof",
            "in 'Where is it?'",
            "line 501: The zinc gutter leaks.",
        )
        await pilot.press("enter")
        await until_shown(pilot, "What was read", "roof", "The zinc gutter leaks.", "hit 1 of 1")
        assert app.chat.open_chats.shown.title == "Where is it?"
        await pilot.press("escape", "escape")
        await until_shown(pilot, "Where is it?", "Somewhere.")


async def asked_about(folder: Path, path: Path) -> None:
    """A conversation about this file, and one about a paste."""
    async with kept_app(folder, engine := FakeEngine()) as (pilot, app):
        app.chat.attachments.attach(str(path), str(path))
        await until_shown(pilot, f"▣ {path.name}")
        await ask(pilot, engine, "What is the rent?")
        await pilot.press("ctrl+n")
        await until_gone(pilot, "What is the rent?")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "And the paste?")


async def attach_again(pilot: Pilot[None]) -> None:
    await pilot.press("ctrl+o")
    await until_shown(pilot, "2 conversations · 1 document", "▣ lease.txt", "1 chat ")
    await pilot.press(*"lease")
    await until_shown(pilot, "Enter attaches it to a new conversation.")
    await pilot.press("enter")
    await until_shown(pilot, "▣ lease.txt", "next: AUTO")


async def test_a_document_of_an_earlier_conversation_is_attached_as_it_was_read(
    tmp_path: Path,
) -> None:
    folder, lease = tmp_path / "data", tmp_path / "lease.txt"
    lease.write_text("The rent is 900 euros.\n")
    await asked_about(folder, lease)
    async with kept_app(folder, engine := FakeEngine(), (110, 30)) as (pilot, _):
        await attach_again(pilot)
        await ask(pilot, engine, "Who pays it?")
        (document,) = engine.asks[0].messages[0].documents
        assert (document.name, document.text) == ("lease.txt", "The rent is 900 euros.\n")
        assert engine.asks[0].conversation == "3"
        await pilot.press("ctrl+o")
        await until_shown(pilot, "3 conversations · 1 document", "▣ lease.txt", "2 chats ")
        await pilot.press("tab")
        await until_shown(pilot, "This is a document. Enter attaches it")
        await pilot.press("ctrl+d", "tab")
        await until_gone(pilot, "This is a document")


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (lambda lease, texts: lease.write_text("Rent is 950.\n"), "'lease.txt' has changed"),
        slow(lambda lease, texts: lease.unlink(), "'lease.txt' is gone from the disk"),
        slow(lambda lease, texts: shutil.rmtree(texts), "so the file is read again."),
    ],
)
async def test_what_has_happened_to_its_file_or_text_is_said(
    tmp_path: Path, lose: Callable[[Path, Path], object], said: str
) -> None:
    folder, lease = tmp_path / "data", tmp_path / "lease.txt"
    lease.write_text("The rent is 900 euros.\n")
    await asked_about(folder, lease)
    lose(lease, folder / "attachments")
    async with kept_app(folder, size=(110, 30)) as (pilot, _):
        await attach_again(pilot)
        await until_shown(pilot, said)


@pytest.mark.slow
async def test_hostile_documents_are_shown_harmlessly(tmp_path: Path) -> None:
    attached(tmp_path, **{"na\x1b[2Jme": "a \x1b]0;title\x07 needle \x9b31m\u202e[b]x[/b]"})
    async with kept_app(tmp_path, size=(120, 24)) as (pilot, _):
        await open_list(pilot)
        await pilot.press(*"needle")
        await until_shown(pilot, "▤ na␛[2Jme", "a ␛]0;title␇ needle", "[b]x[/b]")
        shown = screen_text(pilot)
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
        await pilot.press("enter")
        await until_shown(pilot, "What was read", "hit 1 of 1")


@pytest.mark.slow
async def test_documents_that_are_not_indexed_yet_are_counted_and_found_once_they_are(
    tmp_path: Path,
) -> None:
    attached(tmp_path, roof="The zinc gutter leaks.")
    with Store(tmp_path) as store:
        reply = store.begin_reply(store.add_message(1, Role.USER, "x").id)
        store.add_message(1, Role.USER, "y", [attach(store, "A gutter of copper.", "copper")])
        async with kept_app(tmp_path) as (pilot, _):
            await open_list(pilot)
            await pilot.press(*"gutter")
            await until_shown(pilot, "▤ roof", "1 not searchable yet")
            assert "▤ copper" not in screen_text(pilot)
            reply.finish()
            await until_shown(pilot, "▤ copper", "2 documents")
            assert "not indexed" not in screen_text(pilot)
