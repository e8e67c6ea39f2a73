"""Selecting messages in the chat screen, and what can be done with them: copy, edit, ask again,
show what was read, delete, choose files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import on
from textual.binding import Binding, BindingType
from textual.events import DescendantBlur, DescendantFocus

from app.chat.citations import Footnote, summary
from app.chat.conversation import Question, Turn, TurnPart, TurnState
from app.chat.stored_conversation import StoredConversation
from app.protocol.commands import Load
from app.protocol.engine import Engine
from app.protocol.options import AUTO_KEEP, Mode
from app.settings.file import SettingsFile
from app.store.records import DeletedMessages, DocumentHit
from app.ui.attach.attachment import documents_of
from app.ui.attach.chips import Chip
from app.ui.background import start_task
from app.ui.chat.asking import OPENING, AskingScreen
from app.ui.chat.chrome import NewTextMarker
from app.ui.chat.composer import ComposeBox
from app.ui.chat.model_loading import STILL_ANSWERING
from app.ui.chat.slider import KeepSlider
from app.ui.files.overview import choice_text, file_facts, files_for, files_of
from app.ui.keys import forward_key
from app.ui.state.repository import OpenChat
from app.ui.terminal import copied_sentence
from app.ui.transcript.citations import CitationsScreen, CitationsView
from app.ui.transcript.message import MessageView
from app.ui.transcript.transcript import Transcript
from app.ui.transcript.turn_view import AnswerView
from app.util import formatting

if TYPE_CHECKING:
    from app.ui.files.screen import ChosenFiles
    from app.ui.spans.screen import AskAgain, SpansScreen

T = TypeVar("T")

NO_FILES = "No files here. Type @ to attach a file or a folder."
NO_CITATIONS = "This answer has no citations."
NO_DOCUMENTS = "No documents to show. Paste one and ask about it."
ONE_VERSION = "There is only one version. ^E edits the question, ^A asks again."


class MessagesScreen(AskingScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "tab", "messages", "Messages", id="chat.messages",
            tooltip="Select the last message, or return to the box",
        ),
        Binding(
            "shift+tab", "above", "Attachments", id="chat.above",
            tooltip="Select an attachment, or the last message",
        ),
        Binding(
            "ctrl+f", "files", "Files", id="chat.files",
            tooltip="Show and choose the files that are read",
        ),
        Binding(
            "ctrl+b", "to_end", "Go to the end", id="chat.bottom",
            tooltip="Go to the end of the conversation",
        ),
    ]  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        load: Load,
        settings_file: SettingsFile,
        clock: Callable[[], float],
        folder: Path | None,
    ) -> None:
        super().__init__(engine, load, settings_file, clock, folder)
        self.new_text_marker = NewTextMarker()
        self._copied: tuple[MessageView, int] | None = None
        """The message whose code was copied last, and which block of it."""
        self._deleted: list[tuple[OpenChat, DeletedMessages]] = []
        self._keep_turn: Turn | None = None
        """The turn that is asked again at the keep of the slider, if that was opened for one."""
        self._branch_lock = asyncio.Lock()
        """Locked while the branch changes: a key may arrive before the previous one is handled."""

    # -------------------------------------------------------------------------- selecting

    def action_messages(self) -> None:
        """Select the last message, or return from a message to the box."""
        messages = self.transcript.messages
        if self.focused is self.composer.box and messages:
            self.transcript.select(messages[-1])
        else:
            self.composer.box.focus()

    def action_above(self) -> None:
        """Select the next chip above the box; from the first one, return to the box."""
        chips = [*self.composer.chips.query(Chip)]
        targets = [*chips, self.composer.box]
        index = targets.index(self.focused) if self.focused in targets else 0
        if chips and index > 0:
            self.set_focus(targets[index - 1])  # at once, for keys typed ahead
        else:
            self.action_messages()

    @on(DescendantFocus)
    @on(DescendantBlur)
    def _focus_moved(self) -> None:
        self.show_state()
        if self.focused is self.composer.box and not self.repository.opening:
            self.attachments.check()

    @on(MessageView.KeyForComposer)
    def _type_in_composer(self, event: MessageView.KeyForComposer) -> None:
        self.composer.box.focus()
        if event.key is not None:
            forward_key(event.key, self.composer.box)

    @on(Transcript.UnreadChanged)
    def _mark_new_text(self) -> None:
        self.new_text_marker.display = self.transcript.has_unread

    @on(NewTextMarker.Pressed)
    def action_to_end(self) -> None:
        self.transcript.follow_end()

    # -------------------------------------------------------------------------- one message

    @on(MessageView.Act)
    def _act_on_message(self, event: MessageView.Act) -> None:
        view, turn = event.view, event.view.turn
        match event.name:
            case "up":
                self.transcript.select_neighbour(view, -1)
            case "down":
                self.transcript.select_neighbour(view, 1)
            case "previous_version":
                self._show_version(view, -1)
            case "next_version":
                self._show_version(view, 1)
            case "copy":
                self._copy_message(view)
            case "code":
                self._copy_code(view)
            case "edit":
                self.composer.edit(turn)
                self.set_next_mode(self.next_mode)
            case "again":
                self.ask_same(turn)
            case "full":
                self._ask_again_with(turn, Mode.FULL, turn.question.keep)
            case "spans":
                self._show_spans(turn)
            case "citations":
                self._list_citations(view)
            case "delete":
                if self._can_change():
                    self._change(self._delete(turn, view.part))
            case "undo":
                self.undo_delete()

    def _copy_message(self, view: MessageView) -> None:
        self.app.copy_to_clipboard(view.text)
        characters = formatting.plural(len(view.text), "character")
        sentence = f"Copied the {view.part} as Markdown: {characters}."
        self.notice.show(copied_sentence(self.app, sentence))

    def _copy_code(self, view: MessageView) -> None:
        from app.ui.transcript.markdown import code_blocks

        blocks, index = code_blocks(view.text), 0
        if not blocks:
            self.notice.show(f"No code block in this {view.part}.")
            return
        if self._copied is not None and self._copied[0] is view:
            index = (self._copied[1] + 1) % len(blocks)
        self._copied = view, index
        language, code = blocks[index]
        self.app.copy_to_clipboard(code)
        which = f"{index + 1} of {len(blocks)}" if len(blocks) > 1 else ""
        facts = ", ".join(filter(None, (language, formatting.plural(code.count("\n"), "line"))))
        more = " ^K again copies the next." if len(blocks) > 1 else ""
        sentence = " ".join(f"Copied code {which} ({facts}).{more}".split())
        self.notice.show(copied_sentence(self.app, sentence))

    def _ask_again_with(self, turn: Turn, mode: Mode, keep: float) -> None:
        if self.may_ask():
            self.ask_again(mode, keep, turn)

    # -------------------------------------------------------------------------- what was read

    def action_show_spans(self) -> None:
        """Show what was read for the answer that is being given, or the last one."""
        self._show_spans(
            self.open_chats.running or self.open_chats.shown.conversation.last_finished
        )

    def _show_spans(self, turn: Turn | None) -> None:
        screen = None if turn is None else self.keep_preview.spans_screen(turn)
        if turn is None or screen is None:
            self.notice.show(NO_DOCUMENTS)
        else:
            self._push_spans(turn, screen)

    def _list_citations(self, view: MessageView) -> None:
        notes = view.citations if isinstance(view, AnswerView) else []
        if not notes:
            self.notice.show(NO_CITATIONS)
            return

        def chosen(note: Footnote | None) -> None:
            if note is not None:
                self.post_message(CitationsView.Chosen(view.turn, note))

        self.app.push_screen(CitationsScreen(notes, summary(view.turn.citations)), chosen)

    @on(CitationsView.Chosen)
    def _show_citation(self, event: CitationsView.Chosen) -> None:
        screen = self.keep_preview.spans_screen(event.turn, citation=event.note.citation)
        if screen is not None:
            self._push_spans(event.turn, screen)

    def _push_spans(self, turn: Turn, screen: SpansScreen) -> None:
        self.app.push_screen(screen, partial(self._spans_closed, turn))

    def _spans_closed(self, turn: Turn, result: AskAgain | None) -> None:
        self.keep_preview.end()
        shown = turn in self.open_chats.shown.conversation.branch
        if result is not None and self.may_ask() and shown:
            mode, keep = turn.question.mode, turn.question.keep
            if result.keep is not None:
                mode, keep = Mode.SPARSE, result.keep
            self.ask_again(mode, keep, turn, result.pins)

    # -------------------------------------------------------------------------- keep

    def action_set_keep(self) -> None:
        """Choose the keep of the next message, or the one to ask the selected answer again with."""
        if self.composer.slider.display:
            return
        if (selected := self.transcript.selected) is not None:
            self._keep_turn = selected.turn
            self.keep_preview.open_slider(selected.turn.progress.keep, selected.turn)
        else:
            self.keep_preview.open_slider(self.next_mode.keep)
            self._show_estimate(self.next_mode.keep)

    def on_keep_slider_tried(self, event: KeepSlider.Tried) -> None:
        self.keep_preview.move(event.keep)
        if self._keep_turn is None:
            self._show_estimate(event.keep)

    def _show_estimate(self, keep: float) -> None:
        """Shown where there is no scored turn to preview on."""
        if not self.keep_preview.active:
            self.composer.slider.effect = self.cost_estimate.text_at(keep)

    def on_keep_slider_decided(self, event: KeepSlider.Decided) -> None:
        turn, self._keep_turn = self._keep_turn, None
        self.show_state()
        if event.keep is not None and turn is not None:
            self._ask_again_with(turn, Mode.SPARSE, event.keep)
        elif event.keep is not None:
            self.set_next_mode(self.next_mode.at_keep(event.keep))
        elif event.automatic and turn is not None:
            self._ask_again_with(turn, Mode.AUTO, AUTO_KEEP)
        elif event.automatic:
            self.set_next_mode(self.next_mode.automatic())
        self.keep_preview.end()

    # -------------------------------------------------------------------------- branches

    def _show_version(self, view: MessageView, step: int) -> None:
        if view.version[1] < 2:
            self.notice.show(ONE_VERSION)
        elif self._can_change():
            self._change(self._step_version(view.turn, view.part, step))

    async def _step_version(self, turn: Turn, part: TurnPart, step: int) -> None:
        branch = self.open_chats.shown.conversation.branch
        if turn not in branch:  # an earlier key has changed the branch
            return
        index = branch.index(turn)
        await self._change_branch(lambda chat: chat.step_version(turn, part, step))
        await self._select_turn(index, part)

    async def _delete(self, turn: Turn, part: TurnPart) -> None:
        chat = self.open_chats.shown
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
        self.notice.show(f"{what} deleted{more}. ^Z undoes it.")

    @on(ComposeBox.UndidNothing)
    def undo_delete(self) -> None:
        """Restore what was deleted last."""
        self._change(self._restore_deleted())

    async def _restore_deleted(self) -> None:
        deleted = [each for each in self._deleted if each[0] is self.open_chats.shown]
        if not deleted:
            self.notice.show("Nothing to undo.")
            return
        if not self._can_change():
            return
        self._deleted.remove(deleted[-1])
        before = self.open_chats.shown.conversation.branch
        await self._change_branch(lambda chat: chat.restore(deleted[-1][1]))
        after = self.open_chats.shown.conversation.branch
        index = next((i for i, turn in enumerate(after) if turn not in before), len(after) - 1)
        await self._select_turn(index, TurnPart.QUESTION)
        self.notice.show("Restored.")

    def open_message(self, message: int, document: DocumentHit | None = None) -> None:
        """Show and select a stored message of the conversation on the screen, and a place in a
        document if an answer has read it."""
        self._change(self._open_message(message, document))

    async def _open_message(self, message: int, document: DocumentHit | None) -> None:
        chat = self.open_chats.shown.chat
        if chat.find(message) is None and self._can_change():
            await self._change_branch(lambda chat: chat.show_message(message))
        if (found := chat.find(message)) is None:
            return
        await self.transcript.reveal(*found)
        if document is None or found[0].state is TurnState.RUNNING:
            return
        screen = self.keep_preview.spans_screen(found[0], document)
        if screen is not None and screen.found:
            self._push_spans(found[0], screen)
        else:
            self.keep_preview.end()

    async def _change_branch(self, change: Callable[[StoredConversation], T]) -> T:
        chat = self.open_chats.shown
        self.keep_preview.end()
        result = await self.repository.change_branch(chat, change)
        async with self.draw_lock:
            if chat is self.open_chats.shown:
                await self.transcript.show_branch()
        self.show_state()
        return result

    async def _select_turn(self, index: int, part: TurnPart) -> None:
        branch = self.open_chats.shown.conversation.branch
        if 0 <= index < len(branch):
            await self.transcript.reveal(branch[index], part)
        else:
            self.composer.box.focus()

    def _can_change(self) -> bool:
        """Whether the branch can be changed: not while this conversation is being answered."""
        shown = self.open_chats.shown
        if shown not in (self.open_chats.answering, self.open_chats.committing):
            return True
        self.notice.show(STILL_ANSWERING)
        return False

    def _change(self, task: Coroutine[Any, Any, None]) -> None:
        async def change() -> None:
            async with self._branch_lock:
                await task

        start_task(self, change)

    # -------------------------------------------------------------------------- files

    def action_files(self) -> None:
        """Show the files of the selected answer, or else of the last one and what is attached."""
        # Imported here, so that the first frame does not wait for it.
        from app.ui.files.screen import FilesScreen

        chat, selected = self.open_chats.shown, self.transcript.selected
        branch = chat.conversation.branch
        turn = selected.turn if selected else (branch[-1] if branch else None)
        files = () if turn is None else files_for(chat.conversation, turn)
        attached = () if selected else documents_of(self.composer.chips.attached)
        new = chat.conversation.with_versions(Question("", attached)).documents
        outdated = {each.replaces for each in new}
        files = files_of((*(each for each in files if each not in outdated), *attached))
        if self.repository.opening or not files:
            self.notice.show(OPENING if self.repository.opening else NO_FILES)
            return
        progress = None if turn is None else turn.progress
        retrieved = None if progress is None else progress.retrieved
        pair = self.loader.pair
        screen = FilesScreen(
            file_facts(files, chat.conversation, turn, progress),
            chat.conversation.overrides,
            0 if pair is None else pair.target.context_length,
            None if retrieved is None else retrieved.room,
            can_ask=not attached and turn is not None and _can_choose(turn),
        )
        self.app.push_screen(screen, partial(self._files_closed, chat, turn))

    def _files_closed(self, chat: OpenChat, turn: Turn | None, chosen: ChosenFiles | None) -> None:
        if chosen is not None:
            start_task(self, lambda: self._apply_files(chat, turn, chosen))

    async def _apply_files(self, chat: OpenChat, turn: Turn | None, chosen: ChosenFiles) -> None:
        before = chat.conversation.overrides
        always, never = chosen.always or None, chosen.never or None
        overrides = replace(before, always_read=always, never_read=never)
        if overrides != before:
            await self.repository.set_overrides(chat, overrides)
        if chat is not self.open_chats.shown:
            return
        if chosen.again and turn is not None and turn in chat.conversation.branch:
            if self.may_ask():
                mode, keep = turn.question.mode, turn.question.keep
                self.ask_again(mode, keep, turn, choose_files=True)
        elif overrides != before:
            text = choice_text(len(chosen.always), len(chosen.never)) or "all automatic"
            self.notice.show(f"Files from the next question on: {text}.")


def _can_choose(turn: Turn) -> bool:
    """Whether files were chosen for this question, or may be if it is asked again."""
    return turn.retrieved is not None or turn.state is not TurnState.DONE
