"""The parts of an exported page. Texts are not trusted: they are escaped, control characters are
made visible, and bidirectional text is isolated."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from app.store.records import Message

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1rem; margin: 2rem 0 .5rem }
pre { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
      unicode-bidi: isolate }
small, .skipped { opacity: .5 }
.read { font-weight: 600 }
"""

FOOT = "</body></html>\n"

_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def head(title: str, overrides: str = "", system: str = "") -> str:
    """With the conversation's own settings and system prompt, if it has any."""
    chosen = f"<p><small>{_safe(overrides)}</small></p>\n" if overrides else ""
    if system:
        chosen += f"<h2>System</h2>\n<pre>{_safe(system)}</pre>\n"
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_safe(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{_safe(title)}</h1>\n{chosen}"
    )


def message(name: str, message: Message, remarks: str) -> str:
    attached = "".join(
        f"<small>{_safe(a.name)} ({a.size:,} bytes)</small><br>\n" for a in message.attachments
    )
    below = f"<small>{_safe(remarks)}</small>\n" if remarks else ""
    when = f"{message.created_at:%Y-%m-%d %H:%M} UTC"
    return (
        f"<h2>{name} <small>{when}</small></h2>\n{attached}"
        f"<pre>{_safe(message.text)}</pre>\n{below}"
    )


def document(name: str, text: str, read: list[tuple[int, int]] | None) -> str:
    """A collapsible document; `read` are the ranges of read characters, ascending, None for all."""
    pieces = "".join(
        f'<span class="{"read" if is_read else "skipped"}">{_safe(text[start:end])}</span>'
        for start, end, is_read in _pieces(len(text), [(0, len(text))] if read is None else read)
    )
    return f"<details><summary>{_safe(name)}</summary><pre>{pieces}</pre></details>\n"


def _pieces(length: int, read: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int, bool]]:
    """All characters from 0 to `length`, in order, each once: `(start, end, whether read)`."""
    at = 0
    for start, end in read:
        start, end = max(start, at), min(end, length)
        if start >= end:
            continue
        if start > at:
            yield at, start, False
        yield start, end, True
        at = end
    if at < length:
        yield at, length, False


def _safe(text: str) -> str:
    return escape(text.translate(_VISIBLE))
