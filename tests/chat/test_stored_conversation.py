"""A turn of a stored conversation, from the question's commit to the run's record."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from app.chat.conversation import Question, QuestionError, TurnState
from app.chat.model_pairs import ModelPair
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.protocol.commands import Ask
from app.protocol.events import Failed, Finished, ImportanceMap, Selected, Token
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Message, Role, Span, SpanReason, SpanText
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import FinishReason, Phase, Statistics
from app.store.records import State, StoreError
from app.store.store import Store
from tests.fakes import FakeEngine, Story, fell_back
from tests.patience import PATIENCE

MODELS = ModelPair("big", "revision 1", "small", "revision 2")
SAMPLING = Sampling(max_tokens=7, seed=3)
CONTRACT, LETTER = Document("contract.txt", "The tenant pays.\r\nÄ\n"), Document("letter", "Dear")


def ask(store: Store, text: str, *documents: Document, conversation: int | None = 1) -> StoredTurn:
    known = {each.id for each in store.conversations()}
    question = Question(text, documents, Mode.SPARSE, 0.3)
    id = conversation if conversation in known else None
    return StoredConversation(store, id, MODELS, SAMPLING).ask(question)


def ask_again(store: Store, models: ModelPair = MODELS) -> StoredTurn:
    return opened(store, models).ask_again(mode=Mode.FULL, keep=0.5)


def opened(store: Store, models: ModelPair = MODELS) -> StoredConversation:
    return StoredConversation(store, 1, models, SAMPLING)


def play(turn: StoredTurn, story: Story | None = None) -> Statistics | None:
    """Let the scripted engine answer."""
    engine = FakeEngine(story or Story(), stepping=True)
    engine.ask(turn.command, turn.apply)
    last = engine.advance_to(lambda event: isinstance(event, Finished | Failed))
    turn.wait()
    return last.statistics if isinstance(last, Finished) else None


def answered(store: Store, text: str, *documents: Document, answer: str = "Yes.") -> StoredTurn:
    turn = ask(store, text, *documents)
    play(turn, Story(answer=answer))
    return turn


def seen(turn: StoredTurn) -> list[str]:
    """What the engine sees before the question."""
    return [message.text for message in turn.command.messages[:-1]]


def test_the_question_is_kept_before_anything_runs(store: Store) -> None:
    turn = ask(store, "Who pays?", CONTRACT)
    question, reply = store.branch(turn.conversation)
    assert (question.text, question.state) == ("Who pays?", State.DONE)
    assert [store.text(each) for each in question.attachments] == [CONTRACT.text]
    assert (reply.text, reply.state) == ("", State.PARTIAL)
    assert store.conversation(turn.conversation).title == "Who pays?"


def test_the_second_ask_is_the_first_with_its_answer(store: Store) -> None:
    first = answered(store, "Who pays?", CONTRACT, LETTER, answer="The tenant.")
    second = ask(store, "When?")
    ids = tuple(1000 + index for index in range(3))
    assert second.command == Ask(
        messages=(
            Message(Role.USER, "Who pays?", (CONTRACT, LETTER)),
            Message(Role.ASSISTANT, "The tenant.", token_ids=ids),
            Message(Role.USER, "When?"),
        ),
        mode=Mode.SPARSE,
        keep_ratio=0.3,
        sampling=SAMPLING,
        conversation="1",
    )
    assert first.command.messages == second.command.messages[:1]
    assert first.turn.number != second.turn.number


def test_turns_of_several_conversations_have_numbers_of_their_own(store: Store) -> None:
    turns = [ask(store, "One?", conversation=None) for _ in range(2)]
    assert len({turn.turn.number for turn in turns}) == 2
    assert [turn.command.conversation for turn in turns] == ["1", "2"]


def test_what_was_generated_is_kept_exactly(store: Store) -> None:
    turn = ask(store, "Who?")
    ids, number = (5, 2**31, 70_000, 0), turn.turn.number
    turn.apply(Token(number, ids[:2], "The té"))
    turn.apply(Token(number, ids[2:], "\r\nnant", thinking="hm"))
    turn.apply(Finished(number, FinishReason.STOP, "The té\r\nnant", ids, None))
    turn.wait()
    reply = store.branch(1)[-1]
    assert (reply.text, reply.token_ids, reply.state) == ("The té\r\nnant", ids, State.DONE)


def test_the_statistics_are_stored(store: Store) -> None:
    turn = ask(store, "Who?", CONTRACT)
    statistics = play(turn)
    stats = store.branch(1)[-1].stats
    assert statistics is not None
    assert stats is not None
    for field in fields(Statistics):
        assert getattr(stats, field.name) == getattr(statistics, field.name)
    assert (stats.target, stats.target_revision) == ("big", "revision 1")
    assert (stats.draft, stats.draft_revision) == ("small", "revision 2")


def test_the_read_map_names_messages_by_their_ids(store: Store) -> None:
    failed = ask(store, "Too long?", LETTER)
    play(failed, Story(fails_in=Phase.PREFILL))
    answered(store, "Who pays?", CONTRACT)
    turn = ask(store, "And here?", LETTER)
    engine = FakeEngine()
    events: list[object] = []
    engine.ask(turn.command, events.append)
    number = turn.turn.number
    spans = (Span(0, 4, SpanReason.PINNED), Span(8, 9, SpanReason.IMPORTANT, 2.5))
    texts = (SpanText(0, 0, 0, 1, 5), SpanText(1, 2, 0, 0, 3))
    turn.apply(ImportanceMap(number, (0.0, 0.5, 1.0), 4, 4))
    turn.apply(Selected(number, 0.3, 5, 9, spans, texts))
    turn.apply(next(event for event in events if isinstance(event, Finished)))
    turn.wait()
    read_map = store.read_map(number)
    assert read_map is not None
    assert read_map.importance == bytes([0, 128, 255])
    assert [(s.start, s.end, s.reason, s.score) for s in read_map.spans] == [
        (0, 4, "pinned", None),
        (8, 9, "important", 2.5),
    ]
    read = {text.message: (text.start, text.end) for text in read_map.texts}
    questions = {message.text: message.id for message in store.branch(1)}
    assert read == {questions["Who pays?"]: (1, 5), questions["And here?"]: (0, 3)}


def test_after_a_fallback_the_map_says_everything_was_read(store: Store) -> None:
    play(ask(store, "Who?", CONTRACT), Story(falls_back="The draft broke."))
    reply = store.branch(1)[-1]
    read_map = store.read_map(reply.id)
    assert reply.stats is not None
    assert (reply.stats.reading, reply.stats.fallback) == ("dense", fell_back("The draft broke."))
    assert read_map is not None
    assert read_map.spans == ()


def test_a_stopped_answer_keeps_what_was_written_and_goes_on_from_it(store: Store) -> None:
    play(ask(store, "Who?"), Story(answer="Half an ans", ended=FinishReason.CANCELLED))
    reply = store.branch(1)[-1]
    assert (reply.state, reply.text) == (State.STOPPED, "Half an ans")
    assert reply.stats is not None
    assert seen(ask(store, "Go on?")) == ["Who?", "Half an ans"]


GONE = Failure(FailureKind.WORKER_GONE, {"machine": "studio: 2", "error": "no route"})


def test_a_failed_turn_is_kept_with_its_cause_and_left_out(store: Store) -> None:
    play(
        ask(store, "Too long?", CONTRACT),
        Story(fails_in=Phase.PREFILL, failure=GONE),
    )
    reply = store.branch(1)[-1]
    assert (reply.state, reply.failure) == (State.FAILED, GONE)
    assert seen(ask(store, "Short?")) == []


def _crashed(store: Store, tmp_path: Path, turn: StoredTurn) -> Path:
    """The store's folder as a crash leaves it after half an answer."""
    turn.apply(Token(turn.turn.number, (1, 2), "Half"))
    deadline = time.monotonic() + 30 * PATIENCE
    while store.branch(1)[-1].text != "Half":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    folder = tmp_path.with_name(tmp_path.name + "-crashed")
    shutil.copytree(tmp_path, folder)
    return folder


