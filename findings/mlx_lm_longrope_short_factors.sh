#!/usr/bin/env bash
# Question: Which factors does mlx-lm's longrope use for a prompt of 16 tokens, far below the
#   original 4,096?
# One would guess: short_factor, as the config means it: the long factors are for longer
#   sequences only.
# What happens: always long_factor. Changing every short factor does not change one bit of the
#   result; changing the long ones does.
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: models of the Phi-3.5 and Phi-4-mini kind are computed with stretched
#   frequencies in short chats, so results differ from other runtimes exactly where nobody
#   looks.
# Output seen (28 November 2026):
#   mlx-lm 0.32.2 mlx 0.32.4
#   16 tokens: other short factors change the result: False
#   16 tokens: other long factors change the result: True
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
from mlx_lm.models.rope_utils import initialize_rope

print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
mx.random.seed(1)
x = mx.random.normal((1, 1, 16, 32))


def rotate(short, long):
    rope = initialize_rope(
        32,
        base=10_000.0,
        traditional=False,
        scaling_config={
            "type": "longrope",
            "short_factor": [short] * 16,
            "long_factor": [long] * 16,
            "original_max_position_embeddings": 4096,
        },
        max_position_embeddings=131_072,
    )
    return rope(x)


reference = rotate(1.0, 8.0)
short_matters = not mx.array_equal(reference, rotate(3.0, 8.0)).item()
long_matters = not mx.array_equal(reference, rotate(1.0, 2.0)).item()
print("16 tokens: other short factors change the result:", short_matters)
print("16 tokens: other long factors change the result:", long_matters)
if short_matters or not long_matters:
    raise SystemExit("Changed: mlx-lm's longrope now looks at the short factors.")
PY
