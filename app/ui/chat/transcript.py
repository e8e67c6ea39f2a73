"""The scrolling part of the screen: the opening, all turns, and the question that waits."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from app.chat.conversation import Question, Turn
from app.ui.chat.bars import Opening
from app.ui.chat.turn_view import QuestionView, TurnView
from app.ui.clock import Clock


class Transcript(VerticalScroll, can_focus=False):
    """Follows its end until the user scrolls up, and again once they are back at the end."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(id="transcript")
        self.opening = Opening()
        self._clock = clock
        self._views: dict[int, TurnView] = {}
        self._waiting: QuestionView | None = None

    def compose(self) -> ComposeResult:
        yield self.opening

    def on_mount(self) -> None:
        self.anchor()

    async def add_turn(self, turn: Turn) -> None:
        """Show a new turn, and go to it even if the user had scrolled up: they just asked."""
        view = self._views[turn.number] = TurnView(turn, self._clock)
        await self.mount(view)
        self.anchor()

    async def show_waiting(self, question: Question | None) -> None:
        if self._waiting is not None:
            await self._waiting.remove()
            self._waiting = None
        if question is not None:
            self._waiting = QuestionView(question, waiting=True)
            await self.mount(self._waiting)
            self.anchor()

    def view(self, turn: Turn) -> TurnView:
        """The view of a turn that was added."""
        return self._views[turn.number]
