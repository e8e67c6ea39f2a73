#!/usr/bin/env bash
# Question: Is TextArea.text what was put into it?
# One would guess: yes; at most the line ends are made alike.
# What happens: form feeds, vertical tabs, U+2028, U+0085 and the separators U+001C to U+001E
#   all become newlines, and one carriage return and newline anywhere turns every line end into
#   that pair.
# Versions: textual 8.2.8, rich 15.0.0, markdown-it-py 4.3.0; Python 3.11
# Why it matters: a document that goes through an editor widget has other offsets, another hash
#   and more lines than the file.
# Output seen (28 November 2026):
#   textual 8.2.8
#   'page 1\x0cpage 2' -> 'page 1\npage 2'
#   'a\u2028b\x85c\x1dd' -> 'a\nb\nc\nd'
#   'one\r\ntwo\nthree\nfour' -> 'one\r\ntwo\r\nthree\r\nfour'
#   'a\tb\xa0c' -> 'a\tb\xa0c'
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

from textual.app import App
from textual.widgets import TextArea

print("textual", version("textual"))
SAMPLES = ["page 1\fpage 2", "a\u2028b\x85c\x1dd", "one\r\ntwo\nthree\nfour", "a\tb\u00a0c"]


async def main():
    app = App()
    async with app.run_test():
        area = TextArea()
        await app.mount(area)
        result = []
        for sample in SAMPLES:
            area.text = sample
            result.append(area.text)
        return result


result = asyncio.run(main())
for sample, text in zip(SAMPLES, result):
    print(ascii(sample), "->", ascii(text))
if result != ["page 1\npage 2", "a\nb\nc\nd", "one\r\ntwo\r\nthree\r\nfour", "a\tb\u00a0c"]:
    raise SystemExit("Changed: TextArea keeps (or rewrites) other characters now.")
PY
