"""What can be done with the messages of the conversation on the screen: copy, edit, ask again, show
what was read, go to another version, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from app.chat.citations import Footnote, summary
from app.chat.conversation import Turn, TurnPart, TurnState
from app.chat.stored_conversation import StoredConversation
from app.protocol.options import Mode
from app.store.records import DeletedMessages, DocumentHit
from app.ui.chat.view import ChatView
from app.ui.state.asking import Asking
from app.ui.state.repository import OpenChat
from app.ui.terminal import copied_sentence
from app.ui.transcript.citations import CitationsScreen
from app.ui.transcript.message import MessageView
from app.ui.transcript.turn_view import AnswerView
from app.util import formatting

if TYPE_CHECKING:
    from app.ui.spans.screen import AskAgain, SpansScreen

T = TypeVar("T")

NO_CITATIONS = "This answer has no citations."
NO_DOCUMENTS = "No documents to show. Paste one and ask about it."
ONE_VERSION = "There is only one version. ^E edits the question, ^A asks again."


class MessageActions:
    def __init__(self, view: ChatView, asking: Asking) -> None:
        self._view, self._asking = view, asking
        self._open_chats, self._transcript = view.open_chats, view.transcript
        self._copied: tuple[MessageView, int] | None = None
        """The message whose code was copied last, and which block of it."""
        self._deleted: list[tuple[OpenChat, DeletedMessages]] = []
        self._branch_lock = asyncio.Lock()
        """Locked while the branch changes: a key may arrive before the previous one is handled."""

    def act(self, name: str, message: MessageView) -> None:
        """Run the action of this name on a message."""
        turn = message.turn
        match name:
            case "up":
                self._transcript.select_neighbour(message, -1)
            case "down":
                self._transcript.select_neighbour(message, 1)
            case "previous_version":
                self._show_version(message, -1)
            case "next_version":
                self._show_version(message, 1)
            case "copy":
                self._copy(message)
            case "code":
                self._copy_code(message)
            case "edit":
                self._view.edit(turn)
            case "again":
                self._asking.ask_again(turn)
            case "full":
                self._asking.ask_again(turn, Mode.FULL)
            case "spans":
                self.show_spans(turn)
            case "citations":
                self._list_citations(message)
            case "delete":
                if self._asking.may_change():
                    self._change(partial(self._delete, turn, message.part))
            case "undo":
                self.undo_delete()

    # -------------------------------------------------------------------------- copying

    def _copy(self, message: MessageView) -> None:
        self._view.app.copy_to_clipboard(message.text)
        characters = formatting.plural(len(message.text), "character")
        self._say_copied(f"Copied the {message.part} as Markdown: {characters}.")

    def _copy_code(self, message: MessageView) -> None:
        from app.ui.transcript.markdown import code_blocks

        blocks, index = code_blocks(message.text), 0
        if not blocks:
            self._view.say(f"No code block in this {message.part}.")
            return
        if self._copied is not None and self._copied[0] is message:
            index = (self._copied[1] + 1) % len(blocks)
        self._copied = message, index
        language, code = blocks[index]
        self._view.app.copy_to_clipboard(code)
        which = f"{index + 1} of {len(blocks)}" if len(blocks) > 1 else ""
        facts = ", ".join(filter(None, (language, formatting.plural(code.count("\n"), "line"))))
        more = " ^K again copies the next." if len(blocks) > 1 else ""
        self._say_copied(" ".join(f"Copied code {which} ({facts}).{more}".split()))

    def _say_copied(self, sentence: str) -> None:
        self._view.say(copied_sentence(self._view.app, sentence))

    # -------------------------------------------------------------------------- what was read

    def show_spans(self, turn: Turn | None) -> None:
        """Show what was read for the answer of a turn."""
        screen = None if turn is None else self._view.keep_preview.spans_screen(turn)
        if turn is None or screen is None:
            self._view.say(NO_DOCUMENTS)
        else:
            self._push_spans(turn, screen)

    def _list_citations(self, message: MessageView) -> None:
        notes = message.citations if isinstance(message, AnswerView) else []
        if not notes:
            self._view.say(NO_CITATIONS)
            return

        def chosen(note: Footnote | None) -> None:
            if note is not None:
                self.show_citation(message.turn, note)

        screen = CitationsScreen(notes, summary(message.turn.citations))
        self._view.app.push_screen(screen, chosen)

    def show_citation(self, turn: Turn, note: Footnote) -> None:
        """Show the cited passage in its document."""
        screen = self._view.keep_preview.spans_screen(turn, citation=note.citation)
        if screen is not None:
            self._push_spans(turn, screen)

    def _push_spans(self, turn: Turn, screen: SpansScreen) -> None:
        self._view.app.push_screen(screen, partial(self._spans_closed, turn))

    def _spans_closed(self, turn: Turn, result: AskAgain | None) -> None:
        self._view.keep_preview.end()
        shown = turn in self._open_chats.shown.conversation.branch
        if result is not None and self._asking.may_ask() and shown:
            mode = None if result.keep is None else Mode.SPARSE
            self._asking.ask_again(turn, mode, result.keep, result.pins)

    # -------------------------------------------------------------------------- branches

    def _show_version(self, message: MessageView, step: int) -> None:
        if message.version[1] < 2:
            self._view.say(ONE_VERSION)
        elif self._asking.may_change():
            self._change(partial(self._step_version, message.turn, message.part, step))

    async def _step_version(self, turn: Turn, part: TurnPart, step: int) -> None:
        branch = self._open_chats.shown.conversation.branch
        if turn not in branch:  # an earlier key has changed the branch
            return
        index = branch.index(turn)
        await self._change_branch(lambda chat: chat.step_version(turn, part, step))
        await self._select_turn(index, part)

    async def _delete(self, turn: Turn, part: TurnPart) -> None:
        chat = self._open_chats.shown
        branch = chat.conversation.branch
        if turn not in branch:
            return
        index, (_, answers) = branch.index(turn), chat.chat.version_of(turn, TurnPart.ANSWER)
        deleted = await self._change_branch(lambda chat: chat.delete(turn, part))
        self._deleted.append((chat, deleted))
        after = len(branch) - index - 1
        more = f", with {formatting.plural(after, 'question')} after it" if after else ""
        only_answer = part is TurnPart.ANSWER and answers > 1
        what = "Answer" if only_answer else "Question and answer"
        await self._select_turn(min(index, len(chat.conversation.branch) - 1), part)
        self._view.say(f"{what} deleted{more}. ^Z undoes it.")

    def undo_delete(self) -> None:
        """Restore what was deleted last."""
        self._change(self._restore_deleted)

    async def _restore_deleted(self) -> None:
        deleted = [each for each in self._deleted if each[0] is self._open_chats.shown]
        if not deleted:
            self._view.say("Nothing to undo.")
            return
        if not self._asking.may_change():
            return
        self._deleted.remove(deleted[-1])
        before = self._open_chats.shown.conversation.branch
        await self._change_branch(lambda chat: chat.restore(deleted[-1][1]))
        after = self._open_chats.shown.conversation.branch
        index = next((i for i, turn in enumerate(after) if turn not in before), len(after) - 1)
        await self._select_turn(index, TurnPart.QUESTION)
        self._view.say("Restored.")

    def open_message(self, message: int, document: DocumentHit | None = None) -> None:
        """Show and select a stored message of the conversation on the screen, and a place in a
        document if an answer has read it."""
        self._change(partial(self._open_message, message, document))

    async def _open_message(self, message: int, document: DocumentHit | None) -> None:
        chat = self._open_chats.shown.chat
        if chat.find(message) is None and self._asking.may_change():
            await self._change_branch(lambda chat: chat.show_message(message))
        if (found := chat.find(message)) is None:
            return
        await self._transcript.reveal(*found)
        if document is None or found[0].state is TurnState.RUNNING:
            return
        screen = self._view.keep_preview.spans_screen(found[0], document)
        if screen is not None and screen.found:
            self._push_spans(found[0], screen)
        else:
            self._view.keep_preview.end()

    async def _change_branch(self, change: Callable[[StoredConversation], T]) -> T:
        chat = self._open_chats.shown
        self._view.keep_preview.end()
        result = await self._open_chats.repository.change_branch(chat, change)
        async with self._open_chats.draw_lock:
            if chat is self._open_chats.shown:
                await self._view.show_branch()
        self._view.show_state()
        return result

    async def _select_turn(self, index: int, part: TurnPart) -> None:
        branch = self._open_chats.shown.conversation.branch
        if 0 <= index < len(branch):
            await self._transcript.reveal(branch[index], part)
        else:
            self._view.composer.box.focus()

    def _change(self, task: Callable[[], Awaitable[None]]) -> None:
        async def change() -> None:
            async with self._branch_lock:
                await task()

        self._view.run(change)
