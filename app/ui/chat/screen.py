"""The chat: passes what the user does to the engine, and what the engine says to the widgets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Paste
from textual.message import Message

from app.chat.conversation import Pins, Turn
from app.protocol.commands import Load
from app.protocol.engine import Engine
from app.protocol.options import Mode
from app.settings.file import SettingsFile
from app.settings.values import Settings
from app.ui.attach.chips import Chip
from app.ui.bridge import Bridge, EngineEvents
from app.ui.chat.attachments import Attachments
from app.ui.chat.below import NewTextMarker
from app.ui.chat.chrome import Footer, Header, Notice
from app.ui.chat.compose_box import ComposeBox
from app.ui.chat.composer import Composer
from app.ui.chat.conversation_settings import ConversationSettings
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.engine_events import EngineEventHandler
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.message_actions import MessageActions
from app.ui.chat.message_selection import MessageSelection
from app.ui.chat.model_loading import PairLoader
from app.ui.chat.navigation import Navigation
from app.ui.chat.submission import Submission
from app.ui.chat.welcome import Welcome
from app.ui.clock import Clock
from app.ui.completion.completion_list import CompletionList
from app.ui.conversations.sidebar import Sidebar
from app.ui.help.screen import Section
from app.ui.keep.next_mode import NextMode, default_next_mode, next_mode_for
from app.ui.keep.slider import KeepSlider
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import ChatRepository
from app.ui.transcript.message import MessageView
from app.ui.transcript.transcript import Transcript

if TYPE_CHECKING:
    from app.ui.spans.screen import AskAgain

TICK_SECONDS = 0.25


class ChatScreen(MessageSelection):
    """Shows one conversation; each widget draws its own part of it."""

    @dataclass
    class Finished(Message):
        """A turn is over, after so many seconds."""

        sentence: str
        seconds: float

    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [(0, "-narrow"), (100, "-wide")]  # type: ignore[misc]

    # Those that change what the next key means go before the focused widget: keys that arrive in
    # one read (over a slow line, or typed ahead) would otherwise overtake them.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="chat.stop", tooltip="Stop, or take back what waits"),
        Binding(
            "ctrl+t",
            "toggle_full",
            "Full",
            id="chat.full",
            tooltip="Read the next message in full",
            priority=True,
        ),
        Binding(
            "ctrl+g",
            "set_keep",
            "Keep",
            id="chat.keep",
            tooltip="How much is read (of a chosen answer: read again)",
            priority=True,
        ),
        Binding(
            "ctrl+r", "ask_again", "Again", id="chat.again", tooltip="Ask again, reading in full"
        ),
        Binding(
            "ctrl+s", "show_spans", "Spans", id="chat.spans",
            tooltip="What was read of the documents",
        ),
        Binding(
            "f4", "continue_answer", "Continue", id="chat.continue",
            tooltip="Continue an answer that was cut off or stopped",
        ),
        Binding("ctrl+n", "new", "New", id="chat.new", tooltip="Begin a new conversation"),
        Binding(
            "ctrl+o",
            "conversations",
            "Conversations",
            id="chat.conversations",
            tooltip="All conversations: find, open, look after them",
        ),
        Binding(
            "f3",
            "conversation_settings",
            "System prompt",
            id="chat.system",
            tooltip="This conversation's system prompt, sampling, keep",
        ),
    ]  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        load: Load,
        settings_file: SettingsFile,
        clock: Clock,
        folder: Path | None = None,
        snapshots: Path | None = None,
        costs: Path | None = None,
        startup_message: str = "",
    ) -> None:
        """Conversations are kept in `folder`, what was read of them in `snapshots`, and how long
        that takes in `costs`; `news` is said first."""
        super().__init__()
        self.engine = engine
        self._snapshots = snapshots
        self._bridge = Bridge(self)
        self._settings_file = settings_file
        shelf = ChatRepository(folder, load, settings_file.settings)
        self.open_chats = OpenChats(shelf, shelf.new(self.default_mode), clock)
        self.header = Header(*load.names)
        self.transcript = Transcript(clock, self.open_chats.shown)
        self.sidebar = Sidebar(shelf, self.open_chats.statuses)
        self.composer = Composer(self.default_mode)
        self.footer = Footer(self.default_mode)
        self.keep_preview = KeepPreview(
            self.open_chats, self.transcript, self.composer.setter, engine.send
        )
        self.new_text_marker = NewTextMarker()
        self.actions = MessageActions(self)
        self.cost_estimate = CostEstimate(self)
        self._submission = Submission(self)
        self._event_handler = EngineEventHandler(self)
        self.loader = PairLoader(self, self._submission, load, clock)
        self.attachments = Attachments(self, self._submission.submit, load.target)
        self.composer.attaching = self.attachments
        self.welcome = Welcome(self)
        self._conversation_settings = ConversationSettings(self)
        self._navigation = Navigation(self, snapshots, costs, startup_message)
        self.drawing = asyncio.Lock()
        """Held while another conversation or turn is put on the screen."""

    # -------------------------------------------------------------------------- the screen

    def compose(self) -> ComposeResult:
        yield self.header
        yield Horizontal(self.sidebar, self.transcript, id="middle")
        yield self.new_text_marker
        yield self.composer
        yield self.footer

    def help_sections(self) -> tuple[Section, ...]:
        return (
            ("Writing", ComposeBox),
            ("Files and commands", CompletionList),
            ("What is attached", Chip),
            ("Reading", ChatScreen),
            ("Keep", KeepSlider),
            ("Messages", MessageSelection),
            ("A chosen message", MessageView),
        )

    def on_mount(self) -> None:
        self.composer.box.focus()
        self.show_hints()
        self.set_interval(TICK_SECONDS, self._tick)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        """Only after the first drawing: neither models nor the store may delay it."""
        self.engine.listen(self._bridge.listener)
        self.loader.start()
        if self.open_chats.repository.opening:
            self.run_worker(self._open_store())
        else:
            self._navigation.apply_cache_policy()
            if self._settings_file.problem:  # else what a first key was answered with stays
                self.notice.show(self._settings_file.problem)

    @property
    def settings(self) -> Settings:
        return self._settings_file.settings

    @property
    def notice(self) -> Notice:
        return self.composer.notice

    @property
    def broken(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._event_handler.closed or self.loader.failed

    @property
    def busy(self) -> bool:
        return self.loader.busy or self.open_chats.repository.opening or self.open_chats.busy

    def _tick(self) -> None:
        if self.open_chats.running is not None:
            view = self.transcript.view(self.open_chats.running.number)
            if view is not None:
                view.tick()
        self.loader.tick()
        self.composer.chips.tick()
        if not self.open_chats.repository.opening:
            self._save_pending()
        self.footer.show_meter(self.cost_estimate.meter())

    def show_hints(self) -> None:
        chat, chosen = self.open_chats.shown, self.transcript.selected
        hints = ["⏎ queue" if self.busy else "⏎ send", "^G keep", "F1 keys", "^J new line"]
        if chat.conversation.queued is not None:
            hints.insert(0, "Esc take back")
        elif self.loader.changing:
            hints.insert(0, "Esc go back")
        elif self.open_chats.running is not None:
            hints.insert(0, "Esc stop")
        elif chat.conversation.last is not None:
            hints.insert(2, "^R again, in full")
        if chosen is not None:
            hints = self.actions.hints(chosen)
        self.footer.show_hints(hints, hide_mode=chosen is not None)
        self.footer.show_next_mode(self.next_mode)
        self.footer.show_meter(self.cost_estimate.meter())
        self.sub_title = chat.title
        self.sidebar.update_list(chat.id)
        self.header.show_title(chat.title, self.open_chats.repository.status)

    # -------------------------------------------------------------------------- the engine

    @on(EngineEvents)
    async def _schedule_events(self) -> None:
        wait = self._bridge.wait()
        if wait > 0:
            self.set_timer(wait, self._take_events)
        else:
            await self._take_events()

    async def _take_events(self) -> None:
        touched = {self._event_handler.apply(event) for event in self._bridge.take()}
        for number in touched - {None}:
            if number is not None and (view := self.transcript.view(number)) is not None:
                await view.update_turn()
                self.transcript.mark_unread(view)
        over = self.open_chats.pop_finished()
        if over is not None:
            await self._submission.on_finished(over)

    def shutdown(self) -> bool:
        """When the screen is gone: keep what was written and said since. False while the engine
        has something to save that a later start would have to read again."""
        self._navigation.drop_trashed_caches()
        if not self.open_chats.repository.opening:
            self.open_chats.shown.draft = self.composer.draft
            self.attachments.shutdown()
        self._event_handler.apply_after_exit(self._bridge.take())
        return self.broken or self._snapshots is None or self.open_chats.last_sent is None

    # -------------------------------------------------------------------------- conversations

    async def _open_store(self) -> None:
        await self._navigation.open_store(self._settings_file.problem)
        self._submission.submit_queued()
        await self.welcome.show()

    @on(Sidebar.Opened)
    def _open_clicked(self, event: Sidebar.Opened) -> None:
        self.open_conversation(event.id)

    def open_conversation(self, id: int) -> None:
        if id != self.open_chats.shown.id:
            self.run_worker(self._navigation.open_chat(id))
        self.composer.box.focus()

    def action_new(self) -> None:
        self._navigation.new_chat()

    def action_conversations(self) -> None:
        self._navigation.show_list()

    def action_conversation_settings(self) -> None:
        self._conversation_settings.open()

    def _save_pending(self) -> None:
        self.open_chats.shown.draft = self.composer.draft
        self.open_chats.save_pending()
        self.notice.set_persistent(
            self.loader.status_text or self.open_chats.problem or self.cost_estimate.warning
        )
        if news := self.open_chats.repository.unread_notices():
            self.notice.show(" ".join(news))

    # -------------------------------------------------------------------------- asking

    async def on_compose_box_submitted(self, event: ComposeBox.Submitted) -> None:
        await self.attachments.ask(event.text)

    async def action_stop(self) -> None:
        if self.attachments.cancel_deferred():
            return
        asked = self.open_chats.running or self.open_chats.shown.conversation.queued
        if asked is not None or not self.loader.cancel():
            await self._submission.stop()

    async def action_ask_again(self) -> None:
        if self.broken or self.open_chats.shown.conversation.last is None:
            self.notice.show("There is no question to ask again.")
        elif self.may_ask():
            self.ask_again(Mode.FULL, self.open_chats.shown.conversation.last.question.keep)

    def action_continue_answer(self) -> None:
        if self.may_ask():
            self._submission.continue_answer()

    def ask_again(
        self, mode: Mode, keep: float, turn: Turn | None = None, pins: Pins | None = None
    ) -> None:
        self.composer.box.focus()
        self._submission.ask_again(mode, keep, turn, pins)

    def may_ask(self) -> bool:
        if self.busy:
            elsewhere = self.open_chats.answering not in (None, self.open_chats.shown)
            other = "An answer is in another conversation. Esc stops it." if elsewhere else ""
            opening = "The conversations are being opened."
            self.notice.show(other or self.loader.blocked_reason() or opening)
        elif self.broken:
            self.notice.show("No model is loaded, so nothing can be asked.")
        return not self.busy and not self.broken

    def action_show_spans(self) -> None:
        self.show_spans(self.open_chats.shown.conversation.last_finished)

    def show_spans(self, turn: Turn | None) -> None:
        screen = None if turn is None else self.keep_preview.spans(turn)
        if turn is None or screen is None:
            self.notice.show("Nothing was attached that could be shown. Paste a document and ask.")
        else:
            self.app.push_screen(screen, partial(self._spans_closed, turn))

    def _spans_closed(self, turn: Turn, result: AskAgain | None) -> None:
        self.keep_preview.end()
        shown = turn in self.open_chats.shown.conversation.branch
        if result is not None and self.may_ask() and shown:
            self.ask_again(Mode.SPARSE, result.keep, turn, result.pins)

    # -------------------------------------------------------------------------- keep and mode

    @property
    def next_mode(self) -> NextMode:
        return self.composer.draft.next_mode

    @property
    def default_mode(self) -> NextMode:
        """Where nothing else was chosen."""
        return default_next_mode(self.settings)

    def apply_settings(self, before: Settings) -> None:
        """What was set since `before` holds from now on, in what is open too."""
        self.open_chats.apply_settings(self.settings)
        self._navigation.apply_cache_policy()
        own = self.open_chats.shown.conversation.overrides
        if self.next_mode == next_mode_for(own, default_next_mode(before)):
            self.set_next_mode(next_mode_for(own, self.default_mode))

    def set_next_mode(self, next_mode: NextMode) -> None:
        """How the next message is to be read."""
        self.composer.show_next_mode(next_mode)
        self.open_chats.shown.draft = self.composer.draft
        self.footer.show_next_mode(next_mode)
        self.footer.show_meter(self.cost_estimate.meter())

    def action_toggle_full(self) -> None:
        self.set_next_mode(self.next_mode.toggled())

    def action_set_keep(self) -> None:
        if self.composer.setter.display:
            return
        if (chosen := self.transcript.selected) is not None:
            self.actions.open_keep(chosen)
        else:
            self.keep_preview.open_setter(self.next_mode.keep)
            self._show_estimate(self.next_mode.keep)

    def on_keep_slider_moved(self, event: KeepSlider.Moved) -> None:
        self.keep_preview.move(event.keep)
        if not self.actions.sets_keep:
            self._show_estimate(event.keep)

    def _show_estimate(self, keep: float) -> None:
        """Where nothing was scored that a keep could be tried on."""
        if not self.keep_preview.active:
            self.composer.setter.effect = self.cost_estimate.text_at(keep)

    def on_keep_slider_closed(self, event: KeepSlider.Closed) -> None:
        if self.actions.on_keep_closed(event):
            pass
        elif event.keep is not None:
            self.set_next_mode(self.next_mode.at_keep(event.keep))
        elif event.automatic:
            self.set_next_mode(self.next_mode.automatic())
        self.keep_preview.end()

    # -------------------------------------------------------------------------- the keyboard

    def on_paste(self, event: Paste) -> None:
        self.composer.insert_paste(event)

    def action_scroll_transcript(self, pages: int) -> None:
        self.transcript.scroll_pages(pages)
