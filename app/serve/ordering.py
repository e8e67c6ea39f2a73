"""Puts the messages of a request in the order in which a model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.protocol.prompt import Message, Role


def ordered(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, such that the user's own words are the last ones before each answer: system
    prompts and messages with nothing but context that follow them stand before them. Where there
    are no own words, the last of the others is what is answered."""
    found: list[Message] = []
    run: list[Message] = []
    last = max(
        (i for i, each in enumerate(messages) if each.role is not Role.ASSISTANT), default=-1
    )
    for index, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            found.append(message)
            continue
        if run and _is_own(run[-1]) and not _is_own(message):
            run.insert(-1, message)
        else:
            run.append(message)
        is_last = index == last
        if not is_last and messages[index + 1].role is not Role.ASSISTANT:
            continue
        if run[-1].role is Role.SYSTEM and (found or is_last):
            run[-1] = Message(Role.USER, "", context=run[-1].text.strip())
        if is_last and not _is_own(run[-1]):
            run[-1] = replace(run[-1], text=run[-1].context, context="")
        found += run
        run = []
    return tuple(found)


def _is_own(message: Message) -> bool:
    return message.role is Role.USER and bool(message.text.strip() or message.documents)
