"""Recall while an answer is written is exact on every architecture and reads only what is
needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer
from numpy.typing import NDArray

from app.chat.engine_session import EngineSession
from app.engine.backend import mlx_patches
from app.engine.cache.kv_quantisation import Quantisation, find_quantisation
from app.engine.cache.prefill import set_next_position
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.model.prompt import Prompt
from app.engine.model.token_stream import Match, Speculation
from app.engine.progress import TurnCancelled
from app.engine.turn.decode import Decoder
from app.engine.turn.mid_answer_recall import REREAD_TOKENS, MidAnswerRecall
from app.models.embedded import target_path
from app.protocol.commands import Ask
from app.protocol.events import Event, Planned, Selected
from app.protocol.options import Mode, Sampling, Tuning
from app.protocol.stats import FinishReason
from benchmarks.quality.suites import SUITES, make
from tests.engine.oracle import (
    BACKENDS,
    TOLERANCE,
    KeysAndValues,
    difference,
    keys_seen,
    one_by_one,
    reads_of,
    recorded_asides,
)
from tests.engine.test_kv_quantisation import wide as wide
from tests.engine.test_token_stream import Always
from tests.engine.test_turns import (
    CHUNK,
    DOCUMENT,
    FIRST,
    Chat,
    chunk_positions,
    conversation,
    not_later,
    pair,
)
from tests.engine.test_turns import conversation as conversation_of
from tests.tables import slow
from tests.tiny import PURE, QUICK, RECURRENT, VOCABULARY, build

WRITTEN, AFTER = 40, 6
"""Length of the answer (more than is re-read), and of the compared tokens after it."""
EARLY, LATE = (1, 15), 9
"""Chunks recalled within the answer, each with its successor, and at its end, where the chunk after
the next one was read before."""
mlx_patches.install()


def text() -> tuple[Prompt, NDArray[np.int32]]:
    """A question about a document and its answer."""
    prompt = conversation_of()[0]
    answer = np.random.default_rng(7).integers(0, VOCABULARY, WRITTEN + AFTER)
    return prompt, answer.astype(np.int32)


class Writing:
    """An answer written after the chunks FIRST were read."""

    def __init__(
        self,
        model: Any,
        backend: str = "cpu",
        budget: int = 10**6,
        quantisation: Quantisation | None = None,
    ) -> None:
        self.prompt, self.answer = text()
        self.chat = Chat(model, BACKENDS[backend], quantisation)
        self.chat.read(self.prompt, FIRST)
        self.target = self.chat.conversation.target
        self.read: list[tuple[NDArray[np.int32], int]] = []
        """(number of tokens written, chunks recalled) in order."""
        self._end = len(self.prompt.ids)
        self.steps = self.fail_at = 0
        self.recall = MidAnswerRecall(
            self.chat.models.target,
            self.target,
            self.prompt,
            CHUNK,
            budget,
            lambda positions: self.read.append((positions, len(self.target) - self._end + 1)),
            self._on_step,
        )

    def _on_step(self, done: int) -> None:
        self.steps += 1
        if self.steps == self.fail_at:
            raise TurnCancelled

    def write(self, start: int, end: int) -> list[mx.array]:
        """Logits after each token of the answer from `start` up to `end`."""
        ids = np.concatenate([self.prompt.ids, self.answer])
        places = range(self._end + start, self._end + end)
        return [self.chat._feed(ids[at : at + 1], ids[: at + 1]) for at in places]

    def recall_at(self, chunk: int, written: int) -> mx.array:
        """Recall after `written` tokens of the answer. Returns the logits after the last one."""
        assert self.recall.find(Match((0,), int(chunk_positions(chunk)[4]), 4))
        assert self.recall.read(self.answer[:written].tolist()) == self.answer[written - 1]
        assert find_mismatch(self.target) is None
        return self.write(written - 1, written)[0]


def expected(
    model: Any,
    recalls: list[tuple[NDArray[np.int32], int]],
    kept: Callable[[mx.array], mx.array] = lambda each: each,
) -> mx.array:
    """Reference logits after every token, with these `recalls`. Each token sees what had been read
    when it was last computed. `kept` converts keys and values as a cache does."""
    prompt, answer = text()
    ids = np.concatenate([prompt.ids, answer])
    total, end = len(ids), len(prompt.ids)
    order = np.full(total, 99)
    order[: DOCUMENT[0]] = order[DOCUMENT[1] : end] = 0
    for chunk in FIRST:
        order[chunk_positions(chunk)] = 0
    order[end:] = 0
    logits, stored = _pass(model, ids, order, None, None, kept)
    for number, (recalled, written) in enumerate(recalls, 1):
        following = np.arange(recalled[-1] + 1, recalled[-1] + 1 + CHUNK)
        following = following[np.cumprod(order[following] < 99).astype(bool)]
        again = np.arange(max(prompt.question_start, end + written - 1 - REREAD_TOKENS), total)
        before = order.copy()
        order[np.concatenate([recalled, following, again])] = number
        logits, stored = _pass(model, ids, order, before == order, stored, kept)
    return logits


def _pass(
    model: Any,
    ids: NDArray[np.int32],
    order: NDArray[np.int_],
    stay: NDArray[np.bool_] | None,
    of: KeysAndValues | None,
    kept: Callable[[mx.array], mx.array],
) -> tuple[mx.array, KeysAndValues]:
    seen = not_later(order) & (order < 99)[None] | np.eye(len(order), dtype=bool)
    with keys_seen(seen, stay, of, kept) as stored:
        logits = model(mx.array(ids)[None])[0]
        mx.eval(logits)
    return logits, stored


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "cpu") if name in QUICK else slow(name, "cpu") for name in PURE),
        ("llama", "gpu"),
        slow("gpt_oss", "gpu"),
    ],
)
def test_mid_answer_recall_equals_the_oracle(
    name: str, backend: str, models: dict[str, Any]
) -> None:
    writing = Writing(models[name], backend)
    writing.write(0, 9)
    first = [writing.recall_at(chunk, 9) for chunk in EARLY][-1]
    writing.write(9, WRITTEN)
    early = list(writing.read)
    rows = [writing.recall_at(LATE, WRITTEN), *writing.write(WRITTEN, WRITTEN + AFTER)]
    assert [len(positions) for positions, _ in writing.read] == [2 * CHUNK] * 3
    after = len(writing.prompt.ids) - 1
    assert difference(first, expected(models[name], early)[after + 9]) < TOLERANCE
    late = expected(models[name], writing.read)
    for number, row in enumerate(rows):
        assert difference(row, late[after + WRITTEN + number]) < TOLERANCE
    without = expected(models[name], early)[after + WRITTEN]
    assert difference(rows[0], without) > 100 * TOLERANCE, "the oracle sees no difference"


@pytest.mark.parametrize(("name", "tolerance"), [("llama", TOLERANCE), ("qwen3", 2e-3)])
def test_mid_answer_recall_in_a_quantised_cache_equals_the_oracle(
    name: str, tolerance: float, wide: Any
) -> None:
    """The oracle quantises keys and values like the cache. Values from different steps may round
    differently, as in the second model."""
    model = wide(name)
    how = find_quantisation(model, 8)

    def kept(each: mx.array) -> mx.array:
        return mx.dequantize(*mx.quantize(each, how.group_size, 8), how.group_size, 8)

    writing = Writing(model, quantisation=how)
    writing.write(0, 9)
    row = writing.recall_at(EARLY[1], 9)
    after = len(writing.prompt.ids) - 1 + 9
    found = difference(row, expected(model, writing.read, kept)[after])
    unrounded = difference(row, expected(model, writing.read)[after])
    without = difference(row, expected(model, [], kept)[after])
    assert found < tolerance < unrounded / 10
    assert without > 10 * unrounded


def test_only_a_rare_match_in_a_skipped_chunk_triggers_recall(models: dict[str, Any]) -> None:
    writing = Writing(models["llama"], budget=CHUNK)
    skipped, read = (int(chunk_positions(chunk)[0]) for chunk in (6, FIRST[1]))
    find = writing.recall.find
    assert not find(None)
    assert not find(Match((0,), read + 2, 4)), "it was read"
    assert not find(Match((0,), len(writing.prompt.ids) + 3, 4)), "it is in the answer"
    assert not find(Match((0,), skipped, 1)), "one token is in many places"
    assert not find(Match((0,), skipped + 1, 4)), "with the next chunk it is more than the budget"
    assert not writing.recall.is_due
    assert find(Match((0,), skipped, 4))
    writing.write(0, 3)
    writing.recall.read(writing.answer[:3].tolist())
    assert not find(Match((0,), skipped, 4)), "now it is read"


@pytest.mark.parametrize("fail_at", [1, 2, 3])
def test_after_a_cancelled_recall_the_next_turn_continues_from_there(
    fail_at: int, models: dict[str, Any]
) -> None:
    second = conversation_of()[2]
    writing = Writing(models["gpt_oss"])
    answer = writing.answer = second.ids[len(writing.prompt.ids) :][:7]
    writing.write(0, 7)
    writing.fail_at = fail_at
    assert writing.recall.find(Match((0,), int(chunk_positions(1)[4]), 4))
    with pytest.raises(TurnCancelled):
        writing.recall.read(answer.tolist())
    assert writing.steps == fail_at
    assert find_mismatch(writing.target) is None
    known = writing.target.cached.copy()
    chunks = np.concatenate([chunk_positions(1), chunk_positions(2)])
    assert np.array_equal(writing.read[0][0], chunks[known[chunks]])
    logits = writing.chat.read(second, (1, 4))
    assert writing.target.cached[second.pinned].all()
    assert writing.target.cached[: len(known)][known].all(), "nothing is lost"
    assert np.isfinite(np.array(logits)).all()


def chain(session: EngineSession, turn: int = 1, **options: Any) -> tuple[str, str, list[Event]]:
    """The answer about a variable that is two steps from its number, and the number."""
    tokenizer = load_tokenizer(target_path())

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    item = make(SUITES["track"], 5, 1400, 5, count)
    tuning, sampling = Tuning(**options), Sampling(max_tokens=48)
    name = f"chain {options}"
    ask = Ask(item.messages, Mode.SPARSE, 0.2, sampling, tuning, conversation=name)
    events: list[Event] = list(session.run(ask))
    finished = events[-1]
    return finished.text, item.expected[0], events


def test_a_chain_is_followed_to_its_end(writer: EngineSession) -> None:
    answer, number, events = chain(writer, read_on=0.0)
    assert number not in answer
    assert not [e for e in events if isinstance(e, Selected) and e.read_on]
    answer, number, events = chain(writer)
    assert answer.endswith(number)
    first, *later = [e for e in events if isinstance(e, Selected)]
    assert not first.read_on
    assert later
    read = sum(span.end - span.start for span in later[-1].read_on)
    assert 0 < read <= 0.5 * 0.2 * first.prompt_tokens
    assert later[-1].selected_tokens == first.selected_tokens + read
    finished = events[-1]
    assert finished.statistics.read_tokens == first.selected_tokens + read
    assert any(number in t for t in texts_of(later[-1], events)), "what it read on has the number"
    again, _, events = chain(writer)
    assert again == answer
    selections = [e for e in events if isinstance(e, Selected)]
    assert len(selections) == 1, "asked again, it has read that from the start"
    assert selections[0].read_on == later[-1].read_on


def texts_of(selected: Selected, events: list[Event]) -> list[str]:
    """Texts recalled while the answer was written."""
    planned = next(e for e in events if isinstance(e, Planned))
    tokenizer = load_tokenizer(target_path())
    return [tokenizer.decode(planned.prompt_ids[s.start : s.end]) for s in selected.read_on]


LENGTH, PASSAGE = 40, 2 * CHUNK - 5
"""Length of the answer, and of a passage in it that also occurs in the document, across two
chunks."""
PLANTED = (1, 6, 13)
"""Skipped chunks in which these passages start."""
mlx_patches.install()
model_of = cache(build)
tokenizer = cache(lambda: load_tokenizer(target_path()))


def answer(
    name: str, ids: NDArray[np.int32], sampling: Sampling
) -> tuple[list[int], int, list[tuple[int, ...]], PrefixCache]:
    """The answer after reading the chunks FIRST, the number of tokens copied, the chunks recalled,
    and the cache."""
    first = conversation()[0]
    prompt = Prompt(ids, first.segments, {})
    target = pair(model_of(name)).target
    prefix = target.make_prefix(positioned=True)
    read = prompt.pinned.copy()
    for chunk in FIRST:
        read[chunk_positions(chunk)] = True
    positions = np.flatnonzero(read)[:-1].astype(np.int32)
    prefix.set_retain_all(True)
    prefix.prefill_at(target.model, ids, positions, target.step, lambda done: None)
    set_next_position(prefix.cache, len(ids) - 1)
    recalled: list[tuple[int, ...]] = []
    recall = MidAnswerRecall(
        target,
        prefix,
        prompt,
        CHUNK,
        10**6,
        lambda each: recalled.append(tuple(each.tolist())),
        lambda done: None,
    )
    texts = tokenizer()
    texts._eos_token_ids = set()  # a random model may write one
    decoder = Decoder(1, texts, sampling, lambda event: None)
    ended = decoder.generate(
        target.model,
        prefix,
        ids,
        sampling.max_tokens,
        lambda: None,
        speculation=Speculation(Always()),
        recall=recall,
    )
    assert ended is FinishReason.LENGTH
    prefix.append(np.array([*ids, *decoder.ids], np.int32)[len(prefix) :])
    assert find_mismatch(prefix) is None
    return decoder.ids, decoder.accepted, recalled, prefix


def compare(seed: int, names: Sequence[str] = PURE, **options: Any) -> tuple[int, int]:
    """(tokens copied, number of recalls)."""
    random, rng = Random(seed), np.random.default_rng(seed)
    name, ids = random.choice(names), conversation()[0].ids.copy()
    ids[slice(*DOCUMENT)] = rng.integers(0, ids.max(), DOCUMENT[1] - DOCUMENT[0])
    sampling = Sampling(max_tokens=LENGTH, speculate=False, seed=seed, **options)
    plain, _, recalled, _ = answer(name, ids, sampling)
    for chunk in PLANTED:  # skipped chunks have no effect before they are recalled
        place = int(chunk_positions(chunk)[0]) + random.randint(0, 4)
        start = random.randint(0, LENGTH - PASSAGE)
        ids[place : place + PASSAGE] = plain[start : start + PASSAGE]
        with recorded_asides() as asides:
            plain, _, recalled, prefix = answer(name, ids, sampling)
    fast, copied, by_fast, _ = answer(name, ids, Sampling(max_tokens=LENGTH, seed=seed, **options))
    assert (fast, by_fast) == (plain, recalled), (seed, name)
    if names is RECURRENT:
        reads = reads_of(prefix, asides)
        assert any(read.aside is not None for read in reads) == bool(recalled)
        expected = one_by_one(model_of(name), prefix.ids, *reads)
        order = np.concatenate([read.positions for read in reads])
        before = np.flatnonzero(order >= len(ids) - 1)[:-1]
        assert np.argmax(np.array(expected)[before], axis=-1).tolist() == plain, (seed, name)
    return copied, len(recalled)


def test_a_match_of_the_prompts_end_does_not_trigger_recall() -> None:
    """A template writes the same text before every answer, and earlier ones may have been
    skipped."""
    ids = conversation()[0].ids.copy()
    for chunk in PLANTED:
        place = int(chunk_positions(chunk)[-1]) + 1
        ids[place - CHUNK : place] = ids[-CHUNK:]
    for count in (1, 2):
        _, _, recalled, _ = answer("llama", ids, Sampling(max_tokens=count))
        assert not recalled


OPTIONS = ({}, {"temperature": 1.0}, {"repetition_penalty": 1.3})


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        *((options, (1,)) for options in OPTIONS[:2]),
        *(slow(options, (0, 1, 2)) for options in OPTIONS),
    ],
    ids=str,
)
def test_speculation_does_not_change_answers_with_recall(
    options: dict[str, Any], seeds: tuple[int, ...]
) -> None:
    found = [compare(seed, **options) for seed in seeds]
    assert all(recalls for _, recalls in found)
    assert any(copied for copied, _ in found)


@pytest.mark.parametrize("seeds", [(1,), slow((0, 1))])
def test_greedy_answers_of_hybrids_with_recall_equal_the_oracle(seeds: tuple[int, ...]) -> None:
    """With and without speculation. Chunks are read aside; the last token before a recall is read
    after it."""
    found = [compare(seed, RECURRENT) for seed in seeds]
    assert all(recalls for _, recalls in found)
    assert any(copied for copied, _ in found)


@pytest.mark.slow
def test_a_hundred_greedy_answers_of_hybrids_with_recall_equal_the_oracle() -> None:
    found = [compare(seed, RECURRENT) for seed in range(100, 200)]
    assert np.mean([recalls > 0 for _, recalls in found]) > 0.9
    assert np.mean([copied > 0 for copied, _ in found]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1300, 50))
def test_speculation_does_not_change_three_hundred_greedy_answers(first: int) -> None:
    found = [compare(seed) for seed in range(first, first + 50)]
    assert np.mean([recalls > 0 for _, recalls in found]) > 0.9
    assert np.mean([copied > 0 for copied, _ in found]) > 0.5
