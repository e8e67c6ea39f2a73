"""What a sentence states that its passage must say, too: numbers, dates, weekdays and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date as calendar_date
from functools import cached_property, lru_cache
from itertools import pairwise

from app.util.calendar_words import AMBIGUOUS, MONTHS, WEEKDAYS
from app.util.figures import (
    CURRENCIES,
    FRACTION,
    ONE,
    ORDINAL,
    Date,
    Number,
    Value,
    falls,
    figures_of,
    is_german,
    numbers,
    share,
)
from app.util.words import WORD

MAX_KEPT = 2_000
"""Number of passages whose numbers, dates and names are kept: each sentence asks for them."""
MAX_CAPITALISED = 0.5
"""Above this share of capitalised words a sentence is a title, whose capitals tell nothing."""
MIN_PREFIX = 4
"""Minimum letters of a name that may have an ending, as in `Americans`."""
MIN_DAY = 5
"""Minimum letters of the name of a weekday that is no other word."""
MIN_MONTH = 4
"""The same, of a month."""
_ENDINGS = frozenset(["", "s", "es", "n", "ns", "en", "er", "ers", "y", "ish"])
_MARKER = re.compile(r"\s*+(?:[-*+•|>]\s*+)*+\(?\d{1,3}[.)](?=\s)")
"""The number of a list item."""
_FOOTNOTE = re.compile(r"\[\^?\d{1,3}\]")
_STARTING = frozenset(".:;?!\"“„«‘'([{|>#-–—•/")
"""Characters after which a capital letter says nothing."""
_TITLES = frozenset(
    ["mr", "mrs", "ms", "miss", "dr", "prof", "herr", "herrn", "frau", "familie", "firma"]
)
"""Words before names. Other German words with a capital letter are nouns."""
_ARTICLE_WORDS = """
the a an this that each every any such its their his her our your no
der die das den dem des ein eine einen einem einer eines jeder jede jedes le la les un une el
"""
_OPENING_WORDS = """
i it he she we you they there here these those what who when where which why how if as at by for
from in into of on to up with within without under over after before since until during between
both all some many most more less one two three no not yes and or but so then thus also however
therefore because although while only once per according please note today yesterday tomorrow now
still even unlike like about around despite instead section clause article chapter part
page paragraph table figure annex appendix schedule exhibit first second third new old somebody
someone everybody everyone nobody nothing something anyone people
es er sie wir ihr ich man dies diese dieser dieses wenn wer was wo wie warum ob als an auf aus bei
bis für im mit nach seit über um unter von vom vor zu zum zur nur auch aber oder und dann jetzt
heute laut gemäß ja nein nicht hier dort alle viele kein keine sein ihre
il elle ils elles ce cette ces dans en pour par sur si du los las una este esta por para con
"""
_ARTICLES = frozenset(_ARTICLE_WORDS.split())
"""Words before nouns, which some texts write with a capital letter: `the Tenant`."""
_OPENING = _ARTICLES | frozenset(_OPENING_WORDS.split())
"""Words that begin a sentence and are no names."""
_NAMELESS = "ing ment ments tion tions ity ness ly ung heit keit schaft frist"
_NO_NAME = tuple(_NAMELESS.split())
"""Endings of words that are no names."""
_TO = frozenset(["-", "–", "—", "to", "bis", "through", "until", "à", "au", "a"])
"""What stands between two weekdays that name those between them, too."""
_GAP = re.compile(r"[ .,/|–—-]{1,5}|[ .]{0,2}(?:to|bis|through|until|und|and|or|oder)[ .]{0,2}")
"""What stands between the short names of weekdays."""
_TIME_AFTER = re.compile(r"[ .:|–-]{0,3}\d{1,2}(?:[:.–-]\d| ?(?:uhr|h|am|pm)\b)", re.IGNORECASE)
"""Or after one of them."""
_LABEL = re.compile(
    r"(?:(?<![^\W_])\d{1,4}(?: ?\((?=[a-z]\))|\.?(?![ghklmstvwx])(?=[a-z](?![^\W_])))"
    r"|\b(?:paragraph|point|clause|section|option) \((?=[a-z]\))"
    r"|\b(?:lit\.?|litera|buchstabe) (?=[a-z](?![^\W_])))"
    r"(?P<letter>[a-z])",
    re.IGNORECASE,
)
"""The letter of a clause, as in `5a`, `5 (a)` and `lit. a`, but not of a unit."""
_ANY_LETTERS = re.compile(
    r"\d[^\w\n]{0,2}([^\W\d_])(?![^\W_])|(?<![^\W_])([^\W\d_])[).]"
    r"|(?<![^\W_])((?!A [a-z])[A-Z])(?![^\W_])"
)
"""What may be such a letter."""
_ANNEX = re.compile(
    r"(?<=[^\W\d_] )(?!I\b)(?P<letter>[A-Z])(?![^\W_]|[&'’/+#°-]|\.\S|\. \w| [A-Z])"
)
"""The letter of an annex, as in `Annex B`, but not of an initial."""
_HALF = re.compile(r"\b(?:hal[bfv]|hälft)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Claims:
    """Numbers, each date as its readings, months and weekdays without a date, and names in lower
    case. `opening`: the first word if it may be a name, and the next one."""

    numbers: tuple[Number, ...]
    dates: tuple[frozenset[Date], ...]
    months: frozenset[int]
    days: _Days
    names: frozenset[str]
    letters: frozenset[str]
    opening: tuple[str, str] | None

    @property
    def has_figure(self) -> bool:
        return bool(self.numbers or self.dates)

    def are_in(self, passage: str, question: str = "") -> bool:
        """Whether a passage has all of them. So it has a name, a month, a weekday or a letter that
        the `question` has, unless the passage names another one."""
        said, asked = _said(passage), _said(question)
        if not all(map(said.has_number, self.numbers)):
            return False
        if not all(any(map(said.has_date, readings)) for readings in self.dates):
            return False
        known_days = said.days.named | said.days_of_dates
        if not self.days.between:
            known_days |= said.days.between
        for own, known, in_question in (
            (self.months, said.months, asked.months),
            (self.days.named, known_days, asked.days.named),
            (self.letters, said.letters, asked.letters),
        ):
            if not own <= known and (known or not own <= in_question):
                return False
        names = self.names
        if self.opening and not said.has_name(self.opening[0]):
            if said.has_rival(*self.opening):
                return False
            names |= {self.opening[0]} & asked.names
        missing = {name for name in names if not said.has_name(name)}
        return missing <= asked.words and not (missing and said.names - names - asked.words)


def claims_of(sentence: str, known: frozenset[str] = frozenset()) -> Claims:
    """What a sentence states. `known`: the `names_in` the whole answer."""
    plain = " ".join(_FOOTNOTE.sub("", sentence).split())
    if marker := _MARKER.match(plain):
        plain = plain[marker.end() :]
    figures = figures_of(plain)
    found = [*figures.marked, *(each for each in numbers(figures.rest) if each.written not in ONE)]
    if falls(plain):
        found = [replace(each, values=_with_negative(each.values)) for each in found]
    words = _words(figures.rest)
    return Claims(
        (*found,),
        figures.dates,
        frozenset(_bare_months(words)),
        _days(plain),
        frozenset(_names(words, figures.rest, known)),
        frozenset(_letters(figures.rest)),
        _opening(words),
    )


def names_in(texts: Iterable[str]) -> frozenset[str]:
    """The names that stand inside sentences without an article before them, in lower case."""
    return frozenset(name for text in texts for name in _said(text).names)


class _Said:
    """What a passage says."""

    def __init__(self, passage: str) -> None:
        plain = " ".join(passage.split())
        figures = figures_of(plain)
        self._dates = {reading for readings in figures.dates for reading in readings}
        bare = {MONTHS.get(word.casefold()) for word in WORD.findall(figures.rest)}
        self._bare_months = {month for month in bare if month}
        self.months = self._bare_months | {month for _, month, _ in self._dates}
        self.days = _days(plain)
        self.letters = _letters(plain) | {
            "".join(found).casefold() for found in _ANY_LETTERS.findall(plain)
        }
        self._marked: dict[str, set[Value]] = {FRACTION: set(), ORDINAL: set()}
        if _HALF.search(plain):
            self._marked[FRACTION].add(0.5)
        self._units: dict[Value, set[str]] = {}
        self._add((part for year, _, day in self._dates for part in (year, day) if part), "")
        has_falls = falls(plain)
        for number in numbers(figures.undated):
            parts = _in_a_row(number.written)
            values = number.values | {*map(float, parts)} if len(parts) > 1 else number.values
            self._add(_with_negative(values) if has_falls else values, number.unit)
        for number in figures.marked:
            if number.unit:
                self._marked[number.unit] |= number.values
            if number.unit == FRACTION and number.strict:
                top, bottom = number.parts
                self._add((round(100 * top / bottom, digits) for digits in (0, 1)), "%")
                self._add([top / bottom], "")
            elif not number.unit:  # a time, or as `2 1/2`
                self._add({*number.values, number.written}, "")
                hour, _, minute = number.written.partition(":")
                self._add([float(hour)] if minute == "00" else [], "")
        self.words = {word.casefold() for word in WORD.findall(passage)}
        self._rest, self._text = figures.rest, passage.casefold()

    def _add(self, values: Iterable[Value], unit: str) -> None:
        for value in values:
            self._units.setdefault(value, set()).add(unit)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(_names(_words(self._rest), self._rest, proper=True))

    @cached_property
    def _subjects(self) -> dict[str, set[str]]:
        """By each word: the words before it that may be names."""
        found: dict[str, set[str]] = {}
        for word, after in pairwise(_words(self._rest)):
            if word.may_be_name and word.before not in _ARTICLES and after.is_next:
                found.setdefault(after.text, set()).add(word.text)
        return found

    @cached_property
    def days_of_dates(self) -> set[int]:
        found = set()
        for year, month, day in self._dates:
            with suppress(ValueError):  # the 31st of a month that has 30 days
                if year and day:
                    found.add(calendar_date(year, month, day).weekday())
        return found

    def has_rival(self, name: str, after: str) -> bool:
        """Whether something else stands where a sentence has a name."""
        return bool(self._subjects.get(after, set()) - {name})

    def has_number(self, number: Number) -> bool:
        """Whether it says one of the values, and not only with other units."""
        if number.unit in self._marked:
            said = self._marked[number.unit]
            if number.values & said or (number.unit == FRACTION and number.values & self._shares):
                return True
            if number.unit == FRACTION and number.parts[0] / number.parts[1] in self._units:
                return True
            return not said and (not number.strict or {*number.parts} <= self._units.keys())
        return any(
            not number.unit or {"", number.unit} & self._units[value]
            for value in number.values & self._units.keys()
        )

    @cached_property
    def _shares(self) -> set[Value]:
        percents = (value for value, units in self._units.items() if "%" in units)
        return {share(value / 100) for value in percents if isinstance(value, float)}

    def has_date(self, date: Date) -> bool:
        if date in self._dates:
            return True
        known = [*self._dates]
        if date[1] in self._bare_months:
            known.append((None, date[1], None))
        return any(self._agree(date, each) for each in known)

    def _agree(self, date: Date, known: Date) -> bool:
        """Whether a date says no more than is known. The year and the day may stand elsewhere."""
        year, month, day = date
        known_year, known_month, known_day = known
        if month != known_month or (
            day not in (None, known_day) and (known_day is not None or day not in self._units)
        ):
            return False
        if year is None or (known_year is None and year in self._units):
            return True
        if known_year is None:
            return False
        shortened = min(year, known_year) < 100
        return year == known_year or (shortened and (year - known_year) % 100 == 0)

    def has_name(self, name: str) -> bool:
        if name in self.words:
            return True
        for code, names in CURRENCIES.items():
            if name.rstrip("s") in (code, *names):
                return any(each in self._text for each in (code, *names))
        return any(
            len(shorter) >= MIN_PREFIX
            and longer.startswith(shorter)
            and longer[len(shorter) :] in _ENDINGS
            for word in self.words
            for shorter, longer in (sorted((name, word), key=len),)
        )


@lru_cache(MAX_KEPT)
def _said(passage: str) -> _Said:
    return _Said(passage)


def _with_negative(values: frozenset[Value]) -> frozenset[Value]:
    return values | {-value for value in values if not isinstance(value, str) and value > 0}


def _in_a_row(written: str) -> list[str]:
    """The parts of what may be several numbers in a row: those with blanks between them, and those
    of a CSV file, as in `7200,7400`."""
    parts = written.split("," if "," in written else None)
    if not all(part.isdigit() for part in parts):
        return []
    if "," not in written:
        return parts
    is_grouped = len(parts[0]) < 4 and all(len(each) == 3 for each in parts[1:])
    return parts if not is_grouped and all(len(each) > 2 for each in parts) else []


def _letters(text: str) -> set[str]:
    found = (*_LABEL.finditer(text), *_ANNEX.finditer(text))
    return {match["letter"].casefold() for match in found}


@dataclass(frozen=True, slots=True)
class _Word:
    """A word in lower case, the word `before` it, and whether it begins a sentence, or something
    after which a capital letter says nothing. `is_next`: only a blank or an apostrophe is between
    them."""

    text: str
    before: str
    is_capital: bool
    starts: bool
    is_next: bool
    is_acronym: bool

    @property
    def may_be_name(self) -> bool:
        return self.is_capital and not (
            self.text in _OPENING
            or self.text in MONTHS
            or self.text in WEEKDAYS
            or self.text in _TITLES
            or self.text.endswith(_NO_NAME)
        )


def _words(text: str) -> list[_Word]:
    found: list[_Word] = []
    before = ""
    end = 0
    for match in WORD.finditer(text):
        if match[0].isdigit():
            continue
        start = match.start()
        inside = text[max(0, start - 20) : start].rstrip(" \n*_`")
        starts = before not in _TITLES and (not inside or inside[-1] in _STARTING)
        capital = match[0][0].isupper() and len(match[0]) > 1
        word = match[0].casefold()
        is_next = text[end:start] in (" ", "'", "’")
        found.append(_Word(word, before, capital, starts, is_next, match[0].isupper()))
        before, end = word, match.end()
    return found


def _opening(words: list[_Word]) -> tuple[str, str] | None:
    """The first word if it may be a name, and the next one."""
    if len(words) < 2 or not words[0].may_be_name or not words[1].is_next:
        return None
    first, after = words[0].text, words[1].text
    return None if first.endswith("s") and not after.endswith("s") else (first, after)


def _names(
    words: list[_Word], sentence: str, known: frozenset[str] = frozenset(), proper: bool = False
) -> Iterator[str]:
    """Yield the words of a sentence that a capital letter makes names, in lower case. `proper`:
    without those after an article."""
    german = is_german(sentence)
    is_title = not german and not sentence.rstrip().endswith((".", "!", "?", "\0"))
    capital = sum(word.is_capital for word in words)
    if is_title and len(words) >= 4 and capital > MAX_CAPITALISED * len(words):
        return
    for index, word in enumerate(words):
        if not word.is_capital or word.text in _TITLES:
            continue
        if word.text in MONTHS or word.text in WEEKDAYS or (proper and word.before in _ARTICLES):
            continue
        after = words[index + 1] if index + 1 < len(words) else None
        if word.text in known or word.before in _TITLES:
            yield word.text
        elif german:
            continue
        elif not word.starts or (
            word.may_be_name
            and after is not None
            and after.is_next
            and after.may_be_name
            and not after.is_acronym
        ):
            yield word.text


def _bare_months(words: list[_Word]) -> Iterator[int]:
    """The months that words are sure to name."""
    for word in words:
        is_sure = word.text not in AMBIGUOUS and len(word.text) >= MIN_MONTH
        is_inside = word.is_capital and not word.starts
        if word.text in MONTHS and (is_sure or is_inside or word.before in ("en", "de")):
            yield MONTHS[word.text]


@dataclass(frozen=True, slots=True)
class _Days:
    """Weekdays from 0 on: those that a text names, and those `between` two of them."""

    named: frozenset[int]
    between: frozenset[int]


def _is_day(word: str) -> bool:
    """Whether a name of a weekday is no other word."""
    return len(word) >= MIN_DAY or (len(word) > 2 and word not in ("sun", "sat"))


def _days(text: str) -> _Days:
    found: list[tuple[re.Match[str], int]] = []
    for match in WORD.finditer(text):
        word = match[0].casefold()
        long = word.removesuffix("s") if len(word) > MIN_DAY else word
        day = WEEKDAYS.get(word, WEEKDAYS.get(long))
        if day is not None and (len(word) >= MIN_DAY or match[0][0].isupper()):
            found.append((match, day))
    gaps = [_GAP.fullmatch(text, a.end(), b.start()) for (a, _), (b, _) in pairwise(found)]
    beside = [bool(a or b) for a, b in zip([None, *gaps], [*gaps, None], strict=True)]
    found = [
        (match, day)
        for (match, day), is_beside in zip(found, beside, strict=False)
        if is_beside or _is_day(match[0].casefold()) or _TIME_AFTER.match(text, match.end())
    ]
    between = set()
    for (one, first), (other, last) in pairwise(found):
        if text[one.end() : other.start()].strip(" .").casefold() in _TO:
            between |= {day % 7 for day in range(first + 1, first + (last - first) % 7)}
    return _Days(frozenset(day for _, day in found), frozenset(between))
