"""Ctrl+F: shows the files of an answer, and applies which of them the user chooses to read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from app.chat.conversation import Question, Turn, TurnState
from app.ui.attach.attachment import documents_of
from app.ui.chat.model_loading import PairLoader
from app.ui.chat.view import ChatView
from app.ui.files.overview import choice_text, file_facts, files_for, files_of
from app.ui.state.asking import OPENING, Asking
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.files.screen import ChosenFiles

NO_FILES = "No files here. Type @ to attach a file or a folder."


class FileChoice:
    def __init__(self, view: ChatView, asking: Asking, loader: PairLoader) -> None:
        self._view, self._asking, self._loader = view, asking, loader
        self._open_chats = view.open_chats

    def open(self) -> None:
        """Show the files of the selected answer, or else of the last one and what is attached."""
        # Imported here, so that the first frame does not wait for it.
        from app.ui.files.screen import FilesScreen

        chat, selected = self._open_chats.shown, self._view.transcript.selected
        branch = chat.conversation.branch
        turn = selected.turn if selected else (branch[-1] if branch else None)
        files = () if turn is None else files_for(chat.conversation, turn)
        attached = () if selected else documents_of(self._view.composer.chips.attached)
        new = chat.conversation.with_versions(Question("", attached)).documents
        outdated = {each.replaces for each in new}
        files = files_of((*(each for each in files if each not in outdated), *attached))
        opening = self._open_chats.repository.opening
        if opening or not files:
            self._view.say(OPENING if opening else NO_FILES)
            return
        progress = None if turn is None else turn.progress
        retrieved = None if progress is None else progress.retrieved
        pair = self._loader.pair
        screen = FilesScreen(
            file_facts(files, chat.conversation, turn, progress),
            chat.conversation.overrides,
            0 if pair is None else pair.target.context_length,
            None if retrieved is None else retrieved.room,
            can_ask=not attached and turn is not None and _can_choose(turn),
        )
        self._view.app.push_screen(screen, partial(self._closed, chat, turn))

    def _closed(self, chat: OpenChat, turn: Turn | None, chosen: ChosenFiles | None) -> None:
        if chosen is not None:
            self._view.run(lambda: self._apply(chat, turn, chosen))

    async def _apply(self, chat: OpenChat, turn: Turn | None, chosen: ChosenFiles) -> None:
        before = chat.conversation.overrides
        always, never = chosen.always or None, chosen.never or None
        overrides = replace(before, always_read=always, never_read=never)
        if overrides != before:
            await self._open_chats.repository.set_overrides(chat, overrides)
        if chat is not self._open_chats.shown:
            return
        if chosen.again and turn is not None and turn in chat.conversation.branch:
            self._asking.ask_again(turn, choose_files=True)
        elif overrides != before:
            text = choice_text(len(chosen.always), len(chosen.never)) or "all automatic"
            self._view.say(f"Files from the next question on: {text}.")


def _can_choose(turn: Turn) -> bool:
    """Whether files were chosen for this question, or may be if it is asked again."""
    return turn.retrieved is not None or turn.state is not TurnState.DONE
