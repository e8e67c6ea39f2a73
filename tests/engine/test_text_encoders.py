"""Text encoders of the user's choice: their vectors, tokens, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from app.chat.model_pairs import resolve_pair
from app.chat.wording import problem
from app.engine.backend import memory, mlx_patches
from app.engine.model import encoder_tokenizer
from app.engine.model.encoder_network import encode, load_weights, parse_shape
from app.engine.model.encoder_tokenizer import EncoderTokenizer
from app.engine.model.loader import load_encoder
from app.engine.model.text_encoder import PIECE, STRIDE, TextEncoder
from app.engine.pair_loader import load_pair
from app.engine.progress import LoadError
from app.engine.turn.costs import PairCosts
from app.models.embedded import target_path
from app.models.errors import ModelError
from app.protocol.commands import Load
from app.protocol.events import Loaded
from app.protocol.options import ENCODERS, Mode
from app.protocol.prompt import Document, Message, Role
from app.protocol.reasons import FailureKind
from app.protocol.stats import Reading
from app.sandbox.process import TextProcess
from tests.engine.driver import Driver, question
from tests.engine.encoders import CONFIGS, SAMPLE, VECTORS, texts, tokenizer, write
from tests.tables import slow, table

KINDS = tuple(CONFIGS)


def nothing(done: int, total: int) -> None:
    """Does not cancel."""


def vectors(folder: Path, mean: bool) -> np.ndarray:
    config = json.loads((folder / "config.json").read_text())
    ids, mask = map(mx.array, texts())
    shape = parse_shape(config, mean)
    return np.array(encode(load_weights(folder, config), shape, ids, mask))


def test_of_an_encoder_the_listed_weights_are_loaded_and_64_bits_converted(tmp_path: Path) -> None:
    mlx_patches.install()
    folder = write(tmp_path / "bert", "bert")
    expected = vectors(folder, mean=True)
    (stored,) = folder.glob("model*.safetensors")
    arrays = {name: np.array(array, np.float64) for name, array in mx.load(str(stored)).items()}
    stored.unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    listed = {name: names[number % 2] for number, name in enumerate(arrays)}
    for name in names:
        save_file({key: arrays[key] for key, file in listed.items() if file == name}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    save_file({name: array + 1 for name, array in arrays.items()}, folder / "model-old.safetensors")
    assert np.abs(vectors(folder, mean=True) - expected).max() < 1e-6


@table("kind, mean", [(kind, mean) for kind in KINDS for mean in (True, False)])
def test_vectors_are_those_of_transformers(kind: str, mean: bool, tmp_path: Path) -> None:
    expected = json.loads(VECTORS.read_text())[f"{kind} {'mean' if mean else 'cls'}"]
    assert np.abs(vectors(write(tmp_path / kind, kind), mean) - expected).max() < 1e-4


def test_all_architectures_are_tested() -> None:
    assert {*KINDS, "roberta"} == ENCODERS, "RoBERTa's network is XLM-RoBERTa's"


@pytest.mark.parametrize("kind", KINDS)
def test_weights_may_have_a_prefix_and_other_formats(kind: str, tmp_path: Path) -> None:
    expected = vectors(write(tmp_path / "plain", kind), True)
    folder = write(tmp_path / "other", kind, prefix="model.")
    file = folder / "model.safetensors"
    weights = mx.load(str(file))
    weights["lm_head.bias"] = mx.zeros(3)
    mx.save_safetensors(str(file), {n: w.astype(mx.bfloat16) for n, w in weights.items()})
    assert np.abs(vectors(folder, True) - expected).max() < 0.05
    packed = {}
    for name, value in weights.items():
        if name.endswith("Wi.weight") or "intermediate.dense.weight" in name:
            value = mx.concatenate([value, mx.zeros((len(value), 8))], axis=1)  # 32 columns
            parts = mx.quantize(value, group_size=32, bits=8)
            base = name.removesuffix(".weight")
            packed |= dict(zip((name, f"{base}.scales", f"{base}.biases"), parts, strict=True))
        else:
            packed[name] = value
    mx.save_safetensors(str(file), packed)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 8}
    loaded, plain = load_weights(folder, config), load_weights(tmp_path / "plain", config)
    for name in plain:
        found = loaded[name][:, : plain[name].shape[1]] if plain[name].ndim == 2 else loaded[name]
        assert np.abs(np.array(found - plain[name], np.float32)).max() < 0.02, name


# ------------------------------------------------------------------------------------- tokens


@pytest.fixture(params=KINDS)
def tokens(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[EncoderTokenizer, Tokenizer]:
    """A tokenizer in a limited process, and the original."""
    made = tokenizer(request.param)
    made.save(str(tmp_path / "tokenizer.json"))
    return EncoderTokenizer(tmp_path / "tokenizer.json", TextProcess()), made


@table("part", [1, 30, 1 << 14])
def test_tokens_and_offsets_are_those_of_the_whole_text(
    part: int, tokens: tuple[EncoderTokenizer, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_tokenizer, "PART", part)
    ours, original = tokens
    lines, random = SAMPLE.splitlines(keepends=True), Random(part)
    shuffled = "".join(random.choices(lines, k=40))
    for text in (SAMPLE, shuffled, " ".join(random.choices(SAMPLE, k=500))):
        text = text.replace("[SEP]", "")  # special tokens are read as text
        expected = original.encode(text, add_special_tokens=False)
        parts = list(ours.tokenise(text))
        assert [id for each in parts for id in each.ids] == expected.ids
        bounds = [tuple(pair) for each in parts for pair in each.bounds.tolist()]
        assert bounds == expected.offsets
        assert len(parts) > 2 or part > len(text) // 4


def test_special_tokens_and_sizes(tokens: tuple[EncoderTokenizer, Tokenizer]) -> None:
    ours, original = tokens
    whole = original.encode("x")
    assert [ours.start[0], ours.end[0]] == [whole.ids[0], whole.ids[-1]]
    assert ours.size == original.get_vocab_size()


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_cover_a_text(kind: str, tmp_path: Path) -> None:
    encoder = TextEncoder(write(tmp_path, kind), texts=TextProcess())
    text = SAMPLE * 3
    (pieces,) = encoder.encode_texts([text], nothing)
    assert (pieces.borders[0], pieces.borders[-1]) == (0, len(text))
    assert (np.diff(pieces.borders) >= 0).all()
    count = len(encoder._ids(text))
    assert len(pieces.vectors) == -(-count // STRIDE)
    assert np.linalg.norm(pieces.vectors, axis=1) == pytest.approx(1, rel=1e-4)
    (short,) = encoder.encode_texts(["The fee"], nothing)
    assert np.abs(short.vectors - encoder.encode(["The fee"], nothing)).max() < 1e-6


def test_long_questions_are_cut_at_the_start_and_keep_their_prefix(tmp_path: Path) -> None:
    encoder = TextEncoder(write(tmp_path, "bert"), "e5-tiny", TextProcess())
    end = "it is a long story " * 80
    one, other = (f"{begin} {end}" for begin in ("the fox " * 50, "the fee in March " * 30))
    found = encoder.encode_questions([one, other, "it is a story"], nothing)
    assert np.abs(found[0] - found[1]).max() < 1e-5
    assert np.abs(found[0] - found[2]).max() > 1e-3


BGE = "Represent this sentence for searching relevant passages: "
NOMIC = {"query": "search_query: ", "document": "search_document: "}


@table(
    "name, stated, query, passage",
    [
        ("multilingual-e5-small", None, "query: ", "passage: "),
        ("multilingual-e5-large-instruct", None, "", ""),
        ("bge-small-en-v1.5", None, BGE, ""),
        ("bge-small-zh", None, "", ""),
        ("other", None, "", ""),
        ("other", NOMIC, "search_query: ", "search_document: "),
        ("e5-own", {"query": "q: "}, "q: ", ""),
        ("e5-small", {"query": ""}, "query: ", "passage: "),
    ],
)
def test_prefixes(
    name: str, stated: dict[str, str] | None, query: str, passage: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / f"{name} {stated}", "bert")
    if stated is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": stated}))
    with_prefix, plain = TextEncoder(folder, name), TextEncoder(folder, "plain")
    plain._query_prefix, plain._query_ids, plain._passage_ids = "", [], []
    text = "the fee is due"
    asked = plain.encode_questions([query + text], nothing)
    assert np.array_equal(with_prefix.encode_questions([text], nothing), asked)
    told = plain.encode([passage + text], nothing)
    assert np.abs(with_prefix.encode([text], nothing) - told).max() < 1e-6


def test_the_known_share_of_a_multilingual_vocabulary_is_full(tmp_path: Path) -> None:
    made = TextEncoder(write(tmp_path, "xlm-roberta"), texts=TextProcess())
    text = "Niemand weiß, warum die Gebührenordnung fällig ist"
    assert made.known_share(text) == 1
    made._tokenizer.is_multilingual = False
    assert made.known_share(text) < 0.9
    made._tokenizer.is_multilingual = True
    assert made.known_share("ኢትዮጵያ") == 0, "unknown tokens"
    assert made.known_share("") == 0


# ------------------------------------------------------------------------------------- as a draft

Damage = Callable[[Path], object]


def edit(name: str, **values: object) -> Damage:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | values
        content = {key: value for key, value in content.items() if value is not None}
        (folder / name).write_text(json.dumps(content))

    return change


def put(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def drop_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = mx.load(str(file))
    del weights["encoder.layer.2.output.dense.weight"]
    mx.save_safetensors(str(file), weights)


def spoil_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = mx.load(str(file))
    weights["encoder.layer.2.output.dense.bias"] *= float("nan")
    mx.save_safetensors(str(file), weights)


def special_token(number: object) -> Damage:
    """Replace the id of the token that begins a text."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        (first, *_) = content["post_processor"]["special_tokens"].values()
        first["ids"] = [number]
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return change


