"""Later turns equal the reference: after dense turns, a dense pass over the whole conversation;
after sparse ones, a pass in which every token sees what had been read when it was computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.backend.device import Backend
from app.engine.cache.caches import PositionedCache, flatten
from app.engine.cache.kv_quantisation import Quantisation
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    make_stock_cache,
)
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.cache.sizes import CacheSize
from app.engine.cache.snapshot import Snapshots
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager
from app.engine.memory.prefix_sharing import PrefixSharing
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import ScoringPart, TurnCancelled, TurnClock
from app.engine.scorers.scorer import Importance, ScoringContext
from app.engine.turn.context import OneConversation, TurnContext
from app.engine.turn.prompt_reader import PromptReader
from app.estimate.memory import MIN_CHECKPOINTS
from app.extras.hosts.sharded import Shards
from app.protocol.commands import Ask
from app.protocol.cost_model import UNKNOWN_COSTS, Costs, LinearCost
from app.protocol.events import ModelInfo
from app.protocol.options import AUTO_KEEP, Mode, Tuning
from app.protocol.prompt import Message, Role, Segment, SegmentKind
from app.protocol.reasons import ReasonCode
from tests.engine.oracle import (
    BACKENDS,
    TOLERANCE,
    Asides,
    Read,
    difference,
    keys_seen,
    one_by_one,
    read_aside,
    reads_of,
    recorded_asides,
)
from tests.engine.spread import spread_over
from tests.tables import slow, table
from tests.tiny import HYBRID, ORACLE, PURE, RECURRENT, VOCABULARY, architectures, build

DOCUMENT, QUESTION, ANSWER = (4, 164), 12, 7
CHUNK = 8
FIRST, LATER, FOLLOWING = (3, 4, 11), (1, 4, 10, 15), (11,)
"""Chunks needed by the first and the second question, and those of the first that follow a recalled
chunk."""
mlx_patches.install()


def conversation(
    document: tuple[int, int] = DOCUMENT,
) -> tuple[Prompt, NDArray[np.int32], Prompt]:
    """A question about a document, its answer and a second question."""
    rng = np.random.default_rng(1)
    end = document[1] + QUESTION
    second = end + ANSWER + QUESTION
    ids = rng.integers(0, VOCABULARY, second).astype(np.int32)

    def prompt(total: int) -> Prompt:
        kinds = [(SegmentKind.TEMPLATE, 0), (SegmentKind.DOCUMENT, document[0])]
        kinds += [(SegmentKind.QUESTION, document[1]), (SegmentKind.GENERATION, end - 4)]
        if total > end:
            kinds[2:] = [(SegmentKind.TEMPLATE, document[1]), (SegmentKind.QUESTION, end + ANSWER)]
            kinds.append((SegmentKind.GENERATION, total - 4))
        ends = [*(start for _, start in kinds[1:]), total]
        segments = tuple(Segment(k, s, e) for (k, s), e in zip(kinds, ends, strict=True))
        return Prompt(ids[:total], segments, {})

    return prompt(end), ids[end : end + ANSWER], prompt(second)


def pair(
    model: Any, backend: Backend = BACKENDS["cpu"], quantisation: Quantisation | None = None
) -> ModelPair:
    info = ModelInfo("tiny", "", 0, 0, 0)
    loaded = LoadedModel(
        model,
        None,
        info,
        CacheSize(0, 0),
        StepSize(16, backend=backend),
        quantisation=quantisation,
    )
    return ModelPair(loaded, None, None, None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Needed:
    """A scorer for which these chunks are important."""

    chunks: tuple[int, ...]
    parts: ClassVar[tuple[ScoringPart, ...]] = ()

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        importance = np.zeros(len(prompt.ids), np.float32)
        for chunk in self.chunks:
            importance[chunk_positions(chunk)] = 1
        return importance


class Chat:
    """Two turns on one `ConversationCache`; `needed` chunks of the document are important."""

    def __init__(
        self,
        model: Any,
        backend: Backend = BACKENDS["cpu"],
        quantisation: Quantisation | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.models = pair(model, backend, quantisation)
        if shards is not None:
            self.models = replace(self.models, target=spread_over(shards, self.models.target))
        self.model = model
        self.conversation = ConversationCache(self.models)
        self.reader: PromptReader | None = None
        self.costs = UNKNOWN_COSTS
        self.auto_keep = False
        """Whether to use automatic keep."""

    def read(self, prompt: Prompt, needed: tuple[int, ...] | None) -> mx.array:
        """Logits (vocabulary,) after the prompt. `needed` None: dense reading."""
        chunks = -(-int((~prompt.pinned).sum()) // CHUNK)
        again = len(prompt.ids) == len(self.conversation.target)
        keep = len([c for c in needed or () if again or not self._has_read(c)]) / chunks
        tuning = Tuning(chunk=CHUNK, neighbours=0.0, recall_share=float(keep > 0))
        keep = AUTO_KEEP if self.auto_keep else keep or 1e-9  # 0 is AUTO_KEEP
        mode = Mode.FULL if needed is None else Mode.SPARSE
        ask = Ask((Message(Role.USER, ""),), mode, keep, tuning=tuning)
        progress = TurnClock(1, lambda event: None, lambda: False)
        caches = OneConversation(self.conversation)
        room = MemoryManager(self.models, progress.emit)
        context = TurnContext(self.models, progress, caches, room, self.costs)
        self.reader = PromptReader(ask, prompt, self.conversation, context)
        if needed is None:
            self.reader.read_dense(prompt)
        else:
            assert self.conversation.drop_damaged() is None
            self.reader.read_sparse(prompt, Needed(needed))
        return self._feed(prompt.ids[-1:], prompt.ids)

    def _has_read(self, chunk: int) -> bool:
        read = self.conversation.target.cached
        end = int(chunk_positions(chunk)[-1]) + 1
        return end <= len(read) and bool(read[chunk_positions(chunk)].all())

    def write(self, prompt: Prompt, answer: NDArray[np.int32]) -> None:
        for token in answer:
            self._feed(np.array([token]), np.append(self.conversation.target.ids, token))

    def _feed(self, token: NDArray[np.int32], ids: NDArray[np.int32]) -> mx.array:
        target = self.conversation.target
        logits = forward(self.model, target.cache, token)[0, -1]
        mx.eval(logits)
        target.mark_cached(ids, np.arange(len(ids) - 1, len(ids), dtype=np.int32))
        assert find_mismatch(target) is None
        return logits


def chunk_positions(chunk: int) -> NDArray[np.int32]:
    return np.arange(chunk * CHUNK, (chunk + 1) * CHUNK, dtype=np.int32) + DOCUMENT[0]


def dense_logits(model: Any, ids: NDArray[np.int32]) -> mx.array:
    logits = model(mx.array(ids)[None])[0, -1]
    mx.eval(logits)
    return logits


def not_later(turn: NDArray[np.int_]) -> NDArray[np.bool_]:
    """Mask of the tokens that each token sees, from the turns in which they are read."""
    seen: NDArray[np.bool_] = (turn[None] <= turn[:, None]) | np.eye(len(turn), dtype=bool)
    return seen


def expected_after_recall(name: str, model: Any) -> mx.array:
    """Reference logits of the second question: FIRST is read, then LATER, and FOLLOWING is read
    again."""
    first, _, second = conversation()
    total, end = len(second.ids), len(first.ids)
    turn = np.full(total, 9)  # when each token is read; 9 is never
    turn[: DOCUMENT[0]] = turn[DOCUMENT[1] : end + ANSWER] = 1
    turn[end + ANSWER :] = 2
    for chunks, number in ((LATER, 2), (FIRST, 1)):
        for chunk in chunks:
            turn[chunk_positions(chunk)] = number
    if name not in HYBRID:
        with keys_seen(not_later(turn)) as before:
            dense_logits(model, second.ids)
        for chunk in FOLLOWING:
            turn[chunk_positions(chunk)] = 2
        with keys_seen(not_later(turn), stay=turn == 1, of=before):
            return dense_logits(model, second.ids)
    return one_by_one(model, second.ids, Read(np.flatnonzero(turn < 9)))[-1]


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_after_a_dense_turn_the_second_equals_one_dense_pass(
    name: str, models: dict[str, Any]
) -> None:
    first, answer, second = conversation()
    chat = Chat(models[name])
    chat.read(first, None)
    chat.write(first, answer)
    logits = chat.read(second, None)
    assert chat.reader.so_far.reused_tokens == len(first.ids) + ANSWER
    assert difference(logits, dense_logits(models[name], second.ids)) < TOLERANCE


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_after_a_sparse_turn_newly_needed_chunks_are_recalled(
    name: str, models: dict[str, Any]
) -> None:
    check_recall(name, "cpu", models)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_newly_needed_chunks_are_recalled_as_on_a_gpu(name: str, models: dict[str, Any]) -> None:
    check_recall(name, "gpu", models)


def check_recall(name: str, backend: str, models: dict[str, Any]) -> None:
    first, answer, second = conversation()
    chat = Chat(models[name], BACKENDS[backend])
    chat.read(first, FIRST)
    chat.write(first, answer)
    logits = chat.read(second, LATER)
    assert chat.reader.so_far.recalled_tokens == len({*LATER} - {*FIRST}) * CHUNK
    assert difference(logits, expected_after_recall(name, models[name])) < TOLERANCE


@pytest.mark.parametrize("name", architectures(*HYBRID))
def test_recall_with_recurrent_layers_goes_back_to_the_checkpoint_before_it(
    name: str, models: dict[str, Any]
) -> None:
    """It reads only the tokens after that again. Every step of the documents has one."""
    first, answer, second = conversation()
    chat = Chat(models[name])
    chat.models.target.cache_size = CacheSize(0, 0, state_bytes=1.0)
    read = range(0, 20, 2)
    chat.read(first, tuple(read))
    chat.write(first, answer)
    kept = [point.position for point in chat.conversation.target.checkpoints]
    logits = chat.read(second, (15,))
    before = chunk_positions(15)[0]
    assert before - 4 * CHUNK < max(p for p in kept if p <= before), "a step has two chunks"
    assert chat.reader.so_far.reused_tokens >= DOCUMENT[0] + 6 * CHUNK
    cached = chat.conversation.target.cached
    assert np.count_nonzero(cached[slice(*DOCUMENT)]) == 11 * CHUNK
    expected = one_by_one(models[name], second.ids, Read(np.flatnonzero(cached)))[-1]
    assert difference(logits, expected) < TOLERANCE


@pytest.mark.parametrize("place", [0.25, slow(0.5), slow(0.75), 0.9])
def test_a_recalled_passage_costs_what_was_read_after_it(place: float) -> None:
    """With recurrent layers. A fifth of a document of 1,600 tokens was read."""
    first, answer, second = conversation((4, 1604))
    chat = Chat(build("qwen3_5"))
    chat.models.target.cache_size = CacheSize(0, 0, state_bytes=1.0)
    chat.read(first, tuple(range(0, 200, 5)))
    chat.write(first, answer)
    passage = int(place * 200) + 1
    chat.read(second, (passage, passage + 1, passage + 2))
    assert chat.conversation.target.cached[chunk_positions(passage)].all()
    read, again = 40 * CHUNK, 40 * CHUNK + DOCUMENT[0] - chat.reader.so_far.reused_tokens
    assert again <= (1 - place + 0.15) * read


@pytest.fixture
def asides() -> Iterator[Asides]:
    with recorded_asides() as found:
        yield found


class AsideChat(Chat):
    """A first question and its answer, whose recurrent layers may then read chunks aside."""

    def __init__(self, model: Any, asides: Asides, chunks: tuple[int, ...] = FIRST) -> None:
        super().__init__(model)
        self.models.target.cache_size = CacheSize(0, 0, state_bytes=1.0)
        self.asides = asides
        self.first, self.answer, self.second = conversation()
        self.read(self.first, chunks)
        self.write(self.first, self.answer)

    def read_on(self, *chunks: int) -> None:
        """Read these chunks aside, as an answer does that needs them."""
        positions = self.target.uncached(positions_of(*chunks))
        step = StepSize(16, backend=BACKENDS["cpu"])
        self.target.prefill_at(self.model, self.target.ids, positions, step, lambda done: None)

    @property
    def target(self) -> PrefixCache:
        return self.conversation.target

    def reads(self) -> list[Read]:
        return reads_of(self.target, self.asides)

    def is_exact(self, logits: mx.array, *chunks: int) -> bool:
        """Whether these chunks were read aside, in this order, and the `logits` equal the
        oracle."""
        assert find_mismatch(self.target) is None
        assert read_aside(self.reads()) == positions_of(*chunks).tolist()
        expected = one_by_one(self.model, self.target.ids, *self.reads())[-1]
        return difference(logits, expected) < TOLERANCE


def positions_of(*chunks: int) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *map(chunk_positions, chunks)])


def edited(prompt: Prompt) -> Prompt:
    """The same with another question."""
    ids = prompt.ids.copy()
    ids[-QUESTION:] = ids[-QUESTION:][::-1].copy()
    return Prompt(ids, prompt.segments, {})


def states(prefix: PrefixCache) -> list[mx.array]:
    """The states of all recurrent layers."""
    layers = [layer for layer in flatten(prefix.cache) if isinstance(layer, ArraysCache)]
    return [state for layer in layers for state in layer.cache]


@pytest.mark.parametrize("name", architectures(*HYBRID))
@pytest.mark.parametrize("end", ["done", *map(slow, ("between steps", "within a step")), "failed"])
def test_recurrent_layers_return_to_their_states_however_reading_aside_ends(
    name: str,
    end: str,
    models: dict[str, Any],
    asides: Asides,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cancelled, it continues where it was; a step that failed is noticed."""
    chat = AsideChat(models[name], asides)
    before, known = states(chat.target), chat.target.cached.copy()
    chunks = positions_of(1, 10, 15)

    def on_step(done: int) -> None:
        if end == "between steps" and done > CHUNK:
            raise TurnCancelled

    def on_part(done: int) -> None:
        if end == "within a step" and done > CHUNK:
            raise TurnCancelled

    store = PositionedCache.update_and_fetch

    def fails(cache: PositionedCache, keys: mx.array, values: mx.array) -> None:
        store(cache, keys, values)
        raise TurnCancelled

    if end == "failed":
        monkeypatch.setattr(PositionedCache, "update_and_fetch", fails)
    monkeypatch.setattr(StepSize, "parts", lambda self, tokens: 4)
    step = StepSize(16, backend=BACKENDS["cpu"])
    with nullcontext() if end == "done" else pytest.raises(TurnCancelled):
        chat.target.prefill_at(chat.model, chat.second.ids, chunks, step, on_step, on_part)
    assert all(a is b for a, b in zip(before, states(chat.target), strict=True))
    assert (find_mismatch(chat.target) is None) == (end != "failed")
    done = int(chat.target.cached.sum() - known.sum())
    assert done == {"done": 24, "failed": 0}.get(end, done)
    if end != "failed":
        assert done >= CHUNK
        chat.read_on(1, 10, 15)
        assert chat.is_exact(chat.read(chat.second, (1, 10)), 1, 10, 15)


