"""What can be done with a selected message: copy, edit, answer again, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from app.chat.conversation import Turn, TurnPart, TurnState
from app.chat.stored_conversation import StoredConversation
from app.errors import UserError
from app.protocol.options import AUTO_KEEP, Mode
from app.store.records import DeletedMessages, DocumentHit
from app.ui.background import start_task
from app.ui.chat.context import ChatContext
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.question_edit import QuestionEdit
from app.ui.chat.submission import Submission
from app.ui.keep.slider import KeepSlider
from app.ui.state.repository import OpenChat
from app.ui.transcript.message import MessageView
from app.util import formatting

if TYPE_CHECKING:
    from app.ui.spans.screen import AskAgain, SpansScreen

T = TypeVar("T")


class MessageActions:
    def __init__(
        self,
        context: ChatContext,
        submission: Submission,
        edit: QuestionEdit,
        keep_preview: KeepPreview,
    ) -> None:
        self._context, self._open_chats = context, context.open_chats
        self._submission, self._edit, self._keep_preview = submission, edit, keep_preview
        self._copied: tuple[MessageView, int] | None = None
        self._deleted: list[tuple[OpenChat, DeletedMessages]] = []
        self._keep_turn: Turn | None = None
        self._branch_lock = asyncio.Lock()
        """Locked while the branch changes: a key may arrive before the previous one is handled."""

    # -------------------------------------------------------------------------- which keys work

    @staticmethod
    def next_hints(last: Turn) -> list[str]:
        """After the last turn. One that is not complete is more likely to be asked again."""
        if last.state is TurnState.DONE and not last.can_continue:
            return ["^R again, in full"]
        return [*(["F4 continue"] if last.can_continue else []), "^A again", "^R again, in full"]

    def hints(self, view: MessageView) -> list[str]:
        """The most important first."""
        hints = ["^Y copy", "^E edit"]
        if view.part is TurnPart.ANSWER:
            hints = ["Space details", "^Y copy", "^A again", "^R in full", "^G at keep", "^S spans"]
        branch = self._open_chats.shown.conversation.branch
        if view.turn.can_continue and branch and view.turn is branch[-1]:
            hints.insert(0, "F4 continue")
        if view.version[1] > 1:
            hints.insert(0, f"←→ {view.version[0]}/{view.version[1]}")
        more = (
            ["^K code", "^E edit"] if view.part is TurnPart.ANSWER else ["^A again", "^R in full"]
        )
        return [*hints, "^D delete", *more, "Esc back"]

    # -------------------------------------------------------------------------- actions

    def run_action(self, view: MessageView, name: str) -> None:
        actions: dict[str, Callable[[MessageView], None]] = {
            "copy": self._copy,
            "code": self._copy_code,
            "edit": lambda view: self._edit.start(view.turn),
            "again": self._again,
            "full": lambda view: self._ask_again(view.turn, Mode.FULL, view.turn.question.keep),
            "spans": lambda view: self.show_spans(view.turn),
            "delete": self._delete,
            "undo": lambda view: self.undo(),
        }
        actions[name](view)

    def _copy(self, view: MessageView) -> None:
        turn = view.turn
        text = turn.question.text if view.part is TurnPart.QUESTION else turn.text
        self._context.screen.app.copy_to_clipboard(text)
        characters = formatting.plural(len(text), "character")
        self._context.notice.show(f"Copied the {view.part} as Markdown: {characters}.")

    def _copy_code(self, view: MessageView) -> None:
        from app.ui.transcript.markdown import code_blocks

        text = view.turn.question.text if view.part is TurnPart.QUESTION else view.turn.text
        blocks, index = code_blocks(text), 0
        if not blocks:
            self._context.notice.show(f"No code block in this {view.part}.")
            return
        if self._copied is not None and self._copied[0] is view:
            index = (self._copied[1] + 1) % len(blocks)
        self._copied = view, index
        language, code = blocks[index]
        self._context.screen.app.copy_to_clipboard(code)
        which = f"{index + 1} of {len(blocks)}" if len(blocks) > 1 else ""
        facts = ", ".join(filter(None, (language, formatting.plural(code.count("\n"), "line"))))
        more = " ^K again copies the next." if len(blocks) > 1 else ""
        self._context.notice.show(" ".join(f"Copied code {which} ({facts}).{more}".split()))

    def _again(self, view: MessageView) -> None:
        """As it was asked: an automatic keep is chosen again."""
        question = view.turn.question
        self._ask_again(view.turn, question.mode, question.keep)

    def _ask_again(self, turn: Turn, mode: Mode, keep: float) -> None:
        if self._submission.may_ask():
            self._submission.ask_again(mode, keep, turn)

    def show_spans(self, turn: Turn | None) -> None:
        screen = None if turn is None else self._keep_preview.spans_screen(turn)
        if turn is None or screen is None:
            message = "No documents to show. Paste one and ask about it."
            self._context.notice.show(message)
        else:
            self._push_spans(turn, screen)

    def _push_spans(self, turn: Turn, screen: SpansScreen) -> None:
        self._context.screen.app.push_screen(screen, partial(self._spans_closed, turn))

    def _spans_closed(self, turn: Turn, result: AskAgain | None) -> None:
        self._keep_preview.end()
        shown = turn in self._open_chats.shown.conversation.branch
        if result is not None and self._submission.may_ask() and shown:
            mode, keep = turn.question.mode, turn.question.keep
            if result.keep is not None:
                mode, keep = Mode.SPARSE, result.keep
            self._submission.ask_again(mode, keep, turn, result.pins)

    # -------------------------------------------------------------------------- keep

    def open_keep(self, view: MessageView) -> None:
        self._keep_turn = view.turn
        keep = view.turn.progress.keep
        self._keep_preview.open_slider(keep, view.turn)

    @property
    def sets_keep(self) -> bool:
        """Whether the slider is open for a selected answer."""
        return self._keep_turn is not None

    def on_keep_closed(self, event: KeepSlider.Closed) -> bool:
        """Returns whether the slider was open for a selected answer."""
        turn, self._keep_turn = self._keep_turn, None
        if turn is not None and event.keep is not None:
            self._ask_again(turn, Mode.SPARSE, event.keep)
        elif turn is not None and event.automatic:
            self._ask_again(turn, Mode.AUTO, AUTO_KEEP)
        return turn is not None

    # -------------------------------------------------------------------------- branches

    def step_version(self, view: MessageView, step: int) -> None:
        if view.version[1] < 2:
            self._context.notice.show(
                "There is only one version. ^E edits the question, ^A asks again."
            )
        elif self._can_change():
            turn, part = view.turn, view.part
            self._run(self._step_version(turn, part, step))

    async def _step_version(self, turn: Turn, part: TurnPart, step: int) -> None:
        branch = self._open_chats.shown.conversation.branch
        if turn not in branch:  # an earlier key has changed the branch
            return
        index = branch.index(turn)
        await self._change_branch(lambda chat: chat.step_version(turn, part, step))
        await self._select(index, part)

    def _delete(self, view: MessageView) -> None:
        if self._can_change():
            self._run(self._delete_message(view.turn, view.part))

    async def _delete_message(self, turn: Turn, part: TurnPart) -> None:
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
        await self._select(min(index, len(chat.conversation.branch) - 1), part)
        self._context.notice.show(f"{what} deleted{more}. ^Z undoes it.")

    def undo(self) -> None:
        """Restore what was deleted last."""
        self._run(self._undo())

    async def _undo(self) -> None:
        deleted = [each for each in self._deleted if each[0] is self._open_chats.shown]
        if not deleted:
            self._context.notice.show("Nothing to undo.")
        elif self._can_change():
            self._deleted.remove(deleted[-1])
            await self._restore(deleted[-1][1])

    async def _restore(self, deleted: DeletedMessages) -> None:
        before = self._open_chats.shown.conversation.branch
        await self._change_branch(lambda chat: chat.restore(deleted))
        after = self._open_chats.shown.conversation.branch
        index = next((i for i, turn in enumerate(after) if turn not in before), len(after) - 1)
        await self._select(index, TurnPart.QUESTION)
        self._context.notice.show("Restored.")

    async def _open_message(self, message: int, document: DocumentHit | None) -> None:
        """Show and select a stored message of the conversation on the screen, and a place in a
        document if an answer has read it."""
        chat = self._open_chats.shown.chat
        if chat.find(message) is None and self._can_change():
            await self._change_branch(lambda chat: chat.show_message(message))
        if (found := chat.find(message)) is not None:
            await self._context.transcript.reveal(*found)
            if document is not None and found[0].state is not TurnState.RUNNING:
                self._show_found(found[0], document)

    def _show_found(self, turn: Turn, document: DocumentHit) -> None:
        screen = self._keep_preview.spans_screen(turn, document)
        if screen is not None and screen.found:
            self._push_spans(turn, screen)
        else:
            self._keep_preview.end()

    def open_message(self, message: int, document: DocumentHit | None = None) -> None:
        self._run(self._open_message(message, document))

    async def _change_branch(self, change: Callable[[StoredConversation], T]) -> T:
        context, chat = self._context, self._open_chats.shown
        self._keep_preview.end()
        result = await self._open_chats.repository.change_branch(chat, change)
        async with context.draw_lock:
            if chat is self._open_chats.shown:
                await context.transcript.show_branch()
        context.refresh()
        return result

    async def _select(self, index: int, part: TurnPart) -> None:
        branch = self._open_chats.shown.conversation.branch
        if 0 <= index < len(branch):
            await self._context.transcript.reveal(branch[index], part)
        else:
            self._context.composer.box.focus()

    def _can_change(self) -> bool:
        """Not while this conversation is being answered."""
        shown = self._open_chats.shown
        if shown not in (self._open_chats.answering, self._open_chats.committing):
            return True
        self._context.notice.show("Still answering. Esc stops it.")
        return False

    def _run(self, task: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                async with self._branch_lock:
                    await task
            except UserError as error:
                self._context.notice.show(str(error))

        start_task(self._context.screen, run)
