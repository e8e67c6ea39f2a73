"""What is said on the screen is kept, and is there again at the next start."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Markdown

from app.protocol.commands import CachePolicy, PruneSnapshots
from app.protocol.events import Finished, GpuLost, Token
from app.protocol.options import Mode
from app.protocol.prompt import Role
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import FinishReason, Phase
from app.store import records
from app.store.records import State
from app.store.store import Store
from app.ui.chat.composer import ComposeBox
from app.ui.spans.screen import SpansScreen
from app.ui.transcript.panel import PrefillPanel
from tests.fakes import ANSWER, FakeEngine, Story, pieces
from tests.ui.helpers import (
    DOCUMENT,
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

SCROLLBAR = " █▇▆▅▄▃▂▁"
FULL = "CREATE TRIGGER full BEFORE {} ON {} BEGIN SELECT RAISE(ABORT, 'no room'); END"
LOST = Failure(FailureKind.GPU_LOST, {"system": "Impacting Interactivity"})
PROBLEM = "The system stopped specchat's work on the GPU"
LOSES = Story(fails_in=Phase.PREFILL, failure=LOST)


def box(pilot: object) -> ComposeBox:
    return pilot.app.chat.composer.box  # type: ignore[attr-defined, no-any-return]


async def test_a_question_is_saved_before_the_engine_gets_it(tmp_path: Path) -> None:
    """And before anything is asked, snapshots of deleted conversations go: a killed app may have
    left some."""
    with Store(tmp_path) as store:
        ids = [store.create(title).id for title in ("One", "Trashed", "Three")]
        store.trash(ids[1])
        store.save_draft(records.DraftRecord(None))
    engine = FakeEngine(stepping=True)
    async with kept_app(tmp_path, engine) as (pilot, _):
        assert engine.sent(CachePolicy) == [
            CachePolicy(snapshot_folder=str(tmp_path / "snapshots"))
        ]
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "What jumps?")
        with Store(tmp_path) as beside:
            question, reply = beside.branch(4)
            assert (question.text, reply.state) == ("What jumps?", State.PARTIAL)
            assert beside.text(question.attachments[0]) == DOCUMENT
        assert engine.asks[0].conversation == "4"
        pruned = PruneSnapshots(str(tmp_path / "snapshots"), (str(ids[0]), str(ids[2])))
        assert engine.sent(PruneSnapshots) == [pruned]
        assert engine.commands.index(pruned) < engine.commands.index(engine.asks[0])
        engine.finish()
        await until_shown(pilot, "▸ Read 2")
    with Store(tmp_path) as store:
        assert store.branch(4)[1].text == ANSWER
        assert store.branch(4)[1].stats is not None


async def unfolded(pilot: Pilot[None]) -> list[str]:
    """The lines on the screen, once the figures of the last answer are unfolded."""
    await pilot.press("tab", "space")
    await until_shown(pilot, "▾ Read", "selected · 6 passages")
    lines = [line.strip(SCROLLBAR) for line in screen_text(pilot).splitlines()]
    await pilot.press("space", "escape")
    await until_shown(pilot, "▸ Read")
    return lines


async def test_the_next_start_is_at_the_same_place(tmp_path: Path) -> None:
    """With the figures of the stored answer, which unfold as before."""
    size = (90, 40)
    async with kept_app(tmp_path, engine := FakeEngine(), size) as (pilot, _):
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine, "What jumps?")
        await until_shown(pilot, "▸ Read 2", "in 1.9 s")
        before = await unfolded(pilot)
        await pilot.press("ctrl+g", "3", "5", "enter")
        await pilot.press("ctrl+t")
        await paste(pilot, DOCUMENT + "more")
        await type_in(pilot, "And who\nsleeps?")
    async with kept_app(tmp_path, engine := FakeEngine(), size) as (pilot, app):
        await until_shown(pilot, "▸ Read 2", "in 1.9 s")
        await until_shown(pilot, "What jumps?", "paste-1.txt  102 KB", "next: FULL", "Paste 1")
        await until(pilot, lambda: [m.source for m in app.screen.query(Markdown)] == [ANSWER])
        assert app.screen.query_one(PrefillPanel).details is False
        assert box(pilot).text == "And who\nsleeps?"
        after = await unfolded(pilot)
        for word in ("importance", "selected ·", "Why", "keep "):
            assert [x for x in before if word in x] == [x for x in after if word in x]
        on_screen = " ".join(after)
        for phase in ("✓ prepare text", "✓ score 0.8 s", "✓ select", "✓ read 0.9 s", "✓ answer"):
            assert phase in on_screen
        await pilot.press("ctrl+t")
        await until_shown(pilot, "next: SPARSE 35%")
        await pilot.press("ctrl+s")
        await until_shown(pilot, "What was read  paste-1.txt", "6 passages")
        assert isinstance(app.screen, SpansScreen)
        assert 0.1 < app.screen.view.document.read_fraction < 0.4
        await pilot.press("right")
        await until_shown(pilot, "Another keep can be tried only on the last answer")
        await pilot.press("escape")
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        first, answer, second = engine.asks[0].messages
        assert (first.text, first.documents[0].text) == ("What jumps?", DOCUMENT)
        assert (answer.role, answer.text) == (Role.ASSISTANT, ANSWER)
        assert answer.token_ids == tuple(range(1000, 1000 + len(pieces(ANSWER))))
        assert second.documents[0].text == DOCUMENT + "more"
    async with kept_app(tmp_path) as (pilot, _):
        assert box(pilot).text == ""
        await until_gone(pilot, "Paste 1")


async def test_after_a_kill_what_was_written_is_there_and_can_be_asked_again(
    tmp_path: Path,
) -> None:
    folder, killed = tmp_path / "alive", tmp_path / "killed"
    engine = FakeEngine(stepping=True)
    async with kept_app(folder, engine) as (pilot, _):
        await paste(pilot, DOCUMENT)
        await pilot.press("ctrl+g", "3", "5", "enter")
        await ask(pilot, engine, "What?")
        for _ in range(3):
            engine.advance_to(lambda event: isinstance(event, Token))
        with Store(folder) as beside:
            await until(pilot, lambda: beside.branch(1)[1].text == ANSWER[:15])
        shutil.copytree(folder, killed)
        engine.finish()
    for place in (killed, folder):  # without statistics, and with those of what was chosen
        async with kept_app(place, engine := FakeEngine()) as (pilot, _):
            await until_shown(pilot, "What?")
            if place == killed:
                await until_shown(pilot, ANSWER[:15], "■ stopped · the text is kept")
                await until_shown(pilot, "An answer was cut off when specchat ended")
                assert "before the first word" not in screen_text(pilot)
            await pilot.press("tab", "ctrl+a")
            await until(pilot, lambda engine=engine: engine.asks)
            assert (engine.asks[0].mode, engine.asks[0].keep_ratio) == (Mode.SPARSE, 0.35)


async def test_a_question_that_was_never_answered_can_be_asked_again(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add_message(store.create().id, Role.USER, "Lost?")
        store.save_draft(records.DraftRecord(1))
    async with kept_app(tmp_path, engine := FakeEngine()) as (pilot, _):
        await until_shown(pilot, "Lost?", "✗ failed", "specchat quit before it answered")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: engine.asks)
        assert engine.asks[0].messages[0].text == "Lost?"


async def test_a_second_window_answers_without_saving_and_a_stored_answer_is_replaced(
    tmp_path: Path,
) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Short."))) as (pilot, _):
        await ask(pilot, engine, "What?")
        await until_shown(pilot, "▸ Read")
    with Store(tmp_path) as other:  # a second window does not save
        engine = FakeEngine(Story(answer="Never kept."))
        async with kept_app(tmp_path, engine) as (pilot, _):
            await until_shown(pilot, "Another specchat has the conversations open", "not saved")
            await until_shown(pilot, "What?", "Short.")
            assert engine.sent(CachePolicy) == []
            assert engine.sent(PruneSnapshots) == [], "they are the other one's"
            await ask(pilot, engine, "And?")
            await until_shown(pilot, "Never kept.")
            said = [message.text for message in engine.asks[0].messages]
            assert said == ["What?", "Short.", "And?"]
            assert engine.asks[0].conversation == "1"
        assert len(other.branch(1)) == 2
    # Again in full takes the place of the stored answer.
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Long."))) as (pilot, _):
        await until_shown(pilot, "Short.")
        await pilot.press("ctrl+r")
        await until_shown(pilot, "Long.")
        assert (engine.asks[0].mode, len(engine.asks[0].messages)) == (Mode.FULL, 1)
    with Store(tmp_path) as store:
        assert [message.text for message in store.branch(1)] == ["What?", "Long."]


async def test_leaving_while_it_answers_keeps_what_was_written(tmp_path: Path) -> None:
    engine = FakeEngine(stepping=True)
    async with kept_app(tmp_path, engine) as (pilot, _):
        await ask(pilot, engine, "What?")
        for _ in range(3):
            engine.advance_to(lambda event: isinstance(event, Token))
    with Store(tmp_path) as store:
        assert (store.branch(1)[1].state, store.branch(1)[1].text) == (State.STOPPED, ANSWER[:15])


async def test_without_a_usable_folder_nothing_is_saved_and_there_is_one_conversation(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    engine = FakeEngine(Story(answer="Yes."))
    async with kept_app(tmp_path / "file", engine) as (pilot, _):
        await until_shown(pilot, "Conversations cannot be saved, because", "specchat · not saved")
        await pilot.press("ctrl+o")
        await until_shown(pilot, "Conversations are not being saved.")
        await ask(pilot, engine, "What?")
        await until_shown(pilot, "Yes.", "▸ Read")
        await pilot.press("ctrl+n")
        await until_shown(pilot, "Press ^N again to discard it.", "What?")
        await pilot.press("ctrl+n")
        await until_gone(pilot, "What?")


def break_store(folder: Path, what: str, table: str) -> None:
    with closing(sqlite3.connect(folder / "conversations.db")) as connection, connection:
        connection.execute(FULL.format(what, table))


def mend_store(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "conversations.db")) as connection, connection:
        connection.execute("DROP TRIGGER full")


async def test_what_cannot_be_saved_is_not_asked_or_says_so(tmp_path: Path) -> None:
    """A question that cannot be saved is not asked and stays in the box; an answer that cannot be
    saved says so until it can."""
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Yes."))) as (pilot, _):
        await ask(pilot, engine, "What?")
        await until_shown(pilot, "▸ Read")
        break_store(tmp_path, "INSERT", "messages")
        await paste(pilot, DOCUMENT)
        await type_in(pilot, "And?")
        await pilot.press("enter")
        await until_shown(pilot, "no room", "Paste 1", "❯ And?")
        assert len(engine.asks) == 1
        mend_store(tmp_path)
        engine.stepping = True
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert engine.asks[1].messages[-1].documents[0].text == DOCUMENT
        await until_gone(pilot, "no room")
        break_store(tmp_path, "UPDATE", "messages")
        engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "no room")
        engine.advance_to(lambda event: isinstance(event, Finished))
        await until(pilot, lambda: screen_text(pilot).count("▸ Read") == 2)
        await until_shown(pilot, "no room")
        mend_store(tmp_path)
        await until_gone(pilot, "no room")
    with Store(tmp_path) as store:
        assert (store.branch(1)[3].text, store.branch(1)[3].state) == ("Yes.", State.DONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "words"),
    [
        (Story(ended=FinishReason.CANCELLED), ["■ stopped", "▸ Read everything in"]),
        (Story(fails_in=Phase.PREFILL), ["✗ failed", "Read less (Ctrl+G"]),
    ],
    ids=["stopped", "failed"],
)
async def test_how_it_ended_is_shown_again(tmp_path: Path, story: Story, words: list[str]) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(story)) as (pilot, _):
        await ask(pilot, engine, "What?")
        await until_shown(pilot, *words)
    async with kept_app(tmp_path) as (pilot, _):
        await until_shown(pilot, *words)


@pytest.mark.slow
async def test_of_a_long_conversation_the_earlier_turns_come_when_scrolled_to(
    tmp_path: Path,
) -> None:
    with Store(tmp_path) as store:
        id = store.create("Long").id
        for number in range(20):
            asked = store.add_message(id, Role.USER, f"Question {number}?")
            store.begin_reply(asked.id).finish()
        store.save_draft(records.DraftRecord(id))
    async with kept_app(tmp_path) as (pilot, app):
        await until_shown(pilot, "Question 19?")
        assert len(app.screen.query("TurnView")) < 12
        transcript = app.chat.transcript
        for _ in range(40):
            await pilot.press("pageup")
        await until(pilot, lambda: transcript.scroll_y == 0 and "Question 0?" in screen_text(pilot))
        assert len(app.screen.query("TurnView")) == 20
        for _ in range(40):
            await pilot.press("pagedown")
        await until_shown(pilot, "Question 19?")
        asked_in_order = [m.turn.question.text for m in transcript.messages[::2]]
        assert asked_in_order == [f"Question {number}?" for number in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 11])
async def test_keys_at_random_lose_nothing(tmp_path: Path, seed: int) -> None:
    """Any order of keys, in all states, over two starts: every question is there, and ended."""
    chooser = random.Random(seed)
    keys = ["enter", "escape", "ctrl+n", "ctrl+o", "ctrl+r", "ctrl+t", "down", "a", "b", "ctrl+y"]
    keys += ["ctrl+d", "ctrl+z", "ctrl+s", "ctrl+g", "up", "ctrl+p", "f2", "backspace"]
    keys += ["enter", "enter"]
    asked = 0
    for _ in range(2):
        engine = FakeEngine(Story(answer="One. Two."), stepping=True)
        async with kept_app(tmp_path, engine) as (pilot, app):
            for _ in range(60):
                await pilot.press(chooser.choice(keys))
                for _ in range(chooser.randrange(8)):
                    engine.advance()
            engine.finish()
            await until(pilot, lambda app=app: app.chat.open_chats.committing is None)
            assert app.is_running
        asked += len(engine.asks)
    assert asked
    with Store(tmp_path) as store:
        assert store.notices == []
        every = [*store.conversations(), *store.conversations(trashed=True)]
        messages = [message for each in every for message in store.tree(each.id).messages]
        answers = [m for m in messages if m.role is Role.ASSISTANT]
        assert len({m.id for m in answers}) >= asked
        assert all(m.state is not State.PARTIAL for m in answers)


async def test_the_next_process_shows_the_unanswered_question_and_offers_it(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(LOSES, stepping=True)
    async with kept_app(tmp_path, engine, restart_status=75) as (pilot, app):
        await ask(pilot, engine, "What jumps?")
        await type_in(pilot, "And who is lazy?")
        await pilot.press("enter")
        await until_shown(pilot, "And who is lazy?")
        await type_in(pilot, "half a thought")
        engine.finish()
        await until(pilot, lambda: app.return_code is not None, "the exit")
    assert app.return_code == 75
    assert len(engine.asks) == 1, "the one that waited was not sent"
    engine = FakeEngine()
    async with kept_app(tmp_path, engine, startup_message="Started again.") as (pilot, app):
        await until_shown(pilot, "What jumps?", PROBLEM, "Started again.", "^A asks the last")
        assert app.chat.composer.box.text == "And who is lazy?\nhalf a thought"
        assert not engine.asks, "nothing is sent again by itself"
        app.chat.composer.box.clear()
        await pilot.press("ctrl+a")
        await until(pilot, lambda: len(engine.asks) == 1)
        assert engine.asks[0].messages[-1].text == "What jumps?"


async def test_a_conversation_that_is_not_saved_stays_on_the_screen() -> None:
    engine = FakeEngine()
    app = app_with(engine, restart_status=75)
    async with app.run_test() as pilot:
        await ask(pilot, engine, "What jumps?")
        engine.say(GpuLost(LOST))
        await until_shown(pilot, PROBLEM, "Conversations are not saved here")
        assert app.return_code is None
        await type_in(pilot, "More?")
        await pilot.press("enter")
        await until_shown(pilot, "No model is loaded.")
        assert len(engine.asks) == 1
