"""A truncated or stopped answer continues exactly where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.prompt import PromptBuilder
from app.engine.model.token_stream import TokenStream
from app.engine.turn.decode import Decoder
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import (
    Finished,
    PhaseProgress,
    Planned,
    Selected,
    SnapshotProgress,
    SnapshotRestored,
    Token,
)
from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Document, Message, Role, SegmentKind
from app.protocol.reasons import FailureKind, Reason, ReasonCode
from app.protocol.stats import FinishReason, Phase, Reading
from app.sandbox.process import Check, TextPiece, TextProcess
from tests.engine import test_cache_pool
from tests.engine.driver import TEXT, Driver, opened
from tests.tables import slow

FIRST, MORE = 9, 14


def ask(text: str, mode: Mode = Mode.SPARSE) -> Ask:
    """A question about a short document."""
    question = test_cache_pool.ask(text, mode=mode)
    document = Document("gates.txt", TEXT[:600])
    return replace(question, messages=(Message(Role.USER, text, (document,)),))


def cut(question: Ask, tokens: int = FIRST) -> Ask:
    return replace(question, sampling=Sampling(max_tokens=tokens))


def continued(question: Ask, finished: Finished, known: bool = True) -> Ask:
    ids = finished.generated_ids if known else None
    answer = Message(Role.ASSISTANT, finished.text, token_ids=ids)
    messages = (*question.messages, answer)
    return replace(question, messages=messages, sampling=Sampling(max_tokens=MORE))


def prefilled(driver: Driver) -> int:
    totals = [e.total for e in driver.of(PhaseProgress) if e.phase is Phase.PREFILL]
    return totals[-1] if totals else 0


@pytest.mark.parametrize("name", ["target", "hybrid", slow("sliding")])
@pytest.mark.parametrize("mode", [Mode.SPARSE, slow(Mode.FULL)])
def test_an_answer_in_two_parts_equals_the_answer_in_one(
    driver: Driver, folders: dict[str, Path], name: str, mode: Mode
) -> None:
    driver.load(folders[name], folders["draft"])
    question = cut(ask("What is the code of gate 7?", mode=mode))
    first = driver.answer(question)
    assert first.finish_reason is FinishReason.LENGTH
    rest = driver.answer(continued(question, first))
    text = "".join(event.text for event in driver.of(Token))
    assert prefilled(driver) < 40, "what was read is not read again"
    assert not driver.of(Selected)
    whole = cut(replace(question, conversation="other"), FIRST + MORE)
    at_once = driver.answer(whole)
    assert rest.generated_ids == at_once.generated_ids
    assert rest.text == at_once.text == first.text + text
    assert 0 < rest.statistics.generated_tokens == len(rest.generated_ids) - FIRST
    assert rest.statistics.reasons == (Reason(ReasonCode.CONTINUED),)
    assert (rest.statistics.reading is Reading.SPARSE) == (mode is Mode.SPARSE)


@pytest.mark.parametrize(("penalty", "written"), [(1.2, 4), (1.5, 2), slow(1.2, 2), slow(1.5, 4)])
def test_the_repetition_penalty_sees_the_first_part(
    penalty: float, written: int, loaded: Driver
) -> None:
    whole = replace(
        ask("What is the code of gate 7?", mode=Mode.FULL),
        sampling=Sampling(repetition_penalty=penalty, max_tokens=MORE),
    )
    expected = loaded.answer(whole).generated_ids
    first = loaded.answer(replace(whole, sampling=replace(whole.sampling, max_tokens=written)))
    left = replace(whole.sampling, max_tokens=MORE - written)
    rest = loaded.answer(replace(continued(whole, first), sampling=left))
    assert rest.generated_ids == expected


def test_a_stopped_answer_can_be_continued(loaded: Driver) -> None:
    question = cut(ask("What is the code of gate 7?"), 400)
    loaded.cancel_when(lambda event: isinstance(event, Token))
    first = loaded.answer(question)
    loaded.on_event = lambda event: None
    assert first.finish_reason is FinishReason.CANCELLED
    assert 0 < len(first.generated_ids) < 380
    rest = loaded.answer(continued(question, first))
    assert rest.generated_ids[: len(first.generated_ids)] == first.generated_ids
    assert len(rest.generated_ids) == len(first.generated_ids) + MORE
    assert rest.text.startswith(first.text)


def test_after_other_questions_or_a_restart_the_prompt_is_read_again(loaded: Driver) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    question = cut(ask("What is the code of gate 7?"))
    first = loaded.answer(question)
    expected = loaded.answer(continued(question, first)).generated_ids
    elsewhere = replace(continued(question, first), conversation="new", mode=Mode.FULL)
    full = loaded.answer(replace(elsewhere, conversation="n", keep_ratio=1.0, mode=Mode.SPARSE))
    assert loaded.answer(elsewhere).generated_ids == full.generated_ids
    assert expected[:FIRST] == full.generated_ids[:FIRST]
    (planned,) = loaded.of(Planned)
    assert planned.reasons == (Reason(ReasonCode.FULL_REQUESTED),)


def test_a_continued_answer_selects_by_its_question(loaded: Driver) -> None:
    """The selection does not depend on the end of a long answer."""
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    question = cut(ask("What is the code of gate 7?"), 150)
    first = loaded.answer(question)
    (asked,) = {e.texts for e in loaded.of(Selected)}
    loaded.answer(replace(continued(question, first), conversation="elsewhere"))
    (again,) = {e.texts for e in loaded.of(Selected)}
    assert again == asked


@pytest.mark.slow
def test_an_answer_continues_from_a_snapshot(folders: dict[str, Path], tmp_path: Path) -> None:
    question = cut(ask("What is the code of gate 7?"))
    before = opened(folders, CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path)))
    first = before.answer(question)
    before.until(SnapshotProgress)
    before.close()
    after = opened(folders, CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path)))
    rest = after.answer(continued(question, first))
    assert after.of(SnapshotRestored)
    assert prefilled(after) < 40
    assert rest.generated_ids[:FIRST] == first.generated_ids
    whole = cut(replace(question, conversation="other"), FIRST + MORE)
    assert rest.generated_ids == after.answer(whole).generated_ids
    after.close()


def test_an_answer_with_unknown_ids_continues_from_its_text(loaded: Driver) -> None:
    question = ask("What is the code of gate 7?")
    first = Finished(1, FinishReason.LENGTH, "The code of gate", (), None)
    rest = loaded.answer(continued(question, first, known=False))
    assert rest.text.startswith("The code of gate")
    reported = [identity for event in loaded.of(Token) for identity in event.ids]
    assert tuple(reported) == rest.generated_ids
    assert len(reported) > MORE
    text = "".join(event.text for event in loaded.of(Token))
    assert rest.text == first.text + text


def test_an_answer_that_fills_the_context_is_not_continued(
    driver: Driver, folders: dict[str, Path]
) -> None:
    driver.load(folders["short"], folders["draft"])
    question = ask("What is it?", mode=Mode.FULL)
    messages = (replace(question.messages[0], documents=()),)
    question = replace(question, messages=messages, sampling=Sampling(max_tokens=2_000))
    first = driver.answer(question)
    assert first.finish_reason is FinishReason.LENGTH
    event = driver.run(continued(question, first))
    assert event.failure.kind is FailureKind.PROMPT_TOO_LONG
    assert event.failure.data["context"] == 500


@pytest.mark.parametrize("plain", [False, True], ids=["question", "plain text"])
def test_a_far_too_long_text_is_not_tokenised_completely(
    driver: Driver, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    driver.load(folders["short"], folders["draft"])
    text, encoded, encode = "The harbour is closed. " * 40_000, list[int](), TextProcess.encode

    def counting(
        process: TextProcess, pieces: Sequence[TextPiece], check: Check = lambda: None
    ) -> tuple[list[tuple[bytes, bytes]], int]:
        encoded.extend(len(piece.text) for piece in pieces)
        return encode(process, pieces, check)

    monkeypatch.setattr(TextProcess, "encode", counting)
    question = ask(text, mode=Mode.FULL)
    message = replace(question.messages[0], documents=())
    if plain:  # as the server sends it, with its end as the question
        message = Message(Role.USER, text[-100:], (Document("", text[:-100]),), plain=True)
    event = driver.run(replace(question, messages=(message,)))
    assert event.failure.kind is FailureKind.PROMPT_TOO_LONG
    assert event.failure.data["estimated"]
    assert sum(encoded) < len(text) / 2


# ------------------------------------------------------------------------------------ thinking


def test_an_answer_continues_in_the_middle_of_its_thinking(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can also stop within a character, which is shown once complete."""
    ids = thinker.encode("<think>It is 7 €.</think>Seven €.", add_special_tokens=False)
    cut = ids.index(thinker.encode("€", add_special_tokens=False)[1])

    def written(given: list[int], prefix: list[int]) -> tuple[str, str, Decoder]:
        def tokens(*arguments: Any) -> Iterator[int]:
            yield from given

        monkeypatch.setattr(TokenStream, "tokens", tokens)
        events: list[Token] = []
        decoder = Decoder(1, thinker, Sampling(), events.append)
        prompt = np.array([1, *prefix], np.int32)
        decoder.generate(None, PrefixCache(list), prompt, 99, lambda: None, len(prefix))
        return "".join(e.thinking for e in events), "".join(e.text for e in events), decoder

    thought, text, _ = written(ids[:cut], [])
    assert (thought.strip(), text) == ("It is 7", "")
    more, text, decoder = written(ids[cut:], ids[:cut])
    assert (thought + more, text) == ("It is 7 €.", "Seven €.")
    assert decoder.text == "Seven €."
    assert decoder.ids == ids
    last = len(ids) - 2
    thought, prefix, _ = written(ids[:last], [])
    assert (thought, prefix.strip()) == ("It is 7 €.", "Seven")
    more, text, decoder = written(ids[last:], ids[:last])
    assert (more, prefix + text) == ("", "Seven €.") == ("", decoder.text)


@pytest.mark.parametrize(
    ("thinking", "text", "expected"),
    [
        ("It is", "", "<think>\nIt is"),
        ("It is 7.", "Sev", "<think>\nIt is 7.\n</think>\n\nSev"),
        ("", "Sev", "Sev"),
    ],
)
def test_thinking_with_unknown_ids_is_written_in_the_models_format(
    thinker: Any, thinking: str, text: str, expected: str
) -> None:
    builder = PromptBuilder(thinker)
    asked = Message(Role.USER, "What?")
    plain = builder.build((asked,))
    prompt = builder.build((asked, Message(Role.ASSISTANT, text, thinking=thinking)))
    assert prompt.ids[: len(plain.ids)].tolist() == plain.ids.tolist()
    assert prompt.answer_prefix_len == len(prompt.ids) - len(plain.ids)
    assert thinker.decode(prompt.ids[-prompt.answer_prefix_len :].tolist()) == expected
    (segment,) = [s for s in prompt.segments if s.kind is SegmentKind.GENERATION]
    assert segment.end == len(prompt.ids)
    assert prompt.pinned[-prompt.answer_prefix_len :].all()
