"""Random conversations with recall, edits, branches, restarts and cancelled reads. Every answer
equals that of a fresh model in which each token sees what had been read at its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.cache.prefill import StepInParts, StepSize, set_next_position
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.cache.sizes import CacheSize
from app.engine.cache.snapshot import Snapshots
from app.engine.memory.cache_pool import BackgroundPrefill
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model.prompt import Prompt
from app.engine.model.token_stream import Match
from app.engine.progress import TurnCancelled
from app.engine.turn.mid_answer_recall import MidAnswerRecall
from app.protocol.prompt import Segment, SegmentKind
from tests.engine.oracle import (
    TOLERANCE,
    Asides,
    KeysAndValues,
    Read,
    difference,
    in_steps,
    keys_seen,
    one_by_one,
    read_aside,
    reads_of,
    recorded_asides,
)
from tests.engine.test_turns import (
    CHUNK,
    DOCUMENT,
    Chat,
    chunk_positions,
)
from tests.patience import ROUNDS
from tests.tables import slow
from tests.tiny import PURE, VOCABULARY, build

LONGEST = 400
"""Maximum tokens of a conversation."""
CHUNKS = (DOCUMENT[1] - DOCUMENT[0]) // CHUNK
TURNS, FEW, QUESTION, ANSWER = 7, 3, (5, 14), (3, 12)
"""Number of turns (in quick tests, `FEW`), and ranges for the lengths of their parts."""
mlx_patches.install()


class Oracle:
    """Recomputes everything fed to a cache with plain attention, one pass for each part."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._stored: KeysAndValues | None = None

    def read(
        self, ids: NDArray[np.int32], positions: NDArray[np.int32], cached: NDArray[np.bool_]
    ) -> mx.array:
        """Logits after the last of `positions`, read in one pass that also sees what is
        `cached`."""
        every = np.zeros(LONGEST, np.int32)
        every[: len(ids)] = ids
        known = np.zeros(LONGEST, bool)
        known[: len(cached)] = cached
        known[positions] = True
        now = np.isin(np.arange(LONGEST), positions)
        seen = (now[:, None] & known[None]) | np.eye(LONGEST, dtype=bool)
        stay = None if self._stored is None else ~now
        with keys_seen(seen, stay, self._stored) as self._stored:
            logits = self._model(mx.array(every)[None])[0, int(positions[-1])]
            mx.eval(logits, self._stored)
        return logits


