"""The chat screen: its keys, the engine's events, and which conversation is on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Paste
from textual.message import Message
from textual.screen import Screen

from app.chat import wording
from app.chat.conversation import TurnState
from app.errors import UserError
from app.protocol.commands import CachePolicy, DropConversation, Load, PruneSnapshots
from app.protocol.cost_model import Costs
from app.protocol.engine import Engine, LocalServer
from app.protocol.events import (
    BackgroundProgress,
    Closed,
    CommandFailed,
    CostsUpdated,
    EngineWarning,
    Event,
    Failed,
    GpuLost,
    HostsLost,
    Loaded,
    LoadingAlone,
    MemoryFreed,
    MemoryReport,
    PairLost,
    PressureChanged,
    Reloaded,
    Selected,
    SnapshotFailed,
    SnapshotProgress,
    Unloaded,
)
from app.settings.definitions import Settings
from app.settings.file import SettingsFile
from app.store.records import DocumentHit, KnownDocument, Overrides, StoreError
from app.ui.attach.chips import Chip, Chips
from app.ui.background import EngineEvents, start_task
from app.ui.chat.asking import OPENING
from app.ui.chat.composer import ComposeBox
from app.ui.chat.messages import MessagesScreen
from app.ui.chat.slider import KeepSlider
from app.ui.chat.welcome import show_welcome
from app.ui.completion import ActsAtOnce, CompletionList, Owner, typed_path
from app.ui.conversations.list_rows import Sidebar
from app.ui.help import Section
from app.ui.state.draft import default_next_mode, next_mode_for
from app.ui.state.repository import OpenChat
from app.ui.transcript.message import MessageView

if TYPE_CHECKING:
    from app.ui.conversations.screen import ChosenConversation

TICK_SECONDS = 0.25
SYSTEM_PROMPT_CHANGED = (
    "The system prompt has changed: the next question reads the whole conversation again."
)


@dataclass
class CostsMeasured(Message):
    """The engine has measured the pair's costs, as requested."""

    costs: Costs


@dataclass
class EngineLost(Message):
    """The engine has lost the GPU and cannot answer in this process any more."""

    problem: str


