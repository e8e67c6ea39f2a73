"""What a model's generation_config.json makes of its sampling."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from app.chat.wording import ignored_values
from app.protocol.generation_config import (
    describe_sampling,
    parse_generation_config,
    read_generation_config,
)
from app.protocol.options import FROM_MODEL, GREEDY, ModelSampling, Sampling
from tests.tables import table

QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1]}
FILES: list[tuple[dict[str, Any], ModelSampling, str]] = [
    (QWEN, ModelSampling(0.6, 0.95, 20), "temperature 0.6, top-p 0.95, top-k 20"),
    # Gemma and GPT-OSS name no temperature: 1.
    (
        {"do_sample": True, "top_k": 64, "top_p": 0.95},
        ModelSampling(1.0, 0.95, 64),
        "temperature 1, top-p 0.95, top-k 64",
    ),
    ({"do_sample": True, "eos_token_id": 2}, ModelSampling(1.0), "temperature 1"),
    # Mistral names values without `do_sample`.
    ({"temperature": 0.15}, ModelSampling(0.15), "temperature 0.15"),
    ({"min_p": 0.15}, ModelSampling(1.0, min_p=0.15), "temperature 1, min-p 0.15"),
    ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, GREEDY, "greedy"),
    ({"temperature": 0}, GREEDY, "greedy"),
    ({"temperature": 0.7, "top_k": -1}, ModelSampling(0.7), "temperature 0.7"),
    ({"eos_token_id": 2, "temperature": None}, GREEDY, "greedy"),
    (
        {"do_sample": False, "repetition_penalty": 1.05},
        ModelSampling(repetition_penalty=1.05),
        "greedy, repetition penalty 1.05",
    ),
]


@table("config, expected, described", FILES)
def test_what_the_makers_recommend(
    config: dict[str, Any], expected: ModelSampling, described: str
) -> None:
    found = parse_generation_config(config)
    assert found == expected
    assert describe_sampling(found) == described
    assert found.ignored == ()


@table(
    "name, value",
    [
        ("temperature", 1e9),
        ("temperature", -1),
        ("temperature", "0.6"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2.5),
        ("top_k", 10**30),
        ("min_p", [0.1]),
        ("repetition_penalty", 1e300),
        ("repetition_penalty", 0),
    ],
)
def test_a_value_out_of_bounds_is_ignored_and_named_in_one_sentence(name: str, value: Any) -> None:
    found = parse_generation_config(QWEN | {name: value})
    kept = {key: number for key, number in QWEN.items() if key != name}
    assert found.ignored == (name,)
    assert getattr(found, name) == getattr(parse_generation_config(kept), name)
    assert name in ignored_values(found.ignored)
    assert ignored_values(found.ignored).count(". ") == 0


def test_a_whole_number_may_be_written_with_a_point() -> None:
    found = parse_generation_config(QWEN | {"top_k": 1e6})
    assert (found.top_k, found.ignored) == (1_000_000, ())
    assert "top-k 1,000,000" in describe_sampling(found)


@table("content", [None, "", "[]", "{", "[" * 100_000, '"x"', "\xff"])
def test_a_file_that_cannot_be_read_means_greedy(tmp_path: Path, content: str | None) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    if content is not None:
        (tmp_path / "generation_config.json").write_bytes(content.encode("latin-1"))
    assert read_generation_config(tmp_path) == GREEDY


def test_it_is_read_from_the_model_s_folder(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(QWEN))
    assert read_generation_config(tmp_path) == ModelSampling(0.6, 0.95, 20)


def test_only_what_nobody_chose_comes_from_the_model() -> None:
    model = ModelSampling(0.6, 0.95, 20, 0.1, 1.1)
    assert Sampling().resolved(model) == Sampling(), "greedy unless it is asked for"
    asked = Sampling(from_model=FROM_MODEL).with_values(temperature=0.0, top_k=0)
    assert asked.resolved(model) == Sampling(top_p=0.95, min_p=0.1, repetition_penalty=1.1)
