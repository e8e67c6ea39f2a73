"""What a sentence states that its passage must say, too: numbers, dates and names.

Numbers and dates are compared by value: `1,000` and `1000`, `twelve` and `12`, `12 January 2026`
and `2026-01-12`. Month names and number words are English and German.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from app.util.words import NO_SPACES, WORD

MAX_KEPT = 2_000
"""Number of passages whose numbers, dates and names are kept: each sentence asks for them."""
MAX_CAPITALISED = 0.5
"""Above this share of capitalised words a sentence is a title, whose capitals tell nothing."""
MIN_PREFIX = 4
"""Minimum letters of a name that may have an ending, as in `Americans`."""
_ENDINGS = frozenset(["", "s", "es", "n", "ns", "en", "er", "ers", "y", "ish"])

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january januar jänner jan",
            "february februar feb",
            "march märz mar mär",
            "april apr",
            "may mai",
            "june juni jun",
            "july juli jul",
            "august aug",
            "september sept sep",
            "october oktober oct okt",
            "november nov",
            "december dezember dec dez",
        ),
        1,
    )
    for name in names.split()
}
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen",
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn"
    " fünfzehn sechzehn siebzehn achtzehn neunzehn",
)
_TENS = (
    "twenty thirty forty fifty sixty seventy eighty ninety",
    "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
)
_NUMBER_WORDS = {word: number for words in _UNITS for number, word in enumerate(words.split())} | {
    word: 10 * ten for words in _TENS for ten, word in enumerate(words.split(), 2)
}
_GERMAN_UNITS = ["ein", *_UNITS[1].split()[2:10]]
_NUMBER_WORDS |= {
    f"{unit}und{ten}": number + 10 * tens
    for number, unit in enumerate(_GERMAN_UNITS, 1)
    for tens, ten in enumerate(_TENS[1].split(), 2)
}
_NUMBER_WORDS |= {
    f"{unit}{name}": number * factor
    for number, unit in enumerate(_GERMAN_UNITS, 1)
    for name, factor in (("hundert", 100), ("tausend", 1000))
}
_TENS_WORDS = frozenset(word for words in _TENS for word in words.split())
_ONE = frozenset(["one", "eins", "ein", "eine", "einem", "einen", "einer", "eines", "a", "an"])
"""They say 1, but mostly without meaning a number."""
_FACTORS = dict.fromkeys(["hundred", "hundert"], 1e2)
_FACTORS |= dict.fromkeys(["thousand", "thousands", "tausend", "k"], 1e3)
_FACTORS |= dict.fromkeys(["million", "millions", "millionen", "mio", "m"], 1e6)
_FACTORS |= dict.fromkeys(["billion", "billions", "milliarde", "milliarden", "mrd", "bn"], 1e9)
_UNIT = re.compile(
    r"(?:[ -]?(?:million(?:en)?|billion|milliarden?|thousand|tausend|mio\.?|mrd\.?|k|m|bn))?+"
    r"[ \u202f\u00a0]?([%€$£¥]|[^\W\d_]++)",
    re.IGNORECASE,
)
_PERCENT = frozenset(["%", "percent", "per", "prozent"])
_UNITS_TOO = frozenset("km")
"""Factors that may be units, as in `3 m`."""
_CURRENCIES = {"eur": ("€", "euro"), "usd": ("$", "dollar"), "gbp": ("£", "pound"), "jpy": ("¥",)}

_MONTH = f"(?P<m>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})"
_YEAR = r"(?P<y>\d{4})\b"
_SHORT_YEAR = r"(?P<y>\d{4}|\d{2})(?![\w-])"
_DAY, _MONTH_NUMBER = r"(?P<d>\d{1,2})", r"(?P<m>\d{1,2})"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_DAY}(?:st|nd|rd|th|\.)? (?:of )?{_MONTH}\b\.?(?:,? {_YEAR})?",
        rf"\b{_MONTH}\b\.? {_DAY}(?:st|nd|rd|th)?\b(?:,? {_YEAR})?",
        rf"\b{_MONTH}\b\.?,? {_YEAR}",
        rf"(?<![\w.])(?P<y>\d{{4}})[-/.]{_MONTH_NUMBER}[-/.]{_DAY}(?:(?=T\d)|(?![\w-]))",
        rf"(?<![\w.]){_DAY}\. ?{_MONTH_NUMBER}\. ?{_SHORT_YEAR}",
        rf"(?<![\w.]){_DAY}[-/]{_MONTH_NUMBER}[-/]{_SHORT_YEAR}",
        rf"(?<![\w.]){_MONTH_NUMBER}/{_DAY}/{_SHORT_YEAR}",
    )
)
"""The last two forms look the same: such a date has two readings."""
_TOUCHING = rf"(?![{NO_SPACES}\uac00-\ud7af])"
"""Before a letter that a number may not touch: in Chinese, Japanese and Korean it does."""
_NUMBER = (
    rf"(?<!{_TOUCHING}[^\W_])(?<!\d[.,])"
    r"(?:\d{1,3}(?:[ \u202f]\d{3})++(?![\d.,])|\d++(?:[.,:'’]\d++)*+)"
    rf"(?!(?:{_TOUCHING}[^\W\d_])++\d)"
)
_WORD_OR_NUMBER = re.compile(rf"(?P<number>{_NUMBER})|(?P<word>[^\W\d_]++)")
_MARKER = re.compile(r"\s*+(?:[-*+•|>]\s*+)*+\(?\d{1,3}[.)](?=\s)")
"""The number of a list item."""
_FOOTNOTE = re.compile(r"\[\^?\d{1,3}\]")
_STARTING = frozenset(".:;?!\"“„«‘'([{|>#-–—•/")
"""Characters after which a capital letter says nothing."""
_GERMAN = re.compile(
    r"\b(?:der|die|das|den|dem|und|ist|nicht|eine?|von|zu|mit|wird|im|am|auf|bei|nach|sind)\b|[äöüß]",
    re.IGNORECASE,
)
_ENGLISH = re.compile(
    r"\b(?:the|of|and|is|to|in|for|with|not|be|was|are|on|by|that|it)\b", re.IGNORECASE
)
_TITLES = frozenset(
    ["mr", "mrs", "ms", "miss", "dr", "prof", "herr", "herrn", "frau", "familie", "firma"]
)
"""Words before names. Other German words with a capital letter are nouns."""

_Value = float | str
_Date = tuple[int | None, int, int | None]
"""Year, month and day."""


@dataclass(frozen=True, slots=True)
class _Number:
    """How a number is written, in lower case, the values that it may have, and its `_unit`."""

    written: str
    values: frozenset[_Value]
    unit: str


@dataclass(frozen=True, slots=True)
class Claims:
    """Numbers, each date as its readings, and names in lower case."""

    numbers: tuple[_Number, ...]
    dates: tuple[frozenset[_Date], ...]
    names: frozenset[str]

    @property
    def has_figure(self) -> bool:
        return bool(self.numbers or self.dates)

    def are_in(self, passage: str, question: str = "") -> bool:
        """Whether a passage has all of them. So it has a name that the `question` has, unless the
        passage names someone else."""
        said = _said(passage)
        if not all(map(said.has_number, self.numbers)):
            return False
        if not all(any(map(said.has_date, readings)) for readings in self.dates):
            return False
        missing = {name for name in self.names if not said.has_name(name)}
        asked = {word.casefold() for word in WORD.findall(question)} if missing else set()
        return missing <= asked and not (missing and {*_names(passage)} - self.names - asked)


def claims_of(sentence: str) -> Claims:
    plain = " ".join(_FOOTNOTE.sub("", sentence).split())
    if marker := _MARKER.match(plain):
        plain = plain[marker.end() :]
    dates, rest = _cut_dates(plain)
    numbers = (number for number in _numbers(rest) if number.written not in _ONE)
    return Claims((*numbers,), (*dates,), frozenset(_names(plain)))


class _Said:
    """What a passage says."""

    def __init__(self, passage: str) -> None:
        plain = " ".join(passage.split())
        dates, rest = _cut_dates(plain)
        self._months = {_MONTHS.get(word.casefold()) for word in WORD.findall(rest)} - {None}
        self._dates = {reading for readings in dates for reading in readings}
        self._values: set[_Value] = {part for date in self._dates for part in date if part}
        self._units: dict[_Value, set[str]] = {each: {""} for each in self._values}
        for number in _numbers(plain):
            parts = _in_a_row(number.written)
            for value in (*number.values, *(map(float, parts) if len(parts) > 1 else ())):
                self._values.add(value)
                self._units.setdefault(value, set()).add(number.unit)
        self._words = {word.casefold() for word in WORD.findall(passage)}
        self._text = passage.casefold()

    def has_number(self, number: _Number) -> bool:
        """Whether it says one of the values, and not only with other units."""
        return any(
            not number.unit or {"", number.unit} & self._units[value]
            for value in number.values & self._values
        )

    def has_date(self, date: _Date) -> bool:
        if date in self._dates:
            return True
        known = [*self._dates]
        if date[1] in self._months:
            known.append((None, date[1], None))
        return any(self._agree(date, each) for each in known)

    def _agree(self, date: _Date, known: _Date) -> bool:
        """Whether a date says no more than is known. The year and the day may stand elsewhere."""
        year, month, day = date
        known_year, known_month, known_day = known
        if month != known_month or (
            day not in (None, known_day) and (known_day is not None or day not in self._values)
        ):
            return False
        if year is None or (known_year is None and year in self._values):
            return True
        if known_year is None:
            return False
        shortened = min(year, known_year) < 100
        return year == known_year or (shortened and (year - known_year) % 100 == 0)

    def has_name(self, name: str) -> bool:
        if name in self._words:
            return True
        for code, names in _CURRENCIES.items():
            if name.rstrip("s") in (code, *names):
                return any(each in self._text for each in (code, *names))
        if name in _MONTHS:
            return any(month == _MONTHS[name] for _, month, _ in self._dates)
        return any(
            len(shorter) >= MIN_PREFIX
            and longer.startswith(shorter)
            and longer[len(shorter) :] in _ENDINGS
            for word in self._words
            for shorter, longer in (sorted((name, word), key=len),)
        )


@lru_cache(MAX_KEPT)
def _said(passage: str) -> _Said:
    return _Said(passage)


def _in_a_row(written: str) -> list[str]:
    """The parts of what may be several numbers in a row: those with blanks between them, and those
    of a CSV file, as in `7200,7400`."""
    if "," not in written:
        return written.split()
    parts = written.split(",")
    is_grouped = len(parts[0]) < 4 and all(len(each) == 3 for each in parts[1:])
    is_row = not is_grouped and all(each.isdigit() and len(each) > 2 for each in parts)
    return parts if is_row else []


def _cut_dates(text: str) -> tuple[list[frozenset[_Date]], str]:
    """The readings of each date of a text, and the text without them."""
    found: dict[tuple[int, int], set[_Date]] = {}
    rest = [*text]
    for pattern in _DATES:
        for match in pattern.finditer(text):
            date = _date(match)
            if date is not None and (match.span() in found or rest[match.start()] != "\0"):
                found.setdefault(match.span(), set()).add(date)
                rest[match.start() : match.end()] = "\0" * len(match[0])
    return [frozenset(each) for each in found.values()], "".join(rest)


def _date(match: re.Match[str]) -> _Date | None:
    groups = match.groupdict()
    year, day = (int(groups[key]) if groups.get(key) else None for key in ("y", "d"))
    name = groups["m"].casefold()
    month = _MONTHS.get(name) or int(name)
    if not 1 <= month <= 12 or (day is not None and not 1 <= day <= 31):
        return None
    return year, month, day


def _numbers(text: str) -> Iterator[_Number]:
    german = _is_german(text)
    found = [*_WORD_OR_NUMBER.finditer(text)]
    words = [match[0].casefold() for match in found]
    for index, (match, word) in enumerate(zip(found, words, strict=True)):
        if match["number"]:
            values = _values(word, german)
        elif word in _ONE:
            values = {1.0}
        elif word in _NUMBER_WORDS:
            if index and words[index - 1] in _TENS_WORDS and text[match.start() - 1] == "-":
                continue
            values = {float(_NUMBER_WORDS[word])}
            if word in _TENS_WORDS and text[match.end() : match.end() + 1] == "-":
                after = words[index + 1] if index + 1 < len(words) else ""
                values = {float(_NUMBER_WORDS[word] + _NUMBER_WORDS.get(after, 0))}
        else:
            continue
        after = words[index + 1] if index + 1 < len(words) else ""
        factor = _FACTORS.get(after, 1.0)
        found_values = {v if isinstance(v, str) else v * factor for v in values}
        if after in _UNITS_TOO:
            found_values |= values
        written = f"{word}-{after}" if word in _ONE and factor > 1 else word
        yield _Number(written, frozenset(found_values), _unit(text, *match.span()))


def _unit(text: str, start: int, end: int) -> str:
    """What a number counts: `%`, a currency, or "" if neither is next to it."""
    before = text[max(0, start - 4) : start].rstrip().casefold()
    after = _UNIT.match(text, end)
    name = "" if after is None else after[1].casefold()
    if name in _PERCENT:
        return "%"
    for code, names in _CURRENCIES.items():
        words = (code, *names)
        if before.endswith(words) or name.rstrip("s") in words:
            return code
    return ""


def _values(number: str, german: bool | None) -> set[_Value]:
    """The values that a number may have. Separators before three digits separate thousands; in
    English, a dot does not, and in German, a comma may also begin decimals."""
    bare = number.replace("'", "").replace("’", "").replace(" ", "").replace("\u202f", "")
    marks = [each for each in bare if not each.isdigit()]
    if not marks:
        return {float(bare)}
    whole, mark, last = bare.rpartition(marks[-1])
    if mark == ":":
        return {bare.removeprefix("0")}
    if (marks.count(mark) > 1 and len({*marks}) > 1) or not _groups(whole, marks):
        return {bare}
    digits = re.sub("[.,]", "", whole)
    decimal, thousands = float(f"{digits}.{last}"), float(digits + last)
    if len(marks) > 1 and len({*marks}) == 1:
        return {thousands} if len(last) == 3 else {bare}
    if len(marks) > 1 or len(last) != 3 or len(whole) > 3 or whole.startswith("0"):
        return {decimal}
    if mark == ".":
        return {decimal} if german is False else {thousands} if german else {decimal, thousands}
    return {decimal, thousands} if german else {thousands}


def _groups(whole: str, marks: list[str]) -> bool:
    """Whether what stands before the last separator consists of groups of three digits."""
    first, *others = re.split("[.,:]", whole)
    return not others or (len(first) <= 3 and all(len(each) == 3 for each in others))


def _names(sentence: str) -> Iterator[str]:
    """Yield the words of a sentence that a capital letter makes names, in lower case."""
    found = [match for match in WORD.finditer(sentence) if not match[0].isdigit()]
    capital = [match for match in found if match[0][0].isupper() and len(match[0]) > 1]
    german = _is_german(sentence)
    is_title = not german and not sentence.rstrip().endswith((".", "!", "?"))
    if is_title and len(found) >= 4 and len(capital) > MAX_CAPITALISED * len(found):
        return
    before = ""
    for match in found:
        inside = sentence[: match.start()].rstrip(" \n*_`")
        starts = before not in _TITLES and (not inside or inside[-1] in _STARTING)
        word = match[0].casefold()
        named = not german or before in _TITLES
        is_capital = match[0][0].isupper() and len(word) > 1
        if is_capital and named and not starts and word not in _TITLES:
            yield word
        before = word


def _is_german(text: str) -> bool | None:
    """Whether a text is German rather than English; None if that is unclear."""
    german, english = (len(each.findall(text)) for each in (_GERMAN, _ENGLISH))
    return None if german == english else german > english
