#!/usr/bin/env bash
# Question: At temperature 5 and top_p 0.7, which tokens can mlx-lm's sampler draw?
# One would guess: those that make up 70 % at temperature 5, as in transformers and vLLM:
#   temperature first, then the nucleus.
# What happens: top_p is applied to the probabilities at temperature 1, and the temperature only
#   to what is left. Hot sampling never reaches a third token; cold sampling keeps a token that
#   the nucleus would cut.
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: settings copied from a model card (say temperature 0.6, top_p 0.95) describe
#   another distribution.
# Output seen (28 November 2026):
#   mlx-lm 0.32.2
#   temperature 5.0: probabilities [0.32, 0.27, 0.22, 0.19], nucleus of them [0, 1, 2], drawn [0, 1]
#   temperature 0.3: probabilities [0.95, 0.05, 0.0, 0.0], nucleus of them [0], drawn [0, 1]
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
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

print("mlx-lm", version("mlx-lm"))
TOP_P = 0.7
probabilities = mx.array([[0.6, 0.25, 0.1, 0.05]])


def nucleus(weights):
    kept, total = [], 0.0
    for token, weight in enumerate(weights):  # sorted already
        if total < TOP_P:
            kept.append(token)
        total += weight
    return kept


seen = {}
for temperature in (5.0, 0.3):
    sampler = make_sampler(temp=temperature, top_p=TOP_P)
    mx.random.seed(0)
    drawn = {sampler(mx.log(probabilities)).item() for _ in range(600)}
    weights = mx.softmax(mx.log(probabilities[0]) / temperature).tolist()
    seen[temperature] = (nucleus(weights), sorted(drawn))
    print(
        f"temperature {temperature}: probabilities {[round(w, 2) for w in weights]},",
        f"nucleus of them {seen[temperature][0]}, drawn {seen[temperature][1]}",
    )
if seen != {5.0: ([0, 1, 2], [0, 1]), 0.3: ([0], [0, 1])}:
    raise SystemExit("Changed: mlx-lm applies the temperature before top_p now.")
PY
