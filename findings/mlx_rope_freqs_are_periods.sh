#!/usr/bin/env bash
# Question: What does mx.fast.rope() want in its argument freqs?
# One would guess: angular frequencies: base ** (-2i / d), the inv_freq that every reference
#   implementation computes.
# What happens: their reciprocals, base ** (2i / d). Frequencies are accepted without a word and
#   rotate wrongly; the error grows to the size of the data.
# Versions: mlx 0.32.4, numpy 2.4.6; Python 3.11
# Why it matters: scaled rotary embeddings ported by name (freqs = inv_freq) run and give wrong
#   positions.
# Output seen (28 November 2026):
#   mlx 0.32.4
#   largest value of the input:        2.02
#   error with freqs = inv_freq:       4.16
#   error with freqs = 1 / inv_freq:   1.8e-07
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'mlx[cpu]==0.32.4' \
    'numpy==2.4.6'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
from importlib.metadata import version

import mlx.core as mx

print("mlx", version("mlx"))
mx.random.seed(1)
base, dims = 10_000.0, 8
x = mx.random.normal((1, 1, 4, dims))
inv_freq = mx.array([base ** (-2 * i / dims) for i in range(dims // 2)])
options = {"traditional": False, "scale": 1.0, "offset": 5}
reference = mx.fast.rope(x, dims, base=base, **options)


def error(freqs):
    return mx.abs(mx.fast.rope(x, dims, base=None, freqs=freqs, **options) - reference).max().item()


as_frequencies, as_periods = error(inv_freq), error(1 / inv_freq)
print(f"largest value of the input:        {mx.abs(x).max().item():.2f}")
print(f"error with freqs = inv_freq:       {as_frequencies:.2f}")
print(f"error with freqs = 1 / inv_freq:   {as_periods:.1e}")
if as_frequencies < 0.1 or as_periods > 1e-4:
    raise SystemExit("Changed: mx.fast.rope() takes frequencies (or something else) in freqs now.")
PY
