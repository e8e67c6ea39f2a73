"""The keys of the spans view, which can also be clicked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from app.ui.click_line import ClickLine, Piece

GAP = "  "


@dataclass(frozen=True, slots=True)
class Hint:
    """`action` is one of the screen. Where not all fit, `short` replaces `text`, then the hint with
    the lowest `priority` goes first."""

    text: str
    action: str
    priority: int
    short: str = ""


READING = (
    Hint("n next passage", "next", 5, "n next"),
    Hint("p previous", "previous", 4, "p prev"),
    Hint("a answer's words", "copied", 8, "a answer"),
    Hint("/ find", "find", 7),
    Hint("d documents", "documents", 5),
    Hint("Space pin", "pin", 9),
    Hint("c copy", "copy", 3),
    Hint("f fold", "fold", 2),
    Hint("←", "keep(-1)", 0),
    Hint("→ keep", "keep(1)", 1),
    Hint("⏎ ask again", "again", 8, "⏎ again"),
    Hint("Esc close", "close", 6, "Esc"),
)
FINDING = (Hint("⏎ next hit", "next_hit", 1), Hint("Esc close search", "close", 2, "Esc"))


def reading_hints(several_documents: bool, copies: bool) -> tuple[Hint, ...]:
    """For these documents, of which the answer copied something or not."""
    useless = {"documents": not several_documents, "copied": not copies}
    return tuple(hint for hint in READING if not useless.get(hint.action))


class Hints(ClickLine):
    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._hints: Sequence[Hint] = READING

    def show(self, hints: Sequence[Hint]) -> None:
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    def pieces(self) -> Iterator[Piece]:
        gap = ""
        for text, action in _fit(self._hints, self.content_size.width):
            yield Piece(gap)
            yield Piece(text, "$ink-dim", partial(self.screen.run_action, action))
            gap = GAP


def _fit(hints: Sequence[Hint], width: int) -> list[tuple[str, str]]:
    """Texts and actions that fit into `width` cells."""
    remaining = list(hints)
    full = [(hint.text, hint.action) for hint in remaining]
    if _width(full) <= width:
        return full
    while True:
        short = [(hint.short or hint.text, hint.action) for hint in remaining]
        if _width(short) <= width or len(remaining) == 1:
            return short
        remaining.remove(min(remaining, key=lambda hint: hint.priority))


def _width(shown: Sequence[tuple[str, str]]) -> int:
    return sum(len(text) for text, _ in shown) + len(GAP) * (len(shown) - 1)
