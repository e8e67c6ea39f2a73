#!/usr/bin/env bash
# Question: Which rotary base does mlx-lm use for a Llama config saved by transformers 5?
# One would guess: the one in the file, 500,000; or an error, if mlx-lm did not know the new
#   keys.
# What happens: transformers 5 writes rope_parameters and no rope_theta; mlx-lm's Llama ignores
#   the unknown key and takes its default base of 10,000, without a warning. The same weights
#   then give other logits.
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: a fine-tune that is saved again with transformers 5 loads, answers, and is
#   wrong at every position.
# Output seen (28 November 2026):
#   mlx-lm 0.32.2 transformers 5.23.0
#   saved: rope_parameters = {'rope_theta': 500000.0, 'rope_type': 'default'} | rope_theta = None
#   mlx-lm: rope_theta = 10000
#   relative difference of the last logits: 0.38
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
TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false "$tmp/venv/bin/python" - <<'PY'
import json
from importlib.metadata import version

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from transformers import LlamaConfig

print("mlx-lm", version("mlx-lm"), "transformers", version("transformers"))
LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=100,
    rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
).save_pretrained("model")
config = json.load(open("model/config.json"))
print("saved: rope_parameters =", config["rope_parameters"], "| rope_theta =", config.get("rope_theta"))

read = llama.ModelArgs.from_dict(config)
print("mlx-lm: rope_theta =", read.rope_theta)

mx.random.seed(1)
as_saved = llama.Model(read)
as_meant = llama.Model(llama.ModelArgs.from_dict({**config, "rope_theta": 500_000.0}))
# The same weights, large enough that positions matter.
weights = [(name, mx.random.normal(value.shape) * 0.3) for name, value in tree_flatten(as_saved.parameters())]
for model in (as_saved, as_meant):
    model.load_weights(weights)
tokens = mx.arange(64)[None] % 100
saved, meant = as_saved(tokens)[0, -1], as_meant(tokens)[0, -1]
error = (mx.linalg.norm(saved - meant) / mx.linalg.norm(meant)).item()
print(f"relative difference of the last logits: {error:.2f}")
if read.rope_theta != 10_000 or error < 0.01:
    raise SystemExit("Changed: mlx-lm no longer falls back to a base of 10,000 for rope_parameters.")
PY
