#!/usr/bin/env bash
# Question: What does copy.deepcopy() of a filled mlx-lm cache cost?
# One would guess: as much memory as the cache has: 'deep' means that the arrays are copied.
# What happens: nothing. The copy shares the buffers, yet it is independent: appending to it
#   leaves the original unchanged, and only then memory is taken.
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: forking a conversation of gigabytes is free until it is continued; hand-
#   written copying of the state is waste.
# Output seen (28 November 2026):
#   mlx 0.32.4 mlx-lm 0.32.2
#   cache: 33.6 MB; deep copy: +0.0 MB; after one token in the copy: +33.6 MB
#   tokens: original 4000 copy 4001
#   original unchanged: True
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
import copy
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.models.cache import KVCache

print("mlx", version("mlx"), "mlx-lm", version("mlx-lm"))
cache = KVCache()
cache.update_and_fetch(mx.ones((1, 8, 4000, 128)), mx.ones((1, 8, 4000, 128)))
mx.eval(cache.state)
size = cache.nbytes / 1e6

start = mx.get_active_memory()
fork = copy.deepcopy(cache)
mx.eval(fork.state)
copied = (mx.get_active_memory() - start) / 1e6
fork.update_and_fetch(mx.full((1, 8, 1, 128), 2.0), mx.full((1, 8, 1, 128), 2.0))
mx.eval(fork.state)
written = (mx.get_active_memory() - start) / 1e6
print(f"cache: {size:.1f} MB; deep copy: {copied:+.1f} MB; after one token in the copy: {written:+.1f} MB")
print("tokens: original", cache.offset, "copy", fork.offset)
untouched = mx.all(cache.keys[..., : cache.offset, :] == 1).item() and not mx.any(cache.keys == 2).item()
assert mx.any(fork.keys == 2).item()
print("original unchanged:", untouched)
if copied > 0.1 * size or written < 0.5 * size or not untouched:
    raise SystemExit("Changed: a deep copy of a cache is no longer free until it is written to.")
PY