def test_after_a_crash_half_an_answer_is_there_and_nothing_is_asked(
    store: Store, tmp_path: Path
) -> None:
    folder = _crashed(store, tmp_path, ask(store, "Who?", CONTRACT))
    with Store(folder) as restarted:
        assert any("cut off" in notice for notice in restarted.notices)
        reply = restarted.branch(1)[-1]
        assert (reply.state, reply.text, reply.stats) == (State.STOPPED, "Half", None)
        half = ask(restarted, "Go on?").command.messages[1]
        assert half == Message(Role.ASSISTANT, "Half"), "which model wrote it is not known"


def test_a_question_that_never_got_its_reply_is_left_out_and_can_be_asked_again(
    store: Store,
) -> None:
    answered(store, "One?")
    store.add_message(1, Role.USER, "Lost?")
    assert seen(ask_again(store)) == ["One?", "Yes."]
    store.add_message(1, Role.USER, "Lost too?")
    assert seen(ask(store, "Next?")) == ["One?", "Yes."]


def test_another_target_gets_the_text_and_not_the_ids(store: Store) -> None:
    answered(store, "One?")
    other = replace(MODELS, target_revision="revision 9")
    turn = opened(store, other).ask(Question("Two?"))
    assert turn.command.messages[1] == Message(Role.ASSISTANT, "Yes.")


