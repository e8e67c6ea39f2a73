"""The rules of asking: when a question may be asked, and what happens to it until its turn has
ended. No widgets.

A question is stored before it is sent to the engine. While something is answered, it is queued.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from app.chat import wording
from app.chat.conversation import Pins, Question, Turn, TurnPart, TurnState
from app.chat.model_pairs import lacks_document
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.errors import UserError
from app.models.first_model import first_model
from app.protocol.commands import Load
from app.protocol.engine import Engine
from app.protocol.events import Listener
from app.protocol.options import Mode
from app.settings.file import SettingsFile
from app.ui.attach.attachment import documents_of
from app.ui.state.draft import NextMode, UnsentMessage
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import OpenChat

OPENING = "Opening the conversations…"
NO_MODEL = "No model is loaded. Ctrl+L loads one."
STILL_LOADING = "The models are still loading. Try again when they are ready."
STILL_ANSWERING = "Still answering. Esc stops it."
ANSWERING_ELSEWHERE = "Still answering in another conversation. Esc stops it."
STOPPING = "Stopping."
TRY_ANYWAY = "Press Enter again to try anyway."
NOT_SENT = "Your question was not sent, because this conversation was still being opened."


class PairState(Protocol):
    """What asking depends on of the model pair."""

    load: Load
    failed: bool

    @property
    def busy(self) -> bool: ...

    @property
    def changing(self) -> bool: ...


class AskingView(Protocol):
    """What asking shows. Except for `say`, `show_state` and `run` it concerns the conversation on
    the screen."""

    def say(self, sentence: str) -> None: ...

    def show_state(self) -> None:
        """What can be done now has changed."""

    def run(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task in the background."""

    def clear_sent(self, typed: str, next_mode: NextMode) -> None:
        """Remove a message that is sent from the text box."""

    def end_edit(self) -> None:
        """Show the draft again in place of the question that was edited."""

    def resume_edit(self, turn: Turn) -> None: ...

    async def put_back(self, question: Question, chat: OpenChat) -> None:
        """Put a question that was sent back into the text box, before what was typed since."""

    def begin_turn(self, typed: bool) -> None:
        """A turn is being stored; its question may come from the text box."""

    async def show_queued(self, question: Question, committing: bool = False) -> None: ...

    async def add_turn(self, turn: Turn) -> None:
        """Show a new turn in place of the queued question."""

    async def show_branch(self) -> None: ...


class Readiness:
    """Whether a question can be asked now."""

    def __init__(self, open_chats: OpenChats, pair: PairState) -> None:
        self.open_chats, self.pair = open_chats, pair
        self.engine_closed = False

    @property
    def broken(self) -> bool:
        """Whether no question can be asked any more."""
        return self.engine_closed or self.pair.failed

    @property
    def busy(self) -> bool:
        """Whether a question has to wait."""
        return self.pair.busy or self.open_chats.repository.opening or self.open_chats.busy

    @property
    def blocked(self) -> str:
        """Why no question can be asked now; empty if one can."""
        chats = self.open_chats
        if chats.answering not in (None, chats.shown):
            return ANSWERING_ELSEWHERE
        if self.pair.busy:
            return STILL_LOADING
        if chats.busy:
            return STILL_ANSWERING
        if chats.repository.opening:
            return OPENING
        return NO_MODEL if self.broken else ""

    @property
    def change_blocked(self) -> str:
        """Why the branch on the screen cannot be changed now; empty if it can."""
        chats = self.open_chats
        is_asked = chats.shown in (chats.answering, chats.committing)
        return STILL_ANSWERING if is_asked else ""

    def refusal(self, text: str, attached: bool, edits: bool, too_long: str = "") -> str:
        """Why what is typed cannot be asked or queued; empty if it can, or if there is nothing.
        `too_long` says why the model cannot take it."""
        if not text:
            return "Type a question about the attachments, then press Enter." if attached else ""
        if self.broken:
            return NO_MODEL
        conversation = self.open_chats.shown.conversation
        if conversation.queued is not None:
            return "A question is already queued. Esc takes it back."
        if self.busy and edits:
            return "Still answering: an edited question cannot be queued. Esc stops the answer."
        if not attached and lacks_document(self.pair.load, conversation.branch, ()):
            return (
                "The demo model only answers questions about documents: paste one, or type @ for a"
                f" file. F6 downloads {first_model().name_and_size}, which also chats."
            )
        return too_long

    def keys(self) -> list[str]:
        """The keys that work now, the most important first."""
        keys = ["⏎ queue" if self.busy else "⏎ send", "^G keep", "F1 keys", "^J new line"]
        conversation = self.open_chats.shown.conversation
        if conversation.queued is not None:
            keys.insert(0, "Esc take back")
        elif self.pair.changing:
            keys.insert(0, "Esc go back")
        elif self.open_chats.running is not None:
            keys.insert(0, "Esc stop")
        elif (last := conversation.last) is not None:
            keys[1:1] = _keys_after(last)
        return keys


