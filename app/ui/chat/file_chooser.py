"""Opens the files of the conversation on the screen, and applies what was chosen there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from app.chat.conversation import Turn, TurnState
from app.errors import UserError
from app.ui.attach.attachment import documents_of
from app.ui.background import start_task
from app.ui.chat.context import ChatContext
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.submission import Submission
from app.ui.files.overview import choice_text, file_facts, files_for, files_of
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.files.screen import ChosenFiles

NO_FILES = "No files here. Type @ to attach a file or a folder."


class FileChooser:
    def __init__(
        self, context: ChatContext, submission: Submission, cost_estimate: CostEstimate
    ) -> None:
        self._context, self._submission = context, submission
        self._cost_estimate = cost_estimate

    def open(self, selected: Turn | None) -> None:
        """For the answer that is selected, or else the last one and what is attached now."""
        # Imported here, so that the first frame does not wait for it.
        from app.ui.files.screen import FilesScreen

        context, chat = self._context, self._context.open_chats.shown
        branch = chat.conversation.branch
        turn = selected or (branch[-1] if branch else None)
        files = () if turn is None else files_for(chat.conversation, turn)
        attached = () if selected else documents_of(context.composer.chips.attached)
        files = files_of((*files, *attached))
        if context.open_chats.repository.opening or not files:
            opening = context.open_chats.repository.opening
            context.notice.show("Opening the conversations…" if opening else NO_FILES)
            return
        progress = None if turn is None else turn.progress
        retrieved = None if progress is None else progress.retrieved
        pair = self._cost_estimate.pair
        screen = FilesScreen(
            file_facts(files, chat.conversation, turn, progress),
            chat.conversation.overrides,
            0 if pair is None else pair.target.context_length,
            None if retrieved is None else retrieved.room,
            can_ask=not attached and turn is not None and _can_choose(turn),
        )
        context.screen.app.push_screen(screen, partial(self._closed, chat, turn))

    def _closed(self, chat: OpenChat, turn: Turn | None, chosen: ChosenFiles | None) -> None:
        if chosen is not None:
            start_task(self._context.screen, lambda: self._apply(chat, turn, chosen))

    async def _apply(self, chat: OpenChat, turn: Turn | None, chosen: ChosenFiles) -> None:
        context, before = self._context, chat.conversation.overrides
        always, never = chosen.always or None, chosen.never or None
        overrides = replace(before, always_read=always, never_read=never)
        if overrides != before:
            try:
                await context.open_chats.repository.set_overrides(chat, overrides)
            except UserError as error:
                context.notice.show(str(error))
                return
        if chat is not context.open_chats.shown:
            return
        if chosen.again and turn is not None and turn in chat.conversation.branch:
            if self._submission.may_ask():
                mode, keep = turn.question.mode, turn.question.keep
                self._submission.ask_again(mode, keep, turn, choose_files=True)
        elif overrides != before:
            text = choice_text(len(chosen.always), len(chosen.never)) or "all automatic"
            context.notice.show(f"From the next question on: {text}.")


def _can_choose(turn: Turn) -> bool:
    """Whether files were chosen for this question, or may be if it is asked again."""
    return turn.retrieved is not None or turn.state is not TurnState.DONE
