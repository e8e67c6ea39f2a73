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

from app.chat.conversation import Question, Turn, TurnPart
from app.ui.clock import Clock
from app.ui.prefill.progress import TurnProgress
from app.ui.state.repository import OpenChat
from app.ui.transcript.lazy_container import (
    MOUNT_DISTANCE,
    UNMOUNT_DISTANCE,
    LazyContainer,
    containers_in,
)
from app.ui.transcript.message import MessageView, VersionIndex
from app.ui.transcript.scroll_lock import ScrollLock
from app.ui.transcript.status_banner import StatusBanner
from app.ui.transcript.turn_view import QueuedView, TurnView
from app.util import formatting

TURNS_PER_BATCH = 4
"""Turns that are mounted together: of a long conversation first the last ones, and earlier ones
when the user scrolls up to them."""


class Transcript(VerticalScroll, can_focus=False):
    """Follows its end until the user scrolls up, and again once they are back at the end."""

    class UnreadChanged(Message):
        """Something new came below what is seen, or that came into sight."""

    def __init__(self, clock: Clock, chat: OpenChat) -> None:
        super().__init__(id="transcript")
        self.banner = StatusBanner()
        self._clock = clock
        self._chat = chat
        self._turns: list[Turn] = []
        self._older: list[Turn] = []
        self._older_hint = Static(markup=False, classes="more")
        self.has_unread = False
        self._width = 0
        self.scroll_locks: list[ScrollLock] = []
        """The changes that are under way, and that what is seen must not be moved by."""
        self._change_lock = asyncio.Lock()
        self._loading_older = self._update_scheduled = False
        self._views: dict[int, TurnView] = {}
        self._with_content: set[LazyContainer] = set()
        self._queued_view: QueuedView | None = None

    def compose(self) -> ComposeResult:
        yield self.banner
        yield self._older_hint

    def on_mount(self) -> None:
        self._older_hint.display = False
        self.anchor()

    # -------------------------------------------------------------------------- what is shown

    @property
    def progress(self) -> dict[int, TurnProgress]:
        return self._chat.progress

    @property
    def follows_end(self) -> bool:
        """Whether what is new comes into sight by itself."""
        return self.is_anchored and not self._anchor_released

    @property
    def selected(self) -> MessageView | None:
        """The message that has the focus."""
        focused = self.screen.focused if self.is_attached else None
        return focused if isinstance(focused, MessageView) and focused.is_attached else None

    @property
    def messages(self) -> list[MessageView]:
        """Of those turns that are mounted, in order."""
        return [message for view in self._views.values() for message in view.messages]

    async def show(self, chat: OpenChat) -> None:
        """A conversation instead of the one before, from its end."""
        async with self._change_lock:
            self._chat, self._turns, self._older = chat, [], []
            self._views, self._with_content = {}, set()
            await self.remove_children(".turn")
            await self._show_branch(None)
        await self.show_queued(chat.conversation.queued)
        self.follow_end()

    async def add_turn(self, turn: Turn) -> None:
        """Show a new turn, and go to it even if the user had scrolled up: they just asked."""
        await self.show_branch(turn)
        self.follow_end()

    async def show_branch(self, to: Turn | None = None) -> None:
        """Show the branch as it is now: what it shares with what is shown stays. With `to` up from
        that turn at least."""
        async with self._change_lock:
            await self._show_branch(to)

    async def _show_branch(self, to: Turn | None) -> None:
        turns = [turn for turn in self._chat.conversation.branch if turn.number in self.progress]
        pairs = zip(turns, self._turns, strict=False)
        same = next((i for i, (new, old) in enumerate(pairs) if new is not old), None)
        same = min(len(turns), len(self._turns)) if same is None else same
        for turn in self._turns[same:]:
            if (view := self._views.pop(turn.number, None)) is not None:
                await view.remove()
        self._turns = turns
        first = self._first_mounted(turns, same, to)
        self._older = turns[:first]
        mounted = [turn for turn in turns[first:] if turn.number not in self._views]
        before = [turn for turn in mounted if turn in turns[:same]]
        await self._add(before, before=next(iter(self._views.values()), None))
        await self._add([turn for turn in mounted if turn not in before])
        self._show_versions()
        self._show_older_hint()
        self.update_mounted_soon()

    def _first_mounted(self, turns: Sequence[Turn], same: int, to: Turn | None) -> int:
        mounted = [i for i, turn in enumerate(turns[:same]) if turn.number in self._views]
        first = mounted[0] if mounted else max(0, len(turns) - TURNS_PER_BATCH)
        return min(first, turns.index(to)) if to in turns else first

    async def show_queued(self, question: Question | None, committing: bool = False) -> None:
        """The question that is not asked yet, because others are, or because it is being kept."""
        before, self._queued_view = self._queued_view, None
        if question is not None:
            self._queued_view = QueuedView(question, committing)
            await self.mount(self._queued_view)
            self.anchor()
        if before is not None:
            await before.remove()

    def view(self, number: int) -> TurnView | None:
        """The view of a turn, if it is shown."""
        return self._views.get(number)

    async def _add(self, turns: Sequence[Turn], before: TurnView | None = None) -> None:
        views = {
            turn.number: TurnView(turn, self.progress[turn.number], self._clock, self._version_of)
            for turn in turns
        }
        self._views = {**views, **self._views} if before is not None else {**self._views, **views}
        await self.mount_all(views.values(), before=before or self._queued_view)
        for view in [*views.values()][-TURNS_PER_BATCH:]:
            for message in view.messages:
                await self._mount_content(message)

    def _version_of(self, turn: Turn, part: TurnPart) -> VersionIndex:
        return self._chat.chat.version_of(turn, part)

    def _show_versions(self) -> None:
        for message in self.messages:
            message.show_version(self._version_of(message.turn, message.part))
        for view in self._views.values():
            view.answer.show_last(view.turn is self._turns[-1])

    def _show_older_hint(self) -> None:
        many = formatting.plural(len(self._older), "earlier question")
        self._older_hint.update(Content.styled(f"↑ {many}: scroll up", "$ink-dim"))
        self._older_hint.display = bool(self._older)

    # -------------------------------------------------------------------------- choosing

    def select(self, message: MessageView) -> None:
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

    def neighbour(self, message: MessageView, step: int) -> MessageView | None:
        messages = self.messages
        place = messages.index(message) + step if message in messages else -1
        if place < 0:
            self.load_older()
            return None
        return messages[place] if place < len(messages) else None

    async def reveal(self, turn: Turn, part: TurnPart) -> None:
        """Choose a message wherever it is."""
        await self.show_branch(turn)
        view = self.view(turn.number)
        if view is not None:
            message = view.message(part)
            self.screen.set_focus(message, scroll_visible=False)
            await self._mount_content(message)
            self.call_after_refresh(self._bring_to_top, message, 3)

    def _bring_to_top(self, message: MessageView, times: int) -> None:
        """More than once: what is laid out anew above it changes where it is."""
        if message.is_attached and self.selected is message:
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
            self.load_older()
        if self.max_scroll_y == 0:
            return
        scroll = self.scroll_page_down if pages > 0 else self.scroll_page_up
        scroll(animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.update_mounted_soon()
        if self.has_unread and self.follows_end:
            self._set_unread(False)
        if new_value <= 0 < old_value:
            self.load_older()

    def validate_scroll_y(self, value: float) -> float:
        """What is held may lie behind the end as long as not all is laid out."""
        return max(0.0, value) if self.scroll_locks else super().validate_scroll_y(value)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """With what is held at the row of the screen where it was, in the very frame in which
        something above it has changed: as Textual itself does it for what follows the end."""
        arranged = super().arrange(size, optimal)
        moved = [held.shift(arranged) for held in self.scroll_locks]
        if moved and moved[0]:
            y = max(0.0, self.scroll_y + moved[0])
            self.set_reactive(Widget.scroll_y, y)
            self.set_reactive(Widget.scroll_target_y, y)
            self.vertical_scrollbar._reactive_position = y  # type: ignore[attr-defined]
        return arranged

    def _check_anchor(self) -> None:
        if not self.scroll_locks:
            super()._check_anchor()

    def on_resize(self, event: Resize) -> None:
        if event.size.width != self._width:
            self._width = event.size.width
            for sleeper in self.query(LazyContainer):
                sleeper.set_estimated_height()
        self.update_mounted_soon()

    def follow_end(self) -> None:
        """Follow the end again."""
        self.anchor()
        self._set_unread(False)

    def mark_unread(self, view: TurnView) -> None:
        """What is shown there has grown."""
        self._with_content.update(each for each in view.query(LazyContainer) if each.has_content)
        self.update_mounted_soon()
        if not self.has_unread and not self.follows_end:
            self._set_unread(True)

    def _set_unread(self, news: bool) -> None:
        self.has_unread = news
        self.post_message(self.UnreadChanged())

    def load_older(self) -> None:
        if self._older and not self._loading_older:
            self._loading_older = True
            self.call_later(self._load_older)

    async def _load_older(self) -> None:
        """What is in sight stays in sight: the new turns are above it."""
        async with self._change_lock, ScrollLock(self):
            turns, self._older = self._older[-TURNS_PER_BATCH:], self._older[:-TURNS_PER_BATCH]
            await self._add(turns, before=next(iter(self._views.values()), None))
            self._show_older_hint()
        self._loading_older = False

    # -------------------------------------------------------------------------- what is near

    def update_mounted_soon(self) -> None:
        """Wake what has come near, and let go what is far, once this is laid out."""
        if not self._update_scheduled:
            self._update_scheduled = True
            self.call_after_refresh(self._update_mounted)

    async def _update_mounted(self) -> None:
        self._update_scheduled = False
        near, kept = self._within(MOUNT_DISTANCE), self._within(UNMOUNT_DISTANCE)
        waking = [sleeper for sleeper in near if sleeper.is_placeholder]
        far = [
            each
            for each in self._with_content
            if each.has_content and each.can_unmount and each not in kept
        ]
        if waking or far:
            async with self._change_lock, ScrollLock(self):
                for sleeper in waking:
                    await self._mount_content(sleeper)
                for sleeper in far:
                    await sleeper.unmount_content()
                self._with_content = {
                    each for each in self._with_content if each.is_attached and each.has_content
                }
            self.update_mounted_soon()
        elif self.max_scroll_y == 0:
            self.load_older()  # what does not fill the screen cannot be scrolled

    def _within(self, screens: float) -> list[LazyContainer]:
        """Those not farther than so many screens from what is seen."""
        height = self.size.height
        top, bottom = self.scroll_y - screens * height, self.scroll_y + (1 + screens) * height
        return [*containers_in(self, self.scrollable_size, int(top), int(bottom))]

    async def _mount_content(self, sleeper: LazyContainer) -> None:
        self._with_content.add(sleeper)
        await sleeper.mount_content()
