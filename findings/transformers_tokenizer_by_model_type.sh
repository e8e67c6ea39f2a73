#!/usr/bin/env bash
# Question: Does AutoTokenizer compute the ids that the folder's own tokenizer.json gives?
# One would guess: yes: tokenizer_config.json asks for the generic class (TokenizersBackend),
#   which runs tokenizer.json as it is.
# What happens: a config.json with model_type qwen2 beside it outvotes the named class.
#   Qwen2Tokenizer takes only vocabulary and merges from tokenizer.json and puts its own
#   splitting rules in place of the file's: '2024' becomes four tokens. No warning is given.
# Versions: transformers 5.23.0, tokenizers 0.23.3, huggingface-hub 2.4.0, numpy 2.4.6; Python
#   3.11
# Why it matters: a model trained from a Qwen base with another tokenizer gets ids that it never
#   saw; loaders built on AutoTokenizer, mlx-lm among them, inherit it.
# Output seen (28 November 2026):
#   transformers 5.23.0 tokenizers 0.23.3
#   tokenizer.json itself: ['co', 'ntrac', 't', 'Ġof', 'Ġ2024']
#   model_type llama: TokenizersBackend ['co', 'ntrac', 't', 'Ġof', 'Ġ2024']
#   model_type qwen2: Qwen2Tokenizer ['co', 'ntrac', 't', 'Ġof', 'Ġ', '2', '0', '2', '4']
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'transformers==5.23.0' \
    'tokenizers==0.23.3' \
    'huggingface-hub==2.4.0' \
    'numpy==2.4.6'

cd "$tmp"
TOKENIZERS_PARALLELISM=false "$tmp/venv/bin/python" - <<'PY'
import json
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

print("transformers", version("transformers"), "tokenizers", version("tokenizers"))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # as GPT-2: digits stay together
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    ["The contract of 2024 ends in 2025."] * 20,
    trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
)
folder = Path("model")
folder.mkdir()
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))

text = "contract of 2024"
expected = tokenizer.encode(text)
print("tokenizer.json itself:", expected.tokens)
seen = {}
for model_type in ("llama", "qwen2"):
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 400}))
    loaded = AutoTokenizer.from_pretrained(folder)
    ids = loaded.encode(text, add_special_tokens=False)
    seen[model_type] = ids == expected.ids
    print(f"model_type {model_type}:", type(loaded).__name__, loaded.convert_ids_to_tokens(ids))
if seen != {"llama": True, "qwen2": False}:
    raise SystemExit("Changed: model_type no longer decides how tokenizer.json is run.")
PY
