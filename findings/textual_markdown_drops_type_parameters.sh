#!/usr/bin/env bash
# Question: How does Textual's Markdown widget show 'Vec<u8>' in a sentence?
# One would guess: as it is: a terminal has no HTML, so what looks like a tag can only be text.
# What happens: as 'Vec'. The parser takes <u8> for inline HTML, and the widget draws no HTML:
#   type parameters and placeholders such as <url> vanish, and all that stands in a block
#   between <think> tags. In backticks they stay.
# Versions: textual 8.2.8, rich 15.0.0, markdown-it-py 4.3.0; Python 3.11
# Why it matters: answers about Rust, Java or C++, and command lines with <placeholders>, lose
#   the part that matters.
# Output seen (28 November 2026):
#   textual 8.2.8 markdown-it-py 4.3.0
#   source: 'Return a Vec<u8> or a Map<String, List<Order>>.'
#   source: 'Run git clone <url> first, then `git switch <branch>`.'
#   source: '<think>\nSixty days, clause 8.\n</think>'
#   source: 'Here 3 < 4 stays.'
#   shown:  'Return a Vec or a Map<String, List>.'
#   shown:  'Run git clone  first, then git switch <branch>.'
#   shown:  'Here 3 < 4 stays.'
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
from textual.widgets import Markdown

print("textual", version("textual"), "markdown-it-py", version("markdown-it-py"))
SOURCE = """Return a Vec<u8> or a Map<String, List<Order>>.

Run git clone <url> first, then `git switch <branch>`.

<think>
Sixty days, clause 8.
</think>

Here 3 < 4 stays."""


async def main():
    app = App()
    async with app.run_test(size=(80, 30)) as pilot:
        widget = Markdown()
        await app.mount(widget)
        await widget.update(SOURCE)
        await pilot.pause()
        return [block.render().plain for block in widget.query("MarkdownParagraph")]


shown = asyncio.run(main())
for source in SOURCE.split("\n\n"):
    print("source:", repr(source))
for text in shown:
    print("shown: ", repr(text))
if len(shown) != 3 or "Return a Vec or" not in shown[0] or "git clone  first" not in shown[1]:
    raise SystemExit("Changed: Textual shows unknown tags as text now.")
PY
