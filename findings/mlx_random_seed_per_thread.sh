#!/usr/bin/env bash
# Question: What do worker threads draw after mx.random.seed(7) on the main thread?
# One would guess: numbers that follow from the seed, and different ones on each thread: the
#   generator is global, as those of random and NumPy are.
# What happens: the seed reaches no other thread: each has a generator of its own, whose start
#   changes from run to run. And within a run it is the same start for all: every new thread
#   draws the very same numbers.
# Versions: mlx 0.32.4, numpy 2.4.6; Python 3.11
# Why it matters: sampling on an engine thread is not repeatable although the program set a seed
#   at its start, and two workers that should differ do not.
# Output seen (28 November 2026):
#   mlx 0.32.4
#   seed 7 on main, drawn on main:          [0.0777, 0.1745, 0.8326]
#   seed 7 on main, drawn on a new thread:  [0.0948, 0.9175, 0.6046]
#   seed 7 on main, on another new thread:  [0.0948, 0.9175, 0.6046]
#   main after these:                       [0.0777, 0.1745, 0.8326]
#   seed 7 on the new thread itself:        [0.0777, 0.1745, 0.8326]
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'mlx[cpu]==0.32.4' \
    'numpy==2.4.6'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import threading
from importlib.metadata import version

import mlx.core as mx

print("mlx", version("mlx"))


def draw():
    return [round(x, 4) for x in mx.random.uniform(shape=(3,)).tolist()]


def draw_on_new_thread(seed=None):
    drawn = []

    def work():
        if seed is not None:
            mx.random.seed(seed)
        drawn.append(draw())
        mx.clear_streams()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return drawn[0]


mx.random.seed(7)
main = draw()
mx.random.seed(7)
first, second = draw_on_new_thread(), draw_on_new_thread()
still = draw()
seeded = draw_on_new_thread(seed=7)
print("seed 7 on main, drawn on main:         ", main)
print("seed 7 on main, drawn on a new thread: ", first)
print("seed 7 on main, on another new thread: ", second)
print("main after these:                      ", still)
print("seed 7 on the new thread itself:       ", seeded)
if first == main or first != second or still != main or seeded != main:
    raise SystemExit("Changed: mx.random.seed() reaches other threads, or threads draw different numbers.")
PY
