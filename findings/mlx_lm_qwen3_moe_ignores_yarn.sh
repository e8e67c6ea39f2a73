#!/usr/bin/env bash
# Question: Does mlx-lm scale the rotary embeddings of a Qwen3 MoE model when config.json asks for
#   YaRN in `rope_scaling`, as the model's card advises for long texts?
# One would guess: yes, since its ModelArgs has the field `rope_scaling` and the dense Qwen3 does
#   it; or an error.
# What happens: the field is read and never used. The frequencies are those without scaling, with
#   no warning. The dense Qwen3 scales them.
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: the context looks four times as long, and positions beyond the trained length
#   are computed as if the setting were not there.
# Output seen (28 November 2026):
#   mlx-lm 0.32.2
#   qwen3_moe: angles after 1,000 tokens change with YaRN: False (RoPE)
#   mixtral: angles after 1,000 tokens change with YaRN: False (RoPE)
#   qwen3: angles after 1,000 tokens change with YaRN: True (YarnRoPE)
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'mlx[cpu]==0.32.4' \
    'mlx-lm==0.32.2' \
    'transformers==5.23.0' \
    'tokenizers==0.23.3' \
    'numpy==2.4.6' \
    'huggingface-hub==2.4.0'

cd "$tmp"
TRANSFORMERS_VERBOSITY=error "$tmp/venv/bin/python" - <<'PY'
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.models import mixtral, qwen3, qwen3_moe

SIZES = dict(
    hidden_size=64,
    intermediate_size=32,
    moe_intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    vocab_size=64,
    rms_norm_eps=1e-6,
    max_position_embeddings=40_960,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
    norm_topk_prob=True,
    num_experts=2,
    num_experts_per_tok=1,
    num_local_experts=2,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
YARN = {
    "rope_type": "yarn",
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32_768,
}


def rope(module, scaling):
    config = {"model_type": module.__name__.rpartition(".")[2], **SIZES, "rope_scaling": scaling}
    return module.Model(module.ModelArgs.from_dict(config)).layers[0].self_attn.rope


print("mlx-lm", version("mlx-lm"))
changed = {}
for module in (qwen3_moe, mixtral, qwen3):
    name = module.__name__.rpartition(".")[2]
    plain, scaled = (rope(module, each) for each in (None, YARN))
    x = mx.ones((1, 1, 1, 32))
    # A uniform scale of queries and keys does not matter here, so compare directions.
    ends = [each(x, offset=1_000) / mx.linalg.norm(each(x, offset=1_000)) for each in (plain, scaled)]
    changed[name] = not mx.allclose(*ends, atol=1e-3).item()
    print(f"{name}: angles after 1,000 tokens change with YaRN: {changed[name]} ({type(scaled).__name__})")
if changed != {"qwen3_moe": False, "mixtral": False, "qwen3": True}:
    raise SystemExit("Changed: mlx-lm no longer ignores rope_scaling in Qwen3 MoE and Mixtral.")
PY
