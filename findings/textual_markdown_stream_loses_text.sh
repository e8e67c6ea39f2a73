#!/usr/bin/env bash
# Question: Does Textual's Markdown widget show the same after append() piece by piece as after
#   one update()?
# One would guess: yes: append() exists for streams, and the same source is parsed.
# What happens: append() parses only from the last block on. A reference link whose definition
#   comes last, as models write them, stays as raw brackets for ever; and a half of the
#   definition that was shown while it arrived ('[1]:') stays on the screen.
# Versions: textual 8.2.8, rich 15.0.0, markdown-it-py 4.3.0; Python 3.11
# Why it matters: a streamed answer looks different from the same answer opened again; one
#   update() at the end is needed.
# Output seen (28 November 2026):
#   textual 8.2.8 markdown-it-py 4.3.0
#   update(): ['See the contract for it.', 'All else stays.']
#   append(): ['See [the contract][1] for it.', 'All else stays.', '[1]:']
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
SOURCE = "See [the contract][1] for it.\n\nAll else stays.\n\n[1]: https://example.com/contract\n"


class Chat(App):
    def compose(self):
        yield Markdown(id="streamed")
        yield Markdown(id="updated")


async def main():
    app = Chat()
    async with app.run_test(size=(80, 30)) as pilot:
        streamed, updated = app.query_one("#streamed", Markdown), app.query_one("#updated", Markdown)
        await updated.update(SOURCE)
        for start in range(0, len(SOURCE), 4):
            await streamed.append(SOURCE[start : start + 4])
            await pilot.pause()
        await pilot.pause()
        assert streamed.source == updated.source == SOURCE
        return [
            [block.render().plain for block in widget.query("MarkdownParagraph")]
            for widget in (streamed, updated)
        ]


streamed, updated = asyncio.run(main())
print("update():", updated)
print("append():", streamed)
if updated != ["See the contract for it.", "All else stays."] or streamed[0] != "See [the contract][1] for it.":
    raise SystemExit("Changed: append() now shows what update() shows (or update() does not).")
PY
