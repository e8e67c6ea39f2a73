"""What was chosen for one conversation alone: its prompt, and how it is read and answered."""

from __future__ import annotations

import pytest

from app.chat.conversation import Question, effective_mode, effective_sampling
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation
from app.protocol.events import Finished
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason
from app.store.records import Overrides
from app.store.store import Store, TemporaryStore

MODELS, SAMPLING = ModelPair("target", "revision 1"), Sampling(max_tokens=7)


def opened(store: Store, id: int | None = 1) -> StoredConversation:
    return StoredConversation(store, id, MODELS, SAMPLING)


def told(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages if message.role is Role.SYSTEM]


def test_what_is_chosen_for_a_new_conversation_is_kept_with_its_first_question(
    store: Store,
) -> None:
    new = opened(store, None)
    new.set_overrides(Overrides(system="Be brief.", temperature=0.5, seed=3))
    assert store.conversations() == ()
    command = new.ask(Question("What?")).command
    assert told(command.messages) == ["Be brief."]
    assert command.sampling == Sampling(7, 0.5, 1.0, 3)
    again = opened(store)
    assert again.conversation.overrides == Overrides(system="Be brief.", temperature=0.5, seed=3)
    assert told(again.ask(Question("And?")).command.messages) == ["Be brief."]


def test_it_holds_from_the_next_question_on_and_can_be_taken_back(store: Store) -> None:
    chat = opened(store, None)
    assert told(chat.ask(Question("One?")).command.messages) == []
    chat.set_overrides(Overrides(system="Be brief."))
    assert told(chat.ask(Question("Two?")).command.messages) == ["Be brief."]
    chat.set_overrides(Overrides())
    command = chat.ask(Question("Three?")).command
    assert (told(command.messages), command.sampling) == ([], SAMPLING)
    assert opened(store).conversation.overrides == Overrides()


def test_it_takes_the_place_of_imported_system_messages(store: Store) -> None:
    id = store.create().id
    store.add_message(id, Role.SYSTEM, "Imported.")
    chat = opened(store, id)
    assert told(chat.ask(Question("One?")).command.messages) == ["Imported."]
    chat.set_overrides(Overrides(system="Mine."))
    assert told(chat.ask(Question("Two?")).command.messages) == ["Mine."]
    chat.set_overrides(Overrides(system=""))
    assert told(chat.ask(Question("Three?")).command.messages) == []


def test_what_was_read_is_found_again_though_the_prompt_came_later(store: Store) -> None:
    """The engine counts messages, and a system prompt is one."""
    document = Document("d.txt", "Long text.")
    chat = opened(store, None)
    before = chat.ask(Question("One?", (document,)))
    before.apply(Finished(before.turn.number, FinishReason.STOP, "Yes.", (1,), None))
    before.wait()
    chat.set_overrides(Overrides(system="Be brief."))
    after = chat.ask(Question("Two?"))
    assert chat.conversation.documents_by_message(before.turn) == [(document,)]
    assert chat.conversation.documents_by_message(after.turn) == [(), (document,), (), ()]
    assert len(after.command.messages) == 4
    assert [chat.conversation.question_turns(after.turn)[1], after.turn] == [
        before.turn,
        after.turn,
    ]


def test_a_conversation_that_is_not_kept_has_choices_too(store: Store) -> None:
    with TemporaryStore() as temporary:
        chat = opened(temporary, None)
        chat.set_overrides(Overrides(system="Be brief.", max_tokens=3))
        command = chat.ask(Question("What?")).command
        assert (told(command.messages), command.sampling.max_tokens) == (["Be brief."], 3)


@pytest.mark.parametrize(
    "choices",
    [Overrides(temperature=-2.0), Overrides(top_p=float("nan")), Overrides(max_tokens=0)],
)
def test_what_nothing_can_be_sampled_with_is_left_out(choices: Overrides) -> None:
    assert effective_sampling(choices, SAMPLING) == SAMPLING


def test_how_it_is_read() -> None:
    assert effective_mode(Overrides(), Mode.AUTO, 0.2) == (Mode.AUTO, 0.2)
    assert effective_mode(Overrides(mode="full", keep=0.5), Mode.AUTO, 0.2) == (Mode.FULL, 0.5)
    assert effective_mode(Overrides(mode="odd", keep=7.0), Mode.AUTO, 0.2) == (Mode.AUTO, 0.2)
