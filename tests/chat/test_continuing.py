"""An answer that was cut off, stopped or repeated itself is continued in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from app.chat.conversation import Question, QuestionError, Turn, TurnPart, TurnState
from app.chat.export import remarks
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.protocol.events import Failed, Finished, Token
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Role
from app.protocol.stats import FinishReason, Statistics
from app.store.records import State
from app.store.store import Store, TemporaryStore
from tests.fakes import MEMORY_EXHAUSTED, FakeEngine, Story

MODELS = ModelPair("big", "revision 1", "small", "revision 2")
SAMPLING = Sampling(max_tokens=7, stop_repeats=True)
QUESTION = Question("What of it?", (Document("contract.txt", "The tenant pays.\n" * 200),))
Begin = Callable[[Turn], StoredTurn]


def kept(store: Store, models: ModelPair = MODELS) -> StoredConversation:
    known = store.conversations()
    return StoredConversation(store, known[0].id if known else None, models, SAMPLING)


def play(asked: StoredTurn, story: Story) -> None:
    engine = FakeEngine(story)
    engine.ask(asked.command, asked.apply)
    asked.wait()


def cut_off(store: Store, ended: FinishReason = FinishReason.LENGTH) -> StoredConversation:
    chat = kept(store)
    question = replace(QUESTION, mode=Mode.SPARSE, keep=0.3)
    play(chat.ask(question), Story("The tenant ", ended=ended))
    return chat


@pytest.mark.parametrize(
    "ended",
    [FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.MEMORY, FinishReason.REPEATED],
)
def test_a_continued_answer_is_one_answer_with_figures_of_all_of_it(
    store: Store, ended: FinishReason
) -> None:
    chat = cut_off(store, ended)
    (turn,) = chat.conversation.turns
    assert turn.can_continue
    before, ids = turn.statistics, turn.generated_ids
    assert before is not None
    asked = chat.resume(turn)
    *_, question, answer = asked.command.messages
    assert (question.role, answer.role) == (Role.USER, Role.ASSISTANT)
    assert (answer.text, answer.token_ids) == ("The tenant ", ids)
    assert (asked.command.mode, asked.command.keep_ratio) == (Mode.SPARSE, 0.3)
    assert asked.command.sampling.stop_repeats is (ended is not FinishReason.REPEATED)
    assert asked.turn.number == turn.number
    play(asked, Story("pays."))
    assert (turn.text, turn.state, turn.can_continue) == ("The tenant pays.", TurnState.DONE, False)
    assert turn.statistics == replace(
        before,
        generated_tokens=4,
        decode_seconds=before.decode_seconds,
    )
    (again,) = kept(store).conversation.turns
    assert (again.text, again.ended) == ("The tenant pays.", FinishReason.STOP)
    assert again.statistics is not None
    known = (field.name for field in fields(Statistics))
    assert all(getattr(again.statistics, n) == getattr(turn.statistics, n) for n in known)
    assert again.generated_ids == turn.generated_ids
    assert chat.version_of(turn, TurnPart.ANSWER) == (1, 1), "no version of its own"


@pytest.mark.parametrize(
    "ended", [FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.REPEATED]
)
def test_after_a_new_start_it_can_still_be_continued(store: Store, ended: FinishReason) -> None:
    cut_off(store, ended)
    chat = kept(store)
    (turn,) = chat.conversation.turns
    assert turn.can_continue
    assert (turn.ended is FinishReason.REPEATED) is (ended is FinishReason.REPEATED)
    read_map = store.read_map(turn.number)
    asked = chat.resume(turn)
    assert asked.command.messages[-1].token_ids == turn.generated_ids != ()
    assert asked.command.sampling.stop_repeats is (ended is not FinishReason.REPEATED)
    play(asked, Story("pays."))
    assert store.message(turn.number).text == "The tenant pays."
    assert store.read_map(turn.number) == read_map is not None


def test_what_was_read_is_shown_while_a_stored_answer_is_continued(store: Store) -> None:
    cut_off(store, FinishReason.LENGTH)
    chat = kept(store)
    (turn,) = chat.conversation.turns
    chat.load_progress()
    before = turn.progress.selected
    asked = chat.resume(turn)
    turn.start(0.0)
    play(asked, Story("pays."))
    assert turn.progress.selected == before is not None


def test_what_repeated_itself_is_said_to_have(store: Store) -> None:
    cut_off(store, FinishReason.REPEATED)
    message = store.message(2)
    assert (message.state, message.truncated) == (State.STOPPED, True)
    assert remarks(message).endswith("stopped: the answer repeated itself")


def test_another_model_continues_the_text_and_its_ids_are_whole(store: Store) -> None:
    cut_off(store)
    chat = kept(store, ModelPair("other", "revision 3", None))
    (turn,) = chat.conversation.turns
    asked = chat.resume(turn)
    assert asked.command.messages[-1].token_ids is None
    asked.apply(Token(turn.number, (5, 6), ""))  # the ids of what was there, then what is new
    asked.apply(Token(turn.number, (7,), "pays."))
    asked.apply(Finished(turn.number, FinishReason.STOP, "The tenant pays.", (5, 6, 7), None))
    asked.wait()
    message = store.message(turn.number)
    assert (message.text, message.token_ids) == ("The tenant pays.", (5, 6, 7))


def test_what_fails_leaves_the_answer_as_it_was(store: Store) -> None:
    chat = cut_off(store)
    (turn,) = chat.conversation.turns
    before = turn.statistics
    asked = chat.resume(turn)
    failed = Failed(turn.number, MEMORY_EXHAUSTED)
    asked.apply(failed)
    asked.wait()
    assert (turn.state, turn.ended, turn.text) == (
        TurnState.DONE,
        FinishReason.LENGTH,
        "The tenant ",
    )
    assert turn.in_context
    assert turn.can_continue
    assert turn.failure is failed
    assert turn.statistics == before
    assert turn.progress.finish_reason is FinishReason.LENGTH
    message = store.message(turn.number)
    assert (message.state, message.text, message.truncated) == (State.DONE, "The tenant ", True)


def test_cancelled_before_anything_new_it_is_as_it_was(store: Store) -> None:
    chat = cut_off(store)
    (turn,) = chat.conversation.turns
    ids = turn.generated_ids
    asked = chat.resume(turn)
    asked.apply(Finished(turn.number, FinishReason.CANCELLED, "", (), None))
    asked.wait()
    assert (turn.text, turn.generated_ids) == ("The tenant ", ids)
    assert turn.can_continue
    assert store.message(turn.number).text == "The tenant "
    assert store.message(turn.number).stats is not None


def test_only_the_last_answer_is_continued_and_none_that_is_whole(store: Store) -> None:
    chat = cut_off(store)
    first = chat.conversation.turns[0]
    play(chat.ask(Question("And then?")), Story("No."))
    for turn in chat.conversation.turns:
        with pytest.raises(QuestionError, match="Only the last answer can be continued"):
            chat.resume(turn)
    assert first.state is TurnState.DONE


def test_an_unsaved_answer_is_continued_too() -> None:
    with TemporaryStore() as store:
        continued(StoredConversation(store, None, MODELS, SAMPLING))


def continued(chat: StoredConversation) -> None:
    asked = chat.ask(QUESTION)
    play(asked, Story("The tenant ", ended=FinishReason.LENGTH))
    more = chat.resume(asked.turn)
    assert more.command.conversation == asked.command.conversation
    play(more, Story("pays."))
    assert asked.turn.text == "The tenant pays."


def test_it_is_killed_while_it_is_continued(store: Store, tmp_path: Path) -> None:
    """What was there before and what came until then is on the disk, with its figures."""
    chat = cut_off(store)
    asked = chat.resume(chat.conversation.turns[0])
    asked.apply(Token(asked.turn.number, (9,), "pa"))
    store.close()
    with Store(tmp_path) as again:
        message = again.message(asked.turn.number)
        assert (message.state, message.text) == (State.STOPPED, "The tenant pa")
        assert message.stats is not None
