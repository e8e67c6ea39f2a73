"""The rotary embeddings of loaded models against formulas of their own, for each architecture that
transformers and mlx-lm share."""

import copy
import json
import math
import pkgutil
from contextlib import redirect_stdout, suppress
from io import StringIO

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.utils import MODEL_REMAPPING

from app.chat import wording
from app.engine.backend import mlx_patches
from app.engine.model import findings, rotary
from app.engine.model.loader import rotated_classes
from app.models.architecture import parse_architecture
from app.models.errors import ModelError
from app.protocol.reasons import ReasonCode
from app.util.model_config import for_mlx_lm, short_factors_below, text_part
from tests.tables import table

BASE, LOCAL_BASE = 123_456.0, 23_456.0
POSITIONS = (1, 50, 1000)
KINDS = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
    "yarn": {"factor": 16.0, "original_max_position_embeddings": 2048},
    "yarn without truncation": {
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
        "attention_factor": 1.25,
    },
    "dynamic": {"factor": 2.0},
}
REFUSED = {
    "apertus": "lacks mlp_bias, post_norm and qk_norm",
    "bailing_hybrid": "lacks group_norm_size",
    "dots1": "its default has no numbers of experts",
    "exaone_moe": "lacks is_moe_layer",
    "glm_moe_dsa": "lacks topk_method and others",
    "lfm2_moe": "its default has no layer types",
    "longcat_flash": "lacks attention_method and others",
    "mimo_v2_flash": "lacks hybrid_layer_pattern and others",
    "minimax": "lacks shared_intermediate_size",
    "minimax_m2": "lacks shared_intermediate_size",
    "nemotron": "its default has no number of key heads",
    "olmo": "needs another package",
    "pixtral": "a part of another model",
    "qwen3_vl": "lacks tie_word_embeddings",
    "qwen3_vl_moe": "lacks norm_topk_prob",
    "solar_open": "lacks intermediate_size",
}
"""Default configurations of transformers 5 that mlx-lm's classes cannot be built from."""
NO_MODULE = {
    "nanochat": "scaling is not possible: its attention has no module for rotation",
    "granitemoehybrid": "its default has no layer with attention",
}
QUICK = ("llama", "gemma3_text", "gpt_oss", "qwen3_moe", "glm", "deepseek_v2", "olmo3", "phi3")


def shared_architectures() -> list[str]:
    from transformers import CONFIG_MAPPING

    names = {each.name for each in pkgutil.iter_modules(mlx_lm.models.__path__)}
    return sorted((names | set(MODEL_REMAPPING)) & set(CONFIG_MAPPING))


def default_config(name: str) -> dict:
    from transformers import CONFIG_MAPPING

    return json.loads(json.dumps(CONFIG_MAPPING[name]().to_dict(), default=str))


def with_rope(name: str, kind: str) -> dict | None:
    """The default configuration with other bases and one scaling; None without rotary
    embeddings."""
    config = default_config(name)
    text = text_part(config)
    parameters = text.get("rope_parameters")
    if not parameters:
        return None
    nested = [each for each in parameters.values() if isinstance(each, dict)]
    for number, each in enumerate(nested or [parameters]):
        each["rope_theta"] = LOCAL_BASE if nested and number == 0 else BASE
        if each.get("rope_type") == "default" and kind != "default":
            each |= {"rope_type": kind.split()[0], **KINDS[kind]}
    return config


