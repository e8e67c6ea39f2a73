"""Small matters of wording: the engine ends some of its sentences and not others."""

from __future__ import annotations


def with_full_stop(text: str) -> str:
    """`text` with a full stop, unless it ends a sentence already."""
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else text + "."


def as_sentence(text: str) -> str:
    """`text` as a sentence of its own: with a capital first letter too."""
    text = with_full_stop(text)
    return text[:1].upper() + text[1:]
