"""The keys that work in the spans view, and a mouse's way to press them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.events import Click
from textual.widget import Widget

GAP = "  "


@dataclass(frozen=True, slots=True)
class Hint:
    """`action` is the screen's. Of those that do not fit the one with the lowest `need` goes first;
    `short` is taken where the whole words do not fit."""

    text: str
    action: str
    priority: int
    short: str = ""


READING = (
    Hint("n next", "next", 5),
    Hint("p before", "previous", 4),
    Hint("/ find", "find", 7),
    Hint("Space pin", "pin", 9),
    Hint("c copy", "copy", 3),
    Hint("f fold", "fold", 2),
    Hint("←", "keep(-1)", 0),
    Hint("→ keep", "keep(1)", 1),
    Hint("⏎ ask again", "again", 8, "⏎ again"),
    Hint("Esc close", "close", 6, "Esc"),
)
READING_MANY = (*READING[:3], Hint("d documents", "documents", 5), *READING[3:])
"""Where there are several documents."""
FINDING = (Hint("⏎ next hit", "next_hit", 1), Hint("Esc leaves the search", "close", 2, "Esc"))


class Hints(Widget):
    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._hints: Sequence[Hint] = READING
        self._zones: list[tuple[int, int, str]] = []

    def show(self, hints: Sequence[Hint]) -> None:
        if hints is not self._hints:
            self._hints = hints
            self.refresh()

    def render(self) -> Content:
        self._zones, at = [], 0
        shown = _fit(self._hints, self.content_size.width)
        for words, action in shown:
            self._zones.append((at, at + len(words), action))
            at += len(words) + len(GAP)
        return Content.styled(GAP.join(words for words, _ in shown), "$ink-dim")

    async def on_click(self, event: Click) -> None:
        place = event.get_content_offset(self)
        for start, end, action in self._zones:
            if place is not None and start <= place.x < end:
                await self.screen.run_action(action)


def _fit(hints: Sequence[Hint], width: int) -> list[tuple[str, str]]:
    """In whole words, in short ones, then without those that are needed least."""
    left = list(hints)
    whole = [(hint.text, hint.action) for hint in left]
    if _width(whole) <= width:
        return whole
    while True:
        short = [(hint.short or hint.text, hint.action) for hint in left]
        if _width(short) <= width or len(left) == 1:
            return short
        left.remove(min(left, key=lambda hint: hint.priority))


def _width(shown: Sequence[tuple[str, str]]) -> int:
    return sum(len(words) for words, _ in shown) + len(GAP) * (len(shown) - 1)