DENSE = json.dumps([{"idx": 2, "type": "sentence_transformers.models.Dense"}])
REFUSED: dict[str, tuple[Damage, str]] = {
    "no pooling": (lambda folder: shutil.rmtree(folder / "1_Pooling"), "1_Pooling/config.json"),
    "pooling": (
        edit("1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True),
        "the pooling pooling_mode_max_tokens",
    ),
    "activation": (edit("config.json", hidden_act="swish7"), "the activation 'swish7'"),
    "positions": (edit("config.json", position_embedding_type="relative_key"), "relative_key"),
    "no size": (edit("config.json", num_attention_heads=None), "no num_attention_heads"),
    **{
        f"{name} {value!r}": (edit("config.json", **{name: value}), f"invalid {name} \\(")
        for name, value in {
            "num_attention_heads": 5,
            "hidden_size": 0,
            "max_position_embeddings": 8,
            "pad_token_id": "0",
            "layer_norm_eps": "small",
            "hidden_act": ["gelu"],
            "quantization": {"bits": "4"},
        }.items()
    },
    "prompts": (put("config_sentence_transformers.json", '{"prompts": {"query": 1}}'), "prompts"),
    "another module": (put("modules.json", DENSE), "a module of the kind 'Dense'"),
    "modules": (put("modules.json", "{"), "cannot be read"),
    "only a pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "no weights in safetensors files",
    ),
    "truncated": (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:-100]
        ),
        "is truncated",
    ),
}


