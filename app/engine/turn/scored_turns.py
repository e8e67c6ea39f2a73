"""What each conversation's last turn has scored, so that another keep can be tried on it, whatever
was asked elsewhere since."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.engine.memory.conversation_cache import ScoredPrompt

MOST_SCORED = 64
"""Conversations: each takes a few bytes a token, and its documents' text."""


class ScoredTurns:
    """By conversation, also of those whose caches were evicted; turns without one replace each
    other."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str | None, ScoredPrompt] = OrderedDict()

    def set(self, conversation: str | None, scored: ScoredPrompt | None) -> None:
        """After a turn; None if it scored nothing."""
        self.drop(conversation)
        if scored is not None:
            self._prompts[conversation] = scored
        while len(self._prompts) > MOST_SCORED:
            self._prompts.popitem(last=False)

    def find(self, turn: int) -> ScoredPrompt | None:
        """Of the last turn with this number."""
        return next((each for each in reversed(self._prompts.values()) if each.turn == turn), None)

    def drop(self, conversation: str | None) -> None:
        self._prompts.pop(conversation, None)

    def clear(self) -> None:
        self._prompts.clear()
