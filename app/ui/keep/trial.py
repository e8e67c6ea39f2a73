"""Trying another keep on a turn that was scored: what would have been read?"""

from __future__ import annotations

from app.engine.messages import Reselect, Selected
from app.ui.chat.conversation import Turn


class KeepTrial:
    """From opening the setter to closing it. One Reselect is under way at a time; of the keeps
    moved over meanwhile only the last is asked for next, so a held key builds no queue."""

    def __init__(self) -> None:
        self._turn: Turn | None = None
        self._wanted: float | None = None
        self._waiting = False

    def begin(self, turn: Turn | None) -> None:
        """`turn` is the last turn when it has scores and nothing runs, else None: no preview."""
        self._turn = turn
        self._wanted = None
        self._waiting = False

    def move(self, keep: float) -> Reselect | None:
        """The keep was moved; returns what to send, if anything now."""
        self._wanted = keep
        return self._request()

    def answered(self, turn: Turn, selected: Selected) -> Reselect | None:
        """A selection came for a turn that is over. One that comes after `end` shows nothing."""
        if turn is not self._turn:
            turn.progress.preview = None
            return None
        turn.progress.apply(selected, 0.0)
        self._waiting = False
        return self._request()

    def end(self) -> Turn | None:
        """Take the preview away; returns the turn whose panel is to be drawn anew."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.progress.preview = None
        return turn

    def _request(self) -> Reselect | None:
        if self._turn is None or self._waiting or self._wanted is None:
            return None
        keep, self._wanted = self._wanted, None
        self._waiting = True
        return Reselect(self._turn.number, keep)
