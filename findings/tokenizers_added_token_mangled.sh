#!/usr/bin/env bash
# Question: Does decode(encode(text)) return an added token as it was added?
# One would guess: yes: an added token is a whole string with an id of its own, outside the
#   byte-level alphabet.
# What happens: the byte-level decoder reads its letters as bytes where it can: '<café>' comes
#   back with a replacement character, '<niño>' too, while '<日本語>' is intact. The id is right;
#   only the text is not.
# Versions: tokenizers 0.23.3, huggingface-hub 2.4.0; Python 3.11
# Why it matters: markers or names in French, German or Spanish added to a byte-level tokenizer
#   are spoilt in every answer, and a test with ASCII or Chinese does not see it.
# Output seen (28 November 2026):
#   tokenizers 0.23.3
#   not added: 'a café, niño, 日本語'
#   added: ['<cafe>'] -> '<cafe>'
#   added: ['<café>'] -> '<caf�>'
#   added: ['<niño>'] -> '<ni�o>'
#   added: ['<日本語>'] -> '<日本語>'
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'tokenizers==0.23.3' \
    'huggingface-hub==2.4.0'

cd "$tmp"
TOKENIZERS_PARALLELISM=false "$tmp/venv/bin/python" - <<'PY'
from importlib.metadata import version

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

print("tokenizers", version("tokenizers"))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    ["an ordinary sentence"],
    trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
)
plain = tokenizer.decode(tokenizer.encode("a café, niño, 日本語").ids)
print("not added:", repr(plain))
added = ["<cafe>", "<café>", "<niño>", "<日本語>"]
tokenizer.add_tokens(added)
intact = {}
for token in added:
    encoded = tokenizer.encode(token)
    decoded = tokenizer.decode(encoded.ids)
    intact[token] = decoded == token
    print("added:", encoded.tokens, "->", repr(decoded))
expected = {"<cafe>": True, "<café>": False, "<niño>": False, "<日本語>": True}
if plain != "a café, niño, 日本語" or intact != expected:
    raise SystemExit("Changed: added tokens are decoded differently now.")
PY
