"""The MTP head: loading it from checkpoints of all conventions, and answers with its proposals."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import KVCache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import quantize_model
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.cache.caches import WindowedCache
from app.engine.cache.prefill import (
    StepSize,
    make_positioned_cache,
    observed_steps,
    prefill,
    set_next_position,
)
from app.engine.model import mtp
from app.engine.model.loader import load_lazily, load_one
from app.engine.model.mtp import MTPHead, MTPProposals, head_of
from app.engine.model.speculation import DRAFTED, NOTHING, PREDICTED, Gate, Proposal
from app.engine.model.token_stream import CopyIndex, DraftProposals, Speculation, TokenStream
from app.engine.progress import LoadError
from app.estimate.memory import MTP_ROWS, MTP_WINDOW
from app.models.architecture import parse_architecture
from app.models.check import loaded_bytes
from app.models.fit import cache_bytes
from app.protocol.options import Sampling
from app.protocol.reasons import FailureKind
from tests import tiny
from tests.engine.driver import TEXT, Driver, question
from tests.engine.test_token_stream import (
    Always,
    assert_same_or_tie,
    has_read,
    holding,
    nearly,
    repetitive,
    sparse_cache,
    stock_cache,
    stream,
    write,
)
from tests.engine.test_turns import pair
from tests.tables import slow, table
from tests.tiny import architectures, build

NAMES = ("qwen3_5", "qwen3_next")
mlx_patches.install()


class Predicting(Gate):
    """A gate that always uses the head, or long copies if there are any."""

    def choose(self, kind: int, available: int) -> Proposal:
        if kind == PREDICTED:
            return Proposal(2.0, available)
        return Proposal(3.0, min(available, 5)) if 1 < kind < DRAFTED else NOTHING


class Pausing(Predicting):
    """A gate that leaves out some places."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def choose(self, kind: int, available: int) -> Proposal:
        self.asked += 1
        return NOTHING if self.asked % 9 > 5 else super().choose(kind, available)


def text_model(model: Any) -> Any:
    return getattr(model, "language_model", model)


def add_head(model: Any, seed: int = 7) -> MTPHead:
    """Add a head with random weights, as sharp as the model's."""
    mx.random.seed(seed)
    head = MTPHead(text_model(model).args, type(model.layers[0]))
    weights = tree_flatten(head.parameters())
    sharp = [(name, array * 3 if array.ndim >= 2 else array) for name, array in weights]
    head.update(tree_unflatten(sharp))
    model.mtp = head
    model.eval()
    mx.eval(model.state)
    return head


def silence(layer: Any, share: float) -> None:
    """Scale what a decoder layer adds to the hidden states."""
    attention = layer.linear_attn.out_proj if layer.is_linear else layer.self_attn.o_proj
    mlp = layer.mlp
    outputs = [mlp.down_proj] if "down_proj" in mlp else [mlp.switch_mlp.down_proj]
    outputs += [mlp.shared_expert.down_proj] if "shared_expert" in mlp else []
    for part in (attention, *outputs):
        part.weight = part.weight * share


def often_right(name: str) -> Any:
    """A model whose next token depends mostly on the last one, with a head that knows as much."""
    model = build(name)
    for layer in model.layers:
        silence(layer, 0.03)
    head, size = add_head(model), text_model(model).args.hidden_size
    silence(head.layers[0], 0.0)
    head.fc.weight = mx.concatenate([mx.eye(size), mx.zeros((size, size))], axis=1)
    head.norm.weight = text_model(model).model.norm.weight
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: often_right(name) for name in NAMES}


def predicting(
    model: Any,
    cache: Any,
    text: NDArray[np.int32] | None = None,
    gate: Gate | None = None,
    **named: Any,
) -> TokenStream:
    index = None if text is None else CopyIndex(text)
    head = head_of(model)
    assert head is not None
    proposals = named.pop("mtp", None) or MTPProposals(model, head, np.zeros(0, np.int32))
    speculation = Speculation(gate or Predicting(), index, named.pop("draft", None), proposals)
    return TokenStream(model, holding(cache), speculation, **named)


# -------------------------------------------------------------------------------- answers


