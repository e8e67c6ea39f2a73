#!/usr/bin/env bash
# Question: Does Tokenizer.encode() of a long text let other Python threads run?
# One would guess: yes: the work is in Rust, and encode_batch() lets them run.
# What happens: encode() holds the interpreter's lock from beginning to end: another thread that
#   wants to run every millisecond stands still for nearly the whole call. encode_batch() with
#   the same single text releases it.
# Versions: tokenizers 0.23.3, huggingface-hub 2.4.0; Python 3.11
# Why it matters: a screen or an event loop freezes while a pasted document is tokenised on a
#   worker thread.
# Output seen (28 November 2026):
#   tokenizers 0.23.3
#   encode(text):         another thread stands still for 95% of the call
#   encode_batch([text]): 3%
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'tokenizers==0.23.3' \
    'huggingface-hub==2.4.0'

cd "$tmp"
TOKENIZERS_PARALLELISM=false "$tmp/venv/bin/python" - <<'PY'
import random
import threading
import time
from importlib.metadata import version

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

print("tokenizers", version("tokenizers"))
random.seed(1)
words = ["".join(random.choices("abcdefghijklmnop", k=random.randint(2, 9))) for _ in range(3000)]
text = " ".join(random.choices(words, k=100_000))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.train_from_iterator(
    [text[:100_000]],
    trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
)


def standstill(call):
    """Longest pause of another thread, as a share of the call's duration."""
    done, pauses = threading.Event(), [0.0]

    def tick():
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.05)
    pauses.clear()
    start = time.perf_counter()
    call()
    duration = time.perf_counter() - start
    done.set()
    thread.join()
    return max(pauses) / duration


assert tokenizer.encode(text).ids == tokenizer.encode_batch([text])[0].ids
one = min(standstill(lambda: tokenizer.encode(text)) for _ in range(3))
batch = min(standstill(lambda: tokenizer.encode_batch([text])) for _ in range(3))
print(f"encode(text):         another thread stands still for {one:.0%} of the call")
print(f"encode_batch([text]): {batch:.0%}")
if one < 0.6 or batch > 0.5:
    raise SystemExit("Changed: encode() now lets other threads run (or encode_batch() does not).")
PY
