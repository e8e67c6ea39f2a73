"""Conversations reuse prefixes of others, and shared rows are stored once."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from app.engine.cache import shared_rows, snapshot
from app.engine.cache.caches import PositionedCache, flatten
from app.engine.cache.kv_quantisation import Quantisation
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.sizes import CacheSize
from app.engine.cache.snapshot import MANIFEST, block_digest
from app.engine.cache.snapshot_folder import folder_bytes
from app.engine.memory import cache_pool, prefix_sharing
from app.engine.memory.cache_pool import CachePool
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model.prompt import Prompt
from app.engine.progress import TurnClock
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import BackgroundProgress, EngineWarning, SnapshotFailed, SnapshotRestored
from app.protocol.options import DEFAULT_TUNING, BackgroundPolicy, Mode
from app.protocol.prompt import Document, Message, Role, Segment, SegmentKind
from app.protocol.reasons import ReasonCode
from tests.engine.driver import TEXT, Driver, opened
from tests.engine.oracle import BACKENDS, TOLERANCE, difference
from tests.engine.test_cache_pool import ask, reply, second
from tests.engine.test_kv_quantisation import wide as wide
from tests.engine.test_turns import CHUNK, DOCUMENT, Chat, pair
from tests.tiny import ORACLE, QUICK, VOCABULARY, build

FIRST, OTHER = "What is the code of gate 7?", "And which gate has code 4?"


def test_a_new_conversation_about_the_same_document_reuses_its_cache(
    loaded: Driver,
) -> None:
    first = loaded.figures(ask(FIRST, name="a"))
    other = loaded.figures(ask(OTHER, name="b"))
    assert other.reused_tokens > 0.85 * first.read_tokens
    new = other.read_tokens - other.reused_tokens - other.recalled_tokens
    assert new < 60, "the question, and what the answer needs"
    alone = replace(ask(OTHER, name="c"), read_again=True)
    assert loaded.figures(alone).reused_tokens == 0


def test_sharing_does_not_change_answers_in_full_mode(loaded: Driver) -> None:
    whole = loaded.figures(ask(FIRST, name="a", mode=Mode.FULL))
    other = loaded.answer(ask(OTHER, name="b", mode=Mode.FULL))
    assert other.statistics.reused_tokens > 0.9 * whole.read_tokens
    fresh = loaded.answer(ask(OTHER, name=None, mode=Mode.FULL))
    assert fresh.statistics.reused_tokens == 0
    assert other.generated_ids == fresh.generated_ids


def test_dense_reading_never_reuses_a_prefix_with_gaps(loaded: Driver) -> None:
    loaded.answer(ask(FIRST, name="a"))
    other = loaded.answer(ask(OTHER, name="b", mode=Mode.FULL))
    fresh = loaded.answer(ask(OTHER, name=None, mode=Mode.FULL))
    assert other.generated_ids == fresh.generated_ids


def test_a_branch_and_a_duplicate_start_where_the_conversation_is(loaded: Driver) -> None:
    question = ask(FIRST, name="a")
    answer, _ = reply(loaded, question)
    later = second(question, answer, OTHER)
    then, _ = reply(loaded, later)
    branch = replace(second(question, answer, "And that of gate 40?"), conversation="branch")
    assert loaded.figures(branch).reused_tokens > 0
    duplicate = replace(second(later, then, "Why?"), conversation="duplicate")
    found = loaded.figures(duplicate)
    new = found.read_tokens - found.reused_tokens - found.recalled_tokens
    assert new < 60 + 2 * DEFAULT_TUNING.chunk, "what follows two recalled chunks is read again"
    again = loaded.figures(replace(duplicate, conversation="a"))
    assert again.reused_tokens > 0.85 * found.read_tokens, "the first one still has its own"


def elsewhere(statistics: Any) -> list[str]:
    """Documents reported as read in another conversation after other text."""
    found = [each for each in statistics.reasons if each.code is ReasonCode.READ_ELSEWHERE]
    return [name for reason in found for name in reason.data["names"]]


def test_another_system_prompt_or_order_shares_nothing_and_reports_it(
    loaded: Driver,
) -> None:
    whole = loaded.figures(ask(FIRST, name="a", mode=Mode.FULL))
    assert elsewhere(whole) == []
    documents = (Document("b.txt", TEXT[3000:]), Document("gates.txt", TEXT[:3000]))
    message = Message(Role.USER, FIRST, documents)
    other = replace(ask(FIRST, name="b", mode=Mode.FULL), messages=(message,))
    found = loaded.figures(other)
    assert found.reused_tokens < 0.1 * whole.read_tokens
    assert elsewhere(found) == ["gates.txt"]
    system = Message(Role.SYSTEM, "Be brief.")
    briefly = ask(FIRST, name="c", mode=Mode.FULL)
    briefly = replace(briefly, messages=(system, *briefly.messages))
    found = loaded.figures(briefly)
    assert found.reused_tokens < 0.1 * whole.read_tokens
    assert elsewhere(found) == ["gates.txt"]
    again = loaded.figures(briefly)
    assert elsewhere(again) == [], "it has been read after this text now"


def test_documents_with_only_a_common_start_are_not_reported(
    loaded: Driver,
) -> None:
    """Such as files that begin with the same licence."""
    licence, rest = TEXT[:200], TEXT[200:]
    names = ("one.txt", "two.txt", "three.txt")
    texts = [licence + rest[:400], licence + rest[400:], licence + rest[::-1][:400]]
    documents = [Document(*each) for each in zip(names, texts, strict=True)]
    question = ask(FIRST, name="a", mode=Mode.FULL)

    def about(turn: int, name: str, *chosen: Document) -> list[str]:
        message = Message(Role.USER, FIRST, chosen)
        asked = replace(question, conversation=name, messages=(message,))
        return elsewhere(loaded.figures(asked))

    about(1, "a", *documents[:2])
    assert about(2, "b", documents[2]) == []
    assert about(3, "c", documents[1]) == ["two.txt"]


class Counted(np.ndarray):  # type: ignore[type-arg]
    """An array that counts how many tokens are compared."""

    seen = 0

    def tobytes(self, *arguments: Any) -> bytes:
        Counted.seen += self.size
        return super().tobytes(*arguments)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.seen += np.size(found)
        return found


def test_new_documents_are_not_compared_with_every_conversation() -> None:
    """Many documents in many conversations, all with the same licence at the start."""
    random, models = np.random.default_rng(0), pair(build("llama"))
    licence = random.integers(0, VOCABULARY, shared_rows.MIN_SHARED)
    texts = [np.append(licence, random.integers(0, VOCABULARY, 170)) for _ in range(90)]

    def chat(documents: range, at: int) -> tuple[ConversationCache, Prompt, list[Message]]:
        ids = np.concatenate([np.full(at, at), *(texts[i] for i in documents)]).astype(np.int32)
        ends = at + np.cumsum([len(texts[i]) for i in documents])
        segments = [
            Segment(SegmentKind.DOCUMENT, int(end) - len(texts[i]), int(end), 0, number)
            for number, (i, end) in enumerate(zip(documents, ends, strict=True))
        ]
        files = tuple(Document(f"{i}.txt", "") for i in documents)
        prompt = Prompt(ids, tuple(segments), {})
        return ConversationCache(models), prompt, [Message(Role.USER, "", files)]

    chats = [chat(range(10 * at, 10 * at + 10), 1 + at) for at in range(8)]
    caches = OrderedDict((str(at), cache) for at, (cache, _, _) in enumerate(chats))
    sharing = prefix_sharing.PrefixSharing(caches)
    for cache, prompt, messages in chats:
        assert sharing.read_elsewhere(cache, prompt, messages) is None
        cache.target.mark_cached(prompt.ids, np.arange(len(prompt.ids), dtype=np.int32))
        cache.target.ids = prompt.ids.view(Counted)
    other = chat(range(80, 90), 20)
    Counted.seen = 0
    assert sharing.read_elsewhere(*other) is None
    assert not Counted.seen
    found = sharing.read_elsewhere(*chat(range(75, 85), 30))
    assert len(found.data["names"]) == 5


def test_ten_conversations_about_a_document_use_little_more_memory_than_one(loaded: Driver) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF))
    loaded.answer(ask(FIRST, name="0", mode=Mode.FULL))
    pool = loaded.engine._loaded.caches
    one = pool.nbytes
    for turn in range(1, 10):
        loaded.answer(ask(f"What is the code of gate {turn}?", name=str(turn), mode=Mode.FULL))
    assert pool.nbytes < 1.5 * one


def test_shared_rows_survive_the_conversation_that_held_them(loaded: Driver) -> None:
    from app.protocol.commands import DropConversation

    loaded.answer(ask(FIRST, name="a", mode=Mode.FULL))
    loaded.answer(ask(OTHER, name="b", mode=Mode.FULL))
    loaded.engine.send(DropConversation("b"))
    again = loaded.figures(ask(FIRST, name="a", mode=Mode.FULL))
    assert again.read_tokens - again.reused_tokens < 5
    assert again.generated_tokens


# ------------------------------------------------------------------------- what sharing costs


def operations(tmp_path: Path) -> Pool:
    """A pool in which all conversations begin with the same 40 tokens."""
    pool = Pool(build("llama"), 1, tmp_path)
    pool.start = pool.tokens(40)
    pool.pair.target.step.limit(256, 256)
    return pool


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects the numbers of rows of a layer that are copied from other caches, or because other
    rows of the same cache are freed."""
    counts, original = list[int](), shared_rows._take_rows

    def count(rows: Any, entries: NDArray[np.int64]) -> Any:
        counts.append(len(entries))
        return original(rows, entries)

    monkeypatch.setattr(shared_rows, "_take_rows", count)
    return counts


