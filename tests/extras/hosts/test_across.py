"""What fits across machines, against arithmetic by hand and against mlx-lm."""

from __future__ import annotations

from typing import Any

import pytest

from app.extras.hosts import across
from app.models.architecture import parse_architecture
from app.models.fit import ModelSize, cache_bytes
from app.protocol.hosts import HostMachine
from benchmarks.shapes import configs_of
from tests.tables import slow, table

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 10,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131_072,
    "dtype": "float32",
}
SHAPE = parse_architecture(CONFIG)
GIB = 1 << 30


def test_a_shard_has_a_share_of_the_layers_and_all_embeddings() -> None:
    shard = across.shard_of(SHAPE, 2)
    embeddings = SHAPE.other_params
    assert embeddings == 4096 * 512 + 512
    assert shard.parameters - embeddings == (SHAPE.parameters - embeddings) / 2
    assert cache_bytes(shard, 1000) * 2 == cache_bytes(SHAPE, 1000)
    assert shard.active_parameters == SHAPE.active_parameters / 2


def test_heads_that_do_not_divide_are_filled_up() -> None:
    """4 heads of keys over 3 machines are 6: two each."""
    shard = across.shard_of(SHAPE, 3)
    assert {layer.kv_elements for layer in shard.layers} == {2 * 2 * 64}
    assert {layer.heads for layer in shard.layers} == {4}
    assert 1 / 3 < shard.active_parameters / SHAPE.active_parameters < 1 / 2


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *(("llama", 2), ("gpt_oss", 3), ("deepseek_v3", 2)),
        *(slow("llama", 3), slow("gpt_oss", 2), slow("deepseek_v3", 3)),
        *(slow("qwen3_moe", 2), slow("qwen3_moe", 3)),
    ],
)
def test_shards_are_as_large_as_mlx_lms(name: str, ranks: int) -> None:
    """Of tiny models, as rank 0 has them: the share of all parameters. In these, routers and what
    latent attention does not divide count."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from app.extras.hosts.runner import pad_heads
    from tests import tiny

    config = {**tiny.config_of(name), "hidden_size": 96, "num_attention_heads": 4 * ranks}
    widths = {"intermediate_size", "moe_intermediate_size"} & set(config)
    config |= dict.fromkeys(widths, 48 * ranks)
    model = _built(config)

    def size() -> int:
        leaves: list[tuple[str, mx.array]] = tree_flatten(model.parameters())
        return sum(array.size for _, array in leaves)

    whole = size()
    pad_heads(model, ranks)
    model.shard(_Group(ranks))
    shape = parse_architecture(config)
    share = across.shard_of(shape, ranks).parameters / shape.parameters
    assert share == pytest.approx(size() / whole, rel=0.07)


class _Group:
    """Of so many ranks, seen from the first."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def size(self) -> int:
        return self._ranks

    def rank(self) -> int:
        return 0


def _built(config: dict[str, Any]) -> Any:
    from mlx_lm.utils import _get_classes

    model, arguments = _get_classes(config)
    return model(arguments.from_dict(config))


@table(
    "changes, ranks, why",
    [
        ({}, 2, ""),
        ({}, 3, ""),
        ({"model_type": "phi3"}, 2, "mlx-lm cannot divide the architecture 'phi3'"),
        ({"model_type": "phi3"}, 1, ""),
        ({"intermediate_size": 1535}, 2, "its intermediate_size of 1,535 cannot be divided by 2"),
        (
            {"quantization": {"group_size": 64, "bits": 4}, "intermediate_size": 64 * 3},
            2,
            "its intermediate_size of 192 cannot be divided by 2",
        ),
    ],
)
def test_what_cannot_be_divided_is_said(changes: dict[str, Any], ranks: int, why: str) -> None:
    shape = parse_architecture({**CONFIG, **changes})
    assert across.indivisible(shape, {**CONFIG, **changes}, ranks) == why


def test_a_target_that_fits_no_machine_fits_two() -> None:
    """235B in 4 bits are 132 GB: too much for 128 GiB, a shard of 66 GB is not."""
    config = configs_of("qwen3-235b-a22b+0.6b")["target"]
    shape = parse_architecture(config)
    size = ModelSize("235B", shape, round(shape.parameters * 4.5 / 8))
    mac = HostMachine("a Mac", "", 128 * GIB, 120 * GIB)
    alone = across.fit_across(config, size, None, [mac])
    both = across.fit_across(config, size, None, [mac, mac])
    assert (alone.max_tokens, both.problem) == (0, "")
    assert both.max_tokens > 60_000
    assert both.weight_bytes == pytest.approx(66.5e9, rel=0.01)
    busy = HostMachine("busy", "", 128 * GIB, 70 * GIB)
    assert 0 < across.fit_across(config, size, None, [mac, busy]).max_tokens < both.max_tokens
    gone = HostMachine("gone", problem="it does not answer")
    refused = across.fit_across(config, size, None, [mac, gone])
    assert refused.problem == "gone cannot be used: it does not answer"
