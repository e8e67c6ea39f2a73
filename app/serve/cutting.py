"""Cuts a long message into documents, which may be read sparsely, and the question about them.

Editors paste whole files into one message. What a user typed is always read, so without this
nothing of such a message could be skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.protocol.prompt import Document

LONG = 4_000
"""Characters from which on a text is a document, and a message is cut."""
QUESTION = 1_500
"""Characters of a paragraph that may be the question."""
TAIL = 600
"""Characters at the end of a text without such a paragraph that are taken for the question."""
_FENCED = re.compile(r"^(`{3,}|~{3,})([^\n`]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_TAGGED = re.compile(
    r"<(file|document|attachment|context)\b([^>\n]*)>\n?(.*?)</\1>", re.IGNORECASE | re.DOTALL
)
_NAME = re.compile(r"(?:name|path|filename|title|source)\s*=\s*[\"']([^\"']+)[\"']")


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
    for pattern in (_TAGGED, _FENCED):
        text = _without(pattern, text, documents)
    if len(text) >= LONG:
        name = _named(documents, "")
        document, text = _split(text)
        documents += [Document(name, document)] if document else []
    return tuple(documents), text


def _without(pattern: re.Pattern[str], text: str, documents: list[Document]) -> str:
    """Long matches become documents; their names stay."""

    def replaced(match: re.Match[str]) -> str:
        if len(match[3]) < LONG:
            return match[0]
        found = _NAME.search(match[2])
        name = found[1] if found else match[2].strip() if pattern is _FENCED else ""
        documents.append(Document(_named(documents, name), match[3]))
        return f"[{documents[-1].name}]"

    return pattern.sub(replaced, text)


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
