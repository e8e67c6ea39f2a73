"""A configuration's counts are bounded whatever they are called."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import mlx_lm.models
import pytest

from app.models.architecture import parse_architecture
from app.models.check import check_config_numbers
from app.models.errors import ModelError
from tests import tiny

SOURCES = sorted(Path(mlx_lm.models.__file__).parent.glob("*.py"))
NOT_COUNTS = {
    "text_config": "an object, looked into",
    "modules": "as long as any list may be",
    "engram_layer_ids": "of layers that there are",
    "layer_rope_theta": "of layers that there are",
    "ssm_multipliers": "five are taken",
}


def _looped() -> set[tuple[str, bool]]:
    """Fields of mlx-lm's models that something is repeated by: in a loop's head, in `range`, or
    in `[x] * n`; and whether each is a number."""
    found = set()
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        fields = {
            each.target.id: re.search(r"^(Optional\[)?int\b", ast.unparse(each.annotation))
            is not None
            for node in classes
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in ast.walk(tree):
            heads: list[ast.AST] = []
            if isinstance(node, ast.For | ast.comprehension):
                heads = [node.iter]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
                heads = list(node.args)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                heads = [node] if ast.List in map(type, (node.left, node.right)) else []
            names = [each.attr for h in heads for each in ast.walk(h) if hasattr(each, "attr")]
            found |= {(name, fields[name]) for name in names if name in fields}
    return found


def test_whatever_mlx_lm_repeats_something_by_is_bounded() -> None:
    looped = _looped()
    common = ("num_hidden_layers", "n_layer", "num_transformer_layers", "num_loops")
    assert looped.issuperset((name, True) for name in common)
    for name, number in sorted(looped):
        if name in NOT_COUNTS:
            continue
        value = 10_000_000 if number else ["full_attention"] * 100_000
        for config in ({name: value}, {"text_config": {name: value}}):
            with pytest.raises(ModelError):
                check_config_numbers({"model_type": "llama", **config})


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 2, "n_layer": 10_000_000},
        {"n_layer": 2, "num_hidden_layers": 10_000_000},
        {"num_decoder_layers": 10_000_000},
        {"llm_config": {"text_config": {"n_layers": 10_000_000}}},
        {"parts": [{"num_layers": 10_000_000}]},
        {"hybrid_override_pattern": "M" * 1_000_000},
        {"block_configs": [{}] * 100_000},
        {"num_experts": 1_000_000},
        {"n_head": 1_000_000},
        {"vocab_size": 1 << 40},
        {"intermediate_size": -(1 << 40)},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": True},
    ],
)
def test_absurd_counts_are_refused_under_any_name(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"config\.json has"):
        check_config_numbers(config)


def test_a_hubs_configuration_is_bounded_before_it_is_reckoned_with() -> None:
    """It was not downloaded, so nothing has looked at it yet."""
    with pytest.raises(ModelError, match="10,000,000,000 layers"):
        parse_architecture({**tiny.config_of("llama"), "num_hidden_layers": 10_000_000_000})


def test_the_numbers_of_real_and_tiny_models_pass() -> None:
    rows = tomllib.loads((Path(__file__).parent / "configs.toml").read_text("utf-8"))["config"]
    for row in rows:
        check_config_numbers(row["numbers"])
    for name in (*tiny.CONFIGS, *tiny.EXTRA):
        check_config_numbers(tiny.config_of(name))
    long = {"max_position_embeddings": 10_485_760, "rope_theta": 10**11, "n_positions": 1 << 20}
    large = {"n_embd": 16_384, "vocab_size_per_layer_input": 262_144, "image_token_id": 1 << 32}
    modules = {"ignored_layers": [f"model.layers.{n}" for n in range(50_000)]}
    check_config_numbers({**long, **large, "quantization_config": modules})