def test_a_fork_holds_only_the_shared_prefix(tmp_path: Path, few: None) -> None:
    pool = operations(tmp_path)
    pool.turn("long", [pool.tokens(600)], Mode.FULL)
    pool.turn("short", [], Mode.FULL)
    long, short = (pool.pool._caches[name].nbytes for name in ("long", "short"))
    assert short < long / 2
    found = pool.pool._caches["short"].target
    assert np.array_equal(found.reads[:40], pool.pool._caches["long"].target.reads[:40]), "shared"


def test_editing_a_question_frees_the_rows_of_the_longer_one(tmp_path: Path, few: None) -> None:
    pool = operations(tmp_path)
    pool.turn("a", [pool.tokens(600)], Mode.FULL)
    before, rows = pool.pool.nbytes, mx.get_active_memory()
    pool.turn("a", [], Mode.FULL)
    assert pool.pool.nbytes < before / 2
    assert mx.get_active_memory() < rows


@pytest.mark.parametrize(("alike", "copies"), [(40, False), (300, True)])
def test_switching_conversations_copies_rows_only_if_many_are_shared(
    alike: int, copies: bool, tmp_path: Path, few: None, copied: list[int]
) -> None:
    pool = operations(tmp_path)
    pool.start = pool.tokens(alike)
    for name in "ab":
        pool.turn(name, [pool.tokens(300)], Mode.FULL)
    copied.clear()
    for name in "abab":
        pool.check(name, pool.pool.get_or_restore(name, pool.clock).target)
    assert bool(copied) == copies
    assert pool.pool._caches["a"].target.absent.any() == copies
    pool.count_bytes()


