"""Which requests continue an earlier one: they use its cache, and the ids of its answer."""

from __future__ import annotations

import itertools
import threading
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
    """The last conversations, by name. No name is used twice. Safe on several threads: another pair
    is loaded on one of its own."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def clear(self) -> tuple[str, ...]:
        """Forget all; returns their names."""
        with self._lock:
            known, self._known = self._known, OrderedDict()
        return tuple(known)

    def place(self, messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...], str | None]:
        """The name of the conversation that these messages continue, or a new one; the messages,
        answers with the ids that were generated; and a conversation to drop, if any."""
        with self._lock:
            return self._place(messages)

    def _place(self, messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...], str | None]:
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

    def answered(self, name: str, messages: tuple[Message, ...], answer: Message) -> None:
        """`answer` is the whole one, also where the last message was its beginning."""
        if messages[-1].role is Role.ASSISTANT:
            messages = messages[:-1]
        with self._lock:
            if name in self._known and answer.text:
                self._known[name] = Known(messages, answer)


def _same(known: tuple[Message, ...], messages: tuple[Message, ...]) -> bool:
    """Whether these begin with those, whatever the ids, what was retrieved, and what was thought,
    which few clients send back."""
    return all(
        replace(one, token_ids=None, retrieved=None, thinking="")
        == replace(other, token_ids=None, thinking="")
        for one, other in zip(known, messages, strict=False)
    )
