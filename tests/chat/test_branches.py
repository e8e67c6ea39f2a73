"""Editing, asking again, switching branches, deleting, in saved and in unsaved conversations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.conversation import Question, Turn, TurnPart, TurnState
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.protocol.events import Failed, Finished
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document
from app.protocol.stats import FinishReason
from app.store.records import FIRST_UNSAVED_ID
from app.store.store import Store, TemporaryStore
from tests.fakes import MEMORY_EXHAUSTED, FakeEngine, Story

MODELS = ModelPair("big", "revision 1")
DOCUMENT = Document("contract.txt", "The tenant pays.")


@pytest.fixture(params=["saved", "unsaved"])
def chat(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredConversation]:
    saved = request.param == "saved"
    with Store(tmp_path) if saved else TemporaryStore(FIRST_UNSAVED_ID) as store:
        yield StoredConversation(store, None, MODELS, Sampling())


def play(asked: StoredTurn, answer: str, ended: FinishReason = FinishReason.STOP) -> Turn:
    engine = FakeEngine(Story(answer=answer, ended=ended), stepping=True)
    engine.ask(asked.command, asked.apply)
    engine.advance_to(lambda event: isinstance(event, Finished | Failed))
    asked.wait()
    return asked.turn


def three(chat: StoredConversation) -> list[Turn]:
    return [
        play(chat.ask(Question("One?", (DOCUMENT,))), "a"),
        play(chat.ask(Question("Two?")), "b"),
        play(chat.ask(Question("Three?")), "c"),
    ]


def shown(chat: StoredConversation) -> list[str]:
    return [f"{turn.question.text} {turn.text}" for turn in chat.conversation.branch]


def seen(asked: StoredTurn) -> list[str]:
    return [message.text for message in asked.command.messages]


ALL = ["One? a", "Two? b", "Three? c"]


def test_an_edited_question_forks_and_the_old_branch_is_kept(chat: StoredConversation) -> None:
    _, second, _ = three(chat)
    asked = chat.ask(Question("Second?"), second)
    assert seen(asked) == ["One?", "a", "Second?"]
    assert shown(chat) == ["One? a", "Second? "]
    edited = play(asked, "d")
    assert shown(chat) == ["One? a", "Second? d"]
    assert chat.version_of(edited, TurnPart.QUESTION) == (2, 2)
    assert chat.version_of(edited, TurnPart.ANSWER) == (1, 1)
    assert seen(chat.ask(Question("More?"))) == ["One?", "a", "Second?", "d", "More?"]
    chat.step_version(edited, TurnPart.QUESTION, -1)
    assert shown(chat) == ALL
    assert seen(chat.ask(Question("Four?")))[-3:] == ["Three?", "c", "Four?"]


def test_the_first_question_can_be_edited_with_its_documents(chat: StoredConversation) -> None:
    first, _, _ = three(chat)
    asked = chat.ask(Question("Uno?", (DOCUMENT, DOCUMENT)), first)
    assert asked.command.messages[0].documents == (DOCUMENT, DOCUMENT)
    play(asked, "z")
    assert shown(chat) == ["Uno? z"]


def test_an_answer_in_the_middle_is_answered_again(chat: StoredConversation) -> None:
    first, second, _ = three(chat)
    asked = chat.ask_again(Mode.FULL, 0.5, second)
    assert seen(asked) == ["One?", "a", "Two?"]
    assert (asked.command.mode, asked.command.keep_ratio) == (Mode.FULL, 0.5)
    assert shown(chat) == ["One? a", "Two? "]
    again = play(asked, "better")
    assert shown(chat) == ["One? a", "Two? better"]
    assert chat.version_of(again, TurnPart.ANSWER) == (2, 2)
    assert chat.version_of(again, TurnPart.QUESTION) == (1, 1)
    assert chat.version_of(first, TurnPart.ANSWER) == (1, 1)
    chat.step_version(again, TurnPart.ANSWER, -1)
    assert shown(chat) == ALL
    chat.step_version(second, TurnPart.ANSWER, -1)
    assert shown(chat) == ALL
    chat.step_version(second, TurnPart.ANSWER, 1)
    assert shown(chat) == ["One? a", "Two? better"]


@pytest.mark.parametrize("fails", [True, False])
def test_in_vain_the_old_branch_stays_and_goes_on(chat: StoredConversation, fails: bool) -> None:
    _, second, _ = three(chat)
    asked = chat.ask_again(Mode.FULL, 0.5, second)
    if fails:
        asked.apply(Failed(asked.turn.number, MEMORY_EXHAUSTED))
        asked.wait()
    else:
        play(asked, "half", FinishReason.CANCELLED)
    assert shown(chat)[:3] == ALL
    assert len(shown(chat)) == 4, "what came of it is still to be seen"
    after = chat.ask(Question("Four?"))
    assert seen(after)[-3:] == ["Three?", "c", "Four?"]
    play(after, "d")
    chat.step_version(second, TurnPart.ANSWER, 1)
    chat.step_version(asked.turn, TurnPart.ANSWER, -1)
    assert shown(chat) == [*ALL, "Four? d"]


def test_where_nothing_was_answered_there_is_nothing_to_come_back_to(
    chat: StoredConversation,
) -> None:
    play(chat.ask(Question("One?", (DOCUMENT,))), "", FinishReason.CANCELLED)
    again = play(chat.ask_again(Mode.FULL, 0.5), "half", FinishReason.CANCELLED)
    assert chat.conversation.branch == [again]
    assert shown(chat) == ["One? half"]
    assert chat.version_of(again, TurnPart.ANSWER) == (2, 2)
    assert seen(chat.ask(Question("Two?"))) == ["One?", "half", "Two?"]


def test_editing_what_was_asked_again_in_vain_forks_at_the_same_place(
    chat: StoredConversation,
) -> None:
    _, second, _ = three(chat)
    stopped = play(chat.ask_again(Mode.FULL, 0.5, second), "half", FinishReason.CANCELLED)
    asked = chat.ask(Question("Second?"), stopped)
    assert seen(asked) == ["One?", "a", "Second?"]
    play(asked, "d")
    assert shown(chat) == ["One? a", "Second? d"]


def test_a_third_answer_still_takes_the_place_of_the_first(chat: StoredConversation) -> None:
    _, second, _ = three(chat)
    stopped = play(chat.ask_again(Mode.FULL, 0.5, second), "", FinishReason.CANCELLED)
    play(chat.ask_again(Mode.FULL, 0.5, stopped), "best")
    assert shown(chat) == ["One? a", "Two? best"]
    assert seen(chat.ask(Question("Three?"))) == ["One?", "a", "Two?", "best", "Three?"]


def test_a_failed_question_is_no_version_of_the_next_one(chat: StoredConversation) -> None:
    asked = chat.ask(Question("Too long?"))
    asked.apply(Failed(asked.turn.number, MEMORY_EXHAUSTED))
    after = play(chat.ask(Question("Short?")), "a")
    assert chat.version_of(after, TurnPart.QUESTION) == (1, 1)
    assert seen(chat.ask(Question("More?"))) == ["Short?", "a", "More?"]
    assert after.state is TurnState.DONE


def test_a_question_goes_with_its_answer_and_all_that_follows_and_comes_back(
    chat: StoredConversation,
) -> None:
    _, second, _ = three(chat)
    removed = chat.delete(second, TurnPart.QUESTION)
    assert shown(chat) == ["One? a"]
    assert len(removed.messages) == 4
    asked = chat.ask(Question("Other?"))
    assert seen(asked) == ["One?", "a", "Other?"]
    play(asked, "x")
    chat.restore(removed)
    assert shown(chat) == ALL
    assert chat.version_of(second, TurnPart.QUESTION) == (1, 2)


def test_an_only_answer_goes_with_its_question_and_another_one_alone(
    chat: StoredConversation,
) -> None:
    _, _, third = three(chat)
    removed = chat.delete(third, TurnPart.ANSWER)
    assert shown(chat) == ALL[:2]
    chat.restore(removed)
    again = play(chat.ask_again(Mode.FULL, 0.5, third), "better")
    removed = chat.delete(again, TurnPart.ANSWER)
    assert shown(chat) == ALL
    assert chat.version_of(third, TurnPart.ANSWER) == (1, 1)
    chat.restore(removed)
    assert shown(chat) == [*ALL[:2], "Three? better"]


def test_all_can_be_deleted(chat: StoredConversation) -> None:
    first, _, _ = three(chat)
    removed = chat.delete(first, TurnPart.QUESTION)
    assert shown(chat) == []
    asked = chat.ask(Question("New?"))
    assert seen(asked) == ["New?"]
    play(asked, "n")
    chat.restore(removed)
    assert shown(chat) == ALL


def test_what_was_pinned_is_read_again_at_the_next_start(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        kept = StoredConversation(store, None, MODELS, Sampling())
        play(kept.ask(Question("One?", (DOCUMENT,))), "a")
        second = play(kept.ask(Question("Two?")), "b")
        asked = kept.ask_again(Mode.SPARSE, 0.1, second, {(0, 0): ((4, 10),)})
        assert asked.command.messages[0].documents[0].pinned == ((4, 10),)
        play(asked, "c")
    with Store(tmp_path) as store:
        opened = StoredConversation(store, 1, MODELS, Sampling())
        assert opened.conversation.turns[0].question.documents[0].pinned == ((4, 10),)


def test_an_answer_that_was_cut_is_so_at_the_next_start(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        play(
            StoredConversation(store, None, MODELS, Sampling()).ask(Question("?")),
            "a",
            FinishReason.LENGTH,
        )
        (turn,) = StoredConversation(store, 1, MODELS, Sampling()).conversation.turns
        assert turn.ended is FinishReason.LENGTH


def test_a_message_is_found_and_gone_to_on_its_branch(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        kept = StoredConversation(store, None, MODELS, Sampling())
        _, second, _ = three(kept)
        edited = play(kept.ask(Question("Second?"), second), "d")
        assert kept.find(edited.number) == (edited, TurnPart.ANSWER)
        assert kept.find(second.number) is None
        kept.show_message(second.number)
        assert kept.find(second.number) == (second, TurnPart.ANSWER)
        assert kept.find(kept.question_id(second)) == (second, TurnPart.QUESTION)
        assert shown(kept) == ALL
