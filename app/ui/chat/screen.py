"""The chat screen: connects keys and widgets with the helpers that act on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Paste
from textual.screen import Screen

from app.protocol.commands import Load
from app.protocol.engine import Engine, LocalServer
from app.protocol.options import Mode
from app.settings.definitions import Settings
from app.settings.file import SettingsFile
from app.ui.attach.chips import Chip, Chips
from app.ui.background import start_task
from app.ui.bridge import Bridge, EngineEvents
from app.ui.chat.attachments import Attachments
from app.ui.chat.chrome import Footer, Header, NewTextMarker, Notice
from app.ui.chat.compose_box import ComposeBox
from app.ui.chat.composer import Composer
from app.ui.chat.context import ChatContext
from app.ui.chat.conversation_settings import ConversationSettings
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.engine_events import EngineEventHandler
from app.ui.chat.file_chooser import FileChooser
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.message_actions import MessageActions
from app.ui.chat.message_selection import MessageSelection
from app.ui.chat.model_loading import PairLoader
from app.ui.chat.navigation import Navigation
from app.ui.chat.question_edit import QuestionEdit
from app.ui.chat.real_model import RealModel
from app.ui.chat.submission import Submission
from app.ui.chat.welcome import Welcome
from app.ui.completion.commands import ActsAtOnce, Owner
from app.ui.completion.completion_list import CompletionList
from app.ui.completion.paths import typed_path
from app.ui.conversations.sidebar import Sidebar
from app.ui.help.screen import Section
from app.ui.keep.next_mode import NextMode, default_next_mode, next_mode_for
from app.ui.keep.slider import KeepSlider
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import ChatRepository
from app.ui.transcript.message import MessageView
from app.ui.transcript.transcript import Transcript

TICK_SECONDS = 0.25


class ChatScreen(MessageSelection):
    """Shows one conversation; each widget draws its own part of it."""

    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [(0, "-narrow"), (100, "-wide")]  # type: ignore[misc]

    # Bindings that change the meaning of the next key have priority over the focused widget: keys
    # that arrive in one read (a slow line, or typed ahead) would otherwise be handled first.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="chat.stop", tooltip="Stop, or take a question back"),
        Binding(
            "ctrl+t", "toggle_full", "Full", id="chat.full",
            tooltip="Read the next message in full", priority=True,
        ),
        Binding(
            "ctrl+g", "set_keep", "Keep", id="chat.keep",
            tooltip="How much is read (selected answer: read again)", priority=True,
        ),
        Binding(
            "ctrl+a", "ask_again", "Again", id="chat.again",
            tooltip="Ask again in the same way (in an empty box)",
        ),
        Binding(
            "ctrl+r", "ask_again(True)", "Again, in full", id="chat.again_full",
            tooltip="Ask again, reading everything",
        ),
        Binding(
            "ctrl+s", "show_spans", "Spans", id="chat.spans",
            tooltip="What was read, and where the answer stands",
        ),
        Binding(
            "f4", "continue_answer", "Continue", id="chat.continue",
            tooltip="Continue an answer that was cut off or stopped",
        ),
        Binding("ctrl+n", "new", "New", id="chat.new", tooltip="Start a new conversation"),
        Binding(
            "ctrl+o", "conversations", "Conversations", id="chat.conversations",
            tooltip="All conversations: find, open, manage",
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
    ) -> None:
        """Conversations are stored in `folder`, caches in `snapshots`, measured speeds in `costs`;
        `startup_message` is shown first. Files and folders `attached`, by their absolute paths, go
        to a new conversation."""
        super().__init__()
        self.engine = engine
        self._snapshots, self._attached = snapshots, attached
        self.server: LocalServer | None = None
        self._bridge = Bridge(self)
        self._settings_file = settings_file
        next_mode = default_next_mode(settings_file.settings)
        repository = ChatRepository(folder, load, settings_file.settings)
        self.open_chats = OpenChats(repository, repository.new(next_mode), clock)
        self.header = Header(*load.names)
        self.transcript = Transcript(clock, self.open_chats.shown)
        self.sidebar = Sidebar(repository, self.open_chats.statuses)
        self.composer = Composer(next_mode)
        self.footer = Footer(next_mode)
        self.new_text_marker = NewTextMarker()
        self._chat = context = ChatContext(
            self,
            engine,
            settings_file,
            self.open_chats,
            self.header,
            self.transcript,
            self.composer,
            self.footer,
            self.show_hints,
            self._bridge.listener,
            self._show_meter,
        )
        self.keep_preview = KeepPreview(context)
        self.edit = edit = QuestionEdit(context)
        self.attachments = Attachments(
            context, lambda text: self.submission.submit(text), load.target
        )
        self.cost_estimate = CostEstimate(context, self.attachments, edit)
        self.loader = PairLoader(
            context,
            self.attachments,
            self.cost_estimate,
            load,
            clock,
            on_loaded=self._on_pair_loaded,
            on_failed=lambda: self.submission.take_back(self.open_chats.shown),
        )
        self.submission = Submission(
            context, self.loader, self.cost_estimate, edit, self.attachments, self.keep_preview
        )
        self.real_model = RealModel(context, self.loader, self.submission)
        self.actions = MessageActions(context, self.submission, edit, self.keep_preview)
        self._navigation = Navigation(
            context,
            self.attachments,
            edit,
            self.keep_preview,
            self.actions,
            snapshots,
            costs,
            startup_message,
        )
        self._event_handler = EngineEventHandler(
            context, self.loader, self.cost_estimate, self.keep_preview
        )
        self._conversation_settings = ConversationSettings(context)
        self.file_chooser = FileChooser(context, self.submission, self.cost_estimate)
        self.welcome = Welcome(context, self.attachments)

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
            ("Attachments", Chip),
            ("Reading", ChatScreen),
            ("Keep", KeepSlider),
            ("Messages", MessageSelection),
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
        """On the selected one, or the last answer."""
        message = self.transcript.selected or next(reversed(self.transcript.messages), None)
        if message is None:
            self.notice.show("Nothing has been asked yet.")
        else:
            await message.run_action(action)

    async def _run_on_chip(self, action: str) -> None:
        chips = [*self.composer.chips.query(Chip)]
        if chips:
            await chips[-1].run_action(action)
        else:
            self.notice.show("Nothing is attached.")

    async def _run_on_slider(self, action: str) -> None:
        self.action_set_keep()
        await self.composer.slider.run_action(action)

    async def _run_on_screen(self, kind: type[Screen[Any]], opens: str, action: str) -> None:
        """Open a screen, and act there if that is safe. Not in this task, for which the new screen
        may wait."""

        async def act() -> None:
            await self.run_action(opens)
            screen = self.app.screen
            if not isinstance(screen, kind):  # a notice says why
                return
            if isinstance(screen, ActsAtOnce) and await screen.has_chosen():
                await screen.run_action(action)

        start_task(self, act)

    def on_mount(self) -> None:
        self.composer.box.focus()
        self.show_hints()
        self.set_interval(TICK_SECONDS, self._tick)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        """After the first frame, which neither models nor the store may delay."""
        self.engine.listen(self._bridge.listener)
        self.loader.start()
        if self.open_chats.repository.opening:
            start_task(self, self._open_store)
        else:
            self._navigation.apply_cache_policy()
            self._attach_paths()
            if self._settings_file.problem:  # otherwise keep the answer to an early key
                self.notice.show(self._settings_file.problem)

    def _on_pair_loaded(self) -> None:
        self.submission.submit_queued()
        self.real_model.on_loaded()

    @property
    def settings(self) -> Settings:
        return self._settings_file.settings

    @property
    def notice(self) -> Notice:
        return self.composer.notice

    def _tick(self) -> None:
        running = self.open_chats.running
        if running is not None and (view := self.transcript.view(running.number)) is not None:
            view.tick()
        self.loader.tick()
        self.composer.chips.tick()
        if not self.open_chats.repository.opening:
            self._save_pending()
        self.footer.show_meter(self.cost_estimate.meter())
        self.header.show_serving(None if self.server is None else self.server.port)

    def show_hints(self) -> None:
        chat, selected = self.open_chats.shown, self.transcript.selected
        hints = [
            "⏎ queue" if self.submission.busy else "⏎ send",
            "^G keep",
            "F1 keys",
            "^J new line",
        ]
        if chat.conversation.queued is not None:
            hints.insert(0, "Esc take back")
        elif self.loader.changing:
            hints.insert(0, "Esc go back")
        elif self.open_chats.running is not None:
            hints.insert(0, "Esc stop")
        elif (last := chat.conversation.last) is not None:
            hints[1:1] = self.actions.next_hints(last)
        if self.composer.slider.display:  # which shows its own keys
            hints = ["F1 keys"]
        elif selected is not None:
            hints = self.actions.hints(selected)
        self.footer.show_hints(hints, hide_mode=selected is not None)
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
        finished = self.open_chats.pop_finished()
        if finished is not None:
            await self.submission.on_finished(finished)

    def shutdown(self) -> bool:
        """Once the screen is gone, save what is pending. False while the engine still has caches to
        save that would otherwise have to be read again."""
        self._navigation.drop_trashed_caches()
        if not self.open_chats.repository.opening:
            self.open_chats.shown.draft = self.composer.draft
            self.attachments.shutdown()
        self._event_handler.apply_after_exit(self._bridge.take())
        return (
            self.submission.broken or self._snapshots is None or self.open_chats.last_sent is None
        )

    # -------------------------------------------------------------------------- conversations

    async def _open_store(self) -> None:
        await self._navigation.open_store(self._settings_file.problem, bool(self._attached))
        self._attach_paths()
        self.submission.submit_queued()
        await self.welcome.show()

    def _attach_paths(self) -> None:
        for path in self._attached:
            self.attachments.attach(path, typed_path(path))

    @on(Sidebar.Opened)
    def _open_clicked(self, event: Sidebar.Opened) -> None:
        self.open_conversation(event.id)

    def open_conversation(self, id: int) -> None:
        if id != self.open_chats.shown.id:
            self._navigation.open_chat(id)
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
            self.loader.status_text
            or self.real_model.status_text
            or self.open_chats.problem
            or (self.server.status if self.server is not None else "")
            or self.cost_estimate.warning
        )
        self.notice.set_note(self.cost_estimate.note)
        if notices := self.open_chats.repository.unread_notices():
            self.notice.show(" ".join(notices))

    # -------------------------------------------------------------------------- asking

    @on(ComposeBox.LongPaste)
    def _attach_paste(self, event: ComposeBox.LongPaste) -> None:
        self.notice.show("")
        self.attachments.paste(event.text)

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

    @on(Chips.Changed)
    def _count_tokens(self) -> None:
        self.attachments.count()

    @on(ComposeBox.UnknownCommand)
    def _refuse_command(self, event: ComposeBox.UnknownCommand) -> None:
        self.notice.show(event.sentence)

    async def on_compose_box_submitted(self, event: ComposeBox.Submitted) -> None:
        await self.attachments.ask(event.text)

    async def action_stop(self) -> None:
        if self.attachments.cancel_deferred():
            return
        question = self.open_chats.running or self.open_chats.shown.conversation.queued
        if question is not None or not (self.loader.cancel() or self.real_model.cancel()):
            await self.submission.stop()

    async def action_ask_again(self, in_full: bool = False) -> None:
        """Ask the last question again, as it was asked or in full."""
        last = self.open_chats.shown.conversation.last
        if self.submission.broken or last is None:
            self.notice.show("No question to ask again.")
        elif self.submission.may_ask():
            mode = Mode.FULL if in_full else last.question.mode
            self.submission.ask_again(mode, last.question.keep)

    def action_continue_answer(self) -> None:
        if self.submission.may_ask():
            self.submission.continue_answer()

    def action_show_spans(self) -> None:
        """Of the answer that is being given, or the last one."""
        last = self.open_chats.running or self.open_chats.shown.conversation.last_finished
        self.actions.show_spans(last)

    # -------------------------------------------------------------------------- keep and mode

    @property
    def next_mode(self) -> NextMode:
        return self._chat.next_mode

    def apply_settings(self, before: Settings) -> None:
        """The settings have changed from `before`: apply them, to open conversations too."""
        self.open_chats.apply_settings(self.settings)
        self._navigation.apply_cache_policy()
        overrides = self.open_chats.shown.conversation.overrides
        if self.next_mode == next_mode_for(overrides, default_next_mode(before)):
            self._chat.set_next_mode(next_mode_for(overrides, self._chat.default_mode))

    def _show_meter(self) -> None:
        self.footer.show_meter(self.cost_estimate.meter())

    def action_toggle_full(self) -> None:
        self._chat.set_next_mode(self.next_mode.toggled())

    def action_set_keep(self) -> None:
        if self.composer.slider.display:
            return
        if (selected := self.transcript.selected) is not None:
            self.actions.open_keep(selected)
        else:
            self.keep_preview.open_slider(self.next_mode.keep)
            self._show_estimate(self.next_mode.keep)

    def on_keep_slider_moved(self, event: KeepSlider.Moved) -> None:
        self.keep_preview.move(event.keep)
        if not self.actions.sets_keep:
            self._show_estimate(event.keep)

    def _show_estimate(self, keep: float) -> None:
        """Shown where there is no scored turn to preview on."""
        if not self.keep_preview.active:
            self.composer.slider.effect = self.cost_estimate.text_at(keep)

    def on_keep_slider_closed(self, event: KeepSlider.Closed) -> None:
        self.show_hints()
        if self.actions.on_keep_closed(event):
            pass
        elif event.keep is not None:
            self._chat.set_next_mode(self.next_mode.at_keep(event.keep))
        elif event.automatic:
            self._chat.set_next_mode(self.next_mode.automatic())
        self.keep_preview.end()

    # -------------------------------------------------------------------------- the keyboard

    def on_paste(self, event: Paste) -> None:
        self.composer.insert_paste(event)

    def action_scroll_transcript(self, pages: int) -> None:
        self.transcript.scroll_pages(pages)
