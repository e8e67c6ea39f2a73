"""The words that a message is looked for by, in texts of any kind."""

from __future__ import annotations

import re
from functools import lru_cache

from app.util.sentences import asks, questions_in

MAX_WORDS = 64
"""Different words of a message that are looked for: those of its questions first."""
EARLIER_WEIGHT = 0.25
"""Weight of the words of the question before: a follow-up often leaves out what it is about."""
WORD = re.compile(r"\w+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_GRAMMAR = """
    a about all also an and any are as at be been but by can could did do does done for from had
    has have he her here him his how if in into is it its just let like made make many may me might
    more most much must my no not of on one or our out over please say says she should show so some
    such tell than that the their them then there these they this those to too us use used uses
    using was way we were what when where which who whom whose why will with would you your defined
    find file files code implemented located happen happens work works explain describe
"""
_STOP_WORDS = frozenset(_GRAMMAR.split())
"""Words that a question has for its grammar. In code some of them are rare, and would count."""


def query(text: str) -> dict[str, float]:
    """The words of a message that are looked for, with their weights."""
    found: dict[str, float] = {}
    parts = sorted(questions_in(text), key=asks, reverse=True)
    for word in (word for part in parts for word in WORD.findall(part)):
        if word.lower() in _STOP_WORDS:
            continue
        for term in terms(word):
            if term not in _STOP_WORDS and (len(term) > 1 or term.isdigit()):
                found.setdefault(term, 1.0)
            if len(found) >= MAX_WORDS:
                return found
    return found


_SPELLINGS = (
    (re.compile(r"(?<=\w{2})enc(?=e[sd]?$|ing$)"), "ens"),
    (re.compile(r"(?<=\w{3})is(?=e[sdr]?$|ing$|ations?$)"), "iz"),
    (re.compile(r"(?<=\w{3})our(?=(?:s|ed|ing)?$)"), "or"),
)
"""British spellings, and the American ones that they become: licence, organise, colour."""


@lru_cache(maxsize=1 << 18)
def terms(word: str) -> tuple[str, ...]:
    """What a word is found by: its stem, and the parts of an identifier such as `getHTTPResponse`
    or `get_response`. Scripts without spaces between words are found by pairs of letters."""
    whole = word.lower()
    if not word.isascii():
        if len(word) > 2 and any("\u2e80" <= letter <= "\uffef" for letter in word):
            return tuple(whole[i : i + 2] for i in range(len(whole) - 1))
        return (stem(whole),)
    parts = _PARTS.findall(word)
    if len(parts) < 2:
        return (stem(whole),)
    return (whole, *(stem(part.lower()) for part in parts))


def stem(word: str) -> str:
    """Without the ending of an English plural or verb, roughly, and in American spelling."""
    for british, american in _SPELLINGS:
        word = british.sub(american, word)
    return without_ending(word)


def without_ending(word: str) -> str:
    """Without the ending of an English plural or verb: the beginning of the word as it is spelt."""
    for ending, least in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if word.endswith(ending) and len(word) >= least and not word.endswith("ss"):
            stemmed = word[: -len(ending)]
            return stemmed + "y" if ending == "ies" else stemmed.removesuffix("e")
    return word.removesuffix("e") if len(word) > 4 else word
