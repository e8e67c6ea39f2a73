"""Changes of an outline are repeated on the rank's caches: random operations on a pool of
conversations, with one rank in this process."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.utils import load_model

from app.engine.backend import mlx_patches
from app.engine.cache.caches import capacity
from app.engine.cache.prefill import StepSize, make_positioned_cache
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.snapshot_folder import (
    folder_bytes,
    remove_other_snapshots,
    remove_snapshot,
    snapshot_folder,
)
from app.engine.model.speculation import Gate, Proposal
from app.engine.model.token_stream import CopyIndex
from app.engine.progress import LoadError, TurnCancelled
from app.extras.hosts.runner import Indivisible, pad_heads
from app.extras.hosts.sharded import ShardedModel, ShardedPrefixCache, ShardedTarget
from app.protocol.commands import CachePolicy, Close, DropConversation, Load
from app.protocol.events import Closed, CommandFailed, EngineWarning, Loaded
from app.protocol.hosts import Host, Hosts
from app.protocol.options import BackgroundPolicy, Sampling
from app.protocol.prompt import Message, Role
from app.protocol.reasons import FailureKind, Reason, ReasonCode
from tests import tiny
from tests.engine.driver import Driver, question
from tests.engine.oracle import difference
from tests.engine.spread import LocalShards, spread_over
from tests.engine.test_prefix_sharing import Pool, few, operate
from tests.engine.test_token_stream import nearly
from tests.tables import table

mlx_patches.install()
__all__ = ["few"]


class SpreadPool(Pool):
    """The same operations on a sharded target with one rank in this process, whose caches are also
    checked."""

    def __init__(self, model: Any, seed: int, folder: Path, shards: LocalShards) -> None:
        self.shards = shards
        super().__init__(model, seed, folder)

    def open(self) -> None:
        if not isinstance(self.pair.target, ShardedTarget):
            self.pair = replace(self.pair, target=spread_over(self.shards, self.pair.target))
        super().open()

    def on_rank(self, prefix: PrefixCache) -> PrefixCache:
        assert isinstance(prefix, ShardedPrefixCache)
        return self.shards.runner._caches[prefix.ranks.number]

    def check(self, name: str, found: PrefixCache) -> None:
        super().check(name, found)
        known = self.known[name]
        if known.copy is None or not len(found):
            return
        outline, known.copy = known.copy, self.on_rank(known.copy)
        rank = self.on_rank(found)
        try:
            assert (rank.cached == found.cached).all()
            assert (rank.absent == found.absent).all()
            rank.ids = found.ids.copy()  # ranks do not know the ids
            known.copy.ids = outline.ids.copy()
            super().check(name, rank)
        finally:
            known.copy = outline


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "qwen3_5"])
def test_random_operations_are_repeated_on_the_ranks_caches(
    name: str, tmp_path: Path, few: None
) -> None:
    folder = tiny.save(tmp_path / "model", name, 0)
    shards = LocalShards(Load(str(folder)), tmp_path / "shards" / "own" / "0-of-1")
    spread = ShardedModel(load_model(folder, lazy=True)[0], shards)
    pool = SpreadPool(spread, 4, tmp_path / "first", shards)
    operate(pool, 60)
    assert not folder_bytes(tmp_path / "shards"), "nor of its part"
    pool.known.clear()
    del pool
    gc.collect()  # killed pools refer to themselves
    shards._forget_dropped()
    assert not shards.runner._caches, "and no cache is left"


def spread_driver() -> tuple[Driver, list[LocalShards]]:
    """A driver with a sharded target, and the shards that it created."""
    made: list[LocalShards] = []

    def connect(command: Load, stopped: Any) -> LocalShards:
        made.append(LocalShards(command))
        return made[0]

    return Driver(connect=connect), made


def test_a_draft_that_cannot_be_loaded_ends_the_ranks(tmp_path: Path) -> None:
    spread, made = spread_driver()
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}")
    target = tiny.save(tmp_path / "target", "llama", 0)
    failed = spread.load(target, tmp_path / "draft", Hosts((Host("other"),)))
    assert isinstance(failed, CommandFailed)
    assert made[0].closed


def test_answers_of_a_sharded_hybrid_are_the_same_with_speculation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(self: Gate, kind: int, available: int) -> Proposal:
        return Proposal(2.0, min(available, 4))

    monkeypatch.setattr(Gate, "choose", always)
    folder = tiny.save(tmp_path / "target", "qwen3_5", 0)
    spread, _ = spread_driver()
    spread.load(folder, folder, Hosts((Host("other"),)))
    sampling = Sampling(max_tokens=24)
    plain = spread.answer(replace(question(), sampling=replace(sampling, speculate=False)))
    likely = CopyIndex(nearly(list(plain.generated_ids)))
    monkeypatch.setattr("app.engine.turn.decode.CopyIndex", lambda prompt: likely)
    fast = spread.answer(replace(question(), sampling=sampling))
    assert plain.generated_ids == fast.generated_ids
    assert fast.statistics.proposed_tokens > fast.statistics.accepted_tokens > 0
    spread.close()


@pytest.mark.slow
def test_a_sharded_hybrid_reads_again_and_does_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks have the states. The second question needs more of the text, and the third turn
    goes back to the first."""
    monkeypatch.setattr("app.engine.turn.prompt_reader.reread_pays", lambda *_: False)
    folder = tiny.save(tmp_path / "target", "qwen3_5", 0)
    spread, _ = spread_driver()
    local, answers = Driver(), []
    spread.load(folder, hosts=Hosts((Host("other"),)))
    local.load(folder)
    ask = replace(question(keep=0.1), conversation="c")
    for driver in (spread, local):
        first = driver.answer(ask)
        told = Message(Role.ASSISTANT, first.text, token_ids=first.generated_ids)
        later = Message(Role.USER, "What is the code of gate 30?")
        second = driver.answer(replace(ask, messages=(*ask.messages, told, later)))
        edited = replace(ask.messages[0], text="And what is the code of gate 9?")
        third = driver.answer(replace(ask, messages=(edited,)))
        assert second.statistics.reused_tokens < first.statistics.read_tokens
        refused = Reason(ReasonCode.CANNOT_INSERT) in second.statistics.reasons
        assert refused == (driver is spread)
        answers.append([each.generated_ids for each in (first, second, third)])
        driver.close()
    assert answers[0] == answers[1]