class Conversation:
    """Random turns about one document on one cache, together with the oracle."""

    def __init__(self, model: Any, seed: int, folder: Path, chat: Chat | None = None) -> None:
        self.random, self.numbers = Random(seed), np.random.default_rng(seed)
        self.oracle, self.chat = Oracle(model), chat or Chat(model)
        self.snapshots = Snapshots(folder, 1 << 30, {"target": str(seed)})
        self.model = model
        self.start = self.tokens(DOCUMENT[1])
        self.turns: list[NDArray[np.int32]] = []
        """Alternating questions and answers."""
        self.branches: list[list[NDArray[np.int32]]] = []
        self.done: list[str] = []

    def tokens(self, count: int) -> NDArray[np.int32]:
        return self.numbers.integers(0, VOCABULARY, count).astype(np.int32)

    @property
    def target(self) -> PrefixCache:
        return self.chat.conversation.target

    def prompt(self) -> Prompt:
        ids = np.concatenate([self.start, *self.turns])
        question = len(ids) - len(self.turns[-1])
        borders = (0, DOCUMENT[0], DOCUMENT[1], question, len(ids) - 4, len(ids))
        kinds = (
            SegmentKind.TEMPLATE,
            SegmentKind.DOCUMENT,
            SegmentKind.TEMPLATE,
            SegmentKind.QUESTION,
            SegmentKind.GENERATION,
        )
        parts = zip(kinds, borders, borders[1:], strict=False)
        return Prompt(ids, tuple(Segment(*part) for part in parts if part[1] < part[2]), {})

    def step(self) -> None:
        does = ["ask"]
        if self.turns:
            does += ["edit", "again", "restart", "go back"]
        what = self.random.choice(does)
        self.done.append(what)
        if what == "restart":
            self.restart()
        if what in ("edit", "again"):
            del self.turns[-1]
        if what == "edit":
            self.branches.append(list(self.turns))
            del self.turns[2 * self.random.randint(0, len(self.turns) // 2) :]
            del self.turns[len(self.turns) - len(self.turns) % 2 :]
        if what == "go back" and self.branches:
            self.turns = self.random.choice(self.branches)[:]
            del self.turns[len(self.turns) - len(self.turns) % 2 :]
        if len(self.turns) % 2 == 0:
            self.turns.append(self.tokens(self.random.randint(*QUESTION)))
        self.ask()
        self.answer()

    def restart(self) -> None:
        for _ in self.snapshots.save("c", self.chat.conversation):
            pass
        loaded = self.snapshots.load("c", lambda: ConversationCache(self.chat.models))
        assert loaded is not None
        self.chat.conversation = loaded

    def ask(self) -> None:
        needed = self.random.sample(range(CHUNKS), self.random.randint(1, 2))
        full = self.random.random() < 0.03
        with self.watched():
            logits = self.chat.read(self.prompt(), None if full else tuple(needed))
        self.same(logits)

    def answer(self) -> None:
        prompt, answer = self.prompt(), self.tokens(self.random.randint(*ANSWER))
        ids = np.concatenate([prompt.ids, answer])
        recall_after = self.random.randint(1, len(answer))
        for count in range(1, len(answer) + 1):
            end = len(prompt.ids) + count
            self.same(self.feed(ids[:end]))
            if count == recall_after and self.can_recall:
                if not self.recall(prompt, answer[:count]):
                    answer = answer[:count]
                    break
                self.same(self.feed(ids[:end]))
        self.turns.append(answer)

    @property
    def can_recall(self) -> bool:
        skipped = not self.target.cached[slice(*DOCUMENT)].all()
        return skipped and MidAnswerRecall.is_possible(self.target)

    def feed(self, ids: NDArray[np.int32]) -> mx.array:
        with self.watched():
            return self.chat._feed(ids[-1:], ids)

    def recall(self, prompt: Prompt, written: NDArray[np.int32]) -> bool:
        """Recall within the answer. Returns False if it is cancelled, which ends the answer."""
        skipped = np.flatnonzero(~self.target.cached[slice(*DOCUMENT)]) // CHUNK
        steps, fail_at = 0, self.random.choice([0, 0, 1, 2])

        def on_step(done: int) -> None:
            nonlocal steps
            steps += 1
            if steps == fail_at:
                raise TurnCancelled

        recall = MidAnswerRecall(
            self.chat.models.target, self.target, prompt, CHUNK, 10**6, lambda p: None, on_step
        )
        place = int(chunk_positions(int(self.random.choice(skipped.tolist())))[0])
        assert recall.find(Match((0,), place, min(place, 8)))
        try:
            with self.watched():
                recall.read(written.tolist())
        except TurnCancelled:
            self.done.append("cancelled")
            assert find_mismatch(self.target) is None
            return False
        self.done.append("recall")
        return True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context manager: the oracle reads everything that is fed to the cache."""
        conversation, real = self, PrefixCache.prefill_at
        fed = Chat._feed

        def prefill_at(
            target: PrefixCache,
            model: Any,
            ids: NDArray[np.int32],
            positions: NDArray[np.int32],
            step: StepSize,
            on_step: Any,
            on_part: Any = None,
        ) -> None:
            done = 0

            def read(now: int) -> None:
                nonlocal done
                cached = target.cached.copy()
                cached[positions[done:now]] = False
                conversation.oracle.read(ids, positions[done:now], cached)
                done = now
                on_step(now)

            real(target, model, ids, positions, step, read, on_part)

        def feed(chat: Chat, token: NDArray[np.int32], ids: NDArray[np.int32]) -> mx.array:
            cached = chat.conversation.target.cached[: len(ids) - 1].copy()
            logits = fed(chat, token, ids)
            last = np.array([len(ids) - 1], np.int32)
            conversation.expected = conversation.oracle.read(ids, last, cached)
            return logits

        PrefixCache.prefill_at, Chat._feed = prefill_at, feed  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            PrefixCache.prefill_at, Chat._feed = real, fed  # type: ignore[method-assign]

    def same(self, logits: mx.array) -> None:
        assert find_mismatch(self.target) is None, self.done
        assert difference(logits, self.expected) < TOLERANCE, self.done


def converse(seed: int, folder: Path, turns: int = TURNS) -> list[str]:
    conversation = Conversation(build(PURE[seed % len(PURE)]), seed, folder)
    for _ in range(turns):
        conversation.step()
    return conversation.done


class HybridConversation(Conversation):
    """The same with a model that has recurrent layers. Each state depends on all tokens read so
    far, so the oracle reads all cached tokens in that order, those in `asides` aside. Reads are
    cancelled at random, and skipped tokens are read in the background."""

    def __init__(self, model: Any, seed: int, folder: Path, asides: Asides) -> None:
        super().__init__(model, seed, folder)
        self.chat.models.target.cache_size = CacheSize(0, 0, state_bytes=1.0)
        self.asides = asides

    def ask(self) -> None:
        needed = tuple(self.random.sample(range(CHUNKS), self.random.randint(1, 2)))
        if self.random.random() < 0.2:
            self.cancel_after(self.random.randint(1, 3), needed)
        full = self.random.random() < 0.05
        self.same(self.chat.read(self.prompt(), None if full else needed))
        assert self.chat.reader is not None
        if self.chat.reader.so_far.reused_tokens > DOCUMENT[0]:
            self.done.append("reused")
        if full:
            self.done.append("full")
            assert self.target.dense_prefix_len == len(self.target)
        if read_aside(reads_of(self.target, self.asides)):
            self.done.append("aside")
        self.same(None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        yield

    def cancel_after(self, steps: int, needed: tuple[int, ...]) -> None:
        """Cancel before the step after these, or within it."""
        real, done, within = PrefixCache._fill, 0, self.random.random() < 0.5

        def fill(target: PrefixCache, *given: Any, **named: Any) -> None:
            nonlocal done
            if (done := done + 1) > steps:
                if not within:
                    raise TurnCancelled
                named["parts"] = StepInParts(target.cache, 2, cancel)
            real(target, *given, **named)

        def cancel(share: float) -> None:
            raise TurnCancelled

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PrefixCache, "_fill", fill)
            with suppress(TurnCancelled):
                self.chat.read(self.prompt(), needed)
                return
        self.done.append("cancelled")
        assert find_mismatch(self.target) is None

    def answer(self) -> None:
        prompt, answer = self.prompt(), self.tokens(self.random.randint(*ANSWER))
        ids = np.concatenate([prompt.ids, answer])
        recall_before, recalled = self.random.randint(1, 2 * len(answer)), True
        for count in range(1, len(answer) + 1):
            if count == recall_before and self.can_recall:
                recalled = self.recall(prompt, answer[:count])
            if not recalled:
                answer = answer[:count]
                break
            end = len(prompt.ids) + count
            logits = self.chat._feed(ids[end - 1 : end], ids[:end])
        self.same(logits if recalled else None)
        self.turns.append(answer)
        if self.random.random() < 0.1 and self.target.has_gaps:
            self.done.append("background")
            background = BackgroundPrefill(self.chat.models.target, self.chat.conversation)
            while not background.step():
                pass
            assert self.target.cached.all()

    def same(self, logits: mx.array | None) -> None:
        """Without `logits`, compare one of the checkpoints with the oracle."""
        target = self.target
        assert find_mismatch(target) is None, self.done
        if logits is not None:
            self.equals(logits, target.ids, *reads_of(target, self.asides))
            return
        position = self.random.choice(target.checkpoints).position
        twin = target.fork(position)
        assert len(twin) == position
        assert np.array_equal(twin.cached, target.cached[:position])
        set_next_position(twin.cache, LONGEST)
        found = self.model(mx.array([[7]]), cache=twin.cache)[0, -1]
        ids = np.full(LONGEST + 1, 7, np.int32)
        ids[:position] = twin.ids
        self.equals(found, ids, *reads_of(twin, self.asides), Read(np.array([LONGEST])))

    def equals(self, logits: mx.array, ids: NDArray[np.int32], *reads: Read) -> None:
        main = np.concatenate([read.positions for read in reads if read.aside is None])
        assert (np.diff(main) > 0).all(), "recurrent layers read in the order of the text"
        dense = np.arange(self.target.dense_prefix_len)
        assert not set(read_aside(reads)) & set(dense.tolist())
        if difference(logits, one_by_one(self.model, ids, *reads)[-1]) >= TOLERANCE:
            # Single tokens round otherwise than steps, which a random model rarely amplifies.
            expected = in_steps(self.model, ids, *reads)[-1]
            assert difference(logits, expected) < TOLERANCE, self.done

    @property
    def can_recall(self) -> bool:
        skipped = not self.target.cached[slice(*DOCUMENT)].all()
        return skipped and MidAnswerRecall.is_possible(self.target)


def converse_with_hybrid(name: str, seed: int, folder: Path, turns: int = TURNS) -> list[str]:
    with recorded_asides() as asides:
        conversation = HybridConversation(build(name), seed, folder, asides)
        for _ in range(turns):
            conversation.step()
    return conversation.done


@pytest.mark.parametrize(
    ("name", "turns"), [("qwen3_next", FEW), slow("qwen3_5", TURNS), slow("nemotron_h", TURNS)]
)
def test_every_answer_of_a_hybrid_equals_the_oracle(name: str, turns: int, tmp_path: Path) -> None:
    done = converse_with_hybrid(name, 2, tmp_path, turns)
    assert {"reused", "aside"} <= set(done)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_5", "nemotron_h"])
def test_random_conversations_with_a_hybrid_equal_the_oracle(name: str, tmp_path: Path) -> None:
    done = [
        what
        for seed in range(16 * ROUNDS)
        for what in converse_with_hybrid(name, seed, tmp_path / str(seed))
    ]
    events = ["edit", "again", "restart", "go back", "cancelled", "background", "reused", "full"]
    for what in [*events, "aside", "recall"]:
        assert done.count(what) > 1, what


@pytest.mark.parametrize(("seed", "turns"), [(0, FEW), slow(0, TURNS), slow(1, TURNS)])
def test_every_answer_of_a_random_conversation_equals_the_oracle(
    seed: int, turns: int, tmp_path: Path
) -> None:
    converse(seed, tmp_path, turns)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 25))
def test_a_hundred_random_conversations_equal_the_oracle(first: int, tmp_path: Path) -> None:
    seeds = range(first, first + 25)
    done = [what for seed in seeds for what in converse(seed, tmp_path / str(seed))]
    for what in ("edit", "again", "restart", "go back", "recall", "cancelled"):
        assert done.count(what) > 5, what