def check_greedy(model: Any, seeds: range, count: int) -> None:
    proposed = accepted = 0
    for seed in seeds:
        ids = repetitive(seed)
        for make_cache in (sparse_cache, stock_cache):
            plain = write(stream(model, make_cache(model, ids), None), ids, count)
            for text in (None, nearly(plain)):
                fast = predicting(model, make_cache(model, ids), text)
                assert_same_or_tie(model, ids, plain, write(fast, ids, count))
                proposed, accepted = proposed + fast.proposed, accepted + fast.accepted
    assert 0 < accepted < proposed


@pytest.mark.parametrize("name", architectures(*NAMES))
def test_greedy_answers_are_the_same_with_the_head(name: str, models: dict[str, Any]) -> None:
    check_greedy(models[name], range(1), 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_hundred_greedy_answers_are_the_same_with_the_head(
    name: str, models: dict[str, Any]
) -> None:
    check_greedy(models[name], range(100), 24)


def test_a_seed_gives_the_same_answer_with_and_without_the_head(models: dict[str, Any]) -> None:
    model, sampler = models["qwen3_5"], make_sampler(0.3)
    accepted = 0
    for seed in range(2):
        ids = repetitive(seed)
        plain = stream(model, sparse_cache(model, ids), None, sampler=sampler, seed=seed)
        fast = predicting(model, sparse_cache(model, ids), sampler=sampler, seed=seed)
        assert write(fast, ids, 24) == write(plain, ids, 24)
        accepted += fast.accepted
    assert accepted > 0


class Recorder(MTPProposals):
    """Remembers what was proposed after which answer."""

    def __init__(self, model: Any, head: MTPHead, prompt: NDArray[np.int32]) -> None:
        super().__init__(model, head, prompt)
        self.calls: list[tuple[list[int], tuple[int, ...]]] = []

    def after(self, answer: Any, count: int) -> tuple[int, ...]:
        found = super().after(answer, count)
        self.calls.append((list(answer), found))
        return found


def observed(
    proposals: MTPProposals, model: Any, ids: NDArray[np.int32], chosen: NDArray[np.int32]
) -> Any:
    """A cache with the prompt's tokens at these positions, read while the head observes them."""
    cache = make_positioned_cache(model)
    with observed_steps(lambda _, positions: proposals.observe(positions)):
        prefill(model, cache, ids[chosen], chosen, StepSize(16), lambda done: None)
    set_next_position(cache, len(ids) - 1)
    return cache


def stock_positions(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.arange(len(ids) - 1, dtype=np.int32)


def assert_predicted(
    model: Any,
    ids: NDArray[np.int32],
    answer: list[int],
    drafted: tuple[int, ...],
    first: int,
) -> None:
    """The drafted tokens are those of a head that reads all tokens from `first` on at once."""
    head, text = model.mtp, text_model(model)
    every = np.array([*ids, *answer], np.int32)
    hidden = text.model(mx.array(every[:-1])[None], cache=None)[:, first - 1 :]
    tokens, cache = mx.array(every[None, first:]), KVCache()
    for token in drafted:
        hidden = head(text.model.embed_tokens(tokens), hidden, cache)[:, -1:]
        logits = text.lm_head(hidden)[0, -1]
        assert float(logits[token]) > float(logits.max()) - 1e-3
        tokens = mx.array([[token]])


@pytest.mark.parametrize(
    ("copies", "window"),
    [
        (False, 40),
        (True, 512),
        slow(False, 0),
        slow(False, 512),
        slow(True, 0),
        slow(True, 40),
    ],
)
def test_proposals_follow_from_the_hidden_states(
    copies: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds after rejections, copies, and tokens that were forced, whether or not the head
    has read the end of the prompt."""
    model, ids = build("qwen3_5"), repetitive(2)
    recorder = Recorder(model, add_head(model), ids)
    monkeypatch.setattr(mtp, "MTP_WINDOW", window)
    cache = observed(recorder, model, ids, stock_positions(ids))
    plain = write(stream(model, stock_cache(model, ids), None), ids, 30)
    text = nearly(plain) if copies else None
    source = predicting(model, cache, text, Pausing(), mtp=recorder)
    answer = write(source, ids, 12)
    forced = [3, 4, 5]
    source.write(forced)
    rest = list(source.tokens(forced[-1], 12))
    assert not recorder.failed
    assert len(recorder.calls) > 4
    assert any(len(before) > 17 for before, _ in recorder.calls)
    for before, drafted in recorder.calls:
        assert before == [*answer, *forced, *rest][: len(before)]
        assert_predicted(model, ids, before, drafted, len(ids) - max(min(window, len(ids)) - 1, 0))


@pytest.mark.parametrize("better", [DRAFTED, PREDICTED])
def test_the_better_of_head_and_draft_is_used(better: int, models: dict[str, Any]) -> None:
    model, draft, ids = models["qwen3_5"], build("llama"), repetitive(0)
    plain = write(stream(model, stock_cache(model, ids), None), ids, 12)
    recorder = Recorder(model, model.mtp, ids)
    proposals = DraftProposals(pair(draft).target, has_read(draft, ids), ids, 0)
    gate = Always()
    gate.preferred = better
    source = predicting(model, stock_cache(model, ids), None, gate, mtp=recorder, draft=proposals)
    assert write(source, ids, 12) == plain
    assert source.proposed > 0
    assert bool(recorder.calls) == (better == PREDICTED)


def test_the_head_reads_the_end_of_a_prompt_with_gaps() -> None:
    """Reading it again starts from the beginning. Caches are as without the head."""
    model, ids = build("qwen3_5"), repetitive(0)
    proposals = MTPProposals(model, add_head(model), ids)
    chosen = stock_positions(ids)
    chosen = chosen[(chosen % 9 < 5) | (chosen > 100)]
    for _ in range(2):
        cache = observed(proposals, model, ids, chosen)
    assert not proposals.failed
    assert proposals._cache.positions.array().tolist() == (chosen + 1).tolist()
    plain = make_positioned_cache(model)
    prefill(model, plain, ids[chosen], chosen, StepSize(16), lambda done: None)
    states = [
        [part for _, part in tree_flatten([c.state for c in each]) if isinstance(part, mx.array)]
        for each in (cache, plain)
    ]
    assert len(states[0]) == len(states[1]) > 0
    assert all(mx.allclose(a, b, atol=1e-5) for a, b in zip(*states, strict=True))


def test_the_head_keeps_a_window_of_the_answer(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mtp, "MTP_WINDOW", 4)
    model, ids = models["qwen3_5"], repetitive(0)
    head = head_of(model)
    assert head is not None
    proposals = MTPProposals(model, head, ids)
    proposals._cache.slack = 8
    source = predicting(model, stock_cache(model, ids), mtp=proposals)
    for _ in zip(range(60), source.tokens(int(ids[-1]), 60), strict=False):
        assert proposals._cache.size() <= 12
        assert len(proposals._hidden) <= mtp.CATCH_UP
    assert source.accepted > 0
    assert WindowedCache.slack + MTP_WINDOW == MTP_ROWS


def test_a_failed_head_is_not_used_again(models: dict[str, Any]) -> None:
    model, ids = models["qwen3_5"], repetitive(0)
    plain = write(stream(model, stock_cache(model, ids), None), ids, 12)

    def fails(*_: Any) -> mx.array:
        raise MemoryError

    head: Any = fails
    source = predicting(model, stock_cache(model, ids), mtp=MTPProposals(model, head, ids))
    assert write(source, ids, 12) == plain
    assert source.proposed == 0


# -------------------------------------------------------------------------------- loading

SIZES: dict[str, Any] = {"hidden_size": 64, "head_dim": 32}
MOE: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
FAMILIES = (*NAMES, "qwen3_5_moe")
LAYOUTS = ("converted", "nested", "raw", "added")
"""Checkpoints of mlx-lm's conversion, with the head outside or inside the text model; the makers'
checkpoints; converted ones to which the makers' head was added."""


def family(name: str) -> Any:
    """A model with a head, whose norm weights are not all 1."""
    changes = MOE if name == "qwen3_5_moe" else {}
    model = build(name.removesuffix("_moe"), vocabulary=tiny.BYTES, **SIZES, **changes)
    add_head(model)
    mx.random.seed(1)
    norms = [
        (path, array + 0.1 * mx.random.normal(array.shape))
        for path, array in tree_flatten(model.parameters())
        if (path.endswith("norm.weight") and "linear_attn" not in path) or "pre_fc_norm" in path
    ]
    model.update(tree_unflatten(norms))
    return model


def is_shifted(path: str) -> bool:
    return "norm" in path and "linear_attn" not in path


def raw(path: str, array: mx.array) -> dict[str, mx.array]:
    """A weight as the makers publish it."""
    path = path.replace("language_model.model.", "model.language_model.")
    path = path.replace("language_model.lm_head", "lm_head")
    if "conv1d" in path:
        return {path: array.moveaxis(2, 1)}
    if is_shifted(path):
        return {path: array - 1.0}
    if ".switch_mlp." not in path:
        return {path: array}
    return {
        path.replace("switch_mlp", f"experts.{expert}"): array[expert]
        for expert in range(len(array))
    }


def join_experts(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Experts as in checkpoints of Qwen3.5: one array for all, gate and up joined."""
    joined, found = (
        dict(weights),
        sorted({k.split(".experts.")[0] for k in weights if ".experts." in k}),
    )
    for prefix in found:

        def stacked(name: str, prefix: str = prefix) -> mx.array:
            return mx.stack([joined.pop(f"{prefix}.experts.{e}.{name}.weight") for e in range(4)])

        gate, up, down = (stacked(name) for name in ("gate_proj", "up_proj", "down_proj"))
        joined[f"{prefix}.experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        joined[f"{prefix}.experts.down_proj"] = down
    return joined


def in_layout(name: str, model: Any, layout: str) -> dict[str, mx.array]:
    weights = dict(tree_flatten(model.parameters()))
    found: dict[str, mx.array] = {}
    for path, array in weights.items():
        if layout == "raw" or (layout == "added" and path.startswith("mtp.")):
            found |= raw(path, array)
        else:
            found[
                f"language_model.{path}" if layout == "nested" and path.startswith("mtp.") else path
            ] = array
    return join_experts(found) if name == "qwen3_5_moe" else found


def save(folder: Path, name: str, weights: dict[str, mx.array], **changes: Any) -> Path:
    """Write a model folder with these weights."""
    changes |= SIZES | (MOE if name == "qwen3_5_moe" else {})
    tiny.save(folder, name.removesuffix("_moe"), **changes)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


@table("name, layout", product(FAMILIES, LAYOUTS))
def test_the_head_is_loaded_from_checkpoints_of_all_conventions(
    name: str, layout: str, tmp_path: Path
) -> None:
    model = family(name)
    folder = save(tmp_path / name / layout, name, in_layout(name, model, layout))
    loaded, _ = load_lazily(folder)
    expected, found = (dict(tree_flatten(each.parameters())) for each in (model, loaded))
    assert set(found) == set(expected)
    for path, array in expected.items():
        assert mx.allclose(found[path], array, atol=1e-6), path


OTHER_HEADS = (
    ("mtp.", ""),
    ("mtp.pre_fc_norm_hidden.weight", ""),
    ("mtp.layers.0.input_layernorm.weight", ""),
    ("", "mtp.layers.1.input_layernorm.weight"),
    ("mtp.fc.weight", "mtp.fc.weight"),
)
"""Weights that a checkpoint lacks, and that it has in addition."""


@table("name, weights_changed", product(FAMILIES, OTHER_HEADS))
def test_a_model_with_another_head_or_none_is_loaded_without(
    name: str, weights_changed: tuple[str, str], tmp_path: Path
) -> None:
    """The head may lack weights, have more, or have others sizes."""
    missing, added = weights_changed
    weights = in_layout(name, family(name), "raw")
    weights = {
        path: w for path, w in weights.items() if not missing or not path.startswith(missing)
    }
    if added:
        weights[added] = mx.ones((64,))
    folder = tmp_path / name / str(OTHER_HEADS.index(weights_changed))
    loaded, _ = load_lazily(save(folder, name, weights))
    assert head_of(loaded) is None
    assert not any("mtp" in path for path, _ in tree_flatten(loaded.parameters()))


def test_a_quantised_head_is_loaded_and_counted(tmp_path: Path) -> None:
    model = family("qwen3_5")
    config = {**tiny.config_of("qwen3_5", tiny.BYTES), "text_config": {}}
    model, config = quantize_model(model, config, 32, 4)
    weights = dict(tree_flatten(model.parameters()))
    assert "mtp.fc.scales" in weights
    folder = save(tmp_path / "model", "qwen3_5", weights, quantization=config["quantization"])
    loaded = load_one(str(folder), "m", 64)
    head = head_of(loaded.model)
    assert head is not None
    assert head.fc.bits == 4
    assert (
        loaded.info.weight_bytes == loaded_bytes(folder) == sum(w.nbytes for w in weights.values())
    )
    loaded.unload()
    loaded.reload()
    assert head_of(loaded.model) is not None


def test_damaged_weights_of_the_head_are_found(tmp_path: Path) -> None:
    weights = in_layout("qwen3_5", family("qwen3_5"), "converted")
    weights["mtp.fc.weight"] = mx.full(weights["mtp.fc.weight"].shape, mx.nan)
    folder = save(tmp_path / "model", "qwen3_5", weights)
    with pytest.raises(LoadError) as raised:
        load_one(str(folder), "m", 64)
    assert raised.value.failure.kind is FailureKind.WEIGHTS_DAMAGED


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_the_head_is_estimated(name: str) -> None:
    head = family(name).mtp
    config = {**tiny.config_of(name, tiny.BYTES), **SIZES, "dtype": "float32"}
    shape = parse_architecture({**config, "mtp_num_hidden_layers": 1})
    size = sum(array.nbytes for _, array in tree_flatten(head.parameters()))
    assert shape.mtp_bytes == pytest.approx(size, rel=0.02)
    cache, token = KVCache(), mx.zeros((1, 1, SIZES["hidden_size"]))
    head(token, token, cache)
    row = sum(array.nbytes // array.shape[2] for array in (cache.keys, cache.values))
    plain = replace(shape, has_mtp=False)
    assert cache_bytes(shape, 4096) - cache_bytes(plain, 4096) == row * MTP_ROWS
    assert plain.mtp_bytes == 0


def test_weights_of_heads_that_are_not_loaded_are_not_counted(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "nemotron_h")
    before = loaded_bytes(folder)
    weights = dict(mx.load(str(folder / "model.safetensors")))
    mx.save_safetensors(str(folder / "model.safetensors"), weights | {"mtp.w": mx.ones(9)})
    assert loaded_bytes(folder) == before


def test_a_turn_uses_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = in_layout("qwen3_5", family("qwen3_5"), "raw")
    folder = save(tmp_path / "target", "qwen3_5", weights)
    monkeypatch.setattr(Gate, "choose", Predicting.choose)
    driver, answers = Driver(), []
    try:
        driver.load(folder)
        for speculate in (True, False):
            sampling = Sampling(max_tokens=12, speculate=speculate)
            ask = question(keep=0.3, text=TEXT[:600])
            answers.append(driver.answer(replace(ask, sampling=sampling)))
    finally:
        driver.close()
    fast, plain = answers
    assert fast.statistics.proposed_tokens > 0 == plain.statistics.proposed_tokens
    assert fast.generated_ids == plain.generated_ids


@pytest.mark.parametrize("after", [slow(1), 3, slow(6)])
def test_answers_are_the_same_if_they_are_held_and_go_on(after: int) -> None:
    model, ids = build("qwen3_5"), repetitive(2)
    recorder = Recorder(model, add_head(model), ids)
    cache = observed(recorder, model, ids, stock_positions(ids))
    plain = write(stream(model, stock_cache(model, ids), None), ids, 20)
    source = predicting(model, cache, nearly(plain), Pausing(), mtp=recorder)
    answer: list[int] = []
    for part in range(3):
        calls = itertools.count(1)
        hold = (lambda match, calls=calls: next(calls) > after) if part < 2 else None
        last = answer[-1] if answer else int(ids[-1])
        answer += source.tokens(last, 20 - len(answer), len(answer), hold)
    assert answer == plain
    assert recorder.calls
    assert not recorder.failed
    for before, drafted in recorder.calls:
        assert before == plain[: len(before)]
        assert_predicted(model, ids, before, drafted, 1)
