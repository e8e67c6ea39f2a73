#!/usr/bin/env bash
# Question: What does Textual's Input hold after a paste of '\none line\n', a line that was
#   copied with the line end before it?
# One would guess: the line, with the line ends dropped or made spaces.
# What happens: nothing. Input keeps the first line of a paste, and the first line is empty; of
#   two lines the second is dropped. No event tells that anything was left out.
# Versions: textual 8.2.8, rich 15.0.0, markdown-it-py 4.3.0; Python 3.11
# Why it matters: a key or a path copied from a page with a line end before it seems not to
#   paste at all.
# Output seen (28 November 2026):
#   textual 8.2.8
#   pasted 'one line': 'one line'
#   pasted 'one line\n': 'one line'
#   pasted '\none line\n': ''
#   pasted 'first\nsecond': 'first'
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'textual==8.2.8' \
    'rich==15.0.0' \
    'markdown-it-py==4.3.0'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import asyncio
from importlib.metadata import version

from textual import events
from textual.app import App
from textual.widgets import Input

print("textual", version("textual"))
PASTES = ["one line", "one line\n", "\none line\n", "first\nsecond"]


async def main():
    app = App()
    async with app.run_test() as pilot:
        box = Input()
        await app.mount(box)
        box.focus()
        values = []
        for text in PASTES:
            box.value = ""
            box.post_message(events.Paste(text))
            await pilot.pause()
            values.append(box.value)
        return values


values = asyncio.run(main())
for text, value in zip(PASTES, values):
    print(f"pasted {text!r}: {value!r}")
if values != ["one line", "one line", "", "first"]:
    raise SystemExit("Changed: Input treats pastes of several lines differently now.")
PY