@table("name", REFUSED)
def test_an_encoder_that_cannot_be_used_is_refused_in_one_sentence(
    name: str, tmp_path: Path
) -> None:
    damage, reason = REFUSED[name]
    folder = write(tmp_path / name, "bert")
    damage(folder)
    with pytest.raises(ModelError, match=reason):
        resolve_pair(str(target_path()), str(folder))


UNLOADABLE: dict[str, tuple[Damage, str]] = {
    "a weight is missing": (drop_weight, "no weights named encoder.layer.2.output.dense.weight"),
    "a weight is no number": (spoil_weight, "some are not numbers"),
    "more tokens than weights": (
        lambda folder: _grow_vocabulary(folder / "tokenizer.json"),
        "more tokens than its weights",
    ),
    "a special token beyond the weights": (special_token(300), "more tokens than its weights"),
    "a special token below 0": (special_token(-1), "a token id that is no number from 0 on"),
    "a special token without a number": (special_token("2"), "no number from 0 on"),
    "a tokenizer of another shape": (
        put("tokenizer.json", json.dumps({"model": {"type": "WordPiece", "vocab": 3}})),
        "tokenizer.json is damaged",
    ),
    "no special tokens": (edit("tokenizer.json", post_processor=None), "no special tokens"),
    "an unknown tokenizer": (
        put("tokenizer.json", json.dumps({"model": {"type": "WordLevel", "vocab": {}}})),
        "WordLevel",
    ),
}


