"""The rules of asking, without an app."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.chat import wording
from app.chat.conversation import Question, Turn
from app.errors import UserError
from app.protocol.commands import Load
from app.protocol.events import Event, Token
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Document, Role
from app.protocol.reasons import Failure, FailureKind, too_long
from app.protocol.stats import FinishReason, Phase
from app.settings.definitions import ReadingSettings, Settings
from app.settings.file import SettingsFile
from app.store import records
from app.store.store import Store
from app.ui.attach.attachment import Attachment, documents_of, make_attachment
from app.ui.state import asking
from app.ui.state.asking import Asking, Readiness
from app.ui.state.draft import NextMode, UnsentMessage, default_next_mode
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import ChatRepository, OpenChat
from tests.fakes import ANSWER, FakeEngine, Story, does_not_fit
from tests.tables import table

PAIR = Load("models/target-model", "models/draft-model")
LEASE = make_attachment([Document("lease.txt", "The tenant pays the rent.\n")])
NOTES = make_attachment([Document("notes.txt", "Call the landlord.\n")])
TOO_LONG = Story(failure=too_long(53_360, "qwen3-8b-4bit", 40_960))
CUT_OFF = Story(answer="The tenant ", ended=FinishReason.LENGTH)


@dataclass
class Pair:
    load: Load = PAIR
    failed: bool = False
    busy: bool = False
    changing: bool = False


class Screen:
    """What the user sees of the conversation on the screen."""

    def __init__(self, open_chats: OpenChats, next_mode: NextMode) -> None:
        self._open_chats = open_chats
        self.box = UnsentMessage(next_mode)
        self.edited: Turn | None = None
        self.set_aside: UnsentMessage | None = None
        self.said = ""
        self.waiting: str | None = None
        """The question that is shown below the turns."""
        self.shown: list[str] = []
        self.tasks: list[Callable[[], Awaitable[None]]] = []

    def say(self, sentence: str) -> None:
        self.said = sentence

    def show_state(self) -> None:
        pass

    def run(self, task: Callable[[], Awaitable[None]]) -> None:
        self.tasks.append(task)

    def clear_sent(self, typed: str, next_mode: NextMode) -> None:
        self.box = UnsentMessage(next_mode, self.box.text.removeprefix(typed))
        self.said = ""

    def edit(self, turn: Turn) -> None:
        self.edited, self.set_aside = turn, self.box
        self.box = UnsentMessage(self.box.next_mode).prepend(turn.question, ())

    def end_edit(self) -> None:
        assert self.set_aside is not None
        self.box, self.edited, self.set_aside = self.set_aside, None, None

    def resume_edit(self, turn: Turn) -> None:
        self.edited, self.set_aside = turn, UnsentMessage(self.box.next_mode)

    async def put_back(self, question: Question, chat: OpenChat) -> None:
        self.waiting = None
        self.box = self.box.prepend(question, chat.sent_attachments)

    def begin_turn(self, typed: bool) -> None:
        pass

    async def show_queued(self, question: Question, committing: bool = False) -> None:
        self.waiting = question.text

    async def add_turn(self, turn: Turn) -> None:
        self.waiting = None
        await self.show_branch()

    async def show_branch(self) -> None:
        branch = self._open_chats.shown.conversation.branch
        self.shown = [turn.question.text for turn in branch]


class Chat:
    """The state of the chat screen on a scripted engine."""

    def __init__(self, folder: Path | None = None, settings: Settings | None = None) -> None:
        file = SettingsFile(settings=settings or Settings())
        self.engine = FakeEngine(Story(answer="Yes."))
        self.pair = Pair()
        self.repository = ChatRepository(folder, PAIR, file.settings)
        next_mode = default_next_mode(file.settings)
        first = self.repository.new(next_mode)
        self.chats = OpenChats(self.repository, first, clock=lambda: 0.0)
        self.readiness = Readiness(self.chats, self.pair)
        self.screen = Screen(self.chats, next_mode)
        self._events: list[Event] = []
        self.asking = Asking(self.engine, self._events.append, self.readiness, file, self.screen)

    # ------------------------------------------------------------------ what the user does

    def attach(self, *attached: Attachment) -> None:
        self.screen.box = replace(self.screen.box, attached=(*self.screen.box.attached, *attached))

    async def enter(self, text: str = "", too_long: str = "") -> None:
        """Type a text and press Enter; what that starts is under way then."""
        screen = self.screen
        screen.box = replace(screen.box, text=screen.box.text + text)
        await self.asking.submit(screen.box.text, screen.box, screen.edited, too_long)

    async def ask(self, text: str) -> None:
        await self.enter(text)
        await self.settle()

    def open_new(self) -> OpenChat:
        """Go to a new conversation. Returns the one that was on the screen."""
        before = self.chats.shown
        before.draft = self.screen.box
        self.chats.shown = self.repository.new(before.draft.next_mode)
        self.screen.box = self.chats.shown.draft
        return before

    # ------------------------------------------------------------------ what then happens

    async def settle(self) -> None:
        """Everything that is under way, until the engine has to go on."""
        while self.screen.tasks or self._events:
            tasks, self.screen.tasks = self.screen.tasks, []
            await asyncio.gather(*(task() for task in tasks))
            events = self._events[:]
            self._events.clear()
            for event in events:
                self.chats.apply(event)
            if (finished := self.chats.pop_finished()) is not None:
                await self.asking.finish(finished)

    async def finish(self) -> None:
        """The engine answers everything."""
        while self.screen.tasks or self.chats.busy:
            await self.settle()
            self.engine.finish()

    # ------------------------------------------------------------------ what can be seen

    @property
    def asked(self) -> list[str]:
        """The questions that the engine got."""
        return [ask.messages[-1].text for ask in self.engine.asks]

    @property
    def branch(self) -> list[Turn]:
        return self.chats.shown.conversation.branch

    @property
    def attached(self) -> list[str]:
        return [each.name for each in self.screen.box.attached]


def in_states(states: Iterable[Callable[[Chat], None]]) -> Chat:
    """A chat in which nothing can be stored, which takes time to prepare."""
    chat = Chat(Path("never-opened"))
    chat.repository.opening = False
    for state in states:
        state(chat)
    return chat


@pytest.fixture
def chat() -> Iterator[Chat]:
    made = Chat()
    yield made
    made.chats.close()


# ------------------------------------------------------------------------------ may I ask


def answering(chat: Chat) -> None:
    chat.chats.answering = chat.chats.shown


def storing(chat: Chat) -> None:
    chat.chats.committing = chat.chats.shown


def answering_elsewhere(chat: Chat) -> None:
    answering(chat)
    chat.open_new()


def loading(chat: Chat) -> None:
    chat.pair.busy = True


def opening(chat: Chat) -> None:
    chat.repository.opening = True


def without_model(chat: Chat) -> None:
    chat.pair.failed = True


def without_engine(chat: Chat) -> None:
    chat.readiness.engine_closed = True


def ready(chat: Chat) -> None:
    pass


@table(
    "states, sentence",
    [
        ([ready], ""),
        ([answering], "Still answering. Esc stops it."),
        ([storing], "Still answering. Esc stops it."),
        ([answering_elsewhere], "Still answering in another conversation. Esc stops it."),
        ([loading], "The models are still loading. Try again when they are ready."),
        ([loading, opening], "The models are still loading. Try again when they are ready."),
        ([opening], "Opening the conversations…"),
        ([opening, without_model], "Opening the conversations…"),
        ([without_model], "No model is loaded. Ctrl+L loads one."),
        ([without_engine], "No model is loaded. Ctrl+L loads one."),
    ],
)
def test_who_cannot_ask_is_told_why(states: list[Callable[[Chat], None]], sentence: str) -> None:
    chat = in_states(states)
    assert chat.readiness.blocked == sentence
    assert chat.asking.may_ask() == (sentence == "")
    assert chat.screen.said == sentence


@table(
    "states, sentence",
    [
        ([ready], ""),
        ([answering], "Still answering. Esc stops it."),
        ([storing], "Still answering. Esc stops it."),
        ([answering_elsewhere], ""),
        ([loading], ""),
    ],
)
def test_only_the_conversation_that_is_answered_cannot_be_changed(
    states: list[Callable[[Chat], None]], sentence: str
) -> None:
    chat = in_states(states)
    assert chat.asking.may_change() == (sentence == "")
    assert chat.screen.said == sentence


DEMO = Load("models/target-model", "models/draft-model", only_quotes=True)
FULL = "The question is too long."


@table(
    "states, text, attached, edits, refusal",
    [
        ([ready], "Why?", False, False, ""),
        ([ready], "", False, False, ""),
        ([without_model], "", False, False, ""),
        ([ready], "", True, False, "Type a question about the attachments, then press Enter."),
        ([without_model], "Why?", False, False, asking.NO_MODEL),
        ([without_engine], "Why?", False, False, asking.NO_MODEL),
        ([loading], "Why?", False, False, ""),
        ([answering], "Why?", False, False, ""),
        (
            [answering], "Why?", False, True,
            "Still answering: an edited question cannot be queued. Esc stops the answer.",
        ),
    ],
)  # fmt: skip
def test_what_is_typed_may_be_refused(
    states: list[Callable[[Chat], None]], text: str, attached: bool, edits: bool, refusal: str
) -> None:
    chat = in_states(states)
    assert chat.readiness.refusal(text, attached, edits) == refusal
    too_long = chat.readiness.refusal(text, attached, edits, too_long=FULL)
    assert too_long == (refusal or (FULL if text else ""))


async def test_the_demo_model_needs_a_document(chat: Chat) -> None:
    chat.pair.load = DEMO
    await chat.ask("Why?")
    assert "only answers questions about documents" in chat.screen.said
    assert "F6 downloads" in chat.screen.said
    assert (chat.asked, chat.screen.box.text) == ([], "Why?")
    chat.attach(LEASE)
    await chat.ask("")
    await chat.finish()
    await chat.ask("A later one needs none?")
    assert len(chat.asked) == 2


async def test_keys_say_what_can_be_done(chat: Chat) -> None:
    keys = chat.readiness.keys
    assert keys() == ["⏎ send", "^G keep", "F1 keys", "^J new line"]
    chat.engine.stepping = True
    await chat.ask("First?")
    assert keys()[:2] == ["Esc stop", "⏎ queue"]
    await chat.ask("Second?")
    assert keys()[:2] == ["Esc take back", "⏎ queue"]
    await chat.finish()
    assert keys()[:2] == ["⏎ send", "^R read in full"]
    chat.pair.busy = chat.pair.changing = True
    assert keys()[:2] == ["Esc go back", "⏎ queue"]
    chat.pair.busy = chat.pair.changing = False
    chat.engine.story = CUT_OFF
    await chat.ask("Third?")
    await chat.finish()
    assert keys()[:4] == ["⏎ send", "F4 continue", "^A again", "^R read in full"]
    chat.engine.story = Story(failure=Failure(FailureKind.NO_MODEL), fails_in=Phase.PREFILL)
    await chat.ask("Fourth?")
    await chat.finish()
    assert keys()[:3] == ["⏎ send", "^A again", "^R read in full"]


# ------------------------------------------------------------------------------ asking


async def test_a_question_is_stored_before_the_engine_gets_it(chat: Chat) -> None:
    chat.attach(LEASE, NOTES)
    await chat.enter(" Who pays? \n")
    assert (chat.screen.box.text, chat.attached) == ("", [])
    assert chat.chats.committing is chat.chats.shown
    assert chat.engine.asks == []
    await chat.settle()
    (message,) = chat.engine.asks[0].messages
    assert message.text == "Who pays?"
    assert message.documents == documents_of([LEASE, NOTES])
    assert chat.screen.shown == ["Who pays?"]
    assert chat.screen.waiting is None
    await chat.finish()
    assert not chat.readiness.busy
    assert chat.branch[0].text == "Yes."


async def test_what_is_typed_while_a_question_is_stored_stays_in_the_box(chat: Chat) -> None:
    chat.screen.box = replace(chat.screen.box, text="Who pays? And")
    await chat.asking.submit("Who pays?", chat.screen.box)
    assert chat.screen.box.text == " And"


async def test_an_empty_or_a_refused_question_stays_where_it_is(chat: Chat) -> None:
    await chat.ask(" \n")
    assert (chat.asked, chat.screen.said) == ([], "")
    chat.attach(LEASE)
    await chat.ask("")
    assert chat.screen.said == "Type a question about the attachments, then press Enter."
    await chat.enter("Why?", too_long=FULL)
    await chat.settle()
    assert chat.screen.said == FULL
    assert (chat.screen.box.text.strip(), chat.attached) == ("Why?", ["lease.txt"])
    assert chat.asked == []


async def test_one_message_is_read_the_other_way(chat: Chat) -> None:
    chat.screen.box = replace(chat.screen.box, next_mode=chat.screen.box.next_mode.toggled())
    await chat.ask("In full?")
    await chat.finish()
    await chat.ask("And then?")
    assert [ask.mode for ask in chat.engine.asks] == [Mode.FULL, Mode.AUTO]


async def test_the_setting_for_the_first_word_is_sent_with_the_question() -> None:
    chat = Chat(settings=Settings(reading=ReadingSettings(first_word_within_s=7)))
    await chat.ask("Why?")
    assert chat.engine.asks[0].within_seconds == 7
    chat.chats.close()


async def test_a_question_that_cannot_be_stored_comes_back(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise UserError("There is no room", "free some disk space")

    monkeypatch.setattr(chat.repository, "store_turn", fails)
    chat.attach(LEASE)
    await chat.ask("Who pays?")
    assert chat.screen.said == "There is no room: free some disk space."
    assert (chat.screen.box.text, chat.attached) == ("Who pays?", ["lease.txt"])
    assert chat.screen.waiting is None
    assert not chat.readiness.busy
    assert chat.asked == []


async def test_an_edited_question_starts_a_branch_with_the_same_documents(chat: Chat) -> None:
    chat.attach(LEASE)
    await chat.ask("Who pays?")
    await chat.finish()
    chat.attach(NOTES)
    chat.screen.edit(chat.branch[0])
    assert chat.attached == ["lease.txt"]
    again = make_attachment([Document("again.txt", LEASE.documents[0].text)])
    chat.screen.box = replace(chat.screen.box, attached=(again,))
    await chat.ask(" And when?")
    (message,) = chat.engine.asks[1].messages
    assert message.text == "Who pays? And when?"
    assert message.documents[0] is chat.chats.shown.conversation.turns[0].question.documents[0]
    assert chat.screen.edited is None
    assert chat.attached == ["notes.txt"], "the draft is back"
    assert chat.screen.shown == ["Who pays? And when?"]


# ------------------------------------------------------------------------------ asking again


async def test_a_question_is_asked_again_as_it_was_or_in_another_way(chat: Chat) -> None:
    chat.attach(LEASE)
    chat.screen.box = replace(chat.screen.box, next_mode=NextMode(0.35, Mode.SPARSE))
    await chat.ask("Who pays?")
    await chat.finish()
    for again, mode, keep in (
        (chat.asking.ask_last, Mode.SPARSE, 0.35),
        (lambda: chat.asking.ask_last(in_full=True), Mode.FULL, 0.35),
        (lambda: chat.asking.ask_again(chat.branch[0], Mode.SPARSE, 0.1), Mode.SPARSE, 0.1),
    ):
        again()
        await chat.finish()
        ask = chat.engine.asks[-1]
        assert (ask.mode, ask.keep_ratio) == (mode, keep)
        assert ask.messages == chat.engine.asks[0].messages
        assert len(chat.branch) == 1
    chat.asking.ask_again(chat.branch[0], pins={(0, 0): ((0, 3),)})
    await chat.finish()
    assert chat.engine.asks[-1].messages[0].documents[0].pinned == ((0, 3),)


@table("state", [ready, without_model])
async def test_without_a_question_none_is_asked_again(
    state: Callable[[Chat], None],
) -> None:
    chat = Chat()
    if state is without_model:
        await chat.ask("Why?")
        await chat.finish()
    state(chat)
    asked = len(chat.asked)
    chat.asking.ask_last()
    assert chat.screen.said == "There is no question to ask again."
    await chat.finish()
    assert len(chat.asked) == asked
    chat.chats.close()


async def test_nothing_is_asked_again_or_continued_while_something_is_answered(
    chat: Chat,
) -> None:
    chat.engine.stepping = True
    await chat.ask("First?")
    for ask in (
        chat.asking.ask_last,
        chat.asking.continue_answer,
        lambda: chat.asking.ask_again(chat.branch[0], Mode.FULL),
    ):
        chat.screen.said = ""
        ask()
        assert chat.screen.said == "Still answering. Esc stops it."
        await chat.settle()
    assert chat.asked == ["First?"]


async def test_only_an_answer_that_is_not_complete_is_continued(chat: Chat) -> None:
    chat.asking.continue_answer()
    assert chat.screen.said == "Nothing to continue: nothing has been asked yet."
    await chat.ask("Who pays?")
    await chat.finish()
    chat.asking.continue_answer()
    assert chat.screen.said == "Nothing to continue: the last answer is complete."
    chat.engine.stepping = True
    await chat.ask("When?")
    await chat.asking.stop()
    await chat.finish()
    chat.asking.continue_answer()
    assert chat.screen.said.startswith("Nothing to continue: the last answer is empty. ^A")
    assert len(chat.asked) == 2
    chat.engine.story = CUT_OFF
    await chat.ask("How much?")
    await chat.finish()
    chat.engine.story = Story(answer="pays the rent.")
    chat.asking.continue_answer()
    await chat.finish()
    assert chat.branch[-1].text == "The tenant pays the rent."
    assert chat.engine.asks[-1].messages[-1].text == "The tenant "


# ------------------------------------------------------------------------------ the queue


async def test_one_question_is_queued_and_a_second_is_refused(chat: Chat) -> None:
    chat.engine.stepping = True
    await chat.ask("First?")
    await chat.ask("Second?")
    assert chat.screen.waiting == "Second?"
    await chat.ask("Third?")
    assert chat.screen.said == "A question is already queued. Esc takes it back."
    assert chat.screen.box.text == "Third?"
    assert chat.asked == ["First?"]
    await chat.finish()
    assert chat.asked == ["First?", "Second?"]
    assert [m.text for m in chat.engine.asks[1].messages] == [
        "First?",
        "Yes.",
        "Second?",
    ]
    assert chat.screen.waiting is None


async def test_a_question_is_queued_while_the_models_are_loaded(chat: Chat) -> None:
    chat.pair.busy = True
    await chat.ask("Early?")
    assert (chat.screen.waiting, chat.asked) == ("Early?", [])
    chat.asking.ask_queued()
    assert chat.chats.shown.conversation.queued is not None
    chat.pair.busy, chat.pair.failed = False, True
    chat.asking.ask_queued()
    assert chat.chats.shown.conversation.queued is not None
    chat.pair.failed = False
    chat.asking.ask_queued()
    await chat.settle()
    assert chat.asked == ["Early?"]


async def test_conversations_are_answered_in_the_order_of_their_questions(chat: Chat) -> None:
    chat.engine.stepping = True
    await chat.ask("First?")
    first = chat.open_new()
    await chat.ask("Second?")
    chat.open_new()
    await chat.ask("Third?")
    await chat.finish()
    assert chat.asked == ["First?", "Second?", "Third?"]
    assert [turn.text for turn in first.conversation.turns] == ["Yes."]
    assert chat.screen.shown == ["Third?"], "only that is on the screen"


async def test_a_queued_question_is_taken_back_before_what_was_typed_since(chat: Chat) -> None:
    chat.engine.stepping = True
    await chat.ask("First?")
    chat.attach(LEASE)
    chat.screen.box = replace(chat.screen.box, next_mode=chat.screen.box.next_mode.toggled())
    await chat.ask("Second?")
    assert chat.screen.box.next_mode.mode is Mode.AUTO
    chat.attach(NOTES)
    chat.screen.box = replace(chat.screen.box, text="Third?")
    assert await chat.asking.stop()
    assert chat.screen.box.text == "Second?\nThird?"
    assert chat.attached == ["lease.txt", "notes.txt"]
    assert chat.screen.box.attached[0] is LEASE, "with what is known about its files"
    assert chat.screen.box.next_mode.mode is Mode.FULL
    assert chat.screen.waiting is None
    assert chat.engine.cancelled == []
    await chat.finish()
    assert chat.asked == ["First?"]


async def test_a_question_of_another_conversation_goes_back_into_its_draft(chat: Chat) -> None:
    chat.engine.stepping = True
    await chat.ask("First?")
    chat.open_new()
    await chat.ask("Second?")
    second = chat.open_new()
    second.draft = replace(second.draft, text="Third?")
    await chat.asking.take_back(second)
    assert second.draft.text == "Second?\nThird?"
    assert chat.screen.box.text == ""
    assert second in chat.chats.all_open(), "until its draft is saved"


# ------------------------------------------------------------------------------ stopping


async def test_an_answer_is_stopped(chat: Chat) -> None:
    assert not await chat.asking.stop()
    assert not chat.asking.stop_storing()
    chat.engine.stepping = True
    await chat.ask("First?")
    chat.engine.advance_to(lambda event: isinstance(event, Token))
    assert await chat.asking.stop()
    assert chat.screen.said == "Stopping."
    assert chat.engine.cancelled == [1]
    await chat.finish()
    chat.engine.story = Story(answer="No.")
    await chat.ask("Second?")
    assert chat.engine.cancelled == [1], "only that one"


async def test_an_answer_is_stopped_before_it_starts(chat: Chat) -> None:
    chat.engine.stepping = True
    await chat.enter("First?")
    assert not await chat.asking.stop()
    assert chat.asking.stop_storing()
    assert chat.screen.said == "Stopping."
    await chat.settle()
    assert chat.engine.cancelled == [1]
    await chat.finish()
    await chat.ask("Second?")
    assert chat.engine.cancelled == [1]


async def test_what_is_answered_in_another_conversation_is_not_stopped_here(chat: Chat) -> None:
    chat.engine.stepping = True
    await chat.ask("First?")
    chat.open_new()
    assert not await chat.asking.stop()
    assert not chat.asking.stop_storing()
    assert chat.engine.cancelled == []


async def test_a_conversation_that_is_abandoned_is_stopped_and_keeps_its_question(
    chat: Chat,
) -> None:
    chat.engine.stepping = True
    await chat.ask("First?")
    await chat.ask("Second?")
    first = chat.open_new()
    chat.asking.abandon(chat.chats.shown)
    assert chat.engine.cancelled == []
    chat.asking.abandon(first)
    assert chat.engine.cancelled == [1]
    assert first.draft.text == "Second?"
    await chat.finish()
    assert chat.asked == ["First?"]


# ------------------------------------------------------------------------------ what fails


async def test_a_failure_takes_the_queued_question_back(chat: Chat) -> None:
    failure = Failure(FailureKind.MEMORY_EXHAUSTED)
    chat.engine.story = Story(failure=failure, fails_in=Phase.PREFILL)
    chat.engine.stepping = True
    await chat.ask("First?")
    await chat.ask("Second?")
    await chat.finish()
    assert chat.asked == ["First?"]
    assert chat.screen.box.text == "Second?"
    assert [turn.question.text for turn in chat.branch] == ["First?"], "it is shown as failed"


async def test_a_question_that_does_not_fit_comes_back_as_it_was() -> None:
    chat = Chat()
    await chat.ask("First?")
    await chat.finish()
    chat.engine.story = TOO_LONG
    chat.attach(LEASE, NOTES)
    chat.screen.box = replace(chat.screen.box, next_mode=chat.screen.box.next_mode.toggled())
    await chat.ask("Who pays?")
    await chat.finish()
    assert (chat.screen.box.text, chat.attached) == ("Who pays?", ["lease.txt", "notes.txt"])
    assert chat.screen.box.next_mode.mode is Mode.FULL
    assert chat.screen.shown == ["First?"]
    assert chat.screen.said == wording.failure(TOO_LONG.failure).text
    chat.engine.story = Story(answer="Yes.")
    await chat.ask("")
    assert [m.text for m in chat.engine.asks[-1].messages] == ["First?", "Yes.", "Who pays?"]
    assert not chat.engine.asks[-1].skip_memory_check
    chat.chats.close()


async def test_a_queued_question_comes_back_after_the_one_that_does_not_fit(chat: Chat) -> None:
    chat.engine.story, chat.engine.stepping = TOO_LONG, True
    await chat.ask("First?")
    await chat.ask("Second?")
    await chat.finish()
    assert chat.screen.box.text == "First?\nSecond?"
    assert chat.asked == ["First?"]
    assert chat.screen.shown == []


async def test_a_first_question_that_does_not_fit_leaves_no_title(tmp_path: Path) -> None:
    chat = Chat(tmp_path)
    chat.chats.shown = await chat.repository.open(chat.screen.box.next_mode)
    chat.engine.story, chat.engine.stepping = TOO_LONG, True
    await chat.ask("First?")
    assert chat.chats.shown.title == "First?"
    await chat.finish()
    assert chat.chats.shown.title == ""
    records = await chat.repository.read(lambda store: store.conversations())
    assert [each.title for each in records] == [""]
    chat.chats.close()


async def test_an_edited_question_that_does_not_fit_is_still_edited(chat: Chat) -> None:
    await chat.ask("First?")
    await chat.finish()
    (first,) = chat.branch
    chat.engine.story = TOO_LONG
    chat.screen.edit(first)
    await chat.ask(" Really?")
    await chat.finish()
    assert (chat.screen.box.text, chat.screen.edited) == ("First? Really?", first)
    chat.engine.story = Story(answer="Yes.")
    await chat.ask("")
    assert [m.text for m in chat.engine.asks[-1].messages] == ["First? Really?"]


async def test_a_question_that_was_edited_before_is_not_edited_again(chat: Chat) -> None:
    await chat.ask("First?")
    await chat.finish()
    chat.screen.edit(chat.branch[0])
    await chat.ask(" Really?")
    await chat.finish()
    chat.engine.story = TOO_LONG
    await chat.ask("Second?")
    await chat.finish()
    assert (chat.screen.box.text, chat.screen.edited) == ("Second?", None)


async def test_in_another_conversation_it_goes_back_into_the_draft(chat: Chat) -> None:
    chat.engine.story, chat.engine.stepping = TOO_LONG, True
    chat.attach(LEASE)
    await chat.ask("First?")
    first = chat.open_new()
    chat.screen.said = ""
    await chat.finish()
    assert (first.draft.text, first.draft.attached) == ("First?", (LEASE,))
    assert (chat.screen.box.text, chat.screen.said) == ("", "")
    assert first.conversation.branch == []


async def test_what_failed_otherwise_or_was_not_typed_stays(chat: Chat) -> None:
    chat.engine.story = Story(failure=Failure(FailureKind.NO_MODEL), fails_in=Phase.PREFILL)
    await chat.ask("First?")
    await chat.finish()
    assert (chat.screen.box.text, len(chat.branch)) == ("", 1)
    chat.engine.story = TOO_LONG
    chat.asking.ask_last(in_full=True)
    await chat.finish()
    assert (chat.screen.box.text, len(chat.branch)) == ("", 1)


async def test_a_question_predicted_not_to_fit_is_tried_if_it_is_asked_again(chat: Chat) -> None:
    chat.engine.story = Story(answer="Yes.", failure=does_not_fit())
    chat.attach(LEASE)
    await chat.ask("Who pays?")
    await chat.finish()
    assert chat.screen.said.endswith("Press Enter again to try anyway.")
    assert chat.screen.said.startswith(wording.failure(does_not_fit()).text)
    # In another way, it is refused as well.
    chat.screen.box = replace(chat.screen.box, next_mode=chat.screen.box.next_mode.toggled())
    await chat.ask("")
    await chat.finish()
    assert chat.screen.said.endswith("Press Enter again to try anyway.")
    await chat.ask("")
    await chat.finish()
    assert [ask.skip_memory_check for ask in chat.engine.asks] == [False, False, True]
    assert chat.branch[-1].text == "Yes."
    # After that, the same question is a new one.
    chat.attach(LEASE)
    await chat.ask("Who pays?")
    await chat.finish()
    assert not chat.engine.asks[3].skip_memory_check


async def test_an_answer_predicted_not_to_fit_is_tried_if_it_is_asked_for_again(
    chat: Chat,
) -> None:
    await chat.ask("Who pays?")
    await chat.finish()
    chat.engine.story = Story(answer="Yes.", failure=does_not_fit())
    for in_full, skips in ((True, False), (True, True), (True, False), (False, True)):
        chat.asking.ask_last(in_full)
        await chat.finish()
        assert chat.engine.asks[-1].skip_memory_check == skips
    assert chat.screen.box.text == ""


async def test_only_the_next_question_is_tried(chat: Chat) -> None:
    chat.engine.story = Story(answer="Yes.", failure=does_not_fit())
    await chat.ask("Who pays?")
    await chat.finish()
    chat.engine.story = Story(answer="Yes.")
    chat.screen.box = replace(chat.screen.box, text="")
    await chat.ask("When?")
    await chat.finish()
    chat.engine.story = Story(answer="Yes.", failure=does_not_fit())
    await chat.ask("Who pays?")
    await chat.finish()
    assert not any(ask.skip_memory_check for ask in chat.engine.asks)


# ------------------------------------------------------------------------------ while opening


async def test_a_question_typed_while_the_store_opens_waits_for_a_new_conversation(
    chat: Chat,
) -> None:
    chat.repository.opening = True
    chat.attach(LEASE)
    await chat.ask("Early?")
    early, opened = chat.chats.shown, chat.repository.new(chat.screen.box.next_mode)
    early.draft = replace(chat.screen.box, text="More")
    assert chat.asking.move_early(early, opened) == ""
    chat.chats.shown, chat.repository.opening = opened, False
    assert opened.draft.text == "More"
    assert opened.sent_attachments == (LEASE,)
    chat.asking.ask_queued()
    await chat.settle()
    assert chat.asked == ["Early?"]
    assert [turn.question.text for turn in opened.conversation.turns] == ["Early?"]


async def test_it_is_not_asked_in_a_conversation_that_has_been_used(chat: Chat) -> None:
    await chat.ask("First?")
    await chat.finish()
    opened = chat.open_new()
    opened.draft = replace(opened.draft, text="Draft")
    chat.pair.busy = True
    chat.attach(LEASE)
    await chat.ask("Early?")
    early = chat.chats.shown
    early.draft = replace(chat.screen.box, text="More")
    assert chat.asking.move_early(early, opened).startswith("Your question was not sent")
    assert opened.draft.text == "Draft\nEarly?\nMore"
    assert opened.draft.attached == (LEASE,)
    chat.pair.busy = False
    chat.asking.ask_queued()
    await chat.settle()
    assert chat.asked == ["First?"]


# ------------------------------------------------------------------------------ after a restart


async def opened(folder: Path) -> Chat:
    """At the place where the user was."""
    chat = Chat(folder)
    chat.chats.shown = await chat.repository.open(chat.screen.box.next_mode)
    chat.screen.box = chat.chats.shown.draft
    await chat.screen.show_branch()
    return chat


def close(chat: Chat) -> None:
    """At the end, what is unsent is saved."""
    chat.chats.shown.draft = chat.screen.box
    chat.chats.close()


async def test_a_queued_question_is_in_the_draft(tmp_path: Path) -> None:
    chat = await opened(tmp_path)
    chat.pair.busy = True
    chat.attach(LEASE)
    await chat.ask("Early?")
    chat.screen.box = replace(chat.screen.box, text="More")
    close(chat)
    chat = await opened(tmp_path)
    assert (chat.screen.box.text, chat.attached) == ("Early?\nMore", ["lease.txt"])
    close(chat)


async def test_a_question_that_did_not_fit_is_in_the_box(tmp_path: Path) -> None:
    chat = await opened(tmp_path)
    await chat.ask("First?")
    await chat.finish()
    chat.engine.story = TOO_LONG
    chat.attach(LEASE)
    chat.screen.box = replace(chat.screen.box, next_mode=chat.screen.box.next_mode.toggled())
    await chat.ask("Who pays?")
    await chat.finish()
    close(chat)
    chat = await opened(tmp_path)
    assert chat.screen.shown == ["First?"]
    assert (chat.screen.box.text, chat.attached) == ("Who pays?", ["lease.txt"])
    await chat.ask("")
    assert [m.text for m in chat.engine.asks[0].messages] == ["First?", "Yes.", "Who pays?"]
    assert chat.engine.asks[0].mode is Mode.FULL
    await chat.finish()
    close(chat)


async def test_an_answer_that_was_cut_off_is_continued(tmp_path: Path) -> None:
    chat = await opened(tmp_path)
    chat.engine.story = CUT_OFF
    await chat.ask("Who pays?")
    await chat.finish()
    close(chat)
    chat = await opened(tmp_path)
    chat.engine.story = Story(answer="pays the rent.")
    chat.asking.continue_answer()
    await chat.finish()
    assert chat.branch[0].text == "The tenant pays the rent."
    close(chat)


async def test_a_question_that_was_never_answered_is_asked_again(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add_message(store.create().id, Role.USER, "Lost?")
        store.save_draft(records.DraftRecord(1))
    close(await opened(tmp_path))
    chat = await opened(tmp_path)
    assert chat.screen.shown == ["Lost?"]
    chat.asking.ask_last(in_full=True)
    await chat.finish()
    assert (chat.asked, chat.engine.asks[0].mode) == (["Lost?"], Mode.FULL)
    close(chat)


@pytest.mark.parametrize("words", [0, 3])
async def test_an_answer_that_was_killed_is_asked_for_again_as_it_was_asked(
    tmp_path: Path, words: int
) -> None:
    for number, next_mode in enumerate(
        (NextMode(0.35, Mode.SPARSE), NextMode(AUTO_KEEP), NextMode(AUTO_KEEP, Mode.FULL))
    ):
        folder, killed = tmp_path / f"{number}", tmp_path / f"{number}-killed"
        chat = await opened(folder)
        chat.engine.story, chat.engine.stepping = Story(), True
        chat.attach(LEASE)
        chat.screen.box = replace(chat.screen.box, next_mode=next_mode)
        await chat.ask("Who pays?")
        for _ in range(words):
            chat.engine.advance_to(lambda event: isinstance(event, Token))
        await chat.settle()
        with Store(folder) as beside:
            while beside.branch(1)[1].text != ANSWER[: 5 * words]:
                await asyncio.sleep(0.01)
        shutil.copytree(folder, killed)
        await chat.finish()
        close(chat)
        for place in (killed, folder):
            chat = await opened(place)
            assert chat.branch[0].text == (ANSWER[: 5 * words] if place == killed else ANSWER)
            chat.asking.ask_last()
            await chat.finish()
            asked = chat.engine.asks[0]
            assert (asked.mode, asked.keep_ratio) == (next_mode.mode, next_mode.keep)
            close(chat)
