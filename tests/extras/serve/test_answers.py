"""Requests wait their turn, keep no place that they do not need, and run as things are then; some
continue earlier ones."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extras.serve.answers import (
    MAX_CONVERSATIONS,
    Continuations,
    QueueFull,
    Request,
    RequestQueue,
    ServedAnswer,
    StopFinder,
    log,
)
from app.extras.serve.server import ServedPair, Server
from app.protocol.commands import Ask, DropConversation
from app.protocol.events import Failed, Finished, HostsLost, Token
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import FinishReason
from tests.extras.serve.running import LIMIT, Words, chat, client, served, until
from tests.fakes import FakeEngine, Story


@pytest.mark.parametrize("pieces", [["one END two"], ["one E", "N", "D two"], list("one END two")])
def test_the_text_ends_before_it(pieces: list[str]) -> None:
    finder = StopFinder(["END", "never"])
    assert "".join(map(finder.add, pieces)) + finder.rest() == "one "
    assert finder.found == "END"


def test_what_only_begins_like_one_comes_out() -> None:
    finder = StopFinder(["END"])
    assert finder.add("one E") == "one "
    assert finder.add("Nd") == "ENd"
    assert finder.add("E") == ""
    assert finder.rest() == "E"


def test_the_first_of_several_counts() -> None:
    finder = StopFinder(["two", "one"])
    assert finder.add("zero one two") == "zero "
    assert finder.found == "one"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_in_single_letters_as_in_one_piece(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    shown = "".join(map(finder.add, text)) + finder.rest()
    places = [text.find(stop) for stop in stops if stop in text]
    assert text.startswith(shown)
    if not places:
        assert shown == text
    else:
        assert finder.found is not None
        assert len(shown) >= min(places)
        assert text[len(shown) :].startswith(finder.found)


def user(text: str) -> Message:
    return Message(Role.USER, text)


def said(text: str, ids: tuple[int, ...] | None = None) -> Message:
    return Message(Role.ASSISTANT, text, token_ids=ids)


def test_the_next_turn_continues_with_the_ids_of_the_answer() -> None:
    known = Continuations()
    name, messages, _ = known.place((user("one"),))
    known.answered(name, messages, said("two", (1, 2)))
    again, messages, dropped = known.place((user("one"), said("two"), user("three")))
    assert (again, dropped) == (name, None)
    assert messages == (user("one"), said("two", (1, 2)), user("three"))


def test_another_answer_or_another_question_is_another_conversation() -> None:
    known = Continuations()
    name, messages, _ = known.place((user("one"),))
    known.answered(name, messages, said("two", (1, 2)))
    assert known.place((user("one"), said("other"), user("three")))[0] != name
    assert known.place((user("else"),))[0] != name


def test_white_space_around_an_answer_changes_nothing() -> None:
    known = Continuations()
    name, messages, _ = known.place((user("one"),))
    known.answered(name, messages, said(" two\n", (1, 2)))
    again, messages, _ = known.place((user("one"), said("two"), user("three")))
    assert (again, messages[1]) == (name, said(" two\n", (1, 2)))


def test_answers_before_a_changed_one_keep_their_ids() -> None:
    known = Continuations()
    given: tuple[Message, ...] = ()
    for number in range(4):
        given = (*given, user(f"question {number}"))
        name, messages, _ = known.place(given)
        given = (*messages, said(f"answer {number}", (number,)))
        known.answered(name, messages, given[-1])
    sent = [replace(each, token_ids=None) for each in given]
    sent[5] = said("another answer 2")
    branch, messages, _ = known.place((*sent, user("more")))
    assert branch != name
    assert [each.token_ids for each in messages[1::2]] == [(0,), (1,), None, None]
    assert [each.text for each in messages] == [*(each.text for each in sent), "more"]


def test_an_answer_is_continued_exactly_where_the_client_ended_it() -> None:
    known = Continuations()
    name, messages, _ = known.place((user("one"),))
    known.answered(name, messages, said("two ", (1, 2)))
    other, messages, _ = known.place((user("one"), said("two")))
    assert (other != name, messages[-1]) == (True, said("two"))
    assert known.place((user("one"), said("two ")))[1][-1] == said("two ", (1, 2))


def test_the_least_recently_used_is_dropped() -> None:
    known = Continuations()
    names = []
    for number in range(MAX_CONVERSATIONS):
        name, messages, dropped = known.place((user(f"question {number}"),))
        known.answered(name, messages, said("answer", ()))
        names.append(name)
        assert dropped is None
    assert known.place((user("question 0"), said("answer"), user("more")))[0] == names[0]
    assert known.place((user("one more"),))[2] == names[1]


ANSWER = "The tenant pays the rent."


def ask(text: str = "Who?") -> Ask:
    return Ask((user(text),))


async def seen(request: Request) -> Any:
    event = await request.next(LIMIT)
    assert event is not None
    return event


async def test_who_leaves_gives_the_place_back_at_once() -> None:
    engine = FakeEngine(stepping=True)
    queue = RequestQueue(engine, 2)
    queue.start()
    first = queue.enter(ask)
    second, third = queue.enter(ask), queue.enter(ask)
    assert (queue.waiting, queue.is_full) == (3, True)
    with pytest.raises(QueueFull):
        queue.enter(ask)
    second.close()
    third.close()
    assert (queue.waiting, queue.is_full) == (1, False)
    assert engine.cancelled == [2, 3]
    queue.leave(first)
    assert engine.cancelled == [1, 2, 3]
    fourth = queue.enter(ask)
    engine.finish()
    while not isinstance(await seen(fourth), Finished):
        pass
    assert queue.waiting == 0


async def test_stopping_fails_all_requests_and_cancels_what_runs() -> None:
    engine = FakeEngine(stepping=True)
    queue = RequestQueue(engine, 2)
    queue.start()
    running, waiting = queue.enter(ask), queue.enter(ask)
    queue.stop()
    for request in (running, waiting, queue.enter(ask)):
        event = await seen(request)
        assert isinstance(event, Failed)
        assert event.failure.kind is FailureKind.SERVER_STOPPED
    assert engine.cancelled == [1, 2]
    assert len(engine.turns) == 2


async def write(
    answer: ServedAnswer, queue: RequestQueue, known: Continuations, engine: FakeEngine
) -> None:
    async for _ in answer.pieces(queue, known, engine):
        pass


async def test_a_beginning_that_the_client_sent_is_not_counted_as_written() -> None:
    engine, known = FakeEngine(stepping=True), Continuations()
    queue = RequestQueue(engine, 1)
    queue.start()
    begun = Message(Role.ASSISTANT, "The code")
    answer = ServedAnswer(Ask((user("Which?"), begun)))
    running = asyncio.create_task(write(answer, queue, known, engine))
    while not engine.turns:
        await asyncio.sleep(0)
    (turn,) = engine.turns
    asked_for = turn.make_ask()
    turn.listener(Token(1, (1, 2), ""))
    turn.listener(Token(1, (3,), " is 7."))
    turn.listener(Finished(1, FinishReason.STOP, "The code is 7.", (1, 2, 3), None))
    await running
    assert (answer.turn.text, answer.turn.progress.generated_tokens) == (" is 7.", 1)
    again = (user("Which?"), Message(Role.ASSISTANT, "The code is 7."), user("Sure?"))
    name, messages, _ = known.place(again)
    assert (name, messages[1].token_ids) == (asked_for.conversation, (1, 2, 3))


async def test_what_clients_got_is_reported_up_to_the_stop_sequence() -> None:
    engine, known = FakeEngine(Story(answer=ANSWER)), Continuations()
    queue, reported = RequestQueue(engine, 1), list[Any]()
    queue.start()
    answer = ServedAnswer(ask(), ["pays"])
    async for _ in answer.pieces(queue, known, engine, lambda *found: reported.append(found)):
        pass
    ((request, events),) = reported
    token, finished = events[-2:]
    assert request.conversation == "request 1"
    assert (token.text, finished.text) == ("The tenant ", "The tenant ")
    assert (token.ids, finished.finish_reason) == ((), FinishReason.STOP)
    assert answer.turn.statistics is not None


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(Story(answer=ANSWER), stepping=True)


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[tuple[Server, str]]:
    with served(engine) as found:
        yield found


def post(address: str, *texts: str) -> Any:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    with client(address) as http:
        return http.post("/v1/chat/completions", json={"messages": messages}).json()


def test_a_request_that_waited_does_not_use_ids_of_another_pair(
    engine: FakeEngine, server: tuple[Server, str]
) -> None:
    serving, address = server
    threads = [threading.Thread(target=post, args=(address, "one"))]
    threads[0].start()
    until(lambda: engine.turns)
    engine.finish()
    threads[0].join(LIMIT)
    for number, texts in enumerate((("slow",), ("one", ANSWER, "more")), 1):
        threads.append(threading.Thread(target=post, args=(address, *texts)))
        threads[-1].start()
        until(lambda number=number: serving.queue.waiting == number)
    engine.advance()  # the slow one runs
    serving.use_pair(ServedPair("two", Words()))
    engine.finish()
    for thread in threads:
        thread.join(LIMIT)
    slow, last = engine.asks[1:]
    assert [message.token_ids for message in last.messages] == [None, None, None]
    assert last.conversation != slow.conversation
    # What ran when all was forgotten is dropped once it has ended.
    drops = [each.conversation for each in engine.sent(DropConversation)]  # type: ignore[union-attr]
    assert drops.count(slow.conversation) == 2
    assert last.conversation not in drops


def test_thirty_that_wait_at_once_leave_no_cache_that_nobody_knows(
    engine: FakeEngine, server: tuple[Server, str]
) -> None:
    _, address = server
    engine.start_thread(lambda event: 0.0)
    threads = [threading.Thread(target=post, args=(address, f"new {n}")) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    cached: list[str | None] = []
    for command in engine.commands:
        if isinstance(command, Ask):
            cached.append(command.conversation)
        elif isinstance(command, DropConversation):
            cached.remove(command.conversation)
    assert len(cached) == 16


def test_clients_that_have_gone_do_not_count(
    engine: FakeEngine, server: tuple[Server, str]
) -> None:
    _, address = server
    running = threading.Thread(target=post, args=(address, "one"))
    running.start()
    until(lambda: engine.turns)
    engine.advance()
    for number in (1, 2):
        with client(address) as http, pytest.raises(Exception, match="timed out"):
            http.post("/v1/chat/completions", json=chat(f"{number}"), timeout=0.5)
    with client(address) as http:
        until(lambda: http.get("/health").json()["waiting"] == 1)
    engine.finish()
    running.join(LIMIT)
    assert len(engine.asks) == 1


def test_a_lost_machine_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    lost = Failure(FailureKind.MACHINE_LOST, {"machine": "10.0.0.2\n", "error": "gone"})

    async def lose() -> None:
        queue = RequestQueue(engine, 1)
        queue.start()
        engine.say(HostsLost(lost, "big"))
        queue.stop()

    log.addHandler(caplog.handler)
    try:
        asyncio.run(lose())
    finally:
        log.removeHandler(caplog.handler)
    assert caplog.messages[0].startswith("10.0.0.2␊ stopped responding (gone), so big continues")
    assert caplog.records[0].levelno == logging.WARNING
