#!/usr/bin/env bash
# Question: How much slower is a 4-bit product with bfloat16 or float16 scales than with float32
#   ones, on a CPU?
# One would guess: equal or a little faster, as half the bytes of activations are moved; at
#   worst twice as slow.
# What happens: many times slower: about 9 times in bfloat16 and 40 times in float16 (x86-64).
#   Dequantising the whole matrix at each product and multiplying in float32 beats the 4-bit
#   product in bfloat16 as well.
# Versions: mlx 0.32.4, numpy 2.4.6; Python 3.11
# Why it matters: published 4-bit models have half-precision scales, so on Linux they crawl as
#   they are; casting scales and activations to float32 repairs it.
# Output seen (28 November 2026):
#   mlx 0.32.4
#   4 bits, bfloat16 scales: 8.8 times the CPU time of float32 scales
#   4 bits, float16 scales:  43.5 times
#   4 bits, bfloat16 scales: 4.9 times that of dequantising first
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'mlx[cpu]==0.32.4' \
    'numpy==2.4.6'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import time
from importlib.metadata import version

import mlx.core as mx

print("mlx", version("mlx"))
mx.set_default_device(mx.cpu)
mx.random.seed(1)


def cpu_seconds(compute):
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        mx.eval(compute())
        best = min(best, time.process_time() - start)
    return best


weights, rows = mx.random.normal((1024, 2048)), mx.random.normal((64, 2048))
taken = {}
for dtype in (mx.float32, mx.bfloat16, mx.float16):
    q, scales, biases = mx.quantize(weights.astype(dtype), group_size=64, bits=4)
    x = rows.astype(dtype)
    mx.eval(q, scales, biases, x)
    taken[dtype] = cpu_seconds(
        lambda: mx.quantized_matmul(x, q, scales, biases, transpose=True, group_size=64, bits=4)
    )
    taken[dtype, "dequantised"] = cpu_seconds(
        lambda: x.astype(mx.float32)
        @ mx.dequantize(q, scales, biases, group_size=64, bits=4).astype(mx.float32).T
    )
bfloat16, float16 = (taken[t] / taken[mx.float32] for t in (mx.bfloat16, mx.float16))
dequantised = taken[mx.bfloat16] / taken[mx.bfloat16, "dequantised"]
print(f"4 bits, bfloat16 scales: {bfloat16:.1f} times the CPU time of float32 scales")
print(f"4 bits, float16 scales:  {float16:.1f} times")
print(f"4 bits, bfloat16 scales: {dequantised:.1f} times that of dequantising first")
if min(bfloat16, float16) < 3 or dequantised < 2:
    raise SystemExit("Changed: half-precision 4-bit products are no longer far slower on a CPU.")
PY
