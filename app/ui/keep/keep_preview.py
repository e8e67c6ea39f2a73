"""Trying another keep on a turn that was scored: what would have been read?"""

from __future__ import annotations

from app.protocol.commands import Reselect
from app.protocol.events import Selected
from app.ui.prefill.progress import TurnProgress

ALL_CACHED = "all cached: saves nothing"


class KeepTrial:
    """From opening the setter to closing it. One Reselect is under way at a time; of the keeps
    moved over meanwhile only the last is asked for next, so a held key builds no queue."""

    def __init__(self) -> None:
        self._turn: int | None = None
        self._progress: TurnProgress | None = None
        self._wanted: float | None = None
        self._waiting = False

    def begin(self, turn: int | None, progress: TurnProgress | None) -> None:
        """Of the last turn, when it has scores and nothing runs; None and None: no preview."""
        self._turn, self._progress = turn, progress
        self._wanted = None
        self._waiting = False

    def move(self, keep: float) -> Reselect | None:
        """The keep was moved; returns what to send, if anything now."""
        self._wanted = keep
        return self._request()

    def answered(self, selected: Selected) -> Reselect | None:
        """A selection came for a turn that is over. One that comes after `end` shows nothing."""
        if selected.turn != self._turn or self._progress is None:
            return None
        self._progress.apply(selected, 0.0)
        self._waiting = False
        return self._request()

    def end(self) -> bool:
        """Take the preview away; returns whether there was a turn to try on."""
        progress, self._turn, self._progress = self._progress, None, None
        if progress is not None:
            progress.preview = None
        return progress is not None

    def _request(self) -> Reselect | None:
        if self._turn is None or self._waiting or self._wanted is None:
            return None
        keep, self._wanted = self._wanted, None
        self._waiting = True
        return Reselect(self._turn, keep)
