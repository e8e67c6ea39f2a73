#!/usr/bin/env bash
# Question: What does an array from mx.load() hold after its file is saved again under the same
#   name?
# One would guess: what the file held when it was loaded.
# What happens: the new values. mx.load() reads only the header; the bytes are read at the first
#   evaluation, by then from the overwritten file. With mx.eval() right after the load, the old
#   values stay.
# Versions: mlx 0.32.4, numpy 2.4.6; Python 3.11
# Why it matters: a comparison of weights before and after training, or a reload guarded by
#   'keep the old ones until the new ones are there', compares the new file with itself.
# Output seen (28 November 2026):
#   mlx 0.32.4
#   evaluated at once: False  before = [9.0, 9.0, 9.0, 9.0]  largest difference = 0.0
#   evaluated at once: True   before = [1.0, 1.0, 1.0, 1.0]  largest difference = 8.0
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
seen = {}
for evaluated in (False, True):
    mx.save_safetensors("weights.safetensors", {"w": mx.ones(4)})
    before = mx.load("weights.safetensors")["w"]
    if evaluated:
        mx.eval(before)
    mx.save_safetensors("weights.safetensors", {"w": mx.full(4, 9.0)})
    after = mx.load("weights.safetensors")["w"]
    difference = mx.abs(after - before).max().item()
    seen[evaluated] = difference
    print(f"evaluated at once: {evaluated!s:5}  before = {before.tolist()}  largest difference = {difference}")
if seen != {False: 0.0, True: 8.0}:
    raise SystemExit("Changed: arrays of mx.load() no longer follow the file.")
PY