def _grow_vocabulary(file: Path) -> None:
    content = json.loads(file.read_text())
    content["model"]["vocab"]["more"] = 400
    file.write_text(json.dumps(content))


@table("name", UNLOADABLE)
def test_an_encoder_that_cannot_be_loaded_is_a_failure(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    damage, reason = UNLOADABLE[name]
    folder = write(tmp_path / name, "bert")
    load = resolve_pair(str(folders["target"]), str(folder))
    damage(folder)
    with pytest.raises(LoadError) as caught:
        load_encoder(str(load.draft), "encoder")
    assert caught.value.failure.kind is FailureKind.MODEL_NOT_LOADED
    assert reason in problem(caught.value.failure)


def test_a_pair_is_not_loaded_if_its_encoder_fails(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = write(tmp_path / "encoder", "bert")
    load = resolve_pair(str(folders["target"]), str(folder))
    drop_weight(folder)
    with pytest.raises(LoadError) as caught:
        load_pair(load)
    assert caught.value.failure.kind is FailureKind.MODEL_NOT_LOADED


def test_an_encoder_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a text encoder, which cannot answer"):
        resolve_pair(str(write(tmp_path / "encoder", "bert")))


def test_without_memory_it_is_not_loaded(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = resolve_pair(str(folders["target"]), str(write(tmp_path / "encoder", "bert")))
    monkeypatch.setattr(TextEncoder, "batch_bytes", 1 << 50)
    with pytest.raises(memory.NotEnoughMemory):
        load_pair(load)


@pytest.mark.parametrize("kind", ["bert", *map(slow, ("xlm-roberta", "modernbert"))])
def test_a_turn_reads_with_the_chosen_encoder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = resolve_pair(str(target_path()), str(write(tmp_path / "tiny-encoder", kind)))
    assert load.draft_is_encoder
    assert not load.foreign_draft
    monkeypatch.setattr("app.engine.scorers.built_in.trust", lambda share: 1.0)
    monkeypatch.setattr("app.engine.scorers.built_in.built_in_encoder", None)  # not called
    driver = Driver(64)
    try:
        driver.engine.send(load)
        loaded = driver.until(Loaded)
        assert loaded.draft is not None
        assert (loaded.draft.name, loaded.draft.architecture) == ("tiny-encoder", kind)
        message = Message(Role.USER, "Who pays the fee?", (Document("a", SAMPLE * 8),))
        ask = question(Mode.SPARSE, 0.2, tokens=2)
        statistics = driver.answer(replace(ask, messages=(message,))).statistics
    finally:
        driver.close()
    assert statistics.fallback is None
    assert statistics.reading is Reading.SPARSE


def test_costs_and_memory_count_the_chosen_encoder(tmp_path: Path) -> None:
    pair = load_pair(resolve_pair(str(target_path()), str(write(tmp_path / "encoder", "bert"))))
    alone = load_pair(Load(str(target_path())))
    assert pair.encoder is not None
    assert pair.encoder_operations < alone.encoder_operations
    folder = tmp_path / "costs"
    costs, built_in = (PairCosts(each, folder).costs.sparse for each in (pair, alone))
    assert 0 < costs.per_token < built_in.per_token
    pair.encoder.seconds_per_token = 1.0  # what was measured once is not measured again
    assert PairCosts(pair, folder).costs.sparse.per_token < 1.0
    for file in folder.iterdir():
        file.write_text('{"seconds_per_token": -1}')
    assert PairCosts(pair, folder).costs.sparse.per_token > 1.0
    assert pair.draft_fingerprint != alone.draft_fingerprint == ""
    width, inner, layers = (
        CONFIGS["bert"][name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    matrices = layers * (4 * width**2 + 2 * width * inner)
    assert pair.encoder_operations == pytest.approx(2 * matrices * (PIECE + 2) / STRIDE)