@pytest.mark.parametrize("name", architectures(*RECURRENT))
def test_an_edited_question_keeps_the_chunks_that_were_read_aside_before_it(
    name: str, models: dict[str, Any], asides: Asides
) -> None:
    chat = AsideChat(models.get(name) or build(name), asides)
    chat.read(chat.second, FIRST)
    chat.read_on(10)
    chat.read_on(1, 6)
    assert chat.is_exact(chat.read(edited(chat.second), ()), 10, 1, 6)
    assert chat.reader.so_far.recalled_tokens == 0


@pytest.mark.parametrize("name", architectures(*HYBRID))
def test_recall_after_reading_aside_drops_what_follows_it(
    name: str, models: dict[str, Any], asides: Asides
) -> None:
    """What was read aside before the recalled chunk stays."""
    chat = AsideChat(models[name], asides)
    chat.read_on(1, 15)
    logits = chat.read(chat.second, (10,))
    assert chat.is_exact(logits, 1)
    assert chat.target.cached[positions_of(1, 10)].all()


@pytest.mark.parametrize("name", architectures(*HYBRID))
def test_going_back_keeps_what_was_read_aside_before_the_checkpoint(
    name: str, models: dict[str, Any], asides: Asides
) -> None:
    """The states of a checkpoint are the same whatever is read aside afterwards."""
    chat = AsideChat(models[name], asides)
    chat.read_on(1, 10, 15)
    twin = chat.target.fork(DOCUMENT[1])
    assert len(twin) == DOCUMENT[1]
    assert find_mismatch(twin) is None
    assert np.array_equal(twin.cached, chat.target.cached[: len(twin)])
    logits = chat.read(edited(chat.first), FIRST)
    assert chat.is_exact(logits, 1, 10, 15)
    assert chat.reader.so_far.recalled_tokens == 0