@pytest.mark.parametrize(
    "story", [Story(ended=FinishReason.CANCELLED), Story(fails_in=Phase.PREFILL)]
)
def test_asking_again_in_vain_leaves_the_last_answer(store: Store, story: Story) -> None:
    answered(store, "One?")
    play(ask_again(store), story)
    assert [message.text for message in store.branch(1)] == ["One?", "Yes."]
    assert seen(ask(store, "Two?")) == ["One?", "Yes."]


def test_asking_a_failed_question_again_stays_with_what_came_of_it(store: Store) -> None:
    play(ask(store, "One?"), Story(fails_in=Phase.PREFILL))
    play(ask_again(store), Story(answer="Half", ended=FinishReason.CANCELLED))
    assert seen(ask(store, "Two?")) == ["One?", "Half"]


def test_there_must_be_a_question_to_ask_again(store: Store) -> None:
    store.create()
    with pytest.raises(QuestionError, match="no question"):
        ask_again(store)


@pytest.mark.parametrize(
    "question",
    [
        *(Question(" \n"), Question("\udc80"), Question("?", keep=2)),
        Question("?", (Document("d", "\udc80"),)),
    ],
)
def test_what_cannot_be_asked_is_not_kept(store: Store, question: Question) -> None:
    with pytest.raises(QuestionError):
        StoredConversation(store, None, MODELS, SAMPLING).ask(question)
    assert store.conversations() == ()


def test_a_conversation_is_opened_as_turns_and_gone_on_with(store: Store) -> None:
    answered(store, "One?", CONTRACT)
    play(ask(store, "Bad?"), Story(fails_in=Phase.PREFILL, failure=GONE))
    store.add_message(1, Role.USER, "Lost?")
    chat = opened(store)
    turns = chat.conversation.turns
    assert [(t.question.text, t.text, t.state) for t in turns] == [
        ("One?", "Yes.", TurnState.DONE),
        ("Bad?", "", TurnState.FAILED),
        ("Lost?", "", TurnState.FAILED),
    ]
    assert turns[0].question.documents == (CONTRACT,)
    assert turns[1].failure == Failed(turns[1].number, GONE)
    branch = store.branch(1)
    assert [chat.question_id(turn) for turn in turns] == [m.id for m in branch if m.role == "user"]
    turn = chat.ask(Question("Two?"))
    play(turn)
    assert chat.conversation.last is turn.turn
    assert seen(turn) == ["One?", "Yes."]
    again = chat.ask_again(Mode.FULL, 0.5)
    play(again, Story(answer="Better."))
    assert seen(chat.ask(Question("Three?"))) == ["One?", "Yes.", "Two?", "Better."]
    assert seen(ask(store, "Four?")) == ["One?", "Yes.", "Two?", "Better."]


