"""The chat: passes what the user does to the engine, and what the engine says to the widgets."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Paste
from textual.screen import Screen
from textual.widgets import Static, TextArea

from app.chat.conversation import Conversation, Question, Turn, TurnState
from app.engine.messages import (
    Cancel,
    Closed,
    Engine,
    Event,
    Failed,
    Healed,
    Load,
    Loaded,
    MemoryReport,
    Mode,
    NotSaved,
    Sampling,
    Saved,
    Selected,
)
from app.ui.bridge import Bridge, EngineEvents
from app.ui.chat.bars import Footer, Header, Notice
from app.ui.chat.chips import Chips
from app.ui.chat.compose import ComposeBox
from app.ui.chat.transcript import Transcript
from app.ui.clock import Clock
from app.ui.keep.next_mode import NextMode
from app.ui.keep.setter import KeepSetter
from app.ui.keep.trial import KeepTrial
from app.ui.prefill.draw import would_read
from app.ui.spans.passages import ReadDocument, read_documents
from app.ui.spans.screen import AskAgain, SpansScreen
from app.ui.words import ended, sentence

TICK_SECONDS = 0.25
WHOLE_TEXT_WORDS = re.compile(r"\b(how many|count|list all|every)\b", re.IGNORECASE)
WHOLE_TEXT_ADVICE = "Counting and listing need all of the text: ^T reads it in full."


class ChatScreen(Screen[None]):
    """Holds the conversation; each widget draws its own part of it."""

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
            tooltip="Set how much is read",
            priority=True,
        ),
        Binding(
            "ctrl+r", "ask_again", "Again", id="chat.again", tooltip="Ask again, reading in full"
        ),
        Binding(
            "ctrl+s",
            "show_spans",
            "Spans",
            id="chat.spans",
            tooltip="What was read of the documents",
        ),
    ]

    def __init__(
        self, engine: Engine, load: Load, keep: float, sampling: Sampling, clock: Clock
    ) -> None:
        super().__init__()
        self._engine = engine
        self._load = load
        self._clock = clock
        self._bridge = Bridge(self)
        self.conversation = Conversation(sampling)
        self.next_mode = NextMode(keep)
        self._trial = KeepTrial()
        self._ready = False
        self._broken = False
        self._spans: SpansScreen | None = None
        self._load_started = clock()
        self.header = Header(*load.names)
        self.transcript = Transcript(clock)
        self.notice = Notice()
        self.chips = Chips()
        self.box = ComposeBox()
        self.setter = KeepSetter()
        self.footer = Footer(self.next_mode)

    # -------------------------------------------------------------------------- the screen

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.transcript
        with Vertical(id="compose"):
            yield self.notice
            yield self.chips
            with Horizontal(id="entry"):
                yield Static("❯", id="prompt", markup=False)
                yield self.box
            yield self.setter
        yield self.footer

    def on_mount(self) -> None:
        self.box.focus()
        self._show_hints()
        self.set_interval(TICK_SECONDS, self._tick)
        self.call_after_refresh(self._start_engine)

    def _start_engine(self) -> None:
        """Only after the first drawing: loading must not delay it."""
        self._engine.listen(self._bridge.listener)
        self._engine.send(self._load)

    def _tick(self) -> None:
        if self.conversation.running is not None:
            self.transcript.view(self.conversation.running).tick()
        elif not self._ready and not self._broken:
            self.transcript.opening.show_loading(self._clock() - self._load_started)

    @property
    def busy(self) -> bool:
        loading = not self._ready and not self._broken
        return loading or self.conversation.running is not None

    def _show_hints(self) -> None:
        hints = ["⏎ queue" if self.busy else "⏎ send", "^G keep", "F1 keys", "^J new line"]
        if self.conversation.queued is not None:
            hints.insert(0, "Esc take back")
        elif self.conversation.running is not None:
            hints.insert(0, "Esc stop")
        elif self.conversation.last is not None:
            hints.insert(2, "^R again, in full")
        self.footer.show_hints(hints)
        self.footer.show_next(self.next_mode)

    # -------------------------------------------------------------------------- the engine

    @on(EngineEvents)
    async def _take_soon(self) -> None:
        wait = self._bridge.wait()
        if wait > 0:
            self.set_timer(wait, self._take_events)
        else:
            await self._take_events()

    async def _take_events(self) -> None:
        running = self.conversation.running
        touched: dict[int, Turn] = {}
        for event in self._bridge.take():
            turn = self._apply(event)
            if turn is not None:
                touched[turn.number] = turn
        for turn in touched.values():
            await self.transcript.view(turn).update_turn()
        if running is not None and running.state is not TurnState.RUNNING:
            await self._turn_over(running)

    def _apply(self, event: Event) -> Turn | None:
        """Take in one event; returns the turn to be drawn anew."""
        match event:
            case Loaded():
                self._loaded(event)
            case Failed(turn=None):
                self._failed_outside(event)
            case MemoryReport():
                self.header.show_memory(event.figures)
            case Closed():
                self._broken = True
            case Healed() | NotSaved() | Saved():
                pass
            case _:
                return self._apply_to_turn(event, event.turn)
        return None

    def _apply_to_turn(self, event: Event, number: int | None) -> Turn | None:
        turn = self.conversation.find(number) if number is not None else None
        if turn is None:
            return None
        if turn.state is TurnState.RUNNING:
            self.transcript.view(turn).apply(event)
        elif isinstance(event, Selected):
            self._reselected(turn, event)
        elif isinstance(event, Failed):
            self.notice.say(_in_words(event))
        return turn

    def _loaded(self, loaded: Loaded) -> None:
        self._ready = True
        self.header.show_pair(loaded)
        self.transcript.opening.show_loaded(loaded)
        self._show_hints()
        self.call_later(self._ask_queued)

    def _failed_outside(self, failed: Failed) -> None:
        """Something that belongs to no turn: loading, before the pair was ready."""
        if self._ready:
            self.notice.say(_in_words(failed))
            return
        self._broken = True
        self.transcript.opening.show_failed(failed)
        self._show_hints()
        self.call_later(self._take_back)

    async def _turn_over(self, turn: Turn) -> None:
        self.notice.say("")
        if turn.state is TurnState.FAILED:
            await self._take_back()
        await self._ask_queued()
        self._show_hints()

    # -------------------------------------------------------------------------- asking

    async def on_compose_box_sent(self, event: ComposeBox.Sent) -> None:
        text, pastes = event.text.strip(), self.chips.pastes
        refusal = self._refusal(text, bool(pastes))
        if refusal is not None:
            self.notice.say(refusal)
        if not text or refusal is not None:
            return
        documents = tuple(paste.document for paste in pastes)
        question = Question(text, documents, self.next_mode.mode, self.next_mode.keep)
        self.next_mode = self.next_mode.asked()
        self.box.remember(text)
        self.box.replace_all(self.box.text.removeprefix(event.text))
        self.chips.clear()
        if self.busy:
            self.conversation.queued = question
            await self.transcript.show_waiting(question)
        else:
            await self._ask(question)
        self._show_hints()

    def _refusal(self, text: str, pasted: bool) -> str | None:
        if not text:
            return "Type a question about what you pasted, then press Enter." if pasted else None
        if self._broken:
            return "No model is loaded, so nothing can be asked."
        if self.conversation.queued is not None:
            return "One question waits already. Esc takes it back."
        return None

    async def _ask(self, question: Question, replaces: Turn | None = None) -> None:
        self._end_trial()
        turn, ask = self.conversation.begin(question, replaces)
        await self.transcript.add_turn(turn)
        self._engine.send(ask)
        self._show_hints()

    async def _ask_queued(self) -> None:
        question = None if self.busy else self.conversation.take_queued()
        if question is not None:
            await self.transcript.show_waiting(None)
            await self._ask(question)

    async def _take_back(self) -> None:
        """Put the waiting question back into the compose box, before what was written since."""
        question = self.conversation.take_queued()
        if question is None:
            return
        await self.transcript.show_waiting(None)
        self.next_mode = self.next_mode.taken_back(question.mode)
        self.box.replace_all("\n".join(filter(None, (question.text, self.box.text))))
        later = self.chips.pastes
        self.chips.clear()
        for text in (*(d.text for d in question.documents), *(p.text for p in later)):
            self.chips.add(text)
        self._show_hints()

    async def action_ask_again(self) -> None:
        last = self.conversation.last
        if self._broken or last is None:
            self.notice.say("There is no question to ask again.")
        elif self.busy:
            self.notice.say("An answer is under way. Esc stops it.")
        else:
            await self._ask(replace(last.question, mode=Mode.FULL), replaces=last)

    def action_show_spans(self) -> None:
        turn = self.conversation.last_over
        documents = self._read_documents(turn) if turn else []
        if turn is None or not documents:
            self.notice.say("Nothing was attached that could be shown. Paste a document and ask.")
            return
        progress, try_keep = self.transcript.view(turn).progress, None
        if turn is self.conversation.last and progress.scored:
            self._trial.begin(turn.number, progress)
            try_keep = self._try_keep
        self._spans = SpansScreen(documents, progress.keep, try_keep)
        self.app.push_screen(self._spans, partial(self._spans_closed, turn))

    def _read_documents(self, turn: Turn, selected: Selected | None = None) -> list[ReadDocument]:
        progress = self.transcript.view(turn).progress
        return read_documents(self.conversation.documents(turn), progress, selected)

    async def _spans_closed(self, turn: Turn, result: AskAgain | None) -> None:
        self._spans = None
        self._end_trial()
        if result is None:
            return
        if self.busy or turn is not self.conversation.last:
            self.notice.say("An answer is under way. Esc stops it.")
            return
        question = self.conversation.pin(turn, result.pins)
        again = replace(question, mode=Mode.SPARSE, keep=result.keep)
        await self._ask(again, replaces=turn)

    async def action_stop(self) -> None:
        running = self.conversation.running
        if self.conversation.queued is not None:
            await self._take_back()
        elif running is not None:
            self._engine.send(Cancel(running.number))
            self.notice.say("Stopping.")
        else:
            self.box.focus()

    # -------------------------------------------------------------------------- keep and mode

    def action_toggle_full(self) -> None:
        self.next_mode = self.next_mode.toggled()
        self._suggest()
        self._show_hints()

    def action_set_keep(self) -> None:
        if self.setter.display:
            return
        last = None if self.busy else self.conversation.last
        progress = self.transcript.view(last).progress if last is not None else None
        if last is not None and progress is not None and progress.scored:
            self._trial.begin(last.number, progress)
        else:
            self._trial.begin(None, None)
        self.setter.open(self.next_mode.keep)
        self._try_keep(self.next_mode.keep)

    def on_keep_setter_moved(self, event: KeepSetter.Moved) -> None:
        self._try_keep(event.keep)

    def on_keep_setter_left(self, event: KeepSetter.Left) -> None:
        if event.keep is not None:
            self.next_mode = self.next_mode.at_keep(event.keep)
        elif event.automatic:
            self.next_mode = self.next_mode.automatic()
        self._end_trial()
        self._suggest()
        self._show_hints()

    def _try_keep(self, keep: float) -> None:
        if not self.busy and (request := self._trial.move(keep)) is not None:
            self._engine.send(request)

    def _reselected(self, turn: Turn, selected: Selected) -> None:
        request = self._trial.answered(selected)
        if self.transcript.view(turn).progress.preview is not None:
            self.setter.meaning = would_read(selected)
            if self._spans is not None:
                self._spans.show(self._read_documents(turn, selected), selected.keep)
        if request is not None:
            self._engine.send(request)

    def _end_trial(self) -> None:
        last = self.conversation.last
        if self._trial.end() and last is not None:
            self.transcript.view(last).tick()
            self.transcript.anchor()

    # -------------------------------------------------------------------------- the compose box

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.notice.say("")
        self._suggest()

    def _suggest(self) -> None:
        asks_for_all = WHOLE_TEXT_WORDS.search(self.box.text) is not None
        wanted = asks_for_all and self.next_mode.mode is not Mode.FULL
        self.notice.suggest(WHOLE_TEXT_ADVICE if wanted else "")

    def on_compose_box_long_paste(self, event: ComposeBox.LongPaste) -> None:
        self.chips.add(event.text)
        self.notice.say("")

    def on_compose_box_erased_nothing(self) -> None:
        self.chips.remove_last()

    def on_paste(self, event: Paste) -> None:
        """A paste while something else has the focus is meant for the compose box all the same."""
        self.box.focus()
        self.box.receive(event)

    def action_scroll_transcript(self, pages: int) -> None:
        scroll = self.transcript.scroll_page_down if pages > 0 else self.transcript.scroll_page_up
        scroll(animate=False)


def _in_words(failed: Failed) -> str:
    return f"{ended(failed.problem)} {sentence(failed.advice)}"