def expected(text: dict, layer: int, dims: int) -> tuple[np.ndarray, float]:
    """Angles in radians a token, (dims / 2,), and the factor of queries and keys."""
    found = text["rope_parameters"]
    nested = {key: value for key, value in found.items() if isinstance(value, dict)}
    if nested:
        found = nested.get(text["layer_types"][layer]) or next(iter(nested.values()))
    base, factor = found["rope_theta"], found.get("factor")
    angles = np.array([base ** (-2 * i / dims) for i in range(dims // 2)])
    longest = text.get("max_position_embeddings")
    length = found.get("original_max_position_embeddings", longest)
    length = text.get("original_max_position_embeddings") or length  # Phi 3
    match found.get("rope_type"):
        case "linear":
            return angles / factor, 1.0
        case "proportional":
            share = found["partial_rotary_factor"]
            return np.where(np.arange(dims // 2) < int(share * dims / 2), angles, 0.0), 1.0
        case "llama3":
            waves = [2 * math.pi / angle for angle in angles]
            for number, wave in enumerate(waves):
                if wave > length / found["low_freq_factor"]:
                    angles[number] /= factor
                elif wave > length / found["high_freq_factor"]:
                    span = found["high_freq_factor"] - found["low_freq_factor"]
                    near = (length / wave - found["low_freq_factor"]) / span
                    angles[number] *= (1 - near) / factor + near
            return angles, 1.0
        case "yarn":
            ends = [
                dims * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (found.get("beta_fast", 32), found.get("beta_slow", 1))
            ]
            if found.get("truncate", True):
                ends = [math.floor(ends[0]), math.ceil(ends[1])]
            low, high = max(ends[0], 0), min(ends[1], dims - 1)
            near = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
            one, both = found.get("mscale"), found.get("mscale_all_dim")
            scale = 0.1 * math.log(factor) + 1
            if one and both:
                scale = (0.1 * one * math.log(factor) + 1) / (0.1 * both * math.log(factor) + 1)
            return angles * (1 - near + near / factor), found.get("attention_factor") or scale
    return angles, 1.0


def share_of_head(text: dict, layer: int, dims: int) -> None:
    """Check how many numbers of a head are rotated, where the configuration says it."""
    found = text["rope_parameters"]
    nested = {key: value for key, value in found.items() if isinstance(value, dict)}
    found = nested.get(text["layer_types"][layer], {}) if nested else found
    if "qk_rope_head_dim" in text:
        assert dims == text["qk_rope_head_dim"]
    elif "partial_rotary_factor" in found and found["rope_type"] != "proportional":
        size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        assert dims in (
            int(size * found["partial_rotary_factor"]),
            2 * math.ceil(size * found["partial_rotary_factor"] / 2),
        )


def rotated_pairs(rope, dims: int, position: int) -> np.ndarray:
    """What `rope` makes of (1, 0) in each pair at a position: complex (dims / 2,)."""
    halves = [np.arange(dims // 2), np.arange(dims // 2) + dims // 2]
    neighbours = [np.arange(0, dims, 2), np.arange(1, dims, 2)]
    for first, second in (halves, neighbours):
        x = np.zeros(dims, np.float32)
        x[first] = 1.0
        turned = np.array(rope(mx.array(x.reshape(1, 1, 1, dims)), offset=position)).reshape(-1)
        probe = np.zeros(dims, np.float32)
        probe[first[0]] = 1.0
        alone = np.array(rope(mx.array(probe.reshape(1, 1, 1, dims)), offset=1)).reshape(-1)
        if abs(alone[second[0]]) > 0.1:
            return turned[first] + 1j * turned[second]
    raise AssertionError("no pairs are rotated")


def built(config: dict):
    full = for_mlx_lm(config)
    model_class, args_class = rotated_classes(full)
    return model_class(args_class.from_dict(full))


def check(name: str, kind: str) -> None:
    config = with_rope(name, kind)
    if config is None:
        return
    model, text = built(copy.deepcopy(config)), text_part(config)
    seen, found = set(), 0
    for layer, _, _, rope in rotary.rotary_modules(model):
        found += 1
        dims = rotary._dims(rope)
        wanted, scale = expected(text, layer, dims)
        share_of_head(text, layer, dims)
        key = (type(rope), dims, tuple(wanted), scale, str(getattr(rope, "base", "")))
        if key in seen:
            continue
        seen.add(key)
        for position in POSITIONS:
            turned = rotated_pairs(rope, dims, position)
            right = scale * np.exp(1j * position * wanted)
            assert np.abs(turned - right).max() < 0.01 * scale, (layer, position)
    assert found or name in NO_MODULE


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    with redirect_stdout(StringIO()):
        yield


@table("name, kind", [(name, kind) for name in QUICK for kind in KINDS])
def test_built_models_rotate_as_their_configurations_say(name: str, kind: str) -> None:
    check(name, kind)


@pytest.mark.slow
def test_every_shared_architecture_rotates_as_its_configuration_says() -> None:
    wrong = {}
    for name in shared_architectures():
        if name in QUICK or name in REFUSED:
            continue
        for kind in ("default",) if name in NO_MODULE else KINDS:
            try:
                check(name, kind)
            except Exception as error:
                wrong[name, kind] = repr(error)[:200]
    assert not wrong, wrong


@pytest.mark.slow
def test_architectures_that_cannot_be_built_are_refused() -> None:
    built_after_all = []
    for name in REFUSED:
        with suppress(Exception, SystemExit):
            check(name, "default")
            built_after_all.append(name)
    assert built_after_all == []


LONG = {"short_factor": [1.0] * 8, "long_factor": [1.0 + n for n in range(8)]}


def small(**other) -> dict:
    return {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 261,
        "max_position_embeddings": 131_072,
        "head_dim": 16,
    } | other


def test_longrope_always_has_the_long_factors_and_says_so() -> None:
    parameters = {"rope_type": "longrope", "rope_theta": BASE, **LONG}
    config = small(rope_parameters=parameters, original_max_position_embeddings=4096)
    (rope, *_) = (each for *_, each in rotary.rotary_modules(built(config)))
    angles = np.array([BASE ** (-i / 8) / (1 + i) for i in range(8)])
    scale = math.sqrt(1 + math.log(32) / math.log(4096))
    turned = rotated_pairs(rope, 16, 50)
    assert np.abs(turned - scale * np.exp(50j * angles)).max() < 0.01
    assert short_factors_below(config) == 4096
    assert short_factors_below(small()) == 0


def test_older_keys_stay_with_the_classes() -> None:
    """Their local layers have a base of their own, which the older keys may not name."""
    config = default_config("gemma3_text") | {"rope_theta": BASE, "rope_parameters": None}
    config["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    ropes = [each for *_, each in rotary.rotary_modules(built(config))]
    assert [rope.base for rope in ropes[:6]] == [10_000.0] * 5 + [BASE]
    assert [rope.scale for rope in ropes[:6]] == [1.0] * 5 + [1 / 8]


@table("name", ["qwen3_moe", "mixtral", "llama", "qwen2_moe"])
def test_older_scaling_that_a_class_ignores_is_applied(name: str) -> None:
    config = with_rope(name, "yarn")
    assert config is not None
    parameters = config.pop("rope_parameters")
    del parameters["rope_theta"]
    config |= {"rope_theta": BASE, "rope_scaling": parameters, "head_dim": 64}
    if name == "qwen3_moe":
        config["num_experts"] = config["num_local_experts"]
    new = {**config, "rope_parameters": {"rope_theta": BASE, **parameters}}
    for _, _, _, rope in rotary.rotary_modules(built(config)):
        dims = rotary._dims(rope)
        angles, scale = expected(new, 0, dims)
        turned = rotated_pairs(rope, dims, 50)
        assert np.abs(turned - scale * np.exp(50j * angles)).max() < 0.01 * scale


def test_of_an_older_glm_half_of_each_head_is_rotated() -> None:
    config = default_config("glm") | {"rope_theta": BASE, "partial_rotary_factor": 0.5}
    del config["rope_parameters"]
    assert {each.dims for *_, each in rotary.rotary_modules(built(config))} == {64}


@table(
    "config",
    [
        small(rope_parameters={"rope_type": "spiral", "rope_theta": BASE}),
        small(rope_scaling={"type": "spiral", "factor": 2.0}),
        {"model_type": "llava", "text_config": small(rope_parameters={"type": "spiral"})},
    ],
)
def test_an_unknown_type_is_refused_with_a_sentence(config: dict) -> None:
    with pytest.raises(ModelError, match="'spiral', which specchat cannot compute"):
        parse_architecture(config)


@table(
    "parameters, why",
    [
        ({"rope_type": "llama3", "rope_theta": BASE, "factor": 8.0}, "no low_freq_factor"),
        ({"rope_type": "linear", "rope_theta": BASE}, "no factor"),
        ({"rope_type": "yarn", "factor": 4.0}, "no rope_theta"),
        ({"rope_type": "default", "rope_theta": "10000"}, "an invalid rope_theta"),
        ({"rope_type": "longrope", "rope_theta": BASE, "long_factor": ["1"] * 8}, "long_factor"),
        ({"rope_type": "longrope", "rope_theta": BASE, "long_factor": []}, "invalid long_factor"),
        (
            {"rope_type": "longrope", "rope_theta": BASE, "long_factor": [1.0] * 7},
            "7 numbers in long_factor instead of 8",
        ),
        *(
            ({"rope_type": kind, "factor": 4.0, "rope_theta": base}, "an invalid rope_theta")
            for kind in ("yarn", "linear", "default")
            for base in (1, 0, -5, 1e400, [BASE], True)
        ),
        *(
            ({"rope_type": kind.split()[0], "rope_theta": BASE, **other, key: wrong}, key)
            for kind, other in KINDS.items()
            for key in {*other, "partial_rotary_factor"} - {"truncate"}
            for wrong in ("4", -1, [2.0], math.nan, math.inf, True)
        ),
    ],
)
def test_parameters_that_are_missing_or_invalid_are_named(parameters: dict, why: str) -> None:
    with pytest.raises(ModelError, match=f"rotary embeddings are of the type .* with .*{why}"):
        parse_architecture(small(rope_parameters=parameters))
    base = parameters.get("rope_theta")
    older = {key: value for key, value in parameters.items() if key != "rope_theta"}
    if type(base) in (int, float):
        with pytest.raises(ModelError, match=f"rotary embeddings are of the type .*{why}"):
            parse_architecture(small(rope_theta=base, rope_scaling=older))


def test_a_kernel_that_rotates_by_itself_means_full_reading(monkeypatch) -> None:
    mlx_patches.install()
    model = llama.Model(llama.ModelArgs.from_dict(small()))
    assert findings.probe(model, 4096) is None
    plain = mx.fast.rope.__wrapped__

    def fused(self, x, offset=0):
        return plain(x, self.dims, traditional=False, base=self.base, scale=1.0, offset=offset)

    monkeypatch.setattr(nn.RoPE, "__call__", fused)
    reason = findings.probe(model, 4096)
    assert reason is not None
    assert reason.code is ReasonCode.ROTATION_UNSEEN
    assert reason.data == {"layers": 2}
    assert "kernel of their own" in wording.reason(reason)
