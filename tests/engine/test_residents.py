"""Between turns: healing, snapshots, and who has to leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.healing import Healing, is_sick
from app.engine.loader import LoadedModel
from app.engine.memory import CacheSize
from app.engine.messages import (
    Ask,
    Document,
    Ended,
    Finished,
    Forget,
    Heal,
    Healed,
    Message,
    Mode,
    ModelInfo,
    Phase,
    PhaseProgress,
    Restored,
    Role,
    Sampling,
    Saved,
    Selected,
    Upkeep,
)
from app.engine.prefill import StepSize, feed
from tests.engine.driver import TEXT, Driver
from tests.engine.oracle import difference
from tests.engine.test_turns import ANSWER, FIRST, Chat, conversation, dense_logits
from tests.tiny import ORACLE, build

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", ORACLE)
def test_healing_equals_a_dense_pass(name: str) -> None:
    model = build(name)
    first, answer, second = conversation()
    chat = Chat(model)
    chat.read(first, FIRST)
    chat.write(first, answer)
    assert is_sick(chat.remembered)
    info = ModelInfo("tiny", "", 0, 0, 0)
    healing = Healing(
        LoadedModel(model, None, info, CacheSize(0, 0), StepSize(16)), chat.remembered
    )
    steps = [healing.done]
    while not healing.step():
        steps.append(healing.done)
    assert len(steps) > 5
    assert steps == sorted(steps)
    held = chat.remembered.target
    assert not is_sick(chat.remembered)
    assert held.read.all()
    rest = second.ids[len(first.ids) + ANSWER :]
    logits = feed(model, held.cache, rest)[0, -1]
    assert difference(logits, dense_logits(model, second.ids)) < TOLERANCE


def ask(turn: int, *texts: str, mode: Mode = Mode.SPARSE, name: str | None = "c", **kw: Any) -> Ask:
    """The last of `texts` after the earlier questions and answers, about the document."""
    roles = (Role.USER, Role.ASSISTANT)
    documents = (Document("gates.txt", TEXT),)
    messages = tuple(
        Message(roles[i % 2], text, documents if i == 0 else ()) for i, text in enumerate(texts)
    )
    sampling = Sampling(max_tokens=8)
    return Ask(turn, messages, mode, kw.pop("keep", 0.2), sampling, conversation=name, **kw)


def reply(driver: Driver, question: Ask) -> tuple[Message, Finished]:
    finished = driver.answer(question)
    return Message(Role.ASSISTANT, finished.text, token_ids=finished.generated_ids), finished


def second(question: Ask, answer: Message, turn: int, text: str) -> Ask:
    messages = (*question.messages, answer, Message(Role.USER, text))
    return replace(question, turn=turn, messages=messages)


def test_a_second_turn_reads_what_is_new(loaded: Driver) -> None:
    question = ask(1, "What is the code of gate 7?")
    answer, first = reply(loaded, question)
    _, later = reply(loaded, second(question, answer, 2, "And that of gate 40?"))
    assert first.statistics
    assert later.statistics
    assert first.statistics.reused_tokens == 0
    assert later.statistics.reused_tokens > 0.9 * first.statistics.kept_tokens
    new = later.statistics.kept_tokens - later.statistics.reused_tokens
    assert new - later.statistics.recalled_tokens < 60
    assert loaded.of(Selected)[-1].kept_tokens == later.statistics.kept_tokens


def test_a_turn_without_a_conversation_leaves_nothing(loaded: Driver) -> None:
    question = ask(1, "What is the code of gate 7?", name=None)
    answer, _ = reply(loaded, question)
    _, later = reply(loaded, second(question, answer, 2, "And that of gate 40?"))
    assert later.statistics
    assert later.statistics.reused_tokens == 0


def test_healing_runs_while_nothing_is_asked(loaded: Driver) -> None:
    loaded.engine.send(Upkeep(heal=Heal.ALWAYS))
    question = ask(1, "What is the code of gate 7?")
    answer, _ = reply(loaded, question)
    while True:
        event = loaded.until(Healed)
        assert isinstance(event, Healed)
        if event.done == event.total:
            break
    full = replace(second(question, answer, 2, "And that of gate 40?"), mode=Mode.FULL)
    _, later = reply(loaded, full)
    assert later.statistics
    assert later.statistics.reused_tokens >= event.total
    fresh = replace(full, turn=3, conversation=None)
    assert loaded.answer(fresh).generated_ids == later.generated_ids


def test_a_snapshot_outlives_the_engine(folders: dict[str, Path], tmp_path: Path) -> None:
    driver = Driver()
    upkeep = Upkeep(Heal.NEVER, snapshots=str(tmp_path / "snapshots"))
    question = ask(1, "What is the code of gate 7?")
    driver.engine.send(upkeep)
    driver.load(folders["target"], folders["draft"])
    answer, _ = reply(driver, question)
    expected = driver.answer(second(question, answer, 2, "And that of gate 40?"))
    driver.close()
    again = Driver()
    try:
        again.engine.send(upkeep)
        again.load(folders["target"], folders["draft"])
        third = second(question, answer, 2, "And that of gate 40?")
        finished = again.answer(third)
        assert [e.tokens > 0 for e in again.of(Restored)] == [True]
        assert finished.statistics
        assert expected.statistics
        assert finished.statistics.reused_tokens > 0
        assert finished.generated_ids == expected.generated_ids
        again.engine.send(Forget("c"))
    finally:
        again.close()
    assert not any((tmp_path / "snapshots").iterdir())


def test_loading_and_saving_a_snapshot_can_be_seen(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    upkeep = Upkeep(Heal.NEVER, snapshots=str(tmp_path / "snapshots"))
    question = ask(1, "What is the code of gate 7?")

    def opened() -> Driver:
        driver = Driver()
        driver.engine.send(upkeep)
        driver.load(folders["target"], folders["draft"])
        return driver

    driver = opened()
    answer, first = reply(driver, question)
    driver.events.clear()
    while driver.until(Saved) and (saved := driver.of(Saved))[-1].done < saved[-1].total:
        pass
    assert [e.done for e in saved] == list(range(1, saved[-1].total + 1))
    assert {e.conversation for e in saved} == {"c"}
    driver.close()

    third = second(question, answer, 2, "And that of gate 40?")
    driver = opened()
    driver.cancel_when(lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.RESTORE, 2)
    assert driver.answer(third).ended is Ended.CANCELLED
    driver.on_event = lambda event: None
    later = driver.answer(third)
    (restored,) = driver.of(Restored)
    assert restored.tokens > 0, "a cancel does not cost the snapshot"
    loading = [e for e in driver.of(PhaseProgress) if e.phase is Phase.RESTORE]
    assert [e.done for e in loading] == sorted(e.done for e in loading)
    assert (loading[0].done, loading[-1].done) == (0, restored.tokens)
    assert {e.total for e in loading} == {restored.tokens}
    read = [e for e in driver.of(PhaseProgress) if e.phase is Phase.SCORE and e.done]
    assert first.statistics
    assert read[0].done > first.statistics.prompt_tokens, "the draft's cache came back too"
    assert later.statistics
    phases = {part.phase: part.seconds for part in later.statistics.phases}
    assert phases[Phase.RESTORE] >= loading[-1].elapsed
    assert sum(phases.values()) == pytest.approx(later.statistics.ttft, abs=0.02)
    driver.close()


def test_the_first_word_is_timed_from_sending(loaded: Driver) -> None:
    """Here the second question waits for the first one's answer."""
    questions = [ask(turn, "What is the code of gate 7?", name=None) for turn in (1, 2)]
    for question in questions:
        loaded.engine.send(question)
    one, other = (loaded.until(Finished) for _ in questions)
    assert isinstance(one, Finished)
    assert isinstance(other, Finished)
    assert one.statistics
    assert other.statistics
    waited = {part.phase: part.seconds for part in other.statistics.phases}[Phase.WAIT]
    assert other.statistics.ttft > waited > one.statistics.decode_seconds


def test_the_least_recently_used_goes_first(loaded: Driver) -> None:
    loaded.engine.send(Upkeep(Heal.NEVER, memory_budget=1))
    for turn, name in enumerate("aba", 1):
        finished = loaded.answer(ask(turn, "What is the code of gate 7?", name=name))
        assert finished.statistics
        assert finished.statistics.reused_tokens == 0
    again = loaded.answer(ask(4, "What is the code of gate 7?", name="a"))
    assert again.statistics
    assert again.statistics.reused_tokens > 0
