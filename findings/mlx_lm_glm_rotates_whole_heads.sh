#!/usr/bin/env bash
# Question: How many of the 128 numbers of a head does mlx-lm rotate for a GLM-4 model of 2024
#   (model_type `glm`), whose config.json says `partial_rotary_factor: 0.5`?
# One would guess: 64, as transformers does, and as mlx-lm's `glm4` of 2025 does.
# What happens: all 128. The class `glm` does not know the key, and nothing is said. Only the first
#   of the 64 pairs turns as fast as it should.
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: the model loads and writes, but every position is computed otherwise than in
#   training.
# Output seen (28 November 2026):
#   mlx-lm 0.32.2 transformers 5.23.0
#   transformers: partial_rotary_factor 0.5 of heads of 128
#   glm: 128 numbers of a head are rotated
#   glm4: 64 numbers of a head are rotated
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
from mlx_lm.models import glm, glm4
from transformers import GlmConfig

print("mlx-lm", version("mlx-lm"), "transformers", version("transformers"))
saved = GlmConfig().to_dict()
share = saved["rope_parameters"]["partial_rotary_factor"]
print(f"transformers: partial_rotary_factor {share} of heads of {saved['head_dim']}")

CONFIG = dict(
    hidden_size=256,
    num_hidden_layers=1,
    intermediate_size=64,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=saved["head_dim"],
    rms_norm_eps=1e-6,
    vocab_size=64,
    attention_bias=True,
    max_position_embeddings=4_096,
    partial_rotary_factor=share,
    rope_theta=10_000.0,
)
rotated = {}
for module in (glm, glm4):
    name = module.__name__.rpartition(".")[2]
    model = module.Model(module.ModelArgs.from_dict({"model_type": name, **CONFIG}))
    rope = model.layers[0].self_attn.rope
    before = mx.ones((1, 1, 1, saved["head_dim"]))
    after = rope(before, offset=100_000)
    rotated[name] = int((mx.abs(after - before) > 1e-6).sum().item())
    print(f"{name}: {rotated[name]} numbers of a head are rotated")
if rotated != {"glm": 128, "glm4": 64}:
    raise SystemExit("Changed: mlx-lm's glm no longer rotates whole heads.")
PY
