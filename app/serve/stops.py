"""Ends an answer at a stop sequence, which may come in several pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Text goes in with `add`, and comes out up to the first of `stops`."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None
        """The stop sequence at which the text ended."""

    def add(self, text: str) -> str:
        """What may be shown now: not what may be the beginning of a stop sequence."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            end, self.found = min(places)
            return self._take(end)
        held = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        return self._take(len(self._held) - held)

    def rest(self) -> str:
        """What was held back, once the text has ended."""
        return "" if self.found is not None else self._take(len(self._held))

    def _take(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may begin a stop sequence."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
