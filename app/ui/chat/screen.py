"""The chat screen: turns keys, messages of its widgets and the engine's events into calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import DescendantBlur, DescendantFocus, Paste
from textual.message import Message
from textual.screen import Screen

from app.chat.conversation import TurnState
from app.protocol.events import Closed
from app.protocol.options import AUTO_KEEP, Mode
from app.ui.attach.chips import Chip, Chips
from app.ui.background import Bridge, EngineEvents, start_task
from app.ui.chat.attachments import AttachmentReader, QuestionReady
from app.ui.chat.chrome import Footer, Header, NewTextMarker
from app.ui.chat.commands import ChatCommands
from app.ui.chat.composer import ComposeBox, Composer
from app.ui.chat.conversations import Conversations
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.events import EventRouter
from app.ui.chat.file_choice import FileChoice
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.message_actions import MessageActions
from app.ui.chat.model_loading import PairChanged, PairFailed, PairLoader, PairReady, RealModel
from app.ui.chat.slider import KeepSlider
from app.ui.chat.view import ChatView
from app.ui.chat.widgets import ChatWidgets
from app.ui.completion import CompletionList, Owner
from app.ui.conversations.list_rows import Sidebar
from app.ui.help import KeyGroup, Section
from app.ui.keys import forward_key
from app.ui.start import Start
from app.ui.state.asking import Asking, Readiness
from app.ui.state.caches import EngineCaches
from app.ui.state.draft import default_next_mode
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import ChatRepository, OpenChat
from app.ui.transcript.citations import CitationsView
from app.ui.transcript.message import MessageView
from app.ui.transcript.transcript import Transcript

TICK_SECONDS = 0.25

# Bindings that change the meaning of the next key have priority over the focused widget: keys that
# arrive in one read (a slow line, or typed ahead) would otherwise be handled first.
READING_KEYS = KeyGroup(
    [
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
    ]
)  # fmt: skip
MESSAGE_KEYS = KeyGroup(
    [
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
    ]
)  # fmt: skip


@dataclass
class TurnFinished(Message):
    """A turn has finished. `seconds` is its duration."""

    summary: str
    seconds: float


class ChatScreen(Screen[None]):
    """Shows one conversation; each widget draws its own part of it. An answer continues while
    another conversation is on the screen."""

    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [(0, "-narrow"), (100, "-wide")]  # type: ignore[misc]
    BINDINGS: ClassVar[list[BindingType]] = [*READING_KEYS.BINDINGS, *MESSAGE_KEYS.BINDINGS]

    def __init__(self, start: Start) -> None:
        super().__init__()
        self._start = start
        self.bridge = Bridge(self)
        engine, settings_file = start.engine, start.settings
        next_mode = default_next_mode(settings_file.settings)
        repository = ChatRepository(start.folder, start.load, settings_file.settings)
        self.open_chats = OpenChats(repository, repository.new(next_mode), start.clock)
        self.transcript = Transcript(start.clock, self.open_chats.shown)
        self.composer = Composer(next_mode)
        self.notice = self.composer.notice
        self.widgets = ChatWidgets(
            Header(*start.load.names),
            Sidebar(repository, self.open_chats.statuses),
            self.transcript,
            NewTextMarker(),
            self.composer,
            Footer(),
        )
        self.attachments = AttachmentReader(
            self.composer, self.open_chats, settings_file, start.load.target
        )
        self.loader = PairLoader(engine, self.open_chats, self.widgets, start.load, start.clock)
        self.real_model = RealModel(self.loader, self.open_chats, self.notice)
        self.readiness = Readiness(self.open_chats, self.loader)
        self.cost_estimate = CostEstimate(
            self.composer, self.open_chats, self.attachments, self.loader
        )
        slider, estimate = self.composer.slider, self.cost_estimate
        preview = KeepPreview(engine, self.open_chats, self.transcript, slider, estimate)
        self.view = ChatView(self.widgets, self.readiness, self.attachments, preview, estimate)
        listener = self.bridge.listener
        self.asking = Asking(engine, listener, self.readiness, settings_file, self.view)
        self._messages = MessageActions(self.view, self.asking)
        self._caches = EngineCaches(engine, repository, settings_file, start.snapshots, start.costs)
        self.conversations = Conversations(
            self.view, self.asking, self._messages, settings_file, self._caches
        )
        self._events = EventRouter(self.widgets, self.view, self.readiness, self.loader, estimate)

    # -------------------------------------------------------------------------- the screen

    def compose(self) -> ComposeResult:
        widgets = self.widgets
        yield widgets.header
        yield Horizontal(widgets.sidebar, widgets.transcript, id="middle")
        yield widgets.new_text_marker
        yield widgets.composer
        yield widgets.footer

    def on_mount(self) -> None:
        self.composer.box.focus()
        self.view.show_state()
        self.set_interval(TICK_SECONDS, self._tick)
        if self._start.watches:
            self.attachments.changed.watch()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """Load the models and open the store. Called after the first frame, so that they do not
        delay it."""
        self._start.engine.listen(self.bridge.listener)
        self._caches.start()
        self.loader.start()
        if self.open_chats.repository.opening:
            start_task(self, lambda: self.conversations.open_store(self._start))
        else:
            self._caches.apply_policy()
            self.conversations.attach_paths(self._start)
            if problem := self._start.settings.problem:  # otherwise keep the answer to an early key
                self.notice.show(problem)

    def _tick(self) -> None:
        running, server = self.open_chats.running, self._start.server
        if running is not None and (view := self.transcript.view(running.number)) is not None:
            view.answer.tick()
        self.loader.tick()
        self.composer.chips.tick()
        if not self.open_chats.repository.opening:
            self._save_pending()
        self.view.show_meter()
        self.widgets.header.port = None if server is None else server.port

    def _save_pending(self) -> None:
        server = self._start.server
        self.open_chats.shown.draft = self.composer.draft
        self.open_chats.save_pending()
        self.notice.set_persistent(
            self.loader.status_text
            or self.real_model.status_text
            or self.open_chats.problem
            or (server.status if server is not None else "")
            or self.cost_estimate.warning
        )
        self.notice.set_note(self.cost_estimate.note)
        if notices := self.open_chats.repository.unread_notices():
            self.notice.show(" ".join(notices))

    def shutdown(self) -> bool:
        """Once the screen is gone, save what is pending. False while the engine still has caches to
        save that would otherwise have to be read again."""
        self._caches.drop_trashed()
        if not self.open_chats.repository.opening:
            self.open_chats.shown.draft = self.composer.draft
            self.attachments.shutdown()
        for event in self.bridge.take():
            if isinstance(event, Closed):
                self.readiness.engine_closed = True
            else:
                self.open_chats.apply(event)
        saves = self._start.snapshots is not None and self.open_chats.last_sent is not None
        return self.readiness.broken or not saves

    def help_sections(self) -> tuple[Section, ...]:
        return (
            ("Writing", ComposeBox),
            ("Files and commands", CompletionList),
            ("Attachments", Chip),
            ("Reading", READING_KEYS),
            ("Keep", KeepSlider),
            ("Messages", MESSAGE_KEYS),
            ("A selected message", MessageView),
        )

    def command_owners(self) -> Iterator[Owner]:
        return ChatCommands(self.view).owners(self)

    # -------------------------------------------------------------------------- asking

    async def on_compose_box_submitted(self, event: ComposeBox.Submitted) -> None:
        question = await self.attachments.question(event.text)
        if question is not None:
            await self._submit(question)

    @on(QuestionReady)
    async def _submit_ready(self, event: QuestionReady) -> None:
        if event.chat is self.open_chats.shown:
            await self._submit(event.typed)

    async def _submit(self, typed: str) -> None:
        composer, too_long = self.composer, self.cost_estimate.warning
        await self.asking.submit(typed, composer.draft, composer.edited, too_long)

    def action_ask_again(self, in_full: bool = False) -> None:
        """Ask the last question again, as it was asked or in full."""
        self.asking.ask_last(in_full)

    def action_continue_answer(self) -> None:
        """Continue the last answer if it was cut off or stopped."""
        self.asking.continue_answer()

    async def action_stop(self) -> None:
        """Cancel the innermost running action."""
        if self.attachments.cancel_deferred() or await self.asking.stop():
            return
        if self.loader.cancel() or self.real_model.cancel() or self.asking.stop_storing():
            return
        if self.composer.cancel_edit():
            self.view.show_state()
        else:
            self.composer.box.focus()

    # -------------------------------------------------------------------------- the next message

    def action_toggle_full(self) -> None:
        self.view.set_next_mode(self.view.next_mode.toggled())

    def action_set_keep(self) -> None:
        """Choose the keep of the next message, or the one to ask the selected answer again with."""
        self.view.keep_preview.open_slider(self.view.next_mode.keep)

    def on_keep_slider_tried(self, event: KeepSlider.Tried) -> None:
        self.view.keep_preview.try_keep(event.keep)

    def on_keep_slider_decided(self, event: KeepSlider.Decided) -> None:
        turn, next_mode = self.view.keep_preview.pop_chosen(), self.view.next_mode
        self.view.show_state()
        if event.keep is not None and turn is not None:
            self.asking.ask_again(turn, Mode.SPARSE, event.keep)
        elif event.keep is not None:
            self.view.set_next_mode(next_mode.at_keep(event.keep))
        elif event.automatic and turn is not None:
            self.asking.ask_again(turn, Mode.AUTO, AUTO_KEEP)
        elif event.automatic:
            self.view.set_next_mode(next_mode.automatic())
        self.view.keep_preview.end()

    def on_paste(self, event: Paste) -> None:
        self.composer.insert_paste(event)

    @on(ComposeBox.LongPaste)
    @on(ComposeBox.Dropped)
    @on(ComposeBox.ErasedNothing)
    @on(CompletionList.FileChosen)
    @on(Chip.Removed)
    @on(Chip.ReadAgain)
    @on(Chip.Recognise)
    @on(Chips.Changed)
    def _change_attachments(self, event: Message) -> None:
        self.attachments.on_message(event)

    # -------------------------------------------------------------------------- messages

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
        self.view.show_state()
        if self.focused is self.composer.box and not self.open_chats.repository.opening:
            self.attachments.changed.check()

    @on(MessageView.KeyForComposer)
    def _type_in_composer(self, event: MessageView.KeyForComposer) -> None:
        self.composer.box.focus()
        if event.key is not None:
            forward_key(event.key, self.composer.box)

    @on(MessageView.Act)
    def _act_on_message(self, event: MessageView.Act) -> None:
        self._messages.act(event.name, event.view)

    @on(ComposeBox.UndidNothing)
    def _undo_delete(self) -> None:
        self._messages.undo_delete()

    @on(CitationsView.Chosen)
    def _show_citation(self, event: CitationsView.Chosen) -> None:
        self._messages.show_citation(event.turn, event.note)

    def action_show_spans(self) -> None:
        """Show what was read for the answer that is being given, or the last one."""
        chats = self.open_chats
        self._messages.show_spans(chats.running or chats.shown.conversation.last_finished)

    def action_files(self) -> None:
        FileChoice(self.view, self.asking, self.loader).open()

    def action_scroll_transcript(self, pages: int) -> None:
        self.transcript.scroll_pages(pages)

    @on(Transcript.UnreadChanged)
    def _mark_new_text(self) -> None:
        self.widgets.new_text_marker.display = self.transcript.has_unread

    @on(NewTextMarker.Pressed)
    def action_to_end(self) -> None:
        self.transcript.follow_end()

    # -------------------------------------------------------------------------- conversations

    @on(Sidebar.Opened)
    def _open_clicked(self, event: Sidebar.Opened) -> None:
        self.conversations.open(event.id)

    def action_new(self) -> None:
        self.conversations.new()

    def action_conversations(self) -> None:
        self.conversations.show_list()

    def action_conversation_settings(self) -> None:
        self.conversations.show_settings()

    # -------------------------------------------------------------------------- the engine

    @on(PairChanged)
    def _pair_changed(self) -> None:
        self.view.show_state()

    @on(PairReady)
    def _pair_ready(self) -> None:
        self.attachments.counts.count_for(self.loader.load.target)
        self.view.show_state()
        self.asking.ask_queued()
        turn = self.real_model.pop_question()
        if turn is not None and not self.readiness.busy:
            self.asking.ask_again(turn)

    @on(PairFailed)
    async def _pair_failed(self) -> None:
        self.view.show_state()
        await self.asking.take_back(self.open_chats.shown)

    @on(EngineEvents)
    async def _schedule_events(self) -> None:
        wait = self.bridge.wait()
        if wait > 0:
            self.set_timer(wait, self._take_events)
        else:
            await self._take_events()

    async def _take_events(self) -> None:
        touched = {self._events.apply(event) for event in self.bridge.take()}
        for number in touched:
            if number is not None and (view := self.transcript.view(number)) is not None:
                await view.answer.update_turn()
                self.transcript.mark_unread(view)
        finished = self.open_chats.pop_finished()
        if finished is not None:
            await self._finish_turn(finished)

    async def _finish_turn(self, chat: OpenChat) -> None:
        last = chat.conversation.last
        if chat is self.open_chats.shown:
            await self.view.show_end()
        if last is not None:
            ended = "Failed" if last.state is TurnState.FAILED else "Answered"
            summary = f"{ended}: {last.question.text}"
            self.post_message(TurnFinished(summary, last.progress.elapsed(0.0)))
        await self.asking.finish(chat)
