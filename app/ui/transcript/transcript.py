"""The conversation on the screen: a status banner, its turns, and a queued question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

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
from app.ui.state.repository import OpenChat
from app.ui.transcript.lazy_container import (
    MOUNT_DISTANCE,
    UNMOUNT_DISTANCE,
    LazyContainer,
    containers_in,
    row_of,
)
from app.ui.transcript.message import MessageView
from app.ui.transcript.status_banner import StatusBanner
from app.ui.transcript.turn_view import QueuedView, TurnView
from app.util import formatting

TURNS_PER_BATCH = 4
"""Turns mounted at a time: of a long conversation the last ones first, older ones when the user
scrolls up to them."""


class LockableScroll(VerticalScroll, can_focus=False):
    """A scroll view that `ScrollLock` can hold in place, in addition to Textual's anchor at the
    end. It overrides private methods of Textual (see the package)."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.scroll_locks: list[ScrollLock] = []
        """One for each change that is under way."""

    @property
    def follows_end(self) -> bool:
        """Whether new text scrolls into view by itself."""
        return self.is_anchored and not self._anchor_released

    def leave_end(self) -> bool:
        """Stop following the end; False if everything fits on the screen. Textual shows few lines
        at the bottom by a negative scroll position, from which nothing can be scrolled."""
        if self.max_scroll_y == 0:
            self.anchor()
            return False
        self.release_anchor()
        return True

    def check_end(self) -> None:
        """Follow the end again if it is in view."""
        self._check_anchor()

    def validate_scroll_y(self, value: float) -> float:
        """A locked widget may lie beyond the end until everything is laid out."""
        return max(0.0, value) if self.scroll_locks else super().validate_scroll_y(value)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Scrolls in the same frame in which something above the locked widget has changed, as
        Textual itself does for an anchored view."""
        arranged = super().arrange(size, optimal)
        shifts = [lock.shift(arranged) for lock in self.scroll_locks]
        if shifts and shifts[0]:
            y = max(0.0, self.scroll_y + shifts[0])
            self.set_reactive(Widget.scroll_y, y)
            self.set_reactive(Widget.scroll_target_y, y)
            self.vertical_scrollbar._reactive_position = y  # type: ignore[attr-defined]
        return arranged

    def _check_anchor(self) -> None:
        if not self.scroll_locks:
            super()._check_anchor()


class ScrollLock:
    """`async with ScrollLock(view):` around the change. Does nothing while the end is followed."""

    def __init__(self, view: LockableScroll) -> None:
        self._view = view
        self._widget: LazyContainer | None = None
        self._row = 0

    async def __aenter__(self) -> None:
        view = self._view
        if view.follows_end:
            return
        top = int(view.scroll_y)
        size = view.scrollable_size
        seen = [*containers_in(view, size, top, top + max(1, size.height))]
        leaves = [each for each in seen if not any(each in other.ancestors for other in seen)]
        # A placeholder may grow when its content is mounted, so prefer one that has its content.
        self._widget = next((each for each in leaves if each.has_content), next(iter(leaves), None))
        if self._widget is not None:
            self._row = row_of(view.arrange(size), self._widget) or 0
            view.scroll_locks.append(self)

    async def __aexit__(self, *_: object) -> None:
        if self._widget is not None:
            self._view.call_after_refresh(self._release)

    def shift(self, arranged: DockArrangeResult) -> int:
        """Rows by which the locked widget has moved since the last call."""
        assert self._widget is not None
        row = row_of(arranged, self._widget)
        if row is None:
            return 0
        shift, self._row = row - self._row, row
        return shift

    def _release(self) -> None:
        view = self._view
        view.scroll_locks.remove(self)
        if not view.scroll_locks and not view.follows_end:
            view.scroll_to(y=view.scroll_y, animate=False, immediate=True)
            view.check_end()


class Transcript(LockableScroll):
    """Follows its end until the user scrolls up, and again once they have scrolled back down."""

    class UnreadChanged(Message):
        """New text arrived below the visible part, or came into view."""

    def __init__(self, clock: Callable[[], float], chat: OpenChat) -> None:
        super().__init__(id="transcript")
        self.banner = StatusBanner()
        self._clock = clock
        self._chat = chat
        self._turns: list[Turn] = []
        self._older: list[Turn] = []
        self._older_hint = Static(markup=False, classes="more")
        self.has_unread = False
        self._width = 0
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

    # -------------------------------------------------------------------------- content

    @property
    def selected(self) -> MessageView | None:
        """The message that has the focus, if one has."""
        focused = self.screen.focused if self.is_attached else None
        return focused if isinstance(focused, MessageView) and focused.is_attached else None

    @property
    def messages(self) -> list[MessageView]:
        """The messages of the mounted turns, in order."""
        return [message for view in self._views.values() for message in view.messages]

    async def show(self, chat: OpenChat) -> None:
        """Show another conversation, scrolled to its end."""
        async with self._change_lock:
            self._chat, self._turns, self._older = chat, [], []
            self._views, self._with_content = {}, set()
            await self.remove_children(".turn")
            await self._show_branch(None)
        await self.show_queued(chat.conversation.queued)
        self.follow_end()

    async def add_turn(self, turn: Turn) -> None:
        """Show a new turn and scroll to it, even if the user had scrolled up: they just asked."""
        await self.show_branch(turn)
        self.follow_end()

    async def show_branch(self, to: Turn | None = None) -> None:
        """Show the current branch; views of turns still in it stay. With `to`, that turn and all
        after it are mounted."""
        async with self._change_lock:
            await self._show_branch(to)

    async def _show_branch(self, to: Turn | None) -> None:
        branch = self._chat.conversation.branch
        turns = [turn for turn in branch if turn.progress.started_at is not None]
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
        """Show a question that waits for its turn, or (`committing`) is being stored."""
        before, self._queued_view = self._queued_view, None
        if question is not None:
            self._queued_view = QueuedView(question, committing)
            await self.mount(self._queued_view)
            self.anchor()
        if before is not None:
            await before.remove()

    def view(self, number: int) -> TurnView | None:
        """The view of a turn, if it is mounted."""
        return self._views.get(number)

    async def _add(self, turns: Sequence[Turn], before: TurnView | None = None) -> None:
        views = {
            turn.number: TurnView(turn, self._clock, self._chat.conversation) for turn in turns
        }
        self._views = {**views, **self._views} if before is not None else {**self._views, **views}
        self._show_versions()
        await self.mount_all(views.values(), before=before or self._queued_view)
        for view in [*views.values()][-TURNS_PER_BATCH:]:
            for message in view.messages:
                await self._mount_content(message)

    def _show_versions(self) -> None:
        for message in self.messages:
            message.show_version(self._chat.chat.version_of(message.turn, message.part))
        last = self._turns[-1] if self._turns else None
        documents = [] if last is None else self._chat.conversation.documents_by_message(last)
        for view in self._views.values():
            view.answer.show_last(view.turn is last, any(documents))

    def _show_older_hint(self) -> None:
        many = formatting.plural(len(self._older), "earlier question")
        self._older_hint.update(Content.styled(f"↑ {many}: scroll up", "$ink-dim"))
        self._older_hint.display = bool(self._older)

    # -------------------------------------------------------------------------- selecting

    def select(self, message: MessageView) -> None:
        """Give a message the focus, and scroll it into view."""
        self.screen.set_focus(message, scroll_visible=False)
        window, region = self.scrollable_content_region, message.region
        if region.y >= window.y and region.bottom <= window.bottom:
            return
        if region.height > window.height and region.y < window.y and region.bottom > window.y + 2:
            return  # it fills the view
        if self.leave_end():
            self.scroll_to_widget(message, animate=False, top=region.height >= window.height)
            self.call_after_refresh(self.check_end)

    def select_neighbour(self, message: MessageView, step: int) -> None:
        """Select the previous (-1) or next (1) message, if there is one."""
        messages = self.messages
        index = messages.index(message) + step if message in messages else -1
        if index < 0:
            self.load_older()
        elif index < len(messages):
            self.select(messages[index])

    async def reveal(self, turn: Turn, part: TurnPart) -> None:
        """Select a message, mounting older turns as far as needed."""
        await self.show_branch(turn)
        view = self.view(turn.number)
        if view is not None:
            message = view.message(part)
            self.screen.set_focus(message, scroll_visible=False)
            await self._mount_content(message)
            self.call_after_refresh(self._bring_to_top, message, 3)

    def _bring_to_top(self, message: MessageView, times: int) -> None:
        """Scroll a message to the top, several times, because layout changes above it move it."""
        if message.is_attached and self.selected is message:
            if self.leave_end():
                self.scroll_to_widget(message, animate=False, top=True, immediate=True)
            if times:
                self.call_after_refresh(self._bring_to_top, message, times - 1)

    # -------------------------------------------------------------------------- scrolling

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

    def on_resize(self, event: Resize) -> None:
        if event.size.width != self._width:
            self._width = event.size.width
            for container in self.query(LazyContainer):
                container.set_estimated_height()
        self.update_mounted_soon()

    def follow_end(self) -> None:
        """Scroll to the end and follow it again."""
        self.anchor()
        self._set_unread(False)

    def mark_unread(self, view: TurnView) -> None:
        """The text of a turn has grown."""
        self._with_content.update(each for each in view.query(LazyContainer) if each.has_content)
        self.update_mounted_soon()
        if not self.has_unread and not self.follows_end:
            self._set_unread(True)

    def _set_unread(self, has_unread: bool) -> None:
        self.has_unread = has_unread
        self.post_message(self.UnreadChanged())

    def load_older(self) -> None:
        if self._older and not self._loading_older:
            self._loading_older = True
            self.call_later(self._load_older)

    async def _load_older(self) -> None:
        """Older turns are mounted above the visible part, which stays where it is."""
        async with self._change_lock, ScrollLock(self):
            turns, self._older = self._older[-TURNS_PER_BATCH:], self._older[:-TURNS_PER_BATCH]
            await self._add(turns, before=next(iter(self._views.values()), None))
            self._show_older_hint()
        self._loading_older = False

    # -------------------------------------------------------------------------- lazy mounting

    def update_mounted_soon(self) -> None:
        """Mount what has come near and unmount what is far away, after the next layout."""
        if not self._update_scheduled:
            self._update_scheduled = True
            self.call_after_refresh(self._update_mounted)

    async def _update_mounted(self) -> None:
        self._update_scheduled = False
        near, retained = self._within(MOUNT_DISTANCE), self._within(UNMOUNT_DISTANCE)
        mounting = [each for each in near if each.is_placeholder]
        far = [
            each
            for each in self._with_content
            if each.has_content and each.can_unmount and each not in retained
        ]
        if mounting or far:
            async with self._change_lock, ScrollLock(self):
                for container in mounting:
                    await self._mount_content(container)
                for container in far:
                    await container.unmount_content()
                self._with_content = {
                    each for each in self._with_content if each.is_attached and each.has_content
                }
            self.update_mounted_soon()
        elif self.max_scroll_y == 0:
            self.load_older()  # a view that is not full cannot be scrolled up

    def _within(self, screens: float) -> list[LazyContainer]:
        """The containers at most `screens` screens away from the visible part."""
        height = self.size.height
        top, bottom = self.scroll_y - screens * height, self.scroll_y + (1 + screens) * height
        return [*containers_in(self, self.scrollable_size, int(top), int(bottom))]

    async def _mount_content(self, container: LazyContainer) -> None:
        self._with_content.add(container)
        await container.mount_content()