@pytest.mark.parametrize("name", architectures(*HYBRID))
def test_another_conversation_starts_from_rows_that_were_read_aside(
    name: str, models: dict[str, Any], asides: Asides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They depend only on the tokens before them."""
    monkeypatch.setattr("app.engine.memory.prefix_sharing.MIN_SHARED", 1)
    chat, other = AsideChat(models[name], asides), AsideChat(models[name], asides)
    chat.read_on(1, 10, 15)
    sharing = PrefixSharing(OrderedDict(chat=chat.conversation, other=other.conversation))
    other.conversation.target.clear()
    prompt = edited(chat.first)
    sharing.start_from_longest(other.conversation, prompt, dense=False)
    assert other.is_exact(other.read(prompt, (1, 10)), 1, 10, 15)
    assert other.reader.so_far.reused_tokens == DOCUMENT[0] + 6 * CHUNK


@pytest.mark.parametrize("name", architectures(*HYBRID))
def test_full_after_reading_aside_equals_one_dense_pass(
    name: str, models: dict[str, Any], asides: Asides
) -> None:
    """Also if what was read aside follows the tokens that were read without a gap."""
    chat = AsideChat(models[name], asides, (0, 3, 11))
    chat.read_on(1, 5)
    assert chat.target.dense_prefix_len == DOCUMENT[0] + CHUNK
    logits = chat.read(chat.second, None)
    assert difference(logits, dense_logits(models[name], chat.second.ids)) < TOLERANCE
    assert chat.target.dense_prefix_len == len(chat.second.ids)
    assert chat.is_exact(logits)


@pytest.mark.parametrize("name", architectures(*HYBRID))
def test_a_snapshot_after_reading_aside_continues_like_the_cache_in_memory(
    name: str, models: dict[str, Any], asides: Asides, tmp_path: Path
) -> None:
    """A snapshot keeps only the checkpoints around the document."""
    chat, again = AsideChat(models[name], asides), AsideChat(models[name], asides)
    chat.read(chat.second, FIRST)
    chat.read_on(1, 10, 15)
    snapshots = Snapshots(tmp_path, 1 << 30, {"target": "tiny"})
    for _ in snapshots.save("c", chat.conversation):
        pass
    again.conversation = snapshots.load("c", lambda: ConversationCache(again.models))
    points = [point.position for point in again.target.checkpoints]
    chat.target.checkpoints = [p for p in chat.target.checkpoints if p.position in points]
    prompt = edited(chat.second)
    logits = chat.read(prompt, ())
    assert chat.is_exact(logits, 1, 10, 15)
    assert difference(again.read(prompt, ()), logits) == 0
    assert again.reader.so_far.reused_tokens == chat.reader.so_far.reused_tokens > 0


def test_a_model_without_attention_reads_nothing_aside() -> None:
    """It would forget it."""
    target = PrefixCache(lambda: make_positioned_cache(build("mamba2")))
    assert target.is_recurrent
    assert not target.can_insert_at(0, aside=True)


@pytest.mark.parametrize("name", architectures(*HYBRID))
def test_another_question_about_the_same_document_starts_after_it(
    name: str, models: dict[str, Any]
) -> None:
    """This holds after more turns than there are checkpoints, whose number stays the same."""
    prompt, answer, _ = conversation()
    chat = Chat(models[name])
    for _ in range(MIN_CHECKPOINTS + 2):
        chat.read(prompt, None)
        chat.write(prompt, answer)
        prompt = followed_up(prompt, answer)
    points = chat.conversation.target.checkpoints
    assert len(points) == MIN_CHECKPOINTS
    assert [point.position for point in points if point.lasting] == [*DOCUMENT]
    assert len(chat.conversation.target.fork(DOCUMENT[1] + 2)) == DOCUMENT[1]


def followed_up(prompt: Prompt, answer: NDArray[np.int32]) -> Prompt:
    """The prompt of one more question. As in real prompts, earlier messages are history."""
    asked, end = len(prompt.ids), len(prompt.ids) + len(answer)
    before = [
        replace(each, kind=SegmentKind.HISTORY) if each.kind is SegmentKind.QUESTION else each
        for each in prompt.segments
    ]
    total = end + QUESTION
    added = [
        Segment(SegmentKind.HISTORY, asked, end),
        Segment(SegmentKind.QUESTION, end, total - 4),
        Segment(SegmentKind.GENERATION, total - 4, total),
    ]
    before[-1] = replace(before[-1], kind=SegmentKind.TEMPLATE)
    ids = np.concatenate([prompt.ids, answer, prompt.ids[-QUESTION:]])
    return Prompt(ids, (*before, *added), {})


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_reading_from_scratch_is_chosen_if_it_is_faster_than_recall(
    name: str, models: dict[str, Any]
) -> None:
    first, answer, second = conversation()
    chat, fresh = Chat(models[name]), Chat(models[name])
    chat.costs = Costs(target=LinearCost(0, 0, 1.0))
    chat.read(first, tuple(range(1, 20)))
    chat.write(first, answer)
    logits = chat.read(second, (0, 3))
    assert chat.reader.so_far.reused_tokens <= DOCUMENT[0]
    assert chat.reader.so_far.reasons[-1].code is ReasonCode.RE_READ
    assert difference(logits, fresh.read(second, (0,))) < TOLERANCE, "one chunk was asked for"


def test_reading_from_scratch_is_also_reported_with_automatic_keep(
    models: dict[str, Any],
) -> None:
    first, answer, second = conversation()
    chat = Chat(models["llama"])
    chat.costs = Costs(target=LinearCost(0, 0, 1.0))
    chat.read(first, tuple(range(1, 20)))
    chat.write(first, answer)
    chat.auto_keep = True
    chat.read(second, (0, 3))
    codes = [reason.code for reason in chat.reader.so_far.reasons]
    assert codes == [ReasonCode.KEEP_CHOSEN, ReasonCode.RE_READ]


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_a_repeated_question_recalls_no_more_than_keep(name: str, models: dict[str, Any]) -> None:
    first, _, _ = conversation()
    chat = Chat(models[name])
    logits = chat.read(first, FIRST)
    read = chat.conversation.target.cached.copy()
    again = chat.read(first, FIRST)
    assert chat.reader.so_far.recalled_tokens == 0
    assert np.array_equal(chat.conversation.target.cached, read)
    assert difference(again, logits) < TOLERANCE


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_a_question_repeated_at_a_higher_keep_sees_the_recalled_tokens(
    name: str, models: dict[str, Any]
) -> None:
    first, _, _ = conversation()
    chat, fresh = Chat(models[name]), Chat(models[name])
    chat.read(first, FIRST[:2])
    again = chat.read(first, FIRST)
    assert chat.reader.so_far.recalled_tokens == CHUNK
    assert difference(again, fresh.read(first, FIRST)) < TOLERANCE


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_full_after_a_sparse_turn_equals_one_dense_pass(name: str, models: dict[str, Any]) -> None:
    first, answer, second = conversation()
    chat = Chat(models[name])
    chat.read(first, FIRST)
    chat.write(first, answer)
    logits = chat.read(second, None)
    assert chat.reader.so_far.reused_tokens <= DOCUMENT[0]
    assert difference(logits, dense_logits(models[name], second.ids)) < TOLERANCE
    assert chat.conversation.target.dense_prefix_len == len(second.ids)


@pytest.mark.parametrize("name", architectures(*PURE))
def test_the_oracle_notices_recalled_tokens_that_see_later_ones(
    name: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, answer, second = conversation()
    chat = Chat(models[name])
    chat.read(first, FIRST)
    chat.write(first, answer)
    by_position = PositionedCache._mask

    def by_order(self: Any, N: int, window: Any, return_array: bool, stored: Any) -> Any:
        mask = by_position(self, N, window, True, stored)
        old = mx.arange(len(stored) + N) < len(stored)
        return mask | old[None]

    monkeypatch.setattr(PositionedCache, "_mask", by_order)
    logits = chat.read(second, LATER)
    assert difference(logits, expected_after_recall(name, models[name])) > 100 * TOLERANCE


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_another_second_question_keeps_the_common_prefix(name: str, models: dict[str, Any]) -> None:
    """After an edit, the previous turn stays cached."""
    first, answer, second = conversation()
    chat = Chat(models[name])
    chat.read(first, None)
    chat.write(first, answer)
    chat.read(second, None)
    edited = Prompt(second.ids.copy(), second.segments, {})
    edited.ids[-QUESTION + 2 :] = edited.ids[-QUESTION + 2 :][::-1].copy()
    logits = chat.read(edited, None)
    assert chat.reader.so_far.reused_tokens > DOCUMENT[1]
    assert difference(logits, dense_logits(models[name], edited.ids)) < TOLERANCE


def test_a_stock_cache_is_replaced_by_a_positioned_one(models: dict[str, Any]) -> None:
    first, answer, second = conversation()
    chat = Chat(models["llama"])
    chat.conversation.reset_to_stock()
    assert type(chat.conversation.target.cache[0]) is type(make_stock_cache(models["llama"])[0])
    chat.read(first, None)
    chat.write(first, answer)
    chat.read(second, LATER)
    assert chat.reader.so_far.reused_tokens == 0


@pytest.mark.parametrize("name", architectures(*ORACLE))
@pytest.mark.parametrize("needed", [None, FIRST], ids=["dense", "sparse"])
def test_a_snapshot_continues_like_the_cache_in_memory(
    name: str, needed: tuple[int, ...] | None, models: dict[str, Any], tmp_path: Path
) -> None:
    first, answer, second = conversation()
    chat = Chat(models[name])
    chat.read(first, needed)
    chat.write(first, answer)
    snapshots = Snapshots(tmp_path, 1 << 30, {"target": name})
    for _ in snapshots.save("c", chat.conversation):
        pass
    loaded = snapshots.load("c", lambda: ConversationCache(pair(models[name])))
    assert loaded.nbytes
    later = LATER if needed else None
    expected = chat.read(second, later)
    again = Chat(models[name])
    again.conversation = loaded
    assert difference(again.read(second, later), expected) == 0
    assert again.reader.so_far.reused_tokens == chat.reader.so_far.reused_tokens > 0


@table(
    "recalled, read, length, after",
    [
        ([2, 3], [4, 5, 6, 7], 3, [4, 5, 6]),
        ([2, 3], [5, 6], 3, []),
        ([2, 6], [3, 7, 8], 9, [3, 7, 8]),
        ([2, 5], [3, 4, 6], 2, [3, 4, 6]),
        ([9], [2], 3, []),
    ],
)
def test_stale_runs_are_the_cached_tokens_after_recalled_ones(
    recalled: list[int], read: list[int], length: int, after: list[int]
) -> None:
    prefix = PrefixCache(list)
    prefix.ids, prefix.cached = np.zeros(10, np.int32), np.isin(np.arange(10), read)
    assert prefix.stale_runs(np.array(recalled, np.int32), length).tolist() == after
