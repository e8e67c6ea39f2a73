"""Cuts a long message into documents, which may be read sparsely, and the question about them.

Editors paste whole files into one message. What a user typed is always read, so without this
nothing of such a message could be skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.protocol.prompt import Document

LONG = 4_000
"""Characters from which on a text is a document, and a message is cut."""
QUESTION = 1_500
"""Characters of a paragraph that may be the question."""
TAIL = 600
"""Characters at the end of a text without such a paragraph that are taken for the question."""
_TAG = re.compile(r"<(/?)(file|document|attachment|context)\b([^<>\n]*+)>(\n?)", re.IGNORECASE)
_FENCE = re.compile(r"^(`{3,}+|~{3,}+)([^\n`]*+)$", re.MULTILINE)
_NAME = re.compile(r"(?:name|path|filename|title|source)\s*+=\s*+[\"']([^\"']++)[\"']")


def cut(parts: Sequence[str]) -> tuple[tuple[Document, ...], str]:
    """Documents, and the question, of a message's parts of text. All of its text is in one of them,
    and each document's place in the question is marked by its name."""
    documents: list[Document] = []
    short = [part for part in parts if len(part) < LONG]
    if len(parts) > 1 and any(map(str.strip, short)):  # a part of its own is a document
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
    """Characters `start:end` of a text that open or close a block: a tag, or a fence. `inner` is
    where the text of the block that it opens begins. `kind` is the same for both of a pair, `label`
    is what else the opening one says."""

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
    """Each mark that opens a block, and the next one that closes it; none within another. Linear:
    every mark is looked at twice at most, also where nothing closes."""
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
    """Long blocks become documents; their names stay."""
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
    """What comes before or after a short first or last paragraph, and that paragraph; else the
    text but its last lines, and these. Nothing is cut from a text without lines."""
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
