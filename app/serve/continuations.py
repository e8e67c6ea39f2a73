"""Which requests continue an earlier one: they use its cache, and the ids of its answer."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass, replace

from app.protocol.prompt import Message, Role

MOST = 16
"""Conversations whose caches are kept."""


@dataclass(frozen=True, slots=True)
class Known:
    """A conversation, as it was after its last answer."""

    messages: tuple[Message, ...]
    answer: Message


class Continuations:
    """The last conversations, by name."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._numbers = itertools.count(1)

    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    def place(self, messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...], str | None]:
        """The name of the conversation that these messages continue, or a new one; the messages,
        answers with the ids that were generated; and a conversation to drop, if any."""
        best, length = "", 0
        for name, known in self._known.items():
            answered = (*known.messages, known.answer)
            if length < len(answered) <= len(messages) and _same(answered, messages):
                best, length = name, len(answered)
        if not best:
            best = f"request {next(self._numbers)}"
        else:
            messages = (*self._known[best].messages, self._known[best].answer, *messages[length:])
        dropped = None
        if best not in self._known and len(self._known) >= MOST:
            dropped, _ = self._known.popitem(last=False)
        self._known[best] = self._known.get(best, Known(messages, Message(Role.ASSISTANT, "")))
        self._known.move_to_end(best)
        return best, messages, dropped

    def answered(
        self, name: str, messages: tuple[Message, ...], text: str, ids: tuple[int, ...] | None
    ) -> None:
        if name in self._known and text:
            self._known[name] = Known(messages, Message(Role.ASSISTANT, text, token_ids=ids))


def _same(known: tuple[Message, ...], messages: tuple[Message, ...]) -> bool:
    """Whether these begin with those, whatever the ids."""
    return all(
        replace(one, token_ids=None) == replace(other, token_ids=None)
        for one, other in zip(known, messages, strict=False)
    )
