#!/usr/bin/env bash
# Question: Is the text that mlx-lm streams equal to the tokenizer's decode() of the same ids?
# One would guess: yes, character by character.
# What happens: an answer that begins with spaces loses the first: four spaces of indentation
#   become three. Spaces further on are kept.
# Versions: mlx 0.32.4, mlx-lm 0.32.2, transformers 5.23.0, tokenizers 0.23.3, numpy 2.4.6,
#   huggingface-hub 2.4.0; Python 3.11
# Why it matters: a continuation of Python code starts with the wrong indentation, and the
#   streamed text cannot be matched with the ids by length.
# Output seen (28 November 2026):
#   mlx-lm 0.32.2 tokenizers 0.23.3 transformers 5.23.0
#   detokenizer: BPEStreamingDetokenizer
#   decode(): '    return x' | streamed: '   return x'
#   decode(): 'if x:\n    return x' | streamed: 'if x:\n    return x'
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
from pathlib import Path

from mlx_lm.tokenizer_utils import load
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

print("mlx-lm", version("mlx-lm"), "tokenizers", version("tokenizers"), "transformers", version("transformers"))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    ["def f(x):\n    return x\n"] * 20,
    trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
)
folder = Path("model")
folder.mkdir()
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))
(folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
loaded = load(folder)
print("detokenizer:", type(loaded.detokenizer).__name__)

seen = {}
for text in ("    return x", "if x:\n    return x"):
    ids = tokenizer.encode(text).ids
    stream = loaded.detokenizer
    stream.reset()
    for token in ids:
        stream.add_token(token)
    stream.finalize()
    seen[text] = stream.text
    print("decode():", repr(loaded.decode(ids)), "| streamed:", repr(stream.text))
if list(seen.values()) != ["   return x", "if x:\n    return x"]:
    raise SystemExit("Changed: the streamed text now equals (or differs otherwise from) decode().")
PY