class Asking:
    """Asks, queues, takes back and cancels questions."""

    def __init__(
        self,
        engine: Engine,
        listener: Listener,
        readiness: Readiness,
        settings_file: SettingsFile,
        view: AskingView,
    ) -> None:
        """`listener` gets the events of the turns."""
        self._engine, self._listener = engine, listener
        self._readiness, self._settings_file, self._view = readiness, settings_file, view
        self._open_chats = readiness.open_chats
        self._repository = readiness.open_chats.repository
        self._edited_turn: Turn | None = None
        """The turn whose question was replaced by the one asked last, if that was edited."""
        self._typed_turn: Turn | None = None
        """The turn that came from the text box, while it runs."""
        self._rejected: Question | None = None
        """The question that was predicted not to fit in memory."""

    def may_ask(self) -> bool:
        """Whether a question can be asked now; if not, show why."""
        blocked = self._readiness.blocked
        if blocked:
            self._view.say(blocked)
        return not blocked

    def may_change(self) -> bool:
        """Whether the branch on the screen can be changed now; if not, show why."""
        blocked = self._readiness.change_blocked
        if blocked:
            self._view.say(blocked)
        return not blocked

    # -------------------------------------------------------------------------- asking

    async def submit(
        self, typed: str, draft: UnsentMessage, edited: Turn | None = None, too_long: str = ""
    ) -> None:
        """Ask what was typed about the attachments of the draft, or queue it. It may be the
        question of a turn that was `edited`. `too_long`: see `Readiness.refusal`."""
        chat, text = self._open_chats.shown, typed.strip()
        refusal = self._readiness.refusal(text, bool(draft.attached), edited is not None, too_long)
        if refusal:
            self._view.say(refusal)
        if not text or refusal:
            return
        next_mode, documents = draft.next_mode, documents_of(draft.attached)
        question = Question(text, documents, next_mode.mode, next_mode.keep)
        rejected, self._rejected = self._rejected, None
        if question == rejected:
            question = replace(question, despite_memory=True)
        chat.sent_attachments = draft.attached
        self._view.clear_sent(typed, next_mode.after_send())
        if edited is not None:
            self._view.end_edit()
            # Documents that it still has stay the very same, with what is known about them.
            known = {document.text: document for document in edited.question.documents}
            documents = tuple(known.get(each.text, each) for each in documents)
            self.ask(chat, replace(question, documents=documents), edited)
        elif self._readiness.busy:
            self._open_chats.enqueue(chat, question)
            await self._view.show_queued(question)
            self._view.show_state()
        else:
            self.ask(chat, question)

    def ask(self, chat: OpenChat, question: Question, edits: Turn | None = None) -> None:
        """Ask a new question, which replaces the one of the turn that it `edits`."""
        self._edited_turn = edits
        self._store_and_send(chat, lambda stored: stored.ask(question, edits), question)

    def ask_again(
        self,
        turn: Turn,
        mode: Mode | None = None,
        keep: float | None = None,
        pins: Pins | None = None,
        choose_files: bool = False,
    ) -> None:
        """Ask the question of a turn again, if that is possible now: by default in the same mode
        and at the same keep. An automatic keep is chosen again."""
        if not self.may_ask():
            return
        in_mode = turn.question.mode if mode is None else mode
        at_keep = turn.question.keep if keep is None else keep
        self._store_and_send(
            self._open_chats.shown,
            lambda stored: stored.ask_again(in_mode, at_keep, turn, pins, choose_files),
        )

    def ask_last(self, in_full: bool = False) -> None:
        """Ask the last question again, as it was asked or in full."""
        last = self._open_chats.shown.conversation.last
        if self._readiness.broken or last is None:
            self._view.say("There is no question to ask again.")
        else:
            self.ask_again(last, Mode.FULL if in_full else None)

    def continue_answer(self) -> None:
        """Continue the last answer if it was cut off or stopped."""
        if not self.may_ask():
            return
        chat = self._open_chats.shown
        branch = chat.conversation.branch
        turn = branch[-1] if branch else None
        if turn is None or not turn.can_continue:
            self._view.say(f"Nothing to continue: {_why_ended(turn)}.")
        else:
            self._store_and_send(chat, lambda stored: stored.resume(turn))

    def ask_queued(self) -> None:
        """Ask the next queued question, of any conversation, unless something is answered."""
        if not self._readiness.busy and not self._readiness.broken:
            queued = self._open_chats.pop_queued()
            if queued is not None:
                self.ask(*queued)

    def _store_and_send(
        self,
        chat: OpenChat,
        ask: Callable[[StoredConversation], StoredTurn],
        typed: Question | None = None,
    ) -> None:
        """`typed` is the question if it comes from the text box."""
        self._open_chats.begin_turn(chat)
        self._view.begin_turn(typed is not None)

        async def store_and_send() -> None:
            if typed is not None and chat is self._open_chats.shown:
                await self._view.show_queued(typed, committing=True)
            try:
                pending = await self._repository.store_turn(chat, ask)
            except UserError as error:
                self._open_chats.committing = None
                if typed is not None:
                    await self._restore(chat, typed)
                self._view.say(str(error))
            else:
                await self._send(chat, pending, typed is not None)
            self._view.show_state()

        self._view.run(store_and_send)
        self._view.show_state()

    async def _send(self, chat: OpenChat, pending: StoredTurn, typed: bool) -> None:
        async with self._open_chats.draw_lock:
            self._open_chats.start_turn(chat, pending)
            self._typed_turn = pending.turn if typed else None
            if chat is self._open_chats.shown:
                await self._view.add_turn(pending.turn)
        within = self._settings_file.settings.reading.first_word_within_s
        command = replace(pending.command, within_seconds=within)
        chat.asked = self._engine.ask(command, self._listener)
        self._open_chats.on_asked()

    # -------------------------------------------------------------------------- the end of a turn

    async def finish(self, chat: OpenChat) -> None:
        """The turn of this conversation has ended: give back what could not be asked, and ask the
        next question."""
        last = chat.conversation.last
        if last is not None and last.state is TurnState.FAILED:
            await self.take_back(chat)
            if last is self._typed_turn:
                await self._return_too_large(chat, last)
        self.ask_queued()
        self._view.show_state()

    async def _return_too_large(self, chat: OpenChat, turn: Turn) -> None:
        """A question that failed before anything was read, because it does not fit, returns to the
        text box with its attachments, and its turn is deleted."""
        failure = turn.failure
        if failure is None or not (failure.predicted or failure.excess_tokens > 0):
            return
        await self._restore(chat, turn.question)
        if failure.predicted:
            self._rejected = replace(turn.question, despite_memory=False)
        try:
            await self._repository.change_branch(
                chat, lambda stored: stored.delete(turn, TurnPart.QUESTION)
            )
        except UserError as error:
            self._view.say(str(error))
            return
        if chat is not self._open_chats.shown:
            return
        async with self._open_chats.draw_lock:
            await self._view.show_branch()
        if self._edited_turn is not None:
            self._view.resume_edit(self._edited_turn)
        hint = f" {TRY_ANYWAY}" if failure.predicted else ""
        self._view.say(wording.failure(failure.failure).text + hint)

    # -------------------------------------------------------------------------- taking back

    async def stop(self) -> bool:
        """Take back the queued question of the conversation on the screen, or else stop its
        answer. Returns whether there was one of them."""
        chat = self._open_chats.shown
        if chat.conversation.queued is not None:
            await self.take_back(chat)
        elif self._open_chats.running is not None:
            self._cancel()
        else:
            return False
        return True

    def stop_storing(self) -> bool:
        """Stop the turn that is being stored in the conversation on the screen, before it starts.
        Returns whether there is one."""
        is_stored = self._open_chats.committing is self._open_chats.shown
        if is_stored:
            self._cancel()
        return is_stored

    def _cancel(self) -> None:
        self._open_chats.cancel()
        self._view.say(STOPPING)

    async def take_back(self, chat: OpenChat) -> None:
        """Put a queued question back into the text box, before what was typed since."""
        question = self._open_chats.unqueue(chat)
        if question is not None:
            await self._restore(chat, question)

    async def _restore(self, chat: OpenChat, question: Question) -> None:
        if chat is self._open_chats.shown:
            await self._view.put_back(question, chat)
        else:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
            self._open_chats.stash(chat)

    def abandon(self, chat: OpenChat) -> None:
        """Stop the answer of a conversation that leaves the screen for good. Its queued question
        becomes a part of its draft."""
        question = self._open_chats.unqueue(chat)
        if question is not None:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
        if self._open_chats.answering is chat:
            self._open_chats.cancel()

    def move_early(self, early: OpenChat, opened: OpenChat) -> str:
        """Move what was typed while the store was being opened to the conversation that was opened.
        A question that was queued stays queued only if that conversation is new; otherwise it
        becomes a part of the draft. Returns a sentence about that, or an empty one."""
        question, sentence = self._open_chats.unqueue(early), ""
        if question is not None and opened.conversation.turns:
            early.draft = early.draft.prepend(question, early.sent_attachments)
            sentence = NOT_SENT
        elif question is not None:
            opened.sent_attachments = early.sent_attachments
            self._open_chats.enqueue(opened, question)
        opened.draft = opened.draft.append(early.draft.text, early.draft.attached)
        return sentence


def _keys_after(last: Turn) -> list[str]:
    """Keys after an answer. An incomplete one is more likely to be asked again."""
    if last.state is TurnState.DONE and not last.can_continue:
        return ["^R read in full"]
    return [*(["F4 continue"] if last.can_continue else []), "^A again", "^R read in full"]


def _why_ended(last: Turn | None) -> str:
    if last is None:
        return "nothing has been asked yet"
    if last.state is TurnState.DONE:
        return "the last answer is complete"
    return "the last answer is empty. ^A asks again, ^R asks again and reads in full"