def test_rows_held_by_a_third_conversation_are_copied_once(
    tmp_path: Path, few: None, copied: list[int]
) -> None:
    pool = operations(tmp_path)
    pool.start = pool.tokens(200)
    first = pool.tokens(150)
    pool.turn("a", [first], Mode.FULL)
    pool.turn("b", [pool.tokens(5)], Mode.FULL)
    assert pool.pool._caches["a"].target.absent.any(), "b holds what a and b have in common"
    copied.clear()
    pool.turn("c", [first[:100]], Mode.FULL)
    layers = len(pool.pool._caches["c"].target.cache)
    assert sum(copied) < layers * 3 * 300, "c's rows, from a and b, and what stays of those two"
    pool.check("a", pool.pool.get_or_restore("a", pool.clock).target)


def test_only_the_shared_rows_of_a_snapshot_are_loaded(
    tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = operations(tmp_path)
    pool.turn("long", [pool.tokens(600)], Mode.FULL)
    long = pool.known["long"]
    pool.do_restart()
    read, original = list[str](), snapshot.read_part

    def count(path: Path) -> Any:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(snapshot, "read_part", count)
    pool.turn("short", [], Mode.FULL)
    (restored,) = [each for each in pool.events if isinstance(each, SnapshotRestored)]
    assert restored.tokens == 40
    assert len([name for name in read if block_digest(name)]) == 2, "of 32 tokens each"
    assert list(pool.pool._caches) == ["short"]
    assert len(pool.pool._caches["short"].target) < 70
    found = pool.pool.get_or_restore("long", pool.clock).target
    assert np.array_equal(found.reads[:40], long.copy.reads[:40])
    pool.check("long", found)


# ------------------------------------------------------------------------- random operations


@dataclass
class Known:
    """A conversation of the pool, and an independent copy of what its cache should contain."""

    turns: list[NDArray[np.int32]]
    copy: PrefixCache


def contents(layer: Any) -> list[mx.array]:
    """What a layer stores, without unused capacity."""
    if isinstance(layer, PositionedCache):
        stored = tree_flatten((layer.inner.keys, layer.inner.values))
        return [array[..., : layer.size(), :] for _, array in stored if array is not None]
    return [state for state in layer.cache if state is not None]


class Pool:
    """Random operations on a pool of conversations, checked against independent copies."""

    def __init__(
        self, model: Any, seed: int, folder: Path, quantisation: Quantisation | None = None
    ) -> None:
        self.random, self.numbers = Random(seed), np.random.default_rng(seed)
        self.model, self.folder = model, folder
        self.pair = pair(model, BACKENDS["cpu"], quantisation)
        self.pair.target.cache_size = CacheSize(1000.0, 0)
        self.start = self.tokens(DOCUMENT[1])
        self.known: dict[str, Known] = {}
        self.count = 0
        self.done: list[str] = []
        self.events: list[Any] = []
        self.open()

    def open(self) -> None:
        policy = CachePolicy(BackgroundPolicy.ALWAYS, 10**9, str(self.folder), 10**9)
        self.pool = CachePool(self.pair, policy, self.events.append)

    def tokens(self, count: int) -> NDArray[np.int32]:
        return self.numbers.integers(0, VOCABULARY, count).astype(np.int32)

    @property
    def clock(self) -> TurnClock:
        return TurnClock(1, self.events.append, lambda: False)

    def step(self) -> None:
        does = ["new"] + ["ask"] * 3 + ["branch", "edit", "background", "save", "budget", "check"]
        does += ["delete", "delete last", "restart", "kill"] if self.known else []
        what = self.random.choice(does)
        if what in ("ask", "branch", "edit", "delete") and not self.known:
            what = "new"
        self.done.append(what)
        getattr(self, f"do_{what.replace(' ', '_')}")()
        self.count_bytes()

    def some(self) -> str:
        return self.random.choice(sorted(self.known))

    def new_name(self) -> str:
        self.count += 1
        return f"chat {self.count}"

    def do_new(self) -> None:
        self.turn(self.new_name(), [])

    def do_ask(self) -> None:
        name = self.some()
        self.turn(name, self.known[name].turns)

    def do_branch(self) -> None:
        turns = self.known[self.some()].turns
        self.turn(self.new_name(), turns[: 2 * self.random.randint(0, len(turns) // 2)])

    def do_edit(self) -> None:
        name = self.some()
        turns = self.known[name].turns
        self.turn(name, turns[: 2 * self.random.randint(0, max(0, len(turns) // 2 - 1))])

    def do_background(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.pool.step()
        if any(isinstance(each, BackgroundProgress) for each in self.events):
            name = next(reversed(self.pool._caches))
            if (before := self.known[name].copy) is not None:
                found = self.pool._caches[name].target
                assert np.array_equal(found.ids, before.ids), self.done[-9:]
                assert found.cached[before.cached].all(), self.done[-9:]
            self.remember(name)  # background prefill may have completed it
        assert not any(isinstance(each, EngineWarning) for each in self.events), self.done[-9:]
        self.events.clear()

    def do_save(self) -> None:
        while self.pool.step(background=False):
            pass

    def do_budget(self) -> None:
        self.pool._policy = replace(self.pool._policy, memory_budget=self.pool.nbytes // 2)
        self.pool.enforce_budget()
        self.pool._policy = replace(self.pool._policy, memory_budget=10**9)

    def do_delete(self) -> None:
        name = self.some()
        self.pool.drop(name, on_disk=True)
        del self.known[name]

    def do_delete_last(self) -> None:
        """Drop a conversation; others keep the rows that they need."""
        if name := next(reversed(self.pool._caches), None):
            self.pool.drop(name, on_disk=True)
            del self.known[name]
        self.do_background()

    def do_restart(self) -> None:
        self.pool.close()
        self.open()

    def do_kill(self) -> None:
        """Restart; unsaved conversations are lost."""
        self.pool._caches.clear()
        self.events.clear()
        self.open()
        for known in self.known.values():
            known.copy = None  # type: ignore[assignment]

    def do_check(self) -> None:
        if self.known:
            name = self.some()
            self.check(name, self.pool.get_or_restore(name, self.clock).target)

    def turn(self, name: str, turns: list[NDArray[np.int32]], mode: Mode | None = None) -> None:
        turns = [*turns, self.tokens(self.random.randint(5, 14))]
        cache = self.pool.get_or_restore(name, self.clock)
        if name in self.known:
            self.check(name, cache.target)
        prompt = self.prompt(turns)
        mode = mode or self.random.choice([Mode.SPARSE, Mode.SPARSE, Mode.FULL])
        question = Ask((Message(Role.USER, ""),), mode, conversation=name)
        self.pool.start_from_longest(question, prompt, self.clock)
        chat = Chat(self.model)
        chat.models, chat.conversation = self.pair, cache
        needed = tuple(self.random.sample(range((DOCUMENT[1] - DOCUMENT[0]) // CHUNK), 6))
        logits = chat.read(prompt, None if mode is Mode.FULL else needed)
        if mode is Mode.FULL:
            fresh = Chat(self.model)
            fresh.models = self.pair
            fresh.conversation = type(cache)(self.pair)
            read = fresh.read(prompt, None)
            # Where two experts tie, the size of the steps decides by rounding.
            steps = (logits_in_steps(self.model, prompt.ids, size) for size in (64, 16, 7))
            assert any(
                difference(logits, each) < self.tolerance for each in chain([read], steps)
            ), self.done[-9:]
        answer = self.tokens(self.random.randint(2, 8))
        chat.write(prompt, answer)
        self.known[name] = Known([*turns, answer], cache.target)
        self.remember(name)

    tolerance = TOLERANCE

    def remember(self, name: str) -> None:
        """An independent copy of the cache."""
        twin = self.pool._caches[name].target.fork()
        self.known[name].copy = twin

    def prompt(self, turns: list[NDArray[np.int32]]) -> Prompt:
        ids = np.concatenate([self.start, *turns])
        question = len(ids) - len(turns[-1])
        borders = (0, DOCUMENT[0], DOCUMENT[1], question, len(ids) - 4, len(ids))
        kinds = [SegmentKind.TEMPLATE, SegmentKind.DOCUMENT, SegmentKind.TEMPLATE]
        kinds += [SegmentKind.QUESTION, SegmentKind.GENERATION]
        parts = zip(kinds, borders, borders[1:], strict=False)
        return Prompt(ids, tuple(Segment(*part) for part in parts if part[1] < part[2]), {})

    def check(self, name: str, found: PrefixCache) -> None:
        """Check that the pool returns the cache unchanged, or an empty one if it was lost."""
        expected = self.known[name].copy
        if expected is None or (not len(found) and "kill" in self.done):
            return
        assert np.array_equal(found.ids, expected.ids), self.done[-9:]
        assert np.array_equal(found.cached, expected.cached), self.done[-9:]
        assert not found.absent.any()
        for mine, its in zip(flatten(found.cache), flatten(expected.cache), strict=True):
            if isinstance(mine, PositionedCache):
                assert np.array_equal(mine.positions.array(), its.positions.array()), self.done[-9:]
            for a, b in zip(contents(mine), contents(its), strict=True):
                assert mx.array_equal(a, b), self.done[-9:]

    def count_bytes(self) -> None:
        """Check that shared rows are stored once, except a few per conversation."""
        prefixes = [cache.target for cache in self.pool._caches.values()]
        rows: set[tuple[int, int]] = set()
        for prefix in prefixes:
            for position in np.flatnonzero(prefix.cached & ~prefix.absent).tolist():
                rows.add((position, int(prefix.reads[position])))
        for prefix in prefixes:
            lost = [
                position
                for position in np.flatnonzero(prefix.absent).tolist()
                if (position, int(prefix.reads[position])) not in rows
            ]
            assert not lost, self.done[-9:]
        inodes: dict[str, set[int]] = {}
        for path in self.folder.glob("*/*-rows-*"):
            if (path.parent / MANIFEST).exists():
                digest = block_digest(path.name)
                assert digest
                inodes.setdefault(digest, set()).add(path.stat().st_ino)
        assert all(len(same) == 1 for same in inodes.values()), self.done[-9:]
        if self.pool._saving is None:  # it has all of its rows while it is saved
            held = [int((prefix.cached & ~prefix.absent).sum()) for prefix in prefixes]
            twice = sum(max(shared_rows.MIN_SHARED, n / shared_rows.MAX_REST) for n in held)
            assert sum(held) - len(rows) <= twice, self.done[-9:]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make short conversations share, too."""
    for module in (shared_rows, prefix_sharing, cache_pool):
        monkeypatch.setattr(module, "MIN_SHARED", 8)
    monkeypatch.setattr(snapshot, "BLOCK", 32)
    monkeypatch.setattr(snapshot, "BEGINNING_STEP", 8)


def logits_in_steps(model: Any, ids: NDArray[np.int32], size: int) -> NDArray[np.float32]:
    """What mlx-lm computes for the last token, in steps of this many tokens."""
    cache, out = model.make_cache(), None
    for start in range(0, len(ids), size):
        out = model(mx.array(ids[None, start : start + size]), cache=cache)
    return np.array(out[0, -1].astype(mx.float32))


def operate(pool: Pool, operations: int) -> None:
    for _ in range(operations):
        pool.step()
    for name in sorted(pool.known):
        pool.pool.drop(name, on_disk=True)
    assert not pool.pool.nbytes
    assert not folder_bytes(pool.folder), "nothing is left behind"


@pytest.mark.parametrize("name", QUICK)
def test_random_operations_never_change_a_conversations_rows(
    name: str, tmp_path: Path, few: None
) -> None:
    operate(Pool(build(name), 4, tmp_path), 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORACLE)
def test_many_random_operations_never_change_a_conversations_rows(
    name: str, tmp_path: Path, few: None
) -> None:
    operate(Pool(build(name), 4, tmp_path / "4"), 60)
    for seed in range(3):
        operate(Pool(build(name), seed, tmp_path / str(seed)), 300)


@pytest.fixture
def three(tmp_path: Path, few: None) -> Pool:
    """Three conversations that have read the same document sparsely; the last one holds the
    rows."""
    pool = Pool(build("llama"), 1, tmp_path)
    turns: list[NDArray[np.int32]] = []
    for name in "abc":
        pool.turn(name, turns, Mode.SPARSE)
        turns = turns or pool.known["a"].turns
    pool.events.clear()
    return pool


@pytest.mark.parametrize("saving", [False, True])
def test_after_deleting_the_last_conversation_the_previous_one_is_prefilled_in_background(
    three: Pool, saving: bool
) -> None:
    pool, before = three.pool, three.known["b"].copy
    if saving:  # it holds what the others need
        pool.step(background=False)
        assert pool._saving
        assert pool._saving[0] == "a"
    pool.drop("c", on_disk=True)
    assert pool._caches["b"].target.absent.any() == saving
    while pool.step():
        pass
    assert not [each for each in three.events if isinstance(each, EngineWarning | SnapshotFailed)]
    found = pool._caches["b"].target
    assert np.array_equal(found.ids, before.ids)
    assert not found.has_gaps
    three.remember("b")
    three.count_bytes()
    for name in "ab":
        three.check(name, pool.get_or_restore(name, three.clock).target)


OUT_OF_MEMORY = RuntimeError("[malloc] Unable to allocate 1000000 bytes.")


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("what", ["_take_rows", "_compute"])
def test_out_of_memory_while_moving_rows_loses_none(
    three: Pool, monkeypatch: pytest.MonkeyPatch, what: str, after: int
) -> None:
    """Rows move in background prefill, saving, using a conversation, and dropping their holder."""
    original, calls = getattr(shared_rows, what), [0]

    def fail(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise OUT_OF_MEMORY
        return original(*arguments)

    for does in (
        lambda: three.pool._start_saving(three.pool._snapshots, "a"),
        lambda: three.pool.get_or_restore("a", three.clock),
        lambda: three.pool.drop("c") if what == "_compute" else None,
        three.pool._background_step,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(shared_rows, what, fail)
            with suppress(RuntimeError):
                does()
        calls[0] = 0
        three.pool._stop_saving()
        three.pool.cancel_background()
        assert all(len(cache.target) for cache in three.pool._caches.values())
    assert [each for each in three.events if isinstance(each, SnapshotFailed)]
    warned = [each.reason.code for each in three.events if isinstance(each, EngineWarning)]
    assert ReasonCode.CACHE_DAMAGED not in warned
    for name in tuple(three.pool._caches):
        three.check(name, three.pool.get_or_restore(name, three.clock).target)


def test_after_a_restart_a_new_conversation_starts_from_a_snapshot(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path))
    expected = {}
    for name in "ab":
        driver = opened(folders, policy)
        expected[name] = driver.figures(ask(FIRST if name == "a" else OTHER, name=name))
        restored = driver.of(SnapshotRestored)
        assert [each.tokens > 0 for each in restored] == ([] if name == "a" else [True])
        driver.close()
    assert expected["a"].reused_tokens == 0
    assert expected["b"].reused_tokens > 0.85 * expected["a"].read_tokens
