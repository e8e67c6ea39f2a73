"""Which draft goes with a target, in which order, and its notes; and which model a machine
is offered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.models import speedup
from app.models.architecture import parse_architecture
from app.models.cache import ModelCache
from app.models.catalogue import CatalogueEntry, catalogue
from app.models.errors import ModelError
from app.models.fit import MIN_TOKENS, ModelSize, mac_with
from app.models.library import ModelDetails, find_model, known_models
from app.models.pairs import (
    LONG_DOCUMENT_TOKENS,
    RatioSource,
    best_draft,
    draft_candidates,
    overview,
    recommend,
)
from app.protocol.options import Mode
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase, PhaseTime, Reading
from app.store.records import AnswerStats
from tests.models import files
from tests.tables import table

OURS = catalogue()
NOWHERE = ModelCache(Path("nowhere"))
MACHINE = mac_with(128 << 30)


def known(name: str) -> ModelDetails:
    return find_model(f"mlx-community/{name}", NOWHERE, OURS)


def bonsai() -> ModelDetails:
    return find_model("prism-ml/Ternary-Bonsai-8B-mlx-2bit", NOWHERE, OURS)


def drafts(target: ModelDetails, **more: Any) -> list[str]:
    found = draft_candidates(target, known_models(NOWHERE, OURS), MACHINE, **more)
    return [each.draft.name.partition("/")[2] for each in found if not each.is_encoder]


def test_the_smallest_of_the_family_comes_first() -> None:
    assert drafts(known("Qwen3.5-27B-4bit")) == [
        "Qwen3.5-0.8B-MLX-4bit",
        "Qwen3.5-2B-MLX-4bit",
        "Qwen3.5-4B-MLX-4bit",
    ]
    assert drafts(known("NVIDIA-Nemotron-3-Super-120B-A12B-4bit")) == [
        "NVIDIA-Nemotron-3-Nano-4B-4bit"
    ]
    assert drafts(known("gpt-oss-120b-MXFP4-Q8")) == ["gpt-oss-20b-MXFP4-Q8"]


def test_text_encoders_are_drafts_for_every_target_and_come_last() -> None:
    models = known_models(NOWHERE, OURS)
    listed = overview(models, MACHINE)
    assert not any(each.model.size.architecture.is_encoder for each in listed)
    for each in listed:
        names = [draft.draft.name for draft in each.encoders]
        if each.model.size.architecture.parameters > 1e9:
            assert names == [
                "Snowflake/snowflake-arctic-embed-xs",
                "ibm-granite/granite-embedding-97m-multilingual-r2",
            ]
        assert each.shown_drafts(0) == each.encoders
        assert each.drafts[len(each.drafts) - len(names) :] == each.encoders
        assert each.best_draft not in each.encoders
    (target,) = (each for each in listed if each.model.name.endswith("/Qwen3.5-9B-4bit"))
    english, multilingual = target.encoders
    assert english.benefit.startswith("a larger text encoder than the built-in one; needs ")
    assert "for many languages" in multilingual.benefit
    assert 22e6 < english.draft.size.architecture.parameters < 23e6
    assert 97e6 < multilingual.draft.size.architecture.parameters < 98e6
    assert english.added_bytes >= english.draft.size.weight_bytes
    assert english.cost_ratio < 0.01
    labels = [item.label for item in english.fit.items]
    assert "draft, weights" in labels
    assert "draft, cache" not in labels


def test_what_has_no_draft() -> None:
    assert drafts(known("Mistral-Small-3.1-24B-Instruct-2503-4bit")) == []
    assert drafts(known("Qwen3.5-0.8B-MLX-4bit")) == []


def test_a_draft_that_does_not_pay_is_named_but_not_taken() -> None:
    target, models = known("Qwen3.5-2B-MLX-4bit"), known_models(NOWHERE, OURS)
    found = draft_candidates(target, models, MACHINE, lambda target, draft: 0.9)
    names = [each.draft.name.partition("/")[2] for each in found if not each.is_encoder]
    assert names == ["Qwen3.5-0.8B-MLX-4bit"]
    assert best_draft(found) is None


def test_a_draft_with_more_active_parameters_than_its_target_is_offered_where_it_pays() -> None:
    """1.86 times sooner on a Mac; it was excluded, since 3.6 billion are more than 2.4."""
    found = draft_candidates(known("Qwen3.5-35B-A3B-4bit"), known_models(NOWHERE, OURS), MACHINE)
    draft = next(each for each in found if "Qwen3.5-4B" in each.draft.name)
    assert draft.worthwhile
    assert draft.source is RatioSource.PUBLISHED


def test_speedup_is_the_formula() -> None:
    assert speedup.speedup(0.1, 0.2, 0.0) == pytest.approx(1 / 0.3)
    assert speedup.speedup(0.0, 1.0, 0.0) == 1.0


def test_operations_by_hand() -> None:
    """Two layers, four heads of 16, 8 * 4 elements each, at 100 tokens."""
    shape = parse_architecture(
        {
            "model_type": "qwen3",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "vocab_size": 10,
        }
    )
    matrices = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64 + 2 * 16  # and norms
    assert speedup.operations_per_token(shape, 100) == 2 * (2 * matrices + 4 * 64 * 50)


@table("pair", speedup.published_pairs())
def test_a_pair_that_was_timed_is_as_fast_as_it_was_and_carries_no_warning(pair: Any) -> None:
    """1.8 and 2.2 times came with "at most 1.7x faster"."""
    found = draft_candidates(
        find_model(pair["target"], NOWHERE, OURS), known_models(NOWHERE, OURS), MACHINE
    )
    draft = next(each for each in found if each.draft.name == pair["draft"])
    nearest = pair["speedups"].get("32") or pair["speedups"]["16"]
    assert draft.speedup() == pytest.approx(nearest)
    assert not any("as fast" in note for note in draft.notes)


def test_only_a_draft_that_does_not_pay_is_warned_of() -> None:
    found = [
        candidate
        for target in ("gemma-4-e4b-it-4bit", "Qwen3.5-9B-4bit", "Qwen3.8-27B-4bit")
        for candidate in draft_candidates(known(target), known_models(NOWHERE, OURS), MACHINE)
    ]
    warned = [any("x as fast" in note for note in each.notes) for each in found]
    assert warned == [each.speedup() < 1.2 for each in found]
    assert {True, False} == set(warned)


def test_a_draft_with_a_shorter_context_is_taken_with_a_word() -> None:
    target = known("gemma-4-31b-it-4bit")
    found = draft_candidates(target, known_models(NOWHERE, OURS), MACHINE)
    assert any("context is 131,072 tokens" in note for note in found[0].notes)


def test_what_does_not_fit_is_not_taken() -> None:
    small = mac_with(16 << 30)
    found = draft_candidates(known("Qwen3.8-27B-4bit"), known_models(NOWHERE, OURS), small)
    assert found
    assert best_draft(found) is None
    assert all("16 GB" in candidate.notes[0] for candidate in found)
    assert not any("as fast" in note for candidate in found for note in candidate.notes)


# ------------------------------------------------------------------------------------- by the clock

STATS = AnswerStats(
    mode=Mode.SPARSE,
    reading=Reading.SPARSE,
    keep_ratio=0.2,
    reasons=(),
    prompt_tokens=1000,
    eligible_tokens=900,
    read_tokens=200,
    reused_tokens=0,
    recalled_tokens=0,
    generated_tokens=9,
    seed=0,
    ttft=3.0,
    phases=(PhaseTime(Phase.SCORE, 1.0), PhaseTime(Phase.PREFILL, 2.0)),
    decode_seconds=1.0,
    peak_bytes=0,
    target="big",
    draft="small",
)


def test_the_ratio_by_the_clock() -> None:
    """1 ms a token against 10 ms."""
    assert speedup.measured_ratio([STATS], "big", "small") == pytest.approx(0.1)
    slower = replace(STATS, phases=(PhaseTime(Phase.SCORE, 3.0), PhaseTime(Phase.PREFILL, 2.0)))
    assert speedup.measured_ratio([STATS, slower, slower], "big", "small") == pytest.approx(0.3)


@table(
    "change",
    [
        {"target": "other"},
        {"draft": None},
        {"reading": Reading.DENSE},
        {"reused_tokens": 5},
        {"recalled_tokens": 5},
        {"fallback": Reason(ReasonCode.SPARSE_FAILED, {"error": "no draft"})},
        {"phases": ()},
        {"read_tokens": 0},
    ],
)
def test_answers_that_say_nothing_of_the_ratio(change: dict[str, Any]) -> None:
    assert speedup.measured_ratio([replace(STATS, **change)], "big", "small") is None


def test_the_clock_is_believed_before_the_configuration() -> None:
    target = known("Qwen3.5-9B-4bit")
    asked, ratio = [], 0.5

    def measured(target: str, draft: str) -> float | None:
        asked.append((target, draft))
        return ratio if draft == "Qwen3.5-0.8B-MLX-4bit" else None

    found = draft_candidates(target, known_models(NOWHERE, OURS), MACHINE, measured)
    assert ("Qwen3.5-9B-4bit", "Qwen3.5-0.8B-MLX-4bit") in asked
    clocked = next(c for c in found if c.source is RatioSource.MEASURED)
    assert clocked.cost_ratio == 0.5
    assert not clocked.notes
    # At 1.4 it is worth its while, and still the smallest.
    assert found[0] is clocked
    ratio = 0.7
    found = draft_candidates(target, known_models(NOWHERE, OURS), MACHINE, measured)
    slow = next(c for c in found if c.source is RatioSource.MEASURED)
    assert "70% of the target per token (measured)" in slow.notes[0]
    assert not slow.worthwhile


# -------------------------------------------------------------------------------- by their contents

SIZES = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "vocab_size": 6,
    "max_position_embeddings": 4096,
}


def folder(path: Path, layers: int = 2, kind: str = "qwen3", **tokenizer: Any) -> Path:
    files.model(path)
    files.write(path / "config.json", {**SIZES, "num_hidden_layers": layers, "model_type": kind})
    files.write(path / "tokenizer.json", files.tokenizer(**tokenizer))
    return path


def here(path: Path) -> ModelDetails:
    return find_model(str(path), NOWHERE, OURS)


def test_models_in_folders_pair_by_the_content_of_their_tokenizers(tmp_path: Path) -> None:
    target = here(folder(tmp_path / "target", layers=40))
    same = here(folder(tmp_path / "same", layers=2))
    other = here(folder(tmp_path / "other", layers=2, vocab={"a": 1, "b": 0}))
    larger = here(folder(tmp_path / "larger", layers=50))
    blind = here(folder(tmp_path / "blind", kind="gemma2"))
    broken = here(folder(tmp_path / "broken"))
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    found = draft_candidates(target, [same, other, larger, blind, broken, target], MACHINE)
    assert [candidate.draft.name for candidate in found] == [str(tmp_path / "same")]


def test_a_model_that_is_here_and_one_to_download_pair_by_the_catalogue(tmp_path: Path) -> None:
    mine = replace(here(folder(tmp_path / "mine")), entry=CatalogueEntry("mine", tokenizer="qwen3"))
    assert draft_candidates(bonsai(), [mine], MACHINE)
    assert not draft_candidates(known("Qwen3.5-9B-4bit"), [mine], MACHINE)
    unknown = replace(mine, entry=None)
    assert not draft_candidates(bonsai(), [unknown], MACHINE)


def test_a_large_model_of_the_family_is_offered_only_where_it_is_here() -> None:
    target = known("Qwen3.8-27B-4bit")
    large = known("Qwen3.5-9B-4bit")
    assert not draft_candidates(target, [large], MACHINE)
    assert draft_candidates(target, [replace(large, folder=Path("x"))], MACHINE)


def test_weights_that_a_text_model_does_not_load_are_not_counted(tmp_path: Path) -> None:
    path = folder(tmp_path / "sees")
    tensors = {
        "language_model.w": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},
        "vision_tower.w": {"dtype": "U8", "shape": [90], "data_offsets": [5, 95]},
        "model.visual.w": {"dtype": "U8", "shape": [5], "data_offsets": [95, 100]},
    }
    header = json.dumps(tensors).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(100)
    (path / "model.safetensors").write_bytes(data)
    assert here(path).size == ModelSize(str(path), parse_architecture(SIZES), 5)


@table("header", [b"[]", b'{"w": 3}', b'{"w": {"data_offsets": [1]}}', b"{"])
def test_a_damaged_header_is_told_in_one_sentence(tmp_path: Path, header: bytes) -> None:
    path = folder(files.fresh(tmp_path) / "m")
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match="damaged"):
        here(path)


# ------------------------------------------------------------------------------ recommendation


@table("gigabytes", [16, 32, 64, 128])
def test_the_offered_model_reads_a_long_document(gigabytes: int) -> None:
    found = recommend(catalogue(), mac_with(gigabytes << 30))
    assert found is not None
    assert found.fit.max_tokens >= LONG_DOCUMENT_TOKENS
    assert found.target.download < found.fit.machine.budget
    assert "draft" not in " ".join(item.label for item in found.fit.items)


@table(
    "gigabytes, name",
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
