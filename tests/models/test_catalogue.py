"""The catalogue: that its figures can be true, that there is a pair for every Mac, a user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.models.cache import ModelCache, is_repository
from app.models.catalogue import CatalogueEntry, catalogue, find, search
from app.models.errors import ModelError
from app.models.first_model import first_model
from app.models.fit import fit, mac_with
from app.models.library import ModelDetails, find_model, known_models
from app.models.packaged import SMOLLM2, find_packaged
from app.models.pairs import best_draft, draft_candidates
from tests.tables import table

OURS = catalogue()
NOWHERE = ModelCache(Path("nowhere"))


@table("entry", OURS)
def test_every_entry_says_all_and_its_size_can_be_true(entry: CatalogueEntry) -> None:
    assert is_repository(entry.name)
    shape = entry.architecture
    assert shape is not None
    tokenizer = entry.tokenizer or shape.is_encoder
    assert all((entry.family, tokenizer, entry.quantised, entry.licence))
    if shape.is_encoder:
        element = {"float32": 4, "bfloat16": 2}[entry.quantised]
        assert entry.download == pytest.approx(element * shape.parameters, rel=0.03)
        return
    assert shape.context >= (8_192 if find_packaged(entry.name) else 32_768)
    # Towers for pictures and sound, and tokenizers, are downloaded but not loaded.
    assert not entry.download or 0 <= entry.download - shape.weight_bytes < 1.2e9
    named = next(
        float(part[:-1]) / {"B": 1, "M": 1000}[part[-1]]
        for part in [*entry.name.replace("_", "-").upper().split("-"), *UNNAMED.get(entry.name, ())]
        if part[-1] in "BM" and part[:-1].replace(".", "").isdigit()
    )
    assert shape.parameters / 1e9 == pytest.approx(named, rel=0.1, abs=0.26)


UNNAMED = {
    "mlx-community/gemma-4-e4b-it-4bit": ("7.5B",),
    "mlx-community/gemma-4-e2b-it-4bit": ("4.6B",),
    "mlx-community/granite-4.0-h-small-4bit": ("32B",),
    "mlx-community/granite-4.0-h-tiny-4bit": ("7B",),
    "mlx-community/granite-4.0-h-micro-4bit": ("3B",),
}
"""How large models are whose names do not say it."""


def test_what_is_carried_by_a_package_is_offered_as_large_as_it_is() -> None:
    entry = find(OURS, SMOLLM2.repository)
    assert entry is not None
    assert entry.download == SMOLLM2.download
    assert entry.licence == SMOLLM2.licence.casefold()
    assert [each.name for each in OURS if find_packaged(each.name)] == [SMOLLM2.repository]


@table("platform", ["linux", "darwin"])
def test_the_first_real_model_is_in_the_catalogue_and_fits_every_mac(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    model, smallest = first_model(), mac_with(8 << 30)
    entry = find(OURS, model.repository)
    assert entry is not None
    assert entry.download == model.download
    size = find_model(model.repository, NOWHERE, OURS).size
    assert fit(size, None, smallest).max_tokens >= (8_192 if platform == "linux" else 32_768)


@pytest.mark.parametrize(
    ("platform", "size", "bits"),
    [("linux", 538_060_032, "32-bit"), ("darwin", 93_000_000, "4-bit")],
)
def test_what_is_converted_here_takes_the_memory_of_its_conversion(
    platform: str, size: int, bits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    model = find_model(SMOLLM2.repository, NOWHERE, OURS)
    assert model.size.weight_bytes == pytest.approx(size, rel=1e-3)
    assert model.quantised == bits
    assert model.download == SMOLLM2.download


def test_names_are_there_once() -> None:
    assert len({entry.name.casefold() for entry in OURS}) == len(OURS)


def test_the_models_of_today_are_there_the_newest_first() -> None:
    families = list(dict.fromkeys(entry.family for entry in OURS))
    newest = ["Qwen3.8", "LFM2.5", "Bonsai", "Gemma 4", "Qwen3.6"]
    assert families[: len(newest)] == newest
    assert {"Nemotron 3", "Qwen3.5", "Granite 4", "GPT-OSS", "SmolLM3"} <= set(families)
    assert any("Mistral Small" in family for family in families)
    for words in ("qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "nano-4b", "gpt-oss-20b"):
        assert all(entry.draft for entry in search(OURS, words)), words


@table("gigabytes", [16, 24, 32, 64, 128])
def test_there_is_a_pair_for_every_mac(gigabytes: int) -> None:
    machine, models = mac_with(gigabytes << 30), known_models(NOWHERE, OURS)
    found = []
    for target in models:
        taken = best_draft(draft_candidates(target, models, machine))
        if taken is not None and taken.fit.max_tokens >= 16_384 and taken.speedup() >= 1.4:
            found.append((target.size.architecture.parameters, target.name))
    assert len(found) >= 3
    # Larger machines are offered larger models.
    assert max(found)[0] / 1e9 > {16: 4, 24: 11, 32: 25, 64: 30, 128: 110}[gigabytes]


def test_searching() -> None:
    assert [e.name for e in search(OURS, "QWEN3.5 27b")] == ["mlx-community/Qwen3.5-27B-4bit"]
    assert search(OURS, "") == OURS
    assert search(OURS, "nosuchmodel") == ()
    found = find(OURS, "MLX-community/qwen3.8-27b-4bit")
    assert found is not None
    assert found.name == "mlx-community/Qwen3.8-27B-4bit"


# ------------------------------------------------------------------------------------ a user's own


def own(folder: Path, text: str) -> tuple[CatalogueEntry, ...]:
    (folder / "catalog.toml").write_text(text, encoding="utf-8")
    return catalogue(folder)


def test_a_user_adds_a_model_by_its_name(tmp_path: Path) -> None:
    assert catalogue(tmp_path) == OURS
    entries = own(tmp_path, '[[model]]\nname = "org/mine"\n')
    assert entries[0] == CatalogueEntry("org/mine", custom=True)
    assert entries[1:] == OURS


def test_a_users_entry_takes_the_place_of_ours(tmp_path: Path) -> None:
    name = OURS[3].name
    entries = own(tmp_path, f'[[model]]\nname = "{name}"\nlicence = "mine"\n')
    assert len(entries) == len(OURS)
    assert [entry.licence for entry in entries if entry.name == name] == ["mine"]


def test_a_whole_entry_of_a_user_is_known_before_it_is_here(tmp_path: Path) -> None:
    text = """
    [[model]]
    name = "org/mine"
    download = 100_000
    draft = true
    tokenizer = "qwen3"
    [model.config]
    model_type = "qwen3"
    hidden_size = 64
    intermediate_size = 64
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 4
    head_dim = 16
    vocab_size = 128
    tie_word_embeddings = true
    """
    found: ModelDetails = find_model("org/mine", NOWHERE, own(tmp_path, text))
    assert found.size.weight_bytes == 100_000
    assert not found.installed
    # With its quantisation, nothing needs to be stated of its size.
    text = text.replace("download = 100_000", "").rstrip()
    text += "\n    quantization = { group_size = 64, bits = 4 }"
    found = find_model("org/mine", NOWHERE, own(tmp_path, text))
    assert found.size.weight_bytes == found.download == found.size.architecture.weight_bytes
    assert found.quantised == "4-bit"


@table(
    "text",
    [
        "name =",
        'name = "org/mine"',
        "model = 3",
        "[[model]]\n",
        "[model]\nname = 'org/mine'",
        "[[model]]\nname = 7",
        "[[model]]\nname = 'org/mine'\ndownload = 'big'",
        "[[model]]\nname = 'org/mine'\ndownload = true",
        "[[model]]\nname = 'org/mine'\nweights = 1",
        "[[model]]\nname = 'org/mine'\n[model.config]\nmodel_type = 'unheard'",
        "[[model]]\nname = 'org/mine'\n[model.config]\nmodel_type = 'qwen3'",
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError) as error:
        own(tmp_path, text)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
