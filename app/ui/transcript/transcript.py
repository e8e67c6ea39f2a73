"""The scrolling part of the screen: the opening, all turns, and the question that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from app.chat.conversation import Part, Question, Turn
from app.ui.chat.chrome import Opening
from app.ui.clock import Clock
from app.ui.prefill.progress import ReadingProgress
from app.ui.state.repository import OpenChat
from app.ui.transcript.lazy_container import DOZE, WAKE, Sleeper, sleepers
from app.ui.transcript.message import MessageView, Place
from app.ui.transcript.scroll_lock import Held
from app.ui.transcript.turn_view import TurnView, WaitingView
from app.util import formatting

AT_ONCE = 4
"""Turns that are mounted together: of a long conversation first the last ones, and earlier ones
when the user scrolls up to them."""


class Transcript(VerticalScroll, can_focus=False):
    """Follows its end until the user scrolls up, and again once they are back at the end."""

    class News(Message):
        """Something new came below what is seen, or that came into sight."""

    def __init__(self, clock: Clock, chat: OpenChat) -> None:
        super().__init__(id="transcript")
        self.opening = Opening()
        self._clock = clock
        self._chat = chat
        self._turns: list[Turn] = []
        self._earlier: list[Turn] = []
        self._more = Static(markup=False, classes="more")
        self.news = False
        self._width = 0
        self.holding: list[Held] = []
        """The changes that are under way, and that what is seen must not be moved by."""
        self._changing = asyncio.Lock()
        self._laying_out = self._settling = False
        self._views: dict[int, TurnView] = {}
        self._awake: set[Sleeper] = set()
        self._waiting: WaitingView | None = None

    def compose(self) -> ComposeResult:
        yield self.opening
        yield self._more

    def on_mount(self) -> None:
        self._more.display = False
        self.anchor()

    # -------------------------------------------------------------------------- what is shown

    @property
    def progress(self) -> dict[int, ReadingProgress]:
        return self._chat.progress

    @property
    def follows(self) -> bool:
        """Whether what is new comes into sight by itself."""
        return self.is_anchored and not self._anchor_released

    @property
    def chosen(self) -> MessageView | None:
        """The message that has the focus."""
        focused = self.screen.focused if self.is_attached else None
        return focused if isinstance(focused, MessageView) and focused.is_attached else None

    @property
    def messages(self) -> list[MessageView]:
        """Of those turns that are mounted, in order."""
        return [message for view in self._views.values() for message in view.messages]

    async def show(self, chat: OpenChat) -> None:
        """A conversation instead of the one before, from its end."""
        async with self._changing:
            self._chat, self._turns, self._earlier = chat, [], []
            self._views, self._awake = {}, set()
            await self.remove_children(".turn")
            await self._follow_branch(None)
        await self.show_waiting(chat.conversation.queued)
        self.to_end()

    async def add_turn(self, turn: Turn) -> None:
        """Show a new turn, and go to it even if the user had scrolled up: they just asked."""
        await self.follow_branch(turn)
        self.to_end()

    async def follow_branch(self, to: Turn | None = None) -> None:
        """Show the branch as it is now: what it shares with what is shown stays. With `to` up from
        that turn at least."""
        async with self._changing:
            await self._follow_branch(to)

    async def _follow_branch(self, to: Turn | None) -> None:
        turns = [turn for turn in self._chat.conversation.branch if turn.number in self.progress]
        pairs = zip(turns, self._turns, strict=False)
        same = next((i for i, (new, old) in enumerate(pairs) if new is not old), None)
        same = min(len(turns), len(self._turns)) if same is None else same
        for turn in self._turns[same:]:
            if (view := self._views.pop(turn.number, None)) is not None:
                await view.remove()
        self._turns = turns
        first = self._first_mounted(turns, same, to)
        self._earlier = turns[:first]
        mounted = [turn for turn in turns[first:] if turn.number not in self._views]
        before = [turn for turn in mounted if turn in turns[:same]]
        await self._add(before, before=next(iter(self._views.values()), None))
        await self._add([turn for turn in mounted if turn not in before])
        self._show_places()
        self._show_more()
        self.settle_soon()

    def _first_mounted(self, turns: Sequence[Turn], same: int, to: Turn | None) -> int:
        mounted = [i for i, turn in enumerate(turns[:same]) if turn.number in self._views]
        first = mounted[0] if mounted else max(0, len(turns) - AT_ONCE)
        return min(first, turns.index(to)) if to in turns else first

    async def show_waiting(self, question: Question | None, committing: bool = False) -> None:
        """The question that is not asked yet, because others are, or because it is being kept."""
        before, self._waiting = self._waiting, None
        if question is not None:
            self._waiting = WaitingView(question, committing)
            await self.mount(self._waiting)
            self.anchor()
        if before is not None:
            await before.remove()

    def view(self, number: int) -> TurnView | None:
        """The view of a turn, if it is shown."""
        return self._views.get(number)

    async def _add(self, turns: Sequence[Turn], before: TurnView | None = None) -> None:
        views = {
            turn.number: TurnView(turn, self.progress[turn.number], self._clock, self._place)
            for turn in turns
        }
        self._views = {**views, **self._views} if before is not None else {**self._views, **views}
        await self.mount_all(views.values(), before=before or self._waiting)
        for view in [*views.values()][-AT_ONCE:]:
            for message in view.messages:
                await self._wake(message)

    def _place(self, turn: Turn, part: Part) -> Place:
        return self._chat.chat.place(turn, part)

    def _show_places(self) -> None:
        for message in self.messages:
            message.show_place(self._place(message.turn, message.part))
        for view in self._views.values():
            view.answer.show_last(view.turn is self._turns[-1])

    def _show_more(self) -> None:
        many = formatting.plural(len(self._earlier), "earlier question")
        self._more.update(Content.styled(f"↑ {many}: scroll up", "$ink-dim"))
        self._more.display = bool(self._earlier)

    # -------------------------------------------------------------------------- choosing

    def choose(self, message: MessageView) -> None:
        """Give it the focus, and bring it into sight."""
        self.screen.set_focus(message, scroll_visible=False)
        window, region = self.scrollable_content_region, message.region
        if region.y >= window.y and region.bottom <= window.bottom:
            return
        if region.height > window.height and region.y < window.y and region.bottom > window.y + 2:
            return  # it fills the screen
        if self._may_scroll():
            self.scroll_to_widget(message, animate=False, top=region.height >= window.height)
            self.call_after_refresh(self._check_anchor)

    def beside(self, message: MessageView, step: int) -> MessageView | None:
        messages = self.messages
        place = messages.index(message) + step if message in messages else -1
        if place < 0:
            self._lay_out_earlier()
            return None
        return messages[place] if place < len(messages) else None

    async def reveal(self, turn: Turn, part: Part) -> None:
        """Choose a message wherever it is."""
        await self.follow_branch(turn)
        view = self.view(turn.number)
        if view is not None:
            message = view.message(part)
            self.screen.set_focus(message, scroll_visible=False)
            await self._wake(message)
            self.call_after_refresh(self._bring_to_top, message, 3)

    def _bring_to_top(self, message: MessageView, times: int) -> None:
        """More than once: what is laid out anew above it changes where it is."""
        if message.is_attached and self.chosen is message:
            if self._may_scroll():
                self.scroll_to_widget(message, animate=False, top=True, immediate=True)
            if times:
                self.call_after_refresh(self._bring_to_top, message, times - 1)

    # -------------------------------------------------------------------------- scrolling

    def _may_scroll(self) -> bool:
        """From now on the end is not followed, unless all of it can be seen: Textual keeps little
        at the bottom by scrolling up beyond the beginning, where nothing but following ends."""
        if self.max_scroll_y == 0:
            self.anchor()
            return False
        self.release_anchor()
        return True

    def scroll_pages(self, pages: int) -> None:
        if pages < 0 and self.scroll_y <= 0:
            self._lay_out_earlier()
        if self.max_scroll_y == 0:
            return
        scroll = self.scroll_page_down if pages > 0 else self.scroll_page_up
        scroll(animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.settle_soon()
        if self.news and self.follows:
            self._set_news(False)
        if new_value <= 0 < old_value:
            self._lay_out_earlier()

    def validate_scroll_y(self, value: float) -> float:
        """What is held may lie behind the end as long as not all is laid out."""
        return max(0.0, value) if self.holding else super().validate_scroll_y(value)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """With what is held at the row of the screen where it was, in the very frame in which
        something above it has changed: as Textual itself does it for what follows the end."""
        arranged = super().arrange(size, optimal)
        moved = [held.moved(arranged) for held in self.holding]
        if moved and moved[0]:
            y = max(0.0, self.scroll_y + moved[0])
            self.set_reactive(Widget.scroll_y, y)
            self.set_reactive(Widget.scroll_target_y, y)
            self.vertical_scrollbar._reactive_position = y  # type: ignore[attr-defined]
        return arranged

    def _check_anchor(self) -> None:
        if not self.holding:
            super()._check_anchor()

    def on_resize(self, event: Resize) -> None:
        if event.size.width != self._width:
            self._width = event.size.width
            for sleeper in self.query(Sleeper):
                sleeper.guess_height()
        self.settle_soon()

    def to_end(self) -> None:
        """Follow the end again."""
        self.anchor()
        self._set_news(False)

    def note_news(self, view: TurnView) -> None:
        """What is shown there has grown."""
        self._awake.update(each for each in view.query(Sleeper) if each.awake)
        self.settle_soon()
        if not self.news and not self.follows:
            self._set_news(True)

    def _set_news(self, news: bool) -> None:
        self.news = news
        self.post_message(self.News())

    def _lay_out_earlier(self) -> None:
        if self._earlier and not self._laying_out:
            self._laying_out = True
            self.call_later(self._show_earlier)

    async def _show_earlier(self) -> None:
        """What is in sight stays in sight: the new turns are above it."""
        async with self._changing, Held(self):
            turns, self._earlier = self._earlier[-AT_ONCE:], self._earlier[:-AT_ONCE]
            await self._add(turns, before=next(iter(self._views.values()), None))
            self._show_more()
        self._laying_out = False

    # -------------------------------------------------------------------------- what is near

    def settle_soon(self) -> None:
        """Wake what has come near, and let go what is far, once this is laid out."""
        if not self._settling:
            self._settling = True
            self.call_after_refresh(self._settle)

    async def _settle(self) -> None:
        self._settling = False
        near, kept = self._within(WAKE), self._within(DOZE)
        waking = [sleeper for sleeper in near if sleeper.asleep]
        far = [each for each in self._awake if each.awake and each.may_doze and each not in kept]
        if waking or far:
            async with self._changing, Held(self):
                for sleeper in waking:
                    await self._wake(sleeper)
                for sleeper in far:
                    await sleeper.doze()
                self._awake = {each for each in self._awake if each.is_attached and each.awake}
            self.settle_soon()
        elif self.max_scroll_y == 0:
            self._lay_out_earlier()  # what does not fill the screen cannot be scrolled

    def _within(self, screens: float) -> list[Sleeper]:
        """Those not farther than so many screens from what is seen."""
        height = self.size.height
        top, bottom = self.scroll_y - screens * height, self.scroll_y + (1 + screens) * height
        return [*sleepers(self, self.scrollable_size, int(top), int(bottom))]

    async def _wake(self, sleeper: Sleeper) -> None:
        self._awake.add(sleeper)
        await sleeper.wake()