def test_it_can_be_shown_without_a_lost_document_but_not_gone_on_with(
    store: Store, tmp_path: Path
) -> None:
    answered(store, "Who pays?", CONTRACT)
    for file in (tmp_path / "attachments").rglob("*.gz"):
        file.unlink()
    chat = opened(store)
    assert [turn.text for turn in chat.conversation.turns] == ["Yes."]
    with pytest.raises(StoreError, match="attach it again"):
        chat.ask_again(Mode.FULL, 0.5)
    with pytest.raises(StoreError, match="cannot be read"):
        chat.ask(Question("When?"))
    assert len(store.branch(1)) == 2
    turn = chat.ask(Question("When?", (CONTRACT,)))
    assert turn.command.messages[0].documents == (CONTRACT,)


def test_thinking_is_kept_beside_the_answer(store: Store) -> None:
    turn = ask(store, "Who?")
    number = turn.turn.number
    turn.apply(Token(number, (1, 2), "", thinking="The tenant"))
    turn.apply(Token(number, (3,), "He.", thinking=", surely."))
    turn.apply(Finished(number, FinishReason.STOP, "He.", (1, 2, 3), None))
    turn.wait()
    reply = store.branch(1)[-1]
    assert (reply.text, reply.thinking) == ("He.", "The tenant, surely.")
    assert ask(store, "Why?").command.messages[1].thinking == "The tenant, surely."
    assert store.search("surely") == ()


def test_system_messages_are_sent_first(store: Store) -> None:
    store.create()
    store.add_message(1, Role.SYSTEM, "Be brief.")
    answered(store, "One?", CONTRACT)
    store.add_message(1, Role.SYSTEM, "Be kind.")
    turn = ask(store, "Two?")
    assert turn.command.messages[0] == Message(Role.SYSTEM, "Be brief.\n\nBe kind.")
    assert seen(turn)[1:] == ["One?", "Yes."]
    assert turn._message_ids[1] == store.branch(1)[1].id, "the map finds its documents"


def test_applying_never_waits_for_the_disk(store: Store) -> None:
    turn = ask(store, "Who?")
    held, release = threading.Event(), threading.Event()
    assert store._writer is not None
    store._writer.submit(lambda _: held.set() or release.wait(30))
    assert held.wait(30)
    turn.apply(Token(turn.turn.number, (1,), "He."))
    turn.apply(Finished(turn.turn.number, FinishReason.STOP, "He.", (1,), None))
    assert turn.saved is not None
    assert not turn.saved.done()
    release.set()
    turn.wait()
    assert store.branch(1)[-1].state is State.DONE


def test_an_end_that_cannot_be_kept_is_told_and_kept_later(store: Store, tmp_path: Path) -> None:
    turns = [ask(store, f"{n}?", conversation=None) for n in range(2)]
    assert store._writer is not None
    store._writer._connection.execute("PRAGMA query_only = 1")
    for turn in turns:
        number = turn.turn.number
        turn.apply(Token(number, (1,), "He.", "Hm."))
        turn.apply(Finished(number, FinishReason.STOP, "He.", (1,), None))
        with pytest.raises(StoreError, match="only be read"):
            turn.wait()
    store._writer._connection.execute("PRAGMA query_only = 0")
    turns[0].save()
    turns[0].wait()
    store.close()  # ends the other one
    with Store(tmp_path) as restarted:
        assert restarted.notices == []
        replies = [restarted.branch(turn.conversation)[-1] for turn in turns]
    assert [(m.text, m.thinking, m.state) for m in replies] == [("He.", "Hm.", State.DONE)] * 2
