"""What a machine is offered: what people run on such a Mac, if it reads a long document there."""

from __future__ import annotations

import pytest

from app.models.catalogue import catalogue
from app.models.fit import MIN_TOKENS, mac_with
from app.models.pairs import LONG_DOCUMENT_TOKENS, recommend


@pytest.mark.parametrize("gigabytes", [16, 32, 64, 128])
def test_the_offered_model_reads_a_long_document(gigabytes: int) -> None:
    found = recommend(catalogue(), mac_with(gigabytes << 30))
    assert found is not None
    assert found.fit.max_tokens >= LONG_DOCUMENT_TOKENS
    assert found.target.download < found.fit.machine.budget
    assert "draft" not in " ".join(item.label for item in found.fit.items)


@pytest.mark.parametrize(
    ("gigabytes", "name"),
    [
        (8, "LFM2.5-2.6B-MLX-4bit"),
        (16, "Qwen3.5-9B-4bit"),
        (24, "Ternary-Bonsai-27B-mlx-2bit"),
        (32, "Qwen3.8-27B-4bit"),
        (48, "Qwen3.8-27B-4bit"),
        (64, "Qwen3.8-27B-4bit"),
        (96, "Qwen3.8-27B-4bit"),
        (128, "Qwen3.5-122B-A10B-4bit"),
        (512, "Qwen3.5-122B-A10B-4bit"),
    ],
)
def test_each_mac_is_offered_what_people_run_on_it(gigabytes: int, name: str) -> None:
    found = recommend(catalogue(), mac_with(gigabytes << 30))
    assert found is not None
    assert found.target.name.rpartition("/")[2] == name


def test_more_memory_never_gets_less() -> None:
    found = [recommend(catalogue(), mac_with(size << 30)) for size in (16, 24, 32, 48, 64, 128)]
    weights = [each.target.size.weight_bytes for each in found if each is not None]
    assert len(weights) == 6
    assert weights == sorted(weights)


def test_where_no_long_document_can_be_read_the_longest_counts() -> None:
    found = recommend(catalogue(), mac_with(11 << 27))
    assert found is not None
    assert MIN_TOKENS <= found.fit.max_tokens < LONG_DOCUMENT_TOKENS


def test_a_machine_that_holds_none_is_offered_none() -> None:
    assert recommend(catalogue(), mac_with(1 << 29)) is None
    assert recommend((), mac_with(32 << 30)) is None
