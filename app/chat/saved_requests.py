"""Saves requests of other programs as conversations, if the user has chosen to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from app.chat.conversation import Question, QuestionError
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.protocol.commands import Ask
from app.protocol.events import Cited, Event, Finished, Selected, Token
from app.protocol.prompt import Message, Role
from app.protocol.stats import FinishReason
from app.store.records import StoreError

if TYPE_CHECKING:
    from app.store.store import Store


class SavedRequests:
    """Requests that continue an earlier one are stored in its conversation."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        """Conversations by the name that requests have for them."""

    def save(self, store: Store, models: ModelPair, ask: Ask, events: Sequence[Event]) -> None:
        """Store a request's messages and the `events` of its answer. Raises QuestionError or
        StoreError; what cannot be asked is not stored."""
        messages = _in_turns(ask.messages)
        if messages and messages[-1].role is Role.ASSISTANT:
            messages.pop()  # the beginning of the answer, which has all of it
        check(ask, messages)
        for event in events:
            if isinstance(event, Finished):
                _check_text(event.text)
        chat, stored = self._continued(store, models, ask, messages)
        if chat is None:
            chat = _new(store, models, ask, messages)
            stored = sum(message.role is Role.SYSTEM for message in messages)
        assert chat.id is not None
        self._ids[ask.conversation or ""] = chat.id
        if stored > len(messages):
            _store_answer(chat.ask_again(ask.mode, ask.keep_ratio), ask, events)
            return
        for message, after in zip(messages[stored:], [*messages[stored + 1 :], None], strict=True):
            if message.role is Role.USER:
                asked = Question(message.text, message.documents, ask.mode, ask.keep_ratio)
                answer = events if after is None else _as_events(after)
                _store_answer(chat.ask(asked), ask, answer)

    def _continued(
        self, store: Store, models: ModelPair, ask: Ask, messages: Sequence[Message]
    ) -> tuple[StoredConversation | None, int]:
        """The conversation that these messages continue, and how many of them it has; one more if
        it has another answer to the last one. None if there is none, or if the user has changed
        it."""
        if (id := self._ids.get(ask.conversation or "")) is None:
            return None, 0
        try:
            stored = [(message.role, message.text) for message in store.branch(id)]
            trashed = any(each.id == id for each in store.conversations(trashed=True))
        except StoreError:
            return None, 0
        given = [(message.role, message.text) for message in messages]
        known = stored[: len(given)]
        if trashed or not stored or given[: len(stored)] != known or len(stored) > len(given) + 1:
            return None, 0
        return StoredConversation(store, id, models, ask.sampling), len(stored)


def check(ask: Ask, messages: Sequence[Message]) -> None:
    """Raise QuestionError unless all of a request can be stored."""
    for message in messages:
        if message.role is Role.USER:
            Question(message.text, message.documents, ask.mode, ask.keep_ratio).check()
        _check_text(message.text)
        for document in message.documents:
            _check_text(document.name + document.text)
    if all(message.role is not Role.USER for message in messages):
        raise QuestionError("There is no question", "ask one")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise QuestionError("A text is not valid Unicode", "send it as UTF-8") from None


def _store_answer(turn: StoredTurn, ask: Ask, events: Iterable[Event]) -> None:
    continues = ask.messages[-1].role is Role.ASSISTANT
    same = len(turn.command.messages) == len(ask.messages) - continues
    for event in events:
        if same or not isinstance(event, Selected | Cited):  # they count the messages as they came
            turn.apply(event)
    turn.wait()


def _new(
    store: Store, models: ModelPair, ask: Ask, messages: Sequence[Message]
) -> StoredConversation:
    """A new conversation, with the system prompts only."""
    id = store.create().id
    for message in messages:
        if message.role is Role.SYSTEM:
            store.add_message(id, Role.SYSTEM, message.text)
    return StoredConversation(store, id, models, ask.sampling)


def _in_turns(messages: Iterable[Message]) -> list[Message]:
    """System prompts first, and of several messages in a row by one side, one."""
    systems: list[Message] = []
    turns: list[Message] = []
    for message in messages:
        if message.role is Role.SYSTEM:
            systems.append(message)
        elif turns and turns[-1].role is message.role:
            text = f"{turns[-1].text}\n\n{message.body}"
            documents = turns[-1].documents + message.documents
            turns[-1] = Message(message.role, text, documents)
        elif turns or message.role is Role.USER:
            turns.append(replace(message, text=message.body, context=""))
    return systems + turns


def _as_events(answer: Message) -> Iterator[Event]:
    """The events of an earlier answer, of which only the text is known."""
    ids = answer.token_ids or ()
    yield Token(0, ids, answer.text)
    yield Finished(0, FinishReason.STOP, answer.text, ids, None)
