"""What other programs ask becomes conversations."""

from __future__ import annotations

import pytest

from app.chat.conversation import QuestionError, TurnPart, TurnState
from app.chat.model_pairs import ModelPair
from app.chat.saved_requests import SavedRequests
from app.chat.stored_conversation import StoredConversation
from app.protocol.commands import Ask
from app.protocol.events import Event, Finished, Selected, Token
from app.protocol.options import DEFAULT_SAMPLING
from app.protocol.prompt import Document, Message, Role, Span, SpanReason, SpanText
from app.protocol.stats import FinishReason
from app.store.store import Store
from tests.tables import table

MODELS = ModelPair("target", "1", None)
SYSTEM = Message(Role.SYSTEM, "Be brief.")
QUESTION = Message(Role.USER, "Who gives notice?", (Document("contract.txt", "The tenant."),))
ANSWER = Message(Role.ASSISTANT, "The tenant.", token_ids=(7, 8))
NEXT = Message(Role.USER, "When?")


def ask(*messages: Message, name: str = "request 1") -> Ask:
    return Ask(messages, conversation=name)


def events(text: str = "The tenant.", ids: tuple[int, ...] = (7, 8)) -> list[Event]:
    spans = (Span(0, 1, SpanReason.IMPORTANT, 1.0),)
    texts = (SpanText(0, 1, 0, 0, 3),)
    return [
        Selected(1, 0.2, 1, 5, spans, texts),
        Token(1, ids, text),
        Finished(1, FinishReason.STOP, text, ids, None),
    ]


def turns(store: Store, index: int = 0) -> list[tuple[str, str]]:
    """Of a conversation, the last used one first."""
    conversation = store.conversations()[index]
    chat = StoredConversation(store, conversation.id, MODELS, DEFAULT_SAMPLING)
    assert all(turn.state is TurnState.DONE for turn in chat.conversation.turns)
    return [(turn.question.text, turn.text) for turn in chat.conversation.turns]


def test_a_request_becomes_a_conversation_and_the_next_one_continues_it(store: Store) -> None:
    requests = SavedRequests()
    requests.save(store, MODELS, ask(SYSTEM, QUESTION), events())
    later = ask(SYSTEM, QUESTION, ANSWER, NEXT)
    requests.save(store, MODELS, later, events("In May.", (9,)))
    assert len(store.conversations()) == 1
    assert turns(store) == [("Who gives notice?", "The tenant."), ("When?", "In May.")]
    (id,) = (each.id for each in store.conversations())
    system, question, answer, *_ = store.branch(id)
    assert (system.role, system.text) == (Role.SYSTEM, "Be brief.")
    assert store.text(question.attachments[0]) == "The tenant."
    assert answer.token_ids == (7, 8)


def test_one_that_comes_with_earlier_turns_is_stored_with_them(store: Store) -> None:
    hello = Message(Role.ASSISTANT, "Hello.")
    more = Message(Role.USER, "One more thing.")
    SavedRequests().save(store, MODELS, ask(hello, QUESTION, ANSWER, more, NEXT), events("Now."))
    assert turns(store) == [
        ("Who gives notice?", "The tenant."),
        ("One more thing.\n\nWhen?", "Now."),
    ]


def test_what_an_editor_added_is_stored_with_the_question(store: Store) -> None:
    requests = SavedRequests()
    rules = Message(Role.USER, "", context="Rules.")
    asked = Message(Role.USER, "Who?", context="Reminder.")
    requests.save(store, MODELS, ask(rules, asked), events())
    requests.save(store, MODELS, ask(rules, asked, ANSWER, NEXT), events("In May."))
    stored = "Rules.\n\nReminder.\n\nWho?"
    assert turns(store) == [(stored, "The tenant."), ("When?", "In May.")]


def test_a_conversation_that_was_changed_or_deleted_is_not_continued(store: Store) -> None:
    requests = SavedRequests()
    requests.save(store, MODELS, ask(QUESTION), events())
    (first,) = store.conversations()
    mine = StoredConversation(store, first.id, MODELS, DEFAULT_SAMPLING)
    mine.delete(mine.conversation.turns[0], TurnPart.ANSWER)
    requests.save(store, MODELS, ask(QUESTION, ANSWER, NEXT), events("In May."))
    second = next(each.id for each in store.conversations() if each.id != first.id)
    assert turns(store)[-1] == ("When?", "In May.")
    store.trash(second)
    requests.save(store, MODELS, ask(QUESTION, ANSWER, NEXT), events("In June."))
    assert {each.id for each in store.conversations()} - {first.id, second}


def test_requests_of_other_names_are_other_conversations(store: Store) -> None:
    requests = SavedRequests()
    for name in ("request 1", "request 2"):
        requests.save(store, MODELS, ask(QUESTION, name=name), events())
    assert len(store.conversations()) == 2


BEGUN = Message(Role.ASSISTANT, "The tenant")


def test_the_beginning_of_an_answer_is_stored_with_all_of_it(store: Store) -> None:
    SavedRequests().save(store, MODELS, ask(QUESTION, BEGUN), events())
    assert turns(store) == [("Who gives notice?", "The tenant.")]


def test_an_answer_that_is_continued_becomes_another_one(store: Store) -> None:
    requests = SavedRequests()
    requests.save(store, MODELS, ask(SYSTEM, QUESTION), events("The tenant", (7,)))
    requests.save(store, MODELS, ask(SYSTEM, QUESTION, BEGUN), events())
    assert len(store.conversations()) == 1
    assert turns(store) == [("Who gives notice?", "The tenant.")]
    later = ask(SYSTEM, QUESTION, ANSWER, NEXT)
    requests.save(store, MODELS, later, events("In May.", (9,)))
    assert len(store.conversations()) == 1


HALF = "\ud800"
WRONG: dict[str, tuple[Message, ...]] = {
    "nothing": (),
    "no question": (SYSTEM,),
    "an empty question": (Message(Role.USER, " "),),
    "an earlier empty question": (Message(Role.USER, ""), ANSWER, NEXT),
    "half a pair": (Message(Role.USER, HALF),),
    "half a pair in an answer": (QUESTION, Message(Role.ASSISTANT, HALF), NEXT),
    "half a pair in a system prompt": (Message(Role.SYSTEM, HALF), QUESTION),
    "half a pair in a document": (Message(Role.USER, "Who?", (Document("a", HALF),)),),
    "half a pair in a name": (Message(Role.USER, "Who?", (Document(HALF, "a"),)),),
}


@table("name", WRONG)
def test_what_cannot_be_stored_leaves_nothing(store: Store, name: str) -> None:
    with pytest.raises(QuestionError):
        SavedRequests().save(store, MODELS, ask(*WRONG[name]), events())
    assert not store.conversations()


def test_an_answer_without_ids_is_in_the_next_prompt_by_its_text(store: Store) -> None:
    from tests.fakes import FakeEngine

    engine, received = FakeEngine(), list[Event]()
    engine.ask(ask(QUESTION), received.append)
    end = received[-1]
    assert isinstance(end, Finished)
    cut = [Token(1, (), "The"), Finished(1, FinishReason.STOP, "The", (), end.statistics)]
    SavedRequests().save(store, MODELS, ask(QUESTION), cut)
    chat = StoredConversation(store, store.conversations()[0].id, MODELS, DEFAULT_SAMPLING)
    assert chat.conversation.turns[0].generated_ids is None
