#!/usr/bin/env bash
# Question: Can a model that was loaded and evaluated on one thread answer on another?
# One would guess: yes: mx.eval(model.parameters()) ran, so nothing lazy is left.
# What happens: RuntimeError about a stream that the thread does not have. The scaled rotary
#   frequencies (_freqs) of Llama 3 are no parameters, stay lazy, and belong to the stream of
#   the thread that made them. A model without rope scaling works; so does this one after
#   mx.eval(model.state).
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: loading in the background and answering elsewhere works with small test models
#   and fails with Llama 3.
# Output seen (28 November 2026):
#   mlx 0.32.4 mlx-lm 0.32.2
#   no rope scaling, mx.eval(model.parameters()): works
#   llama3 scaling,  mx.eval(model.parameters()): RuntimeError: There is no Stream(cpu, 2) in current thread.
#   llama3 scaling,  mx.eval(model.state):        works
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
import threading
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.models import llama

print("mlx", version("mlx"), "mlx-lm", version("mlx-lm"))
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "rms_norm_eps": 1e-6,
    "rope_theta": 500_000.0,
}
SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def load(scaling, everything):
    """Loads on a thread that lives on, as an engine's would."""
    made, ready = [], threading.Event()

    def work():
        model = llama.Model(llama.ModelArgs.from_dict({**CONFIG, "rope_scaling": scaling}))
        mx.eval(model.state if everything else model.parameters())
        made.append(model)
        ready.set()
        finished.wait()
        mx.clear_streams()

    thread = threading.Thread(target=work)
    thread.start()
    threads.append(thread)
    ready.wait()
    return made[0]


def answer(model):
    try:
        mx.eval(model(mx.array([[1, 2, 3]])))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "works"


threads, finished = [], threading.Event()
plain = answer(load(None, everything=False))
scaled = answer(load(SCALING, everything=False))
state = answer(load(SCALING, everything=True))
finished.set()
for thread in threads:
    thread.join()
print("no rope scaling, mx.eval(model.parameters()):", plain)
print("llama3 scaling,  mx.eval(model.parameters()):", scaled)
print("llama3 scaling,  mx.eval(model.state):       ", state)
if plain != "works" or not scaled.startswith("RuntimeError") or state != "works":
    raise SystemExit("Changed: evaluated parameters now suffice (or no longer do) for another thread.")
PY