def test_an_error_that_is_its_own_cause_is_described() -> None:
    from app.engine.backend.memory import is_oom

    error = LoadError(FailureKind.MODEL_CANNOT_RUN)
    error.__cause__ = error
    assert not is_oom(error)


def test_shards_of_deleted_snapshots_are_removed_whatever_is_loaded(tmp_path: Path) -> None:
    """This includes shards for other numbers of machines, and works without the ranks."""
    folder = tiny.save(tmp_path / "model", "llama", 0)
    snapshots, parts = tmp_path / "snapshots", tmp_path / "shards" / "own"
    names = ("0-of-1", "0-of-3")
    made = [snapshot_folder(parts / name, each) for name in names for each in "ab"]
    for each in [*made, snapshot_folder(snapshots, "a"), snapshot_folder(snapshots, "b")]:
        each.mkdir(parents=True)
    shards = LocalShards(Load(str(folder)), parts / "0-of-1")
    shards.runner.delete_snapshot(0, "a")
    assert [each.exists() for each in made] == [False, True, False, True]
    shards.runner.keep_snapshots(0, [snapshot_folder(snapshots, "c").name])
    assert not any(each.exists() for each in made)
    for each in made:
        each.mkdir(parents=True)
    remove_snapshot(snapshots, "a")
    assert [each.exists() for each in made] == [False, True, False, True]
    remove_other_snapshots(snapshots, ["c"])
    assert not any(each.exists() for each in made)


def test_deleting_a_conversation_removes_its_shards_even_without_snapshots(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "llama", 0)
    part = tmp_path / "shards" / "own" / "0-of-1"
    spread = Driver(connect=lambda command, stopped: LocalShards(command, part))
    policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path / "snapshots"))
    spread.engine.send(policy)
    assert isinstance(spread.load(folder, hosts=Hosts((Host("other"),))), Loaded)
    spread.answer(replace(question(), conversation="c"))
    spread.engine.send(replace(policy, snapshot_folder=None))  # saves first
    spread.answer(replace(question(), conversation="d"))
    assert folder_bytes(part)
    spread.engine.send(DropConversation("c"))
    spread.engine.send(Close())
    spread.until(Closed)
    assert not folder_bytes(part)


def test_a_ranks_cache_that_is_damaged_is_dropped_and_read_again(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "llama", 0)
    spread, made = spread_driver()
    spread.load(folder, hosts=Hosts((Host("other"),)))
    expected = spread.answer(replace(question(), conversation="c"))
    prefix = next(p for p in made[0].runner._caches.values() if len(p))
    prefix.cache[1].trim(3)
    again = spread.answer(replace(question(), conversation="c"))
    (warning,) = spread.of(EngineWarning)
    assert warning.reason.code is ReasonCode.CACHE_DAMAGED
    assert warning.reason.data["target"].startswith("layer 1")
    assert again.generated_ids == expected.generated_ids


@pytest.mark.parametrize("fails", [None, 2])
def test_ranks_grow_each_cache_once(tmp_path: Path, fails: int | None) -> None:
    """After a cancel, they release unused capacity."""
    folder = tiny.save(tmp_path / "model", "llama", 0)
    shards = LocalShards(Load(str(folder)))
    spread = ShardedModel(load_model(folder, lazy=True)[0], shards)
    prefix = ShardedPrefixCache(partial(make_positioned_cache, spread), shards)
    ids, steps = np.arange(2000, dtype=np.int32) % 100, 0

    def on_step(done: int) -> None:
        nonlocal steps
        steps += 1
        if steps == fails:
            raise TurnCancelled

    with suppress(TurnCancelled), prefix.reserved(len(ids)):
        prefix.prefill_at(spread, ids, np.arange(2000, dtype=np.int32), StepSize(64), on_step)
    layer = shards.runner._caches[prefix.ranks.number].cache[0]
    assert capacity(layer.inner) == (2048 if fails is None else 128)
    assert layer.size() == (2000 if fails is None else 128)


IDS = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])


@table("name, bits", product(["llama", "qwen2", "qwen3", "qwen3_moe", "gpt_oss"], [None, 4]))
def test_padded_heads_change_no_logit(name: str, bits: int | None) -> None:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32}
    model = tiny.build(name, **sizes, hidden_size=192, intermediate_size=64)
    if bits is not None:
        nn.quantize(model, 32, bits)
    expected = model(IDS)
    pad_heads(model, 2)
    attention = model.layers[0].self_attn
    assert attention.k_proj.weight.shape[0] == 4 * 32
    assert difference(model(IDS), expected) < 1e-5


def test_divisible_models_are_not_padded() -> None:
    model = tiny.build("llama")
    before = model.layers[0].self_attn.q_proj.weight
    pad_heads(model, 2)
    assert model.layers[0].self_attn.q_proj.weight is before


def test_heads_that_cannot_be_padded_are_refused() -> None:
    model = tiny.build("llama", num_attention_heads=3, num_key_value_heads=3)
    model.layers[0].self_attn.q_norm = nn.RMSNorm(48)  # over all heads together
    with pytest.raises(Indivisible):
        pad_heads(model, 2)
