"""Whatever the values in a model's files are, the model is described or refused in one sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.models.cache import ModelCache
from app.models.check import check_model
from app.models.errors import ModelError
from app.models.fit import fit, mac_with
from app.models.found import ModelPlace, Program, find_models
from app.models.library import find_model
from app.models.text import breakdown_rows, facts, verdict_sentences
from tests import tiny
from tests.models import files

QUICK = 40
"""Mutations of each kind in the quick tests; the slow ones try all."""

# --------------------------------------------------------------------------- config.json

HUGE = 10**400
WRONG: tuple[Any, ...] = (
    *(None, True, "", "x", "9" * 5000, [], {}, [1], [[]], {"a": 1}, [HUGE]),
    *(0, -1, 1 << 31, 1 << 62, HUGE, -HUGE, 0.5, 1e308, float("inf"), float("-inf"), float("nan")),
)


def wrong_configs() -> Iterator[dict[str, Any]]:
    """Each key of each architecture with each wrong value, and each wrong value in a list."""
    for name in ("llama", "qwen3_moe", "qwen3_next", "gemma3_text", "deepseek_v3", "gpt_oss"):
        config = tiny.config_of(name)
        for key in config:
            yield from ({**config, key: wrong} for wrong in WRONG)
        yield from ({**config, "layer_types": [wrong] * 4} for wrong in WRONG)
        yield from ({**config, "text_config": {"hidden_size": wrong}} for wrong in WRONG)


def check_config(config: dict[str, Any], folder: Path) -> None:
    files.write(folder / "m" / "config.json", config)
    (found,) = find_models([ModelPlace(Program.USER, folder / "m")])
    assert found.fault is None or "\n" not in found.fault
    with suppress(ModelError):
        model = find_model(str(folder / "m"), ModelCache(folder / "cache"), ())
        estimate = fit(model.size, None, mac_with(32 << 30))
        assert [*facts(model), *breakdown_rows(estimate), *verdict_sentences(estimate)]
    with suppress(ModelError):
        check_model(folder / "m")


# --------------------------------------------------------------------------- the tests


@pytest.fixture
def model(tmp_path: Path) -> Path:
    files.model(tmp_path / "m")
    return tmp_path


def some(cases: Iterator[Any], seed: int) -> list[Any]:
    return random.Random(seed).sample(list(cases), QUICK)


@pytest.mark.slow
def test_a_few_wrong_configurations_are_described_or_refused(model: Path) -> None:
    for config in some(wrong_configs(), 0):
        check_config(config, model)


@pytest.mark.parametrize("value", [float("inf"), HUGE], ids=["infinity", "400 digits"])
def test_numbers_that_no_float_holds_are_refused(value: float, model: Path) -> None:
    for key in ("hidden_size", "max_position_embeddings", "vocab_size", "num_hidden_layers"):
        check_config({**tiny.config_of("llama"), key: value}, model)


@pytest.mark.slow
def test_all_wrong_configurations_are_described_or_refused(model: Path) -> None:
    for config in wrong_configs():
        check_config(config, model)