class ChatScreen(MessagesScreen):
    """Shows one conversation; each widget draws its own part of it. An answer continues while
    another conversation is on the screen."""

    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [(0, "-narrow"), (100, "-wide")]  # type: ignore[misc]

    # Bindings that change the meaning of the next key have priority over the focused widget: keys
    # that arrive in one read (a slow line, or typed ahead) would otherwise be handled first.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "stop", "Stop", id="chat.stop",
            tooltip="Stop the answer, or take back a queued question",
        ),
        Binding(
            "ctrl+t", "toggle_full", "Read in full", id="chat.full",
            tooltip="Read the next message in full", priority=True,
        ),
        Binding(
            "ctrl+g", "set_keep", "Keep", id="chat.keep",
            tooltip="Set keep; with an answer selected, ask again",
            priority=True,
        ),
        Binding(
            "ctrl+a", "ask_again", "Again", id="chat.again",
            tooltip="Ask the last question again (if the box is empty)",
        ),
        Binding(
            "ctrl+r", "ask_again(True)", "Again in full", id="chat.again_full",
            tooltip="Ask the last question again, and read in full",
        ),
        Binding(
            "ctrl+s", "show_spans", "What was read", id="chat.spans",
            tooltip="Show what was read in the documents",
        ),
        Binding(
            "f4", "continue_answer", "Continue", id="chat.continue",
            tooltip="Continue a stopped or cut-off answer",
        ),
        Binding("ctrl+n", "new", "New", id="chat.new", tooltip="Start a new conversation"),
        Binding(
            "ctrl+o", "conversations", "Conversations", id="chat.conversations",
            tooltip="List, search and manage all conversations",
        ),
        Binding(
            "f3", "conversation_settings", "System prompt", id="chat.system",
            tooltip="This conversation's system prompt, sampling, keep",
        ),
    ]  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        load: Load,
        settings_file: SettingsFile,
        clock: Callable[[], float],
        folder: Path | None = None,
        snapshots: Path | None = None,
        costs: Path | None = None,
        startup_message: str = "",
        attached: Sequence[str] = (),
        server: LocalServer | None = None,
        shows_welcome: bool = False,
        watches: bool = False,
    ) -> None:
        """Conversations are stored in `folder`, caches in `snapshots`, measured speeds in `costs`;
        `startup_message` is shown first. Files and folders `attached`, by their absolute paths, go
        to a new conversation. With `shows_welcome` the first start explains the app. If it
        `watches`, it checks attached files and folders for changes every few seconds."""
        super().__init__(engine, load, settings_file, clock, folder)
        self._snapshots = None if snapshots is None else str(snapshots)
        self._costs = None if costs is None else str(costs)
        self._startup_message, self._attached = startup_message, attached
        self._server = server
        self._cache_policy = CachePolicy()
        self._trashed: set[int] = set()
        """Conversations whose caches are dropped once they cannot be restored any more."""
        self._discard_candidate: OpenChat | None = None
        self.shows_welcome, self._watches = shows_welcome, watches

    # -------------------------------------------------------------------------- the screen

    def compose(self) -> ComposeResult:
        yield self.header
        yield Horizontal(self.sidebar, self.transcript, id="middle")
        yield self.new_text_marker
        yield self.composer
        yield self.footer

    def on_mount(self) -> None:
        self.composer.box.focus()
        self.show_state()
        self.set_interval(TICK_SECONDS, self._tick)
        if self._watches:
            self.attachments.watch()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """Load the models and open the store. Called after the first frame, so that they do not
        delay it."""
        self.engine.listen(self.bridge.listener)
        self._send_cache_policy(None)  # what is timed at load is stored
        self.loader.start()
        if self.repository.opening:
            start_task(self, self._open_store)
        else:
            self._apply_cache_policy()
            self._attach_paths()
            if self.settings_file.problem:  # otherwise keep the answer to an early key
                self.notice.show(self.settings_file.problem)

    def _tick(self) -> None:
        running = self.open_chats.running
        if running is not None and (view := self.transcript.view(running.number)) is not None:
            view.answer.tick()
        self.loader.tick()
        self.composer.chips.tick()
        if not self.repository.opening:
            self._save_pending()
        self.footer.meter = self.cost_estimate.meter()
        self.header.port = None if self._server is None else self._server.port

    def _save_pending(self) -> None:
        self.open_chats.shown.draft = self.composer.draft
        self.open_chats.save_pending()
        self.notice.set_persistent(
            self.loader.status_text
            or self.real_model.status_text
            or self.open_chats.problem
            or (self._server.status if self._server is not None else "")
            or self.cost_estimate.warning
        )
        self.notice.set_note(self.cost_estimate.note)
        if notices := self.repository.unread_notices():
            self.notice.show(" ".join(notices))

    def shutdown(self) -> bool:
        """Once the screen is gone, save what is pending. False while the engine still has caches to
        save that would otherwise have to be read again."""
        self._drop_trashed_caches()
        if not self.repository.opening:
            self.open_chats.shown.draft = self.composer.draft
            self.attachments.shutdown()
        for event in self.bridge.take():
            if isinstance(event, Closed):
                self.engine_closed = True
            else:
                self.open_chats.apply(event)
        return self.broken or self._snapshots is None or self.open_chats.last_sent is None

    # -------------------------------------------------------------------------- keys

    def help_sections(self) -> tuple[Section, ...]:
        return (
            ("Writing", ComposeBox),
            ("Files and commands", CompletionList),
            ("Attachments", Chip),
            ("Reading", ChatScreen),
            ("Keep", KeepSlider),
            ("Messages", MessagesScreen),
            ("A selected message", MessageView),
        )

    def command_owners(self) -> Iterator[Owner]:
        from app.ui.conversations.screen import ConversationsScreen
        from app.ui.models.screen import ModelsScreen
        from app.ui.spans.screen import SpansScreen

        yield Owner("box", ComposeBox, self._run_on_box)
        yield Owner("chat", ChatScreen, self.run_action)
        yield Owner("app", type(self.app), self.app.run_action)
        yield Owner("message", MessageView, self._run_on_message)
        yield Owner("attached", Chip, self._run_on_chip)
        yield Owner("keep", KeepSlider, self._run_on_slider, "^G", "Keep")
        for prefix, title, kind, key, action in (
            ("conversations", "Conversation", ConversationsScreen, "^O", "screen.conversations"),
            ("spans", "What was read", SpansScreen, "^S", "screen.show_spans"),
            ("models", "Models", ModelsScreen, "^L", "app.models"),
        ):
            yield Owner(prefix, kind, partial(self._run_on_screen, kind, action), key, title)

    async def _run_on_box(self, action: str) -> None:
        self.composer.box.focus()
        await self.composer.box.run_action(action)

    async def _run_on_message(self, action: str) -> None:
        """Run an action on the selected message, or else the last answer."""
        message = self.transcript.selected or next(reversed(self.transcript.messages), None)
        if message is None:
            self.notice.show("Nothing has been asked yet.")
        else:
            await message.run_action(action)

    async def _run_on_chip(self, action: str) -> None:
        """Run an action on the last chip; reading again, on the first one that has changed."""
        chips = [*self.composer.chips.query(Chip)]
        if action == "read_again":
            if not await self.attachments.read_changed():
                self.notice.show("No attached file has changed.")
        elif chips:
            await chips[-1].run_action(action)
        else:
            self.notice.show("Nothing is attached.")

    async def _run_on_slider(self, action: str) -> None:
        self.action_set_keep()
        await self.composer.slider.run_action(action)

    async def _run_on_screen(self, kind: type[Screen[Any]], opens: str, action: str) -> None:
        """Open a screen, and act there if that is safe. Runs in a task of its own, because the new
        screen may wait for this one."""

        async def act() -> None:
            await self.run_action(opens)
            screen = self.app.screen
            if not isinstance(screen, kind):  # a notice says why
                return
            if isinstance(screen, ActsAtOnce) and await screen.has_chosen():
                await screen.run_action(action)

        start_task(self, act)

    def action_toggle_full(self) -> None:
        self.set_next_mode(self.next_mode.toggled())

    def action_scroll_transcript(self, pages: int) -> None:
        self.transcript.scroll_pages(pages)

    def on_paste(self, event: Paste) -> None:
        self.composer.insert_paste(event)

    @on(ComposeBox.LongPaste)
    def _attach_paste(self, event: ComposeBox.LongPaste) -> None:
        self.notice.show("")
        self.attachments.paste(event.text)

    @on(ComposeBox.Dropped)
    def _attach_dropped(self, event: ComposeBox.Dropped) -> None:
        self.notice.show("")
        for path in event.paths:
            self.attachments.attach(path, typed_path(path))

    @on(CompletionList.FileChosen)
    def _attach_file(self, event: CompletionList.FileChosen) -> None:
        self.notice.show("")
        self.attachments.attach(event.path, event.typed)

    @on(ComposeBox.ErasedNothing)
    def _remove_last_attachment(self) -> None:
        if self.composer.chips.items:
            self.attachments.remove(self.composer.chips.items[-1])

    @on(Chip.Removed)
    def _remove_attachment(self, event: Chip.Removed) -> None:
        self.attachments.remove(event.item)

    @on(Chip.ReadAgain)
    def _read_again(self, event: Chip.ReadAgain) -> None:
        self.notice.show("")
        self.attachments.read_again(event.item)
        self.composer.box.focus()

    @on(Chip.Recognise)
    def _recognise(self, event: Chip.Recognise) -> None:
        start_task(self, lambda: self.attachments.recognise(event.item))

    @on(Chips.Changed)
    def _count_tokens(self) -> None:
        self.attachments.count()

    # -------------------------------------------------------------------------- the engine

    @on(EngineEvents)
    async def _schedule_events(self) -> None:
        wait = self.bridge.wait()
        if wait > 0:
            self.set_timer(wait, self._take_events)
        else:
            await self._take_events()

    async def _take_events(self) -> None:
        touched = {self._apply_event(event) for event in self.bridge.take()}
        for number in touched:
            if number is not None and (view := self.transcript.view(number)) is not None:
                await view.answer.update_turn()
                self.transcript.mark_unread(view)
        finished = self.open_chats.pop_finished()
        if finished is not None:
            await self.finish_turn(finished)

    def _apply_event(self, event: Event) -> int | None:
        """Returns the number of the turn to redraw."""
        match event:
            case Loaded():
                self.loader.on_load_result(event)
            case CommandFailed():
                if not self.loader.on_load_result(event):
                    self.notice.show(wording.failure(event.failure).text)
            case MemoryReport():
                self.header.memory, self.header.pressure = event.stats, event.level
            case EngineWarning():
                self.notice.show(wording.notice(event))
            case PressureChanged():
                self.header.memory, self.header.pressure = event.stats, event.level
                self.notice.show(wording.notice(event))
            case Unloaded() | MemoryFreed():
                self.notice.suggest(wording.notice(event))
            case LoadingAlone() | HostsLost() | PairLost():
                self.loader.on_machine_lost(event)
            case Reloaded():
                self.notice.suggest("")
            case Closed():
                self.engine_closed = True
            case GpuLost():
                self.engine_closed = True
                self.post_message(EngineLost(wording.problem(event.failure)))
            case SnapshotFailed() | SnapshotProgress():
                self.open_chats.on_snapshot_event(event)
            case CostsUpdated():
                self.cost_estimate.costs = event.costs
                self.footer.meter = self.cost_estimate.meter()
                if event.requested:
                    self.post_message(CostsMeasured(event.costs))
            case BackgroundProgress():
                self.open_chats.on_background_prefill(event)
            case _:
                return self._apply_to_turn(event)
        return None

    def _apply_to_turn(self, event: Event) -> int | None:
        if (turn := self.open_chats.apply(event)) is not None:
            self.keep_preview.on_progress(event, turn)
            return turn.number
        if isinstance(event, Selected):
            self.keep_preview.on_selected(event)
        elif isinstance(event, Failed):
            self.notice.show(wording.failure(event.failure).text)
        return None

    # -------------------------------------------------------------------------- the store

    async def _open_store(self) -> None:
        """Open the conversation where the user was, or a new one for files that are `attached`.
        What was typed during loading stays as a draft, and is asked only if that conversation is
        new."""
        early = self.open_chats.shown
        opened = await self.repository.open(self.next_mode)
        if self._attached and opened.id is not None:
            opened = await self.repository.load_chat(None, self.default_mode)
        self._prune_snapshots()
        self._apply_cache_policy()
        early.draft = self.composer.draft
        messages = [self._startup_message, self.settings_file.problem]
        question = self.open_chats.unqueue(early)
        if question is not None and opened.conversation.turns:
            early.draft = early.draft.prepend(question, early.sent_attachments)
            messages.append(
                "Your question was not sent, because this conversation was still being opened."
            )
        elif question is not None:
            opened.sent_attachments = early.sent_attachments
            self.open_chats.enqueue(opened, question)
        opened.draft = opened.draft.append(early.draft.text, early.draft.attached)
        if self.repository.open_error is not None:
            messages.append(f"{self.repository.open_error} Nothing will be saved.")
        messages += self.repository.unread_notices()
        last = opened.conversation.last
        unanswered = TurnState.STOPPED, TurnState.FAILED
        if self._startup_message and last is not None and last.state in unanswered:
            continues = "F4 continues the last answer, " if last.can_continue else ""
            messages.append(f"{continues}^A asks the last question again, ^R reads it in full.")
        self.attachments.reassign(early, opened)
        await self._show_chat(opened)
        self.notice.show(" ".join(filter(None, messages)))
        self._attach_paths()
        self.ask_queued()
        if self.shows_welcome and self.repository.is_first_run:
            await show_welcome(
                self.open_chats, self.composer, self.attachments, self.transcript.banner
            )

    def _attach_paths(self) -> None:
        for path in self._attached:
            self.attachments.attach(path, typed_path(path))

    def _prune_snapshots(self) -> None:
        """Delete snapshots of conversations that are deleted or in the trash; a killed program
        leaves them. Call it before any question, which might start from one of them."""
        stored = self.repository.stored
        if self._snapshots is not None and self.repository.writable and stored is not None:
            self.engine.send(PruneSnapshots(self._snapshots, stored))

    def apply_settings(self, before: Settings) -> None:
        """The settings have changed from `before`: apply them, to open conversations too."""
        self.open_chats.apply_settings(self.settings)
        self._apply_cache_policy()
        overrides = self.open_chats.shown.conversation.overrides
        if self.next_mode == next_mode_for(overrides, default_next_mode(before)):
            self.set_next_mode(next_mode_for(overrides, self.default_mode))

    def _apply_cache_policy(self) -> None:
        """Tell the engine how to cache and save what it has read, if that has changed."""
        if not self.repository.opening:
            self._send_cache_policy(self._snapshots if self.repository.writable else None)

    def _send_cache_policy(self, snapshots: str | None) -> None:
        policy = self.settings.cache_policy(snapshots, self._costs)
        if policy != self._cache_policy:
            self._cache_policy = policy
            self.engine.send(policy)

    # -------------------------------------------------------------------------- conversations

    @on(Sidebar.Opened)
    def _open_clicked(self, event: Sidebar.Opened) -> None:
        self.open_conversation(event.id)

    def open_conversation(self, id: int) -> None:
        if id != self.open_chats.shown.id:
            self._open_chat(id)
        self.composer.box.focus()

    def _open_chat(
        self, id: int | None, message: int | None = None, document: DocumentHit | None = None
    ) -> None:
        """Show a conversation, optionally at a message and a place in one of its documents, or
        (None) a new conversation. What is typed meanwhile goes into its text box."""
        self.composer.box.hold()

        async def open_chat() -> None:
            try:
                await self._load_and_show(id)
            finally:
                self.composer.box.release()
            if message is not None:
                self.open_message(message, document)

        start_task(self, open_chat)

    async def _load_and_show(self, id: int | None) -> None:
        """Raises UserError."""
        self.composer.cancel_edit()
        chat = None if id is None else self.open_chats.get(id)
        if chat is None:
            chat = await self.repository.load_chat(id, self.default_mode)
        self.open_chats.shown.draft = self.composer.draft
        self.open_chats.stash(self.open_chats.shown)
        await self._show_chat(chat)

    async def _show_chat(self, chat: OpenChat) -> None:
        async with self.draw_lock:
            self.keep_preview.end()
            self.open_chats.shown = chat
            self.composer.show(chat.draft, self.attachments.jobs(chat))
            self.composer.box.set_history(t.question.text for t in chat.conversation.branch)
            self.set_next_mode(chat.draft.next_mode)
            self.notice.show("")
            self.transcript.banner.show_guide()
            await self.transcript.show(chat)
        self.show_state()
        self.composer.chips.offer(())
        self.attachments.check(at_once=True)

    def action_new(self) -> None:
        """Start a new conversation; ask first if this one would be lost."""
        chat, saved = self.open_chats.shown, self.repository.writable
        if self.repository.opening or not (chat.conversation.turns or chat.conversation.queued):
            self.composer.box.focus()
        elif chat.id is None and not saved and self._discard_candidate is not chat:
            self._discard_candidate = chat
            self.notice.show("This conversation is not saved. Press ^N again to discard it.")
        else:
            if chat is self._discard_candidate:
                self._cancel_turn(chat)
            self._open_chat(None)

    def action_conversations(self) -> None:
        if not self.repository.readable:
            closed = "Conversations are not being saved."
            self.notice.show(OPENING if self.repository.opening else closed)
            return
        from app.ui.conversations.screen import ConversationsScreen

        shown, statuses = self.open_chats.shown.id, self.open_chats.statuses
        screen = ConversationsScreen(self.repository, shown, statuses, self._on_trashed)
        self.app.push_screen(screen, self._on_list_closed)

    def _on_list_closed(self, chosen: ChosenConversation | None) -> None:
        self._drop_trashed_caches()
        if chosen is not None and chosen.attach is not None:
            self._ask_again_about(chosen.attach)
        elif chosen is not None and (chosen.id is None or chosen.id != self.open_chats.shown.id):
            self._open_chat(chosen.id, chosen.message, chosen.document)
        elif chosen is not None and chosen.message is not None:
            self.open_message(chosen.message, chosen.document)
        start_task(self, self._read_titles)

    def _ask_again_about(self, known: KnownDocument) -> None:
        """Attach a document of an earlier conversation to a new one."""
        self.composer.box.hold()

        async def attach() -> None:
            try:
                shown = self.open_chats.shown
                if shown.id is not None or shown.conversation.turns:
                    await self._load_and_show(None)
                try:
                    documents = await self.repository.known_document(known)
                except StoreError as error:
                    if not known.path:
                        raise
                    self.attachments.attach(known.path, typed_path(known.path))
                    self.notice.show(f"{error.problem}, so the file is read again.")
                    return
            finally:
                self.composer.box.release()
            await self.attachments.attach_again(documents)

        start_task(self, attach)

    async def _read_titles(self) -> None:
        """Conversations may have been renamed in the list."""
        try:
            stored = await self.repository.read(lambda store: store.conversations())
        except UserError:  # shown where it matters
            return
        titles = {each.id: each.title for each in stored}
        for chat in self.open_chats.all_open():
            chat.title = titles.get(chat.id or 0, chat.title)
        self.show_state()

    def _on_trashed(self, id: int, trashed: bool) -> None:
        """A conversation was moved to the trash, or restored."""
        if not trashed:
            self._trashed.discard(id)
            return
        self._trashed.add(id)
        chat = self.open_chats.get(id)
        if chat is not None:
            self._cancel_turn(chat)
        if self.open_chats.shown.id == id:
            self._open_chat(None)

    def _cancel_turn(self, chat: OpenChat) -> None:
        question = self.open_chats.unqueue(chat)
        if question is not None:
            chat.draft = chat.draft.prepend(question, chat.sent_attachments)
        if self.open_chats.answering is chat:
            self.open_chats.cancel()

    def _drop_trashed_caches(self) -> None:
        """Drop the caches of trashed conversations, once deleting them cannot be undone here."""
        for id in self._trashed:
            self.engine.send(DropConversation(str(id), self._snapshots))
        self._trashed.clear()

    def action_conversation_settings(self) -> None:
        # Imported here, so that the first frame does not wait for it.
        from app.ui.settings.conversation_screen import ConversationSettingsScreen

        if self.repository.opening:
            self.notice.show(OPENING)
            return
        chat = self.open_chats.shown
        screen = ConversationSettingsScreen(chat.title, chat.conversation, self.settings)
        self.app.push_screen(screen, partial(self._conversation_settings_closed, chat))

    def _conversation_settings_closed(self, chat: OpenChat, overrides: Overrides | None) -> None:
        if overrides is not None and overrides != chat.conversation.overrides:
            start_task(self, lambda: self._apply_overrides(chat, overrides))

    async def _apply_overrides(self, chat: OpenChat, overrides: Overrides) -> None:
        """Raises UserError."""
        conversation = chat.conversation
        before, prompt = conversation.overrides, conversation.system_prompt
        await self.repository.set_overrides(chat, overrides)
        if chat is not self.open_chats.shown:
            return
        after = next_mode_for(overrides, self.default_mode)
        if after != next_mode_for(before, self.default_mode):
            self.set_next_mode(after)
        if conversation.turns and conversation.system_prompt != prompt:
            self.notice.show(SYSTEM_PROMPT_CHANGED)
        self.show_state()
