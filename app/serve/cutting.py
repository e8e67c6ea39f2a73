"""Cuts a long message into documents, which may be read sparsely, and the question about them.

Editors paste whole files into one message. Questions are always read in full, so without this
nothing in such a message could be skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.protocol.prompt import Document

LONG = 4_000
"""Minimum characters of a document, and of a message that is cut."""
QUESTION = 1_500
"""Maximum characters of a paragraph that may be the question."""
TAIL = 600
"""Characters at the end of a text that are the question if there is no such paragraph."""
_TAG = re.compile(r"<(/?)(file|document|attachment|context)\b([^<>\n]*+)>(\n?)", re.IGNORECASE)
_FENCE = re.compile(r"^(`{3,}+|~{3,}+)([^\n`]*+)$", re.MULTILINE)
_NAME = re.compile(r"(?:name|path|filename|title|source)\s*+=\s*+[\"']([^\"']++)[\"']")


def cut(parts: Sequence[str]) -> tuple[tuple[Document, ...], str]:
    """Cut the text parts of a message into documents and the question. Each character goes into
    one of them. In the question, a document's name marks where the document was."""
    documents: list[Document] = []
    short = [part for part in parts if len(part) < LONG]
    if len(parts) > 1 and any(map(str.strip, short)):  # a long separate part is a document
        kept = []
        for part in parts:
            if len(part) < LONG:
                kept.append(part)
            else:
                documents.append(Document(_named(documents, ""), part))
        return tuple(documents), "\n\n".join(kept)
    text = "\n\n".join(parts)
    for marks in (_tags, _fences):
        text = _without(list(marks(text)), text, documents)
    if len(text) >= LONG:
        name = _named(documents, "")
        document, text = _split(text)
        documents += [Document(name, document)] if document else []
    return tuple(documents), text


class _Mark(NamedTuple):
    """Characters `start:end` that open or close a block: a tag or a code fence. `inner` is where
    the block's text begins. The two marks of a block have the same `kind`; `label` is the rest of
    the opening mark."""

    kind: str
    label: str
    opens: bool
    closes: bool
    start: int
    end: int
    inner: int


def _tags(text: str) -> Iterator[_Mark]:
    for match in _TAG.finditer(text):
        slash, kind, label = match[1], match[2].casefold(), match[3]
        opens, closes = not slash and not label.endswith("/"), bool(slash) and not label.strip()
        yield _Mark(kind, label, opens, closes, match.start(), match.start(4), match.end())


def _fences(text: str) -> Iterator[_Mark]:
    for match in _FENCE.finditer(text):
        label, end = match[2].strip(), match.end()
        yield _Mark(match[1], label, end < len(text), not label, match.start(), end, end + 1)


def _blocks(marks: Sequence[_Mark]) -> Iterator[tuple[_Mark, _Mark]]:
    """Yield the opening and the closing mark of each block; blocks do not nest. Takes linear time:
    every mark is visited at most twice, even if nothing closes."""
    closing: defaultdict[str, deque[_Mark]] = defaultdict(deque)
    for mark in marks:
        if mark.closes:
            closing[mark.kind].append(mark)
    at = 0
    for mark in marks:
        if mark.opens and mark.start >= at:
            ends = closing[mark.kind]
            while ends and ends[0].start < mark.inner:
                ends.popleft()
            if ends:
                at = ends[0].end
                yield mark, ends[0]


def _without(marks: Sequence[_Mark], text: str, documents: list[Document]) -> str:
    """Move long blocks of `text` into `documents`; return the text with their names instead."""
    kept, at = [], 0
    for opening, closing in _blocks(marks):
        if closing.start - opening.inner < LONG:
            continue
        found = _NAME.search(opening.label)
        name = found[1] if found else opening.label if opening.kind[0] in "`~" else ""
        documents.append(Document(_named(documents, name), text[opening.inner : closing.start]))
        kept += [text[at : opening.start], f"[{documents[-1].name}]"]
        at = closing.end
    return "".join([*kept, text[at:]])


def _named(documents: Sequence[Document], name: str) -> str:
    return " ".join(name.split())[:200] or f"text {len(documents) + 1}"


def _split(text: str) -> tuple[str, str]:
    """Split a text into document and question. The question is a short last or first paragraph,
    or else the last lines. A text of a single line is not split."""
    body = text.strip("\n")
    first, _, after = body.partition("\n\n")
    before, _, last = body.rpartition("\n\n")
    if before and len(last) <= QUESTION:
        return before, last
    if after and len(first) <= QUESTION:
        return after, first
    end = body.rfind("\n", 0, len(body) - 1)
    while end > 0 and len(body) - (earlier := body.rfind("\n", 0, end)) <= TAIL and earlier > 0:
        end = earlier
    if end <= 0 or len(body) - end > QUESTION:
        return "", text
    return body[:end], body[end + 1 :]
