"""Cuts a long message into documents, which may be read sparsely, and the question about them.

Editors paste whole files into one message. What a user typed is always read, so without this
nothing of such a message could be skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
    for blocks in (_tagged, _fenced):
        text = _without(blocks(text), text, documents)
    if len(text) >= LONG:
        name = _named(documents, "")
        document, text = _split(text)
        documents += [Document(name, document)] if document else []
    return tuple(documents), text


@dataclass(frozen=True, slots=True)
class _Mark:
    """Characters `start:end` of a text that open or close a block: a tag, or a fence. `inner` is
    where the block's text begins if it opens one. `kind` is the same for both of a pair."""

    kind: str
    opens: bool
    closes: bool
    start: int
    inner: int
    end: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    """Characters `start:end` of a text, marks included, and `inner` without them."""

    start: int
    end: int
    inner: tuple[int, int]
    name: str


def _tagged(text: str) -> Iterator[_Block]:
    return _blocks([_tag_mark(match) for match in _TAG.finditer(text)])


def _tag_mark(match: re.Match[str]) -> _Mark:
    closes = bool(match[1]) and not match[3].strip()
    opens = not match[1] and not match[3].endswith("/")
    found = _NAME.search(match[3])
    end = match.start(4)
    name = found[1] if found else ""
    return _Mark(match[2].casefold(), opens, closes, match.start(), match.end(), end, name)


def _fenced(text: str) -> Iterator[_Block]:
    marks = []
    for match in _FENCE.finditer(text):
        name, end = match[2].strip(), match.end()
        opens = end < len(text)
        marks.append(_Mark(match[1], opens, not name, match.start(), end + 1, end, name))
    return _blocks(marks)


def _blocks(marks: Iterable[_Mark]) -> Iterator[_Block]:
    """From each mark that opens one to the next that closes it; none within another. Every mark is
    looked at twice at most, whatever opens and never closes."""
    marks = list(marks)
    closing: defaultdict[str, deque[_Mark]] = defaultdict(deque)
    for mark in marks:
        if mark.closes:
            closing[mark.kind].append(mark)
    at = 0
    for mark in marks:
        if not mark.opens or mark.start < at:
            continue
        ends = closing[mark.kind]
        while ends and ends[0].start < mark.inner:
            ends.popleft()
        if ends:
            at = ends[0].end
            yield _Block(mark.start, at, (mark.inner, ends[0].start), mark.name)


def _without(blocks: Iterable[_Block], text: str, documents: list[Document]) -> str:
    """Long blocks become documents; their names stay."""
    kept, at = [], 0
    for block in blocks:
        inner = text[slice(*block.inner)]
        if len(inner) >= LONG:
            documents.append(Document(_named(documents, block.name), inner))
            kept += [text[at : block.start], f"[{documents[-1].name}]"]
            at = block.end
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
