"""The scrolling part of the screen: the opening, all turns, and the question that waits."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from app.chat.conversation import Question, Turn, TurnState
from app.ui.chat.bars import Opening
from app.ui.chat.shelf import OpenChat
from app.ui.chat.turn_view import QuestionView, TurnView
from app.ui.clock import Clock
from app.ui.prefill.progress import ReadingProgress


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

    async def show(self, chat: OpenChat) -> None:
        """A conversation instead of the one before, from its end."""
        await self.remove_children(".turn")
        self._views = {
            turn.number: TurnView(turn, chat.progress[turn.number], self._clock)
            for turn in chat.conversation.turns
            if turn.number in chat.progress
        }
        await self.mount_all(self._views.values())
        for view in self._views.values():
            if view.turn.state is TurnState.RUNNING:
                await view.update_turn()
        await self.show_waiting(chat.conversation.queued)
        self.anchor()

    async def add_turn(self, turn: Turn, progress: ReadingProgress) -> None:
        """Show a new turn, and go to it even if the user had scrolled up: they just asked."""
        view = self._views[turn.number] = TurnView(turn, progress, self._clock)
        await self.mount(view)
        self.anchor()

    async def show_waiting(self, question: Question | None, committing: bool = False) -> None:
        """The question that is not asked yet, because others are, or because it is being kept."""
        before, self._waiting = self._waiting, None
        if question is not None:
            self._waiting = QuestionView(question, waiting=not committing)
            await self.mount(self._waiting)
            self.anchor()
        if before is not None:
            await before.remove()

    def view(self, number: int) -> TurnView | None:
        """The view of a turn, if its conversation is the one that is shown."""
        return self._views.get(number)
