#!/usr/bin/env bash
# Question: What does mx.load() make of float8 weights in a safetensors file?
# One would guess: the numbers (as bfloat16 or float32), or an error that float8 is not
#   supported.
# What happens: F8_E4M3 arrives as uint8 with the raw bytes: 1.0, 2.0 and 0.5 read 56, 64 and
#   48. The sister type F8_E5M2 is refused with an error, so no error is no proof.
# Versions: mlx 0.32.4, numpy 2.4.6, safetensors 0.8.0, ml_dtypes 0.6.0; Python 3.11
# Why it matters: integer weights multiply without complaint; a float8 checkpoint that is not
#   decoded by its model class computes nonsense.
# Output seen (28 November 2026):
#   mlx 0.32.4 safetensors 0.8.0
#   float8_e4m3fn [1.0, 2.0, 0.5] -> ('mlx.core.uint8', [56, 64, 48], [56.0, 64.0, 48.0])
#   float8_e5m2 [1.0, 2.0, 0.5] -> RuntimeError: [safetensor] unsupported dtype F8_E5M2
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'mlx[cpu]==0.32.4' \
    'numpy==2.4.6' \
    'safetensors==0.8.0' \
    'ml_dtypes==0.6.0'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
from importlib.metadata import version

import ml_dtypes
import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

print("mlx", version("mlx"), "safetensors", version("safetensors"))
values = [1.0, 2.0, 0.5]
seen = {}
for name in ("float8_e4m3fn", "float8_e5m2"):
    save_file({"w": np.array(values, dtype=getattr(ml_dtypes, name))}, "w.safetensors")
    try:
        w = mx.load("w.safetensors")["w"]
        seen[name] = (str(w.dtype), w.tolist(), (w * mx.ones(3)).tolist())
    except Exception as error:
        seen[name] = f"{type(error).__name__}: {error}"
    print(name, values, "->", seen[name])
if seen["float8_e4m3fn"][:2] != ("mlx.core.uint8", [56, 64, 48]) or "unsupported" not in seen["float8_e5m2"]:
    raise SystemExit("Changed: mx.load() treats float8 tensors differently now.")
PY
