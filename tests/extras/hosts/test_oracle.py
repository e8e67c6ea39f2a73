"""A target spread over processes equals the same target in one, after every operation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from app.engine.backend import mlx_patches
from app.engine.model.loader import load_one
from app.engine.progress import LoadError
from app.extras.hosts.sharded import ShardedModel, ShardedSnapshots
from app.protocol.reasons import FailureKind
from tests import tiny
from tests.engine.oracle import difference
from tests.engine.test_random_conversations import Conversation
from tests.engine.test_turns import FIRST, LATER, TOLERANCE, Chat, conversation
from tests.extras.hosts.machines import cluster

mlx_patches.install()
ARCHITECTURES = ("llama", "qwen3", "qwen3_moe", "gpt_oss")
DIVISIBLE = {"intermediate_size": 96, "moe_intermediate_size": 96}
"""By 2 and by 3. The heads are not."""


def converse(folder: Path, name: str, ranks: int, seeds: range, turns: int) -> list[str]:
    """Random conversations, each against an oracle that computes everything again in this process,
    to 1e-4."""
    model_folder = tiny.save(folder / "model", name, 0, **DIVISIBLE)
    model, done = tiny.build(name, vocabulary=tiny.BYTES, **DIVISIBLE), list[str]()
    with cluster(model_folder, ranks) as shards:
        spread = ShardedModel(load_model(model_folder, lazy=True)[0], shards)
        for seed in seeds:
            chat = Chat(spread, shards=shards)
            conversation = Conversation(model, seed, folder / str(seed), chat)
            identity = {"target": str(seed)}
            conversation.snapshots = ShardedSnapshots(folder / "own", 1 << 30, identity, shards)
            for _ in range(turns):
                conversation.step()
            done += conversation.done
    return done


@pytest.mark.slow
def test_random_conversations_over_two_processes_equal_the_oracle(tmp_path: Path) -> None:
    done = converse(tmp_path, "gpt_oss", 2, range(2), 5)
    assert {"recall", "restart"} <= set(done)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_so_do_longer_ones_over_two_and_three(name: str, ranks: int, tmp_path: Path) -> None:
    done = converse(tmp_path, name, ranks, range(1), 10)
    for what in ("ask", "edit", "recall", "restart"):
        assert what in done


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_caches_are_the_same_in_two_processes(bits: int, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, "llama", 0, head_dim=32)
    alone = load_one(str(folder), "tiny", 16, bits)
    first, answer, second = conversation()
    with cluster(folder, 2, bits) as shards:
        spread = ShardedModel(load_model(folder, lazy=True)[0], shards)
        chats = [Chat(alone.model, quantisation=alone.quantisation), Chat(spread, shards=shards)]
        for prompt, needed in ((first, FIRST), (second, LATER), (second, None)):
            mine, theirs = (chat.read(prompt, needed) for chat in chats)
            # Sums over ranks are rounded otherwise, and so may be one of the values stored.
            assert difference(mine, theirs) < 100 * TOLERANCE
            assert mx.argmax(mine).item() == mx.argmax(theirs).item()
            if prompt is first:
                for chat in chats:
                    chat.write(prompt, answer)


def refused(machines: AbstractContextManager[Any]) -> str:
    """Why the model cannot be spread over these machines."""
    with pytest.raises(LoadError) as raised, machines:
        pass
    return FailureKind(raised.value.failure.data["failure"]["kind"])


@pytest.mark.slow
def test_what_cannot_be_divided_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "gemma3", "gemma3", 0)
    assert refused(cluster(folder)) is FailureKind.NO_SHARDING
    folder = tiny.save(tmp_path / "odd", "llama", 0, intermediate_size=63)
    assert refused(cluster(folder)) is FailureKind.LAYERS_INDIVISIBLE
