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
from app.ui.chat.attachments import Attaching
from app.ui.chat.below import Below
from app.ui.chat.chrome import Footer, Header, Notice
from app.ui.chat.compose_box import ComposeBox
from app.ui.chat.composer import Entry
from app.ui.chat.conversation_settings import Own
from app.ui.chat.cost_estimate import Forecast
from app.ui.chat.engine_events import Hearing
from app.ui.chat.keep_preview import Trying
from app.ui.chat.message_actions import Acting
from app.ui.chat.message_selection import Choosing
from app.ui.chat.model_loading import Loading
from app.ui.chat.navigation import Switching
from app.ui.chat.submission import Asking
from app.ui.chat.welcome import Welcome
from app.ui.clock import Clock
from app.ui.completion.completion_list import ChoiceList
from app.ui.conversations.sidebar import Side
from app.ui.help import Section
from app.ui.keep.next_mode import NextMode, chosen_next, default_next
from app.ui.keep.slider import KeepSetter
from app.ui.state.open_chats import Desk
from app.ui.state.repository import Shelf
from app.ui.transcript.message import MessageView
from app.ui.transcript.transcript import Transcript

if TYPE_CHECKING:
    from app.ui.spans.screen import AskAgain

TICK_SECONDS = 0.25


class ChatScreen(Choosing):
    """Shows one conversation; each widget draws its own part of it."""

    @dataclass
    class Answered(Message):
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
            "own",
            "System prompt",
            id="chat.system",
            tooltip="This conversation's system prompt, sampling, keep",
        ),
    ]  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        load: Load,
        kept: SettingsFile,
        clock: Clock,
        folder: Path | None = None,
        snapshots: Path | None = None,
        costs: Path | None = None,
        news: str = "",
    ) -> None:
        """Conversations are kept in `folder`, what was read of them in `snapshots`, and how long
        that takes in `costs`; `news` is said first."""
        super().__init__()
        self.engine = engine
        self._snapshots = snapshots
        self._bridge = Bridge(self)
        self._kept = kept
        shelf = Shelf(folder, load, kept.settings)
        self.desk = Desk(shelf, shelf.new(self.default_next), clock)
        self.header = Header(*load.names)
        self.transcript = Transcript(clock, self.desk.shown)
        self.side = Side(shelf, self.desk.statuses)
        self.entry = Entry(self.default_next)
        self.footer = Footer(self.default_next)
        self.trying = Trying(self.desk, self.transcript, self.entry.setter, engine.send)
        self.below = Below()
        self.acting = Acting(self)
        self.forecast = Forecast(self)
        self._asking = Asking(self)
        self._hearing = Hearing(self)
        self.loader = Loading(self, self._asking, load, clock)
        self.attaching = Attaching(self, self._asking.sent, load.target)
        self.entry.attaching = self.attaching
        self.welcome = Welcome(self)
        self._own = Own(self)
        self._switching = Switching(self, snapshots, costs, news)
        self.drawing = asyncio.Lock()
        """Held while another conversation or turn is put on the screen."""

    # -------------------------------------------------------------------------- the screen

    def compose(self) -> ComposeResult:
        yield self.header
        yield Horizontal(self.side, self.transcript, id="middle")
        yield self.below
        yield self.entry
        yield self.footer

    def help_sections(self) -> tuple[Section, ...]:
        return (
            ("Writing", ComposeBox),
            ("Files and commands", ChoiceList),
            ("What is attached", Chip),
            ("Reading", ChatScreen),
            ("Keep", KeepSetter),
            ("Messages", Choosing),
            ("A chosen message", MessageView),
        )

    def on_mount(self) -> None:
        self.entry.box.focus()
        self.show_hints()
        self.set_interval(TICK_SECONDS, self._tick)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        """Only after the first drawing: neither models nor the store may delay it."""
        self.engine.listen(self._bridge.listener)
        self.loader.start()
        if self.desk.shelf.opening:
            self.run_worker(self._open_store())
        else:
            self._switching.look_after()
            if self._kept.problem:  # else what a first key was answered with stays
                self.notice.say(self._kept.problem)

    @property
    def settings(self) -> Settings:
        return self._kept.settings

    @property
    def notice(self) -> Notice:
        return self.entry.notice

    @property
    def broken(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._hearing.closed or self.loader.failed

    @property
    def busy(self) -> bool:
        return self.loader.busy or self.desk.shelf.opening or self.desk.busy

    def _tick(self) -> None:
        if self.desk.running is not None:
            view = self.transcript.view(self.desk.running.number)
            if view is not None:
                view.tick()
        self.loader.tick()
        self.entry.chips.tick()
        if not self.desk.shelf.opening:
            self._keep()
        self.footer.show_meter(self.forecast.meter())

    def show_hints(self) -> None:
        chat, chosen = self.desk.shown, self.transcript.chosen
        hints = ["⏎ queue" if self.busy else "⏎ send", "^G keep", "F1 keys", "^J new line"]
        if chat.conversation.queued is not None:
            hints.insert(0, "Esc take back")
        elif self.loader.changing:
            hints.insert(0, "Esc go back")
        elif self.desk.running is not None:
            hints.insert(0, "Esc stop")
        elif chat.conversation.last is not None:
            hints.insert(2, "^R again, in full")
        if chosen is not None:
            hints = self.acting.hints(chosen)
        self.footer.show_hints(hints, alone=chosen is not None)
        self.footer.show_next(self.next_mode)
        self.footer.show_meter(self.forecast.meter())
        self.sub_title = chat.title
        self.side.follow(chat.id)
        self.header.show_title(chat.title, self.desk.shelf.standing)

    # -------------------------------------------------------------------------- the engine

    @on(EngineEvents)
    async def _take_soon(self) -> None:
        wait = self._bridge.wait()
        if wait > 0:
            self.set_timer(wait, self._take_events)
        else:
            await self._take_events()

    async def _take_events(self) -> None:
        touched = {self._hearing.apply(event) for event in self._bridge.take()}
        for number in touched - {None}:
            if number is not None and (view := self.transcript.view(number)) is not None:
                await view.update_turn()
                self.transcript.note_news(view)
        over = self.desk.take_over()
        if over is not None:
            await self._asking.turn_over(over)

    def put_away(self) -> bool:
        """When the screen is gone: keep what was written and said since. False while the engine
        has something to save that a later start would have to read again."""
        self._switching.forget_trashed()
        if not self.desk.shelf.opening:
            self.desk.shown.draft = self.entry.draft
            self.attaching.put_away()
        self._hearing.apply_unseen(self._bridge.take())
        return self.broken or self._snapshots is None or self.desk.asked is None

    # -------------------------------------------------------------------------- conversations

    async def _open_store(self) -> None:
        await self._switching.open_store(self._kept.problem)
        self._asking.ask_waiting()
        await self.welcome.begin()

    @on(Side.Opened)
    def _open_clicked(self, event: Side.Opened) -> None:
        self.open_conversation(event.id)

    def open_conversation(self, id: int) -> None:
        if id != self.desk.shown.id:
            self.run_worker(self._switching.switch(id))
        self.entry.box.focus()

    def action_new(self) -> None:
        self._switching.new()

    def action_conversations(self) -> None:
        self._switching.show_list()

    def action_own(self) -> None:
        self._own.open()

    def _keep(self) -> None:
        self.desk.shown.draft = self.entry.draft
        self.desk.keep()
        self.notice.stand(self.loader.words or self.desk.problem or self.forecast.warning)
        if news := self.desk.shelf.news():
            self.notice.say(" ".join(news))

    # -------------------------------------------------------------------------- asking

    async def on_compose_box_sent(self, event: ComposeBox.Sent) -> None:
        await self.attaching.ask(event.text)

    async def action_stop(self) -> None:
        if self.attaching.let_go():
            return
        asked = self.desk.running or self.desk.shown.conversation.queued
        if asked is not None or not self.loader.stop():
            await self._asking.stop()

    async def action_ask_again(self) -> None:
        if self.broken or self.desk.shown.conversation.last is None:
            self.notice.say("There is no question to ask again.")
        elif self.may_ask():
            self.ask_again(Mode.FULL, self.desk.shown.conversation.last.question.keep)

    def action_continue_answer(self) -> None:
        if self.may_ask():
            self._asking.resume()

    def ask_again(
        self, mode: Mode, keep: float, turn: Turn | None = None, pins: Pins | None = None
    ) -> None:
        self.entry.box.focus()
        self._asking.ask_again(mode, keep, turn, pins)

    def may_ask(self) -> bool:
        if self.busy:
            elsewhere = self.desk.answering not in (None, self.desk.shown)
            other = "An answer is in another conversation. Esc stops it." if elsewhere else ""
            opening = "The conversations are being opened."
            self.notice.say(other or self.loader.hindrance() or opening)
        elif self.broken:
            self.notice.say("No model is loaded, so nothing can be asked.")
        return not self.busy and not self.broken

    def action_show_spans(self) -> None:
        self.show_spans(self.desk.shown.conversation.last_over)

    def show_spans(self, turn: Turn | None) -> None:
        screen = None if turn is None else self.trying.spans(turn)
        if turn is None or screen is None:
            self.notice.say("Nothing was attached that could be shown. Paste a document and ask.")
        else:
            self.app.push_screen(screen, partial(self._spans_closed, turn))

    def _spans_closed(self, turn: Turn, result: AskAgain | None) -> None:
        self.trying.end()
        shown = turn in self.desk.shown.conversation.branch
        if result is not None and self.may_ask() and shown:
            self.ask_again(Mode.SPARSE, result.keep, turn, result.pins)

    # -------------------------------------------------------------------------- keep and mode

    @property
    def next_mode(self) -> NextMode:
        return self.entry.draft.next_mode

    @property
    def default_next(self) -> NextMode:
        """Where nothing else was chosen."""
        return default_next(self.settings)

    def apply_settings(self, before: Settings) -> None:
        """What was set since `before` holds from now on, in what is open too."""
        self.desk.apply_settings(self.settings)
        self._switching.look_after()
        own = self.desk.shown.conversation.choices
        if self.next_mode == chosen_next(own, default_next(before)):
            self.set_next(chosen_next(own, self.default_next))

    def set_next(self, next_mode: NextMode) -> None:
        """How the next message is to be read."""
        self.entry.show_next(next_mode)
        self.desk.shown.draft = self.entry.draft
        self.footer.show_next(next_mode)
        self.footer.show_meter(self.forecast.meter())

    def action_toggle_full(self) -> None:
        self.set_next(self.next_mode.toggled())

    def action_set_keep(self) -> None:
        if self.entry.setter.display:
            return
        if (chosen := self.transcript.chosen) is not None:
            self.acting.open_keep(chosen)
        else:
            self.trying.open_setter(self.next_mode.keep)
            self._foretell(self.next_mode.keep)

    def on_keep_setter_moved(self, event: KeepSetter.Moved) -> None:
        self.trying.move(event.keep)
        if not self.acting.sets_keep:
            self._foretell(event.keep)

    def _foretell(self, keep: float) -> None:
        """Where nothing was scored that a keep could be tried on."""
        if not self.trying.under_way:
            self.entry.setter.meaning = self.forecast.at(keep)

    def on_keep_setter_left(self, event: KeepSetter.Left) -> None:
        if self.acting.keep_left(event):
            pass
        elif event.keep is not None:
            self.set_next(self.next_mode.at_keep(event.keep))
        elif event.automatic:
            self.set_next(self.next_mode.automatic())
        self.trying.end()

    # -------------------------------------------------------------------------- the keyboard

    def on_paste(self, event: Paste) -> None:
        self.entry.receive(event)

    def action_scroll_transcript(self, pages: int) -> None:
        self.transcript.scroll_pages(pages)
