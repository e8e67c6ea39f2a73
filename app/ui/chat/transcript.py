"""The scrolling part of the screen: the opening, all turns, and the question that waits."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.chat.conversation import Question, Turn, TurnState
from app.ui import figures
from app.ui.chat.bars import Opening
from app.ui.chat.shelf import OpenChat
from app.ui.chat.turn_view import QuestionView, TurnView
from app.ui.clock import Clock
from app.ui.prefill.progress import ReadingProgress

AT_ONCE = 4
"""Turns that are laid out together: of a long conversation first the last ones, and earlier ones
when the user scrolls up to them. One takes 20 ms, or 200 where the answer is long."""


class Transcript(VerticalScroll, can_focus=False):
    """Follows its end until the user scrolls up, and again once they are back at the end."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(id="transcript")
        self.opening = Opening()
        self._clock = clock
        self._progress: dict[int, ReadingProgress] = {}
        self._earlier: list[Turn] = []
        self._more = Static(markup=False, classes="more")
        self._laying_out = False
        self._views: dict[int, TurnView] = {}
        self._waiting: QuestionView | None = None

    def compose(self) -> ComposeResult:
        yield self.opening
        yield self._more

    def on_mount(self) -> None:
        self._more.display = False
        self.anchor()

    async def show(self, chat: OpenChat) -> None:
        """A conversation instead of the one before, from its end."""
        await self.remove_children(".turn")
        self._views, self._progress = {}, chat.progress
        turns = [turn for turn in chat.conversation.turns if turn.number in chat.progress]
        self._earlier = turns[:-AT_ONCE]
        await self._add(turns[-AT_ONCE:])
        await self.show_waiting(chat.conversation.queued)
        self._show_more()
        self.anchor()
        self.call_after_refresh(self._fill)

    async def add_turn(self, turn: Turn, progress: ReadingProgress) -> None:
        """Show a new turn, and go to it even if the user had scrolled up: they just asked."""
        self._progress[turn.number] = progress
        await self._add([turn])
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
        """The view of a turn, if it is shown."""
        return self._views.get(number)

    def scroll_pages(self, pages: int) -> None:
        if pages < 0 and self.scroll_y <= 0:
            self._lay_out_earlier()
        scroll = self.scroll_page_down if pages > 0 else self.scroll_page_up
        scroll(animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value:
            self._lay_out_earlier()

    def _fill(self) -> None:
        """What does not fill the screen cannot be scrolled."""
        if self.max_scroll_y == 0:
            self._lay_out_earlier()

    def _lay_out_earlier(self) -> None:
        if self._earlier and not self._laying_out:
            self._laying_out = True
            self.call_later(self._show_earlier)

    async def _show_earlier(self) -> None:
        """What is in sight stays in sight: the new turns are above it."""
        first, height = next(iter(self._views.values()), None), self.virtual_size.height
        turns, self._earlier = self._earlier[-AT_ONCE:], self._earlier[:-AT_ONCE]
        await self._add(turns, before=first)
        self._show_more()

        def stay() -> None:
            self._laying_out = False
            self._fill()
            self.scroll_to(y=self.scroll_y + self.virtual_size.height - height, animate=False)

        self.call_after_refresh(stay)

    async def _add(self, turns: Sequence[Turn], before: TurnView | None = None) -> None:
        views = {
            turn.number: TurnView(turn, self._progress[turn.number], self._clock) for turn in turns
        }
        self._views = {**views, **self._views} if before is not None else {**self._views, **views}
        await self.mount_all(views.values(), before=before)
        for view in views.values():
            if view.turn.state is TurnState.RUNNING:
                await view.update_turn()

    def _show_more(self) -> None:
        many = figures.plural(len(self._earlier), "earlier question")
        self._more.update(Content.styled(f"↑ {many}: scroll up", "$ink-dim"))
        self._more.display = bool(self._earlier)
