"""Counts a word in the text, for a model that can only quote: how often it occurs, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.protocol.prompt import Document
from app.util import formatting
from app.util.places import place_of

MAX_PLACES = 5
"""Lines that are shown."""
MAX_NAMED = 10
"""Documents whose own counts are given."""
MAX_LINE = 160
"""Maximum characters of a line that are shown."""
_TERM = (
    r"(?:the |das |den |der )?(?:(?:word|term|phrase|name|string|text|value|wort|begriff|name)s? )?"
    r"(?P<term>\"[^\"\n]{1,80}\"|“[^“”\n]{1,80}”|„[^„“”\n]{1,80}[“”]|`[^`\n]{1,80}`"
    r"|'[^'\n]{1,80}'|[^\W_][\w@:/.+#-]{0,60})"
)
_LINES = r"(?P<lines>lines|rows|entries|records|messages|zeilen|einträge)"
_QUESTIONS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\bhow (?:often|many times) (?:does|do|did|is|are|was|were) {_TERM} (?:occurs?|appears?"
        r"|comes? up|shows? up|mentioned|used|named|found|written|there)\b",
        rf"\b(?:count|how many)(?: all| the| every)? (?:occurrences|mentions|uses|instances)"
        rf" (?:of|are there of) {_TERM}",
        rf"\bhow many {_LINES} (?:contain|have|mention|include|with|say|match|are with|there are"
        rf" with) {_TERM}",
        rf"\bwie oft (?:kommt|wird|werden|steht|erscheint) {_TERM} (?:vor|erwähnt|genannt"
        r"|verwendet|im|in|darin)\b",
        rf"\bwie viele {_LINES} (?:enthalten|haben|mit|nennen) {_TERM}",
    )
)
_OF_LINES = re.compile(
    r"\b[Hh]ow many (?P<term>\"[^\"\n]{1,80}\"|[A-Z][A-Z0-9_-]{1,40}) (?P<lines>lines|rows|entries"
    r"|records|messages)\b"
)
"""As `How many ERROR lines are there?`: in capitals, as `empty lines` do not have this word."""
_PRONOUN_WORDS = (
    "it he she they this that these those there the a an you we i er sie es das die man"
)
_PRONOUNS = frozenset(_PRONOUN_WORDS.split())
_QUOTES = "\"“”„`'"


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of one document: how often the word occurs, how often inside longer words, and the lines that
    have it, each as the offset of its first occurrence."""

    document: Document
    whole: int
    inside: int
    lines: tuple[int, ...]


def counted(question: str, documents: Sequence[Document]) -> str | None:
    """The answer to a question that asks how often a word occurs, or how many lines have it; None
    for other questions, and for files of which only what was found is known."""
    asked = _asked(question)
    if asked is None or not documents or any(each.is_searched for each in documents):
        return None
    term, of_lines = asked
    found = [_counts(each, term) for each in documents]
    total = sum(each.whole for each in found)
    lines = sum(len(each.lines) for each in found)
    inside = sum(each.inside for each in found)
    where = documents[0].name if len(documents) == 1 else f"{len(documents):,} documents"
    also = f" It is part of a longer word {formatting.plural(inside, 'time')}." if inside else ""
    if not total:
        return f"“{term}” does not occur in {where}.{also} {_BY_COUNTING}"
    on = formatting.plural(lines, "line")
    said = f"“{term}” occurs {formatting.plural(total, 'time')} in {where}, on {on}."
    if of_lines:
        verb = "has" if lines == 1 else "have"
        said = f"{on} of {where} {verb} “{term}” ({formatting.plural(total, 'time')} in all)."
    parts = [f"{said}{also} {_BY_COUNTING}"]
    having = sorted((each for each in found if each.whole), key=lambda each: -each.whole)
    if len(documents) > 1:
        counts = [f"- {each.document.name}: {each.whole:,}" for each in having]
        more = [f"- {len(having) - MAX_NAMED:,} more documents"] if len(having) > MAX_NAMED else []
        parts.append("\n".join(counts[:MAX_NAMED] + more))
    places = [*_places(having)]
    parts += places
    if lines > len(places):
        parts.append(f"and {lines - len(places):,} more lines.")
    return "\n\n".join(parts)


_BY_COUNTING = "(Counted in the text itself, as a whole word in upper or lower case.)"


def _asked(question: str) -> tuple[str, bool] | None:
    """The word that is asked about, and whether its lines are to be counted."""
    for pattern in (*_QUESTIONS, _OF_LINES):
        if (found := pattern.search(question)) is not None:
            term = found["term"].strip(_QUOTES).rstrip(".,:;")
            if term.casefold() in _PRONOUNS or not term:
                return None
            return term, "lines" in found.groupdict()
    return None


def _counts(document: Document, term: str) -> _Counts:
    text = document.text
    whole = inside = 0
    lines: dict[int, int] = {}
    number, at = 0, 0
    for match in re.finditer(re.escape(term), text, re.IGNORECASE):
        start, end = match.span()
        number += text.count("\n", at, start)
        at = start
        before, after = text[start - 1 : start], text[end : end + 1]
        if (_is_of_word(before) and _is_of_word(term[0])) or (
            _is_of_word(after) and _is_of_word(term[-1])
        ):
            inside += 1
            continue
        whole += 1
        lines.setdefault(number, start)
    return _Counts(document, whole, inside, tuple(lines.values()))


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _places(having: Sequence[_Counts]) -> Iterator[str]:
    """The first lines that have the word, some of each document."""
    each_shows = max(1, MAX_PLACES // max(len(having), 1))
    shown = [(one.document, at) for one in having for at in one.lines[:each_shows]]
    for document, at in shown[:MAX_PLACES]:
        text = document.text
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        line = text[start : len(text) if end < 0 else end].strip()
        if len(line) > MAX_LINE:
            first = max(0, at - start - MAX_LINE // 2)
            line = f"…{text[start + first : start + first + MAX_LINE].strip()}…"
        place = place_of(text, at, document.line, document.name)
        yield f"{document.name}, {place.text}: {line}"
