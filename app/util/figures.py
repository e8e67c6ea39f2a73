"""The numbers, fractions, ordinals, times and dates of a text, by value.

`1,000` and `1000`, `twelve` and `12`, `9 am` and `09:00`, `12 January 2026` and `2026-01-12` are
the same. Number words are English and German; names of months French and Spanish, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from app.util.calendar_words import MONTHS
from app.util.words import NO_SPACES

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
MAX_SPELT = 60
"""Maximum letters of a German number word."""
ONE = frozenset(["one", "eins", "ein", "eine", "einem", "einen", "einer", "eines", "a", "an"])
"""They say 1, but mostly without meaning a number."""
_FACTORS = dict.fromkeys(["hundred", "hundert"], 1e2)
_FACTORS |= dict.fromkeys(["thousand", "thousands", "tausend", "k"], 1e3)
_FACTORS |= dict.fromkeys(["dozen", "dutzend"], 12)
_FACTORS |= dict.fromkeys(["million", "millions", "millionen", "mio", "m"], 1e6)
_FACTORS |= dict.fromkeys(["billion", "billions", "milliarde", "milliarden", "mrd", "bn"], 1e9)
_UNIT = re.compile(
    r"(?:[ -]?(?:million(?:en)?|billion|milliarden?|thousand|tausend|mio\.?|mrd\.?|k|m|bn))?+"
    r"[ \u202f\u00a0]?([%€$£¥]|per cent\b|[^\W\d_]++)",
    re.IGNORECASE,
)
_PERCENT = frozenset(["%", "percent", "per cent", "prozent"])
_UNITS_TOO = frozenset("km")
"""Factors that may be units, as in `3 m`."""
CURRENCIES = {"eur": ("€", "euro"), "usd": ("$", "dollar"), "gbp": ("£", "pound"), "jpy": ("¥",)}
_MINUS = re.compile(
    r"(?:(?:^|[\s(|:;=,€$£¥])[-−–][€$£¥]?|\b(?:minus|negative|negativ(?:e[nrs]?)?) )$",
    re.IGNORECASE,
)
_FALLS = re.compile(
    r"negativ|below|down|fell|fall|drop|declin|decreas|los[st]|reduc|less|lower|shr[aiu]nk|under"
    r"|debt|defici|verl[uo]r|verlust|rückg|gesunk|sinkt|sank|fiel|niedrig|wenig|unter|minder"
    r"|abnahm|schuld",
    re.IGNORECASE,
)
"""Matches words that say what a minus says."""

_MONTH = f"(?P<m>{'|'.join(sorted(MONTHS, key=len, reverse=True))})"
_YEAR = r"(?P<y>\d{4})\b"
_SHORT_YEAR = r"(?P<y>\d{4}|\d{2})(?![\w-])"
_FULL_YEAR = r"(?P<y>(?:19|20)\d{2})(?![\w/-]|\.\d)"
_DAY, _MONTH_NUMBER = r"(?P<d>\d{1,2})", r"(?P<m>\d{1,2})"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_DAY}(?:st|nd|rd|th|er|\.)? (?:of |de )?{_MONTH}\b\.?(?:,? (?:del? )?{_YEAR})?",
        rf"\b{_MONTH}\b\.? {_DAY}(?:st|nd|rd|th)?\b(?:,? {_YEAR})?",
        rf"\b{_MONTH}\b\.?,? (?:del? )?{_YEAR}",
        rf"(?<![\w.])(?P<y>\d{{4}})[-/.]{_MONTH_NUMBER}[-/.]{_DAY}(?:(?=T\d)|(?![\w-]))",
        rf"(?<![\w.]){_DAY}\. ?{_MONTH_NUMBER}\. ?{_SHORT_YEAR}",
        rf"(?<![\w.]){_DAY}[-/]{_MONTH_NUMBER}[-/]{_SHORT_YEAR}",
        rf"(?<![\w.]){_MONTH_NUMBER}/{_DAY}/{_SHORT_YEAR}",
        rf"(?<![\w./-]){_MONTH_NUMBER}/{_FULL_YEAR}",
        rf"(?<![\w./,-])(?P<m>0\d|1[0-2])\.{_FULL_YEAR}",
        r"(?<![\w./-])(?P<y>(?:19|20)\d{2})-(?P<m>0[1-9]|1[0-2])(?![\w/-]|\.\d)",
    )
)
"""`5/6/2026` has two forms: such a date has two readings."""
_TOUCHING = rf"(?![{NO_SPACES}\uac00-\ud7af])"
"""Before a letter that a number may not touch: in Chinese, Japanese and Korean it does."""
_NUMBER = (
    rf"(?<!{_TOUCHING}[^\W_])(?<!\d[.,])"
    r"(?:\d{1,3}(?:[ \u202f]\d{3})++(?![\d.,])|\d++(?:[.,:'’]\d++)*+)"
    rf"(?!(?:{_TOUCHING}[^\W\d_])++\d)"
)
_WORD_OR_NUMBER = re.compile(rf"(?P<number>{_NUMBER})|(?P<word>[^\W\d_]++)")
_TIME = re.compile(
    r"(?<![\d:.,])(?<![^\W\dT])(?P<hour>\d{1,2})"
    r"(?:(?P<mark>[:.h])(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d(?:[.,]\d{1,9})?))?)?"
    r"(?![\d:])(?: ?(?P<suffix>[ap]\.?m\b\.?|uhr\b))?"
    r"|\b(?P<noon>noon|midday)\b|\bmidnight\b|\bmitternacht\b",
    re.IGNORECASE,
)
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
    " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth",
    "erst zweit dritt viert fünft sechst siebt acht neunt zehnt elft zwölft dreizehnt vierzehnt"
    " fünfzehnt sechzehnt siebzehnt achtzehnt neunzehnt zwanzigst",
)
_ORDINAL_WORDS = {w: n for words in _ORDINALS for n, w in enumerate(words.split(), 1)}
_ENGLISH_ORDINALS, _GERMAN_ORDINALS = (words.replace(" ", "|") for words in _ORDINALS)
_ORDINAL = re.compile(
    r"\b(?:(?P<digits>\d{1,3})(?:st|nd|rd|th|te[nmrs]?)|q(?P<quarter>[1-4])"
    rf"|(?:(?P<tens>{_TENS[0].replace(' ', '|')})[- ])?(?P<english>{_ENGLISH_ORDINALS})"
    r"(?! part(?:y|ies)\b)(?<!at first)(?!, |-)"
    rf"|(?P<german>{_GERMAN_ORDINALS.replace('acht|', '')})e[nmrs]?"
    r"|(?:der|die|das|dem|den|des|im|am|zum|zur|vom|beim) "
    r"(?:(?P<dotted>\d{1,3})\.(?= [^\W\d_])|(?P<eighth>achte)[nmrs]?))(?!\w)",
    re.IGNORECASE,
)
"""`Dritte` is a third party, `achten` is a verb, too."""
_PER_SECOND = re.compile(r"(?:\b(?:per|each|every|one|\d+)[ -]|/)$", re.IGNORECASE)
_HALVES = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}
_PARTS = {f"{word}{s}": n for word, n in _ORDINAL_WORDS.items() if 2 < n < 11 for s in ("", "s")}
_PARTS |= {"drittel": 3, "viertel": 4, "zehntel": 10} | _HALVES
_PARTS |= {f"{word}el": n for word, n in _ORDINAL_WORDS.items() if 4 < n < 10}
_COUNTS = dict.fromkeys(["a", "an", "ein", "eine"], 1)
_COUNTS |= {word: n for words in _UNITS for n, word in enumerate(words.split()[:11]) if n}
_COUNT = f"{'|'.join(_COUNTS)}"
_FRACTION = re.compile(
    r"(?:(?<![\w/.,])(?:(?P<whole>\d{1,4})[ -])?(?P<top>\d{1,2})[/⁄](?P<bottom>\d{1,2})"
    r"(?![\w/]|[.,]\d)"
    r"|(?:(?<![\w.,])(?P<before>\d{1,4}) ?)?(?P<sign>[¼½¾⅐-⅞])"
    rf"|\b(?P<many>{_COUNT}|\d{{1,4}}) and a half\b|\b(?P<compound>{_COUNT}|ander)(?:th|ein)halb\b"
    rf"|\b(?<!first )(?<!second )(?<!erste )(?<!zweite )(?<!ersten )(?<!zweiten )"
    rf"(?:(?P<count>{_COUNT})[ -])?(?P<part>{'|'.join(_PARTS)}|hälfte)\b(?! part(?:y|ies)\b)"
    r"(?P<of> of\b| (?:the|its|their|de[rs])\b)?)"
    r"(?: (?:an? )?(?P<factor>dozen|hundred|thousand|million(?:en)?|billion|milliarden?)\b)?",
    re.IGNORECASE,
)
_GERMAN = re.compile(
    r"\b(?:der|die|das|den|dem|und|ist|nicht|eine?|von|zu|mit|wird|im|am|auf|bei|nach|sind"
    r"|er|sie|hat|werden|oder|sich|dass|geht)\b|[äöüß]",
    re.IGNORECASE,
)
_ENGLISH = re.compile(
    r"\b(?:the|of|and|is|to|in|for|with|not|be|was|are|on|by|that|it)\b", re.IGNORECASE
)

Value = float | str
Date = tuple[int | None, int, int | None]
"""Year, month and day."""
FRACTION, ORDINAL = "/", "th"


@dataclass(frozen=True, slots=True)
class Number:
    """How a number is written, in lower case, the values that it may have, and what it counts: `%`,
    a currency, FRACTION, ORDINAL or "". A fraction or an ordinal may also be said by plain numbers,
    its `parts`; one that is not `strict` need not be said at all."""

    written: str
    values: frozenset[Value]
    unit: str = ""
    parts: tuple[float, ...] = ()
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Figures:
    """The dates of a text, each as its readings, its times, fractions and ordinals, the text
    without the dates, and the `rest`."""

    dates: tuple[frozenset[Date], ...]
    marked: tuple[Number, ...]
    undated: str
    rest: str


def figures_of(text: str) -> Figures:
    dates, undated = _cut_dates(text)
    rest, german = undated, is_german(text)
    marked: list[Number] = []
    for pattern in (_FRACTION, _ORDINAL, _TIME):
        spans = []
        for match in pattern.finditer(rest):
            if (number := _marked(match, german)) is not None:
                marked.append(number)
                spans.append(match.span())
        if spans:
            cut = [*rest]
            for start, end in spans:
                cut[start:end] = "\0" * (end - start)
            rest = "".join(cut)
    return Figures((*dates,), (*marked,), undated, rest)


def share(value: float) -> float:
    """A fraction with two digits: a third and 33 % are the same."""
    return float(f"{value:.2g}")


def is_german(text: str) -> bool | None:
    """Whether a text is German rather than English; None if that is unclear."""
    german, english = (len(each.findall(text)) for each in (_GERMAN, _ENGLISH))
    return None if german == english else german > english


def _cut_dates(text: str) -> tuple[list[frozenset[Date]], str]:
    """The readings of each date of a text, and the text without them."""
    found: dict[tuple[int, int], set[Date]] = {}
    rest = [*text]
    for pattern in _DATES:
        for match in pattern.finditer(text):
            date = _date(match)
            if date is not None and (match.span() in found or rest[match.start()] != "\0"):
                found.setdefault(match.span(), set()).add(date)
                rest[match.start() : match.end()] = "\0" * len(match[0])
    return [frozenset(each) for each in found.values()], "".join(rest)


def _date(match: re.Match[str]) -> Date | None:
    groups = match.groupdict()
    year, day = (int(groups[key]) if groups.get(key) else None for key in ("y", "d"))
    name = groups["m"].casefold()
    month = MONTHS.get(name) or int(name)
    if not 1 <= month <= 12 or (day is not None and not 1 <= day <= 31):
        return None
    return year, month, day


def _marked(match: re.Match[str], german: bool | None) -> Number | None:
    groups = {name: each.casefold() for name, each in match.groupdict().items() if each}
    if match.re is _FRACTION:
        return _fraction(match[0].casefold(), groups)
    return _ordinal(match, groups) if match.re is _ORDINAL else _time(groups, german)


def _fraction(written: str, groups: dict[str, str]) -> Number | None:
    strict = True
    if "sign" in groups:
        value = unicodedata.numeric(groups["sign"])
        whole, (top, bottom) = int(groups.get("before", 0)), value.as_integer_ratio()
    elif "top" in groups:
        whole, top, bottom = int(groups.get("whole", 0)), int(groups["top"]), int(groups["bottom"])
    elif "part" in groups:
        part, count = groups["part"], groups.get("count", "")
        whole, top, bottom = 0, _COUNTS.get(count, 1), _PARTS.get(part, 2)
        if part != "hälfte" and not part.endswith("el"):
            is_half = part in ("half", "halves")
            is_counted = count not in ("", "a", "an") and part not in _HALVES
            strict = is_counted or ("of" in groups and (is_half or count != ""))
            if not strict and not is_half:
                return None  # an ordinal, or three months
    else:
        many = groups.get("many", groups.get("compound", ""))
        whole = int(many) if many.isdigit() else _COUNTS.get(many, 1)
        top, bottom = 1, 2
    if not 0 < top < bottom:
        return None
    if whole or "factor" in groups:
        value = (whole + top / bottom) * _FACTORS.get(groups.get("factor", ""), 1.0)
        return Number(written, frozenset([value]))
    parts = float(top), float(bottom)
    return Number(written, frozenset([share(top / bottom)]), FRACTION, parts, strict)


def _ordinal(match: re.Match[str], groups: dict[str, str]) -> Number | None:
    if digits := groups.get("digits") or groups.get("dotted") or groups.get("quarter"):
        number = int(digits)
    else:
        word = groups.get("english") or groups.get("german") or "acht"
        before = match.string[max(0, match.start() - 10) : match.start()]
        if (word == "dritt" and match[0][0].isupper()) or (
            word == "second" and _PER_SECOND.search(before)
        ):
            return None
        number = _ORDINAL_WORDS[word] + (_NUMBER_WORDS[groups["tens"]] if "tens" in groups else 0)
    value = float(number)
    return Number(match[0].casefold(), frozenset([value]), ORDINAL, (value,), number > 2)


def _time(groups: dict[str, str], german: bool | None) -> Number | None:
    """Its value is that of a clock of 24 hours; without `am` or `pm` it may mean the other half of
    the day, so its digits are a value, too."""
    hour = int(groups.get("hour", 12 if "noon" in groups else 0))
    suffix = groups.get("suffix", "midnight" if "hour" not in groups else "")
    half = suffix[:1] if suffix[:1] in ("a", "p") else ""
    if hour > (12 if half else 24) or (german and half):
        return None
    if not suffix and groups.get("mark", ".") == ".":
        return None
    written = f"{hour}:{groups.get('minute', '00')}"
    if groups.get("second", "00").strip("0.,"):
        written += f":{groups['second']}"
    if half:
        hour = hour % 12 + 12 * (half == "p")
    sure = f"{hour % 24}{written[written.index(':') :]} of 24"
    return Number(written, frozenset([sure] if half else [sure, written]))


def numbers(text: str) -> Iterator[Number]:
    """The plain numbers of a text."""
    german = is_german(text)
    found = [*_WORD_OR_NUMBER.finditer(text)]
    words = [match[0].casefold() for match in found]
    gaps = [text[a.end() : b.start()] for a, b in pairwise(found)]
    end = 0
    for index, (match, word) in enumerate(zip(found, words, strict=True)):
        if index < end:
            continue
        if match["number"]:
            values, end = _values(word, german), index + 1
            after = words[end] if end < len(words) else ""
            factor = _FACTORS.get(after, 1.0)
            scaled = {v if isinstance(v, str) else v * factor for v in values}
            values = scaled | values if after in _UNITS_TOO else scaled
        else:
            value, count = _spelt(words, gaps, index)
            if not count:
                continue
            values, end = {value}, index + count
        start, stop = match.start(), found[end - 1].end()
        negative: set[Value] = {-v for v in values if not isinstance(v, str)}
        in_brackets = text[start - 1 : start] == "(" and text[stop : stop + 1] == ")"
        if _MINUS.search(text[max(0, start - 10) : start]):
            values = negative if start > 1 else values | negative
        elif in_brackets:
            values |= negative
        yield Number(text[start:stop].casefold(), frozenset(values), _unit(text, start, stop))


def falls(text: str) -> bool:
    """Whether a text says that something falls, or is negative, in words."""
    return _FALLS.search(text) is not None


def _spelt(words: list[str], gaps: list[str], at: int) -> tuple[float, int]:
    """The number that the words from `at` on say together, as `one hundred and twenty`, and how
    many words it has; 0 if none."""
    total = current = last = 0.0
    index = end = at
    while index < len(words) and (index == at or gaps[index - 1] in (" ", "-")):
        word, factor = words[index], _FACTORS.get(words[index], 0.0)
        after = words[index + 1 : index + 3]
        if current and factor == 1e2:
            if current >= 1e2:
                break
            current *= factor
        elif current and factor and len(word) > 2:
            if last and factor >= last:
                break
            total, current, last = total + current * factor, 0.0, factor
        elif word in ("and", "und") and (current >= 1e2 or (total and not current)):
            own = 1e2 if current else last
            if (_word_value(after[0]) if after else None) is None:
                break
            if current % 100 or (len(after) > 1 and _FACTORS.get(after[1]) == own):
                break
            index += 1
            continue
        else:
            value = 1.0 if word in ONE and index == at else _word_value(word)
            if value is None or not (
                (current == 0 and (total or index == at))
                or (current % 100 == 0 and value < 100)
                or (current % 100 >= 20 and current % 10 == 0 and 0 < value < 10)
            ):
                break
            current += value
        index += 1
        end = index
    return total + current, end - at


def _word_value(word: str) -> float | None:
    """The value of a number word; a German one may be as long as `zweitausenddreihundert`."""
    if word in _NUMBER_WORDS:
        return float(_NUMBER_WORDS[word])
    if word == "ein" or len(word) > MAX_SPELT:
        return 1.0 if word == "ein" else None
    for name in ("tausend", "hundert"):
        before, mark, after = word.partition(name)
        if mark:
            many = _word_value(before or "ein")
            rest = _word_value(after.removeprefix("und") or "null")
            return None if many is None or rest is None else many * _FACTORS[name] + rest
    ones, _, tens = word.partition("und")
    if tens not in _NUMBER_WORDS or not ones:
        return None
    value = _word_value(ones)
    return None if value is None else value + _NUMBER_WORDS[tens]


def _unit(text: str, start: int, end: int) -> str:
    """What a number counts: `%`, a currency, or "" if neither is next to it."""
    before = text[max(0, start - 4) : start].rstrip().casefold()
    after = _UNIT.match(text, end)
    name = "" if after is None else after[1].casefold()
    if name in _PERCENT:
        return "%"
    for code, names in CURRENCIES.items():
        words = (code, *names)
        if before.endswith(words) or name.rstrip("s") in words:
            return code
    return ""


def _values(number: str, german: bool | None) -> set[Value]:
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


# ------------------------------------------------------------------- the same in other notations

MAX_NOTATIONS = 16
"""Maximum number of dates, times and numbers of a text that are looked for in every notation."""
LARGE = 1000
"""Numbers from this one on may have separators between thousands."""
MAX_DECIMALS, MAX_EXACT = 6, 1e15


def in_any_notation(text: str) -> tuple[tuple[re.Pattern[str], ...], str]:
    """A pattern for each date, time, decimal and large number of a text that matches it in any
    notation, and the rest of the text: `28 January 2012` is also `2012/01/28`, `3 pm` is `15:00:12`
    and `167,20` is `167.2`."""
    figures = figures_of(text)
    found = [_of_dates(readings) for readings in figures.dates]
    found += [
        pattern
        for number in figures.marked
        if not number.unit and (pattern := _of_time(number.values)) is not None
    ]
    rest, german = [*figures.rest], is_german(text)
    for match in re.finditer(_NUMBER, figures.rest):
        values = sorted(v for v in _values(match[0], german) if isinstance(v, float))
        patterns = [
            _of_number(v) for v in values if v < MAX_EXACT and (v >= LARGE or not v.is_integer())
        ]
        if len(found) < MAX_NOTATIONS and patterns:
            found.append("|".join(patterns))
            rest[match.start() : match.end()] = "\0" * len(match[0])
    left = "".join(rest).replace("\0", " ")
    found = [*dict.fromkeys(found[:MAX_NOTATIONS])]
    return tuple(re.compile(each, re.IGNORECASE) for each in found), left


def _of_dates(readings: frozenset[Date]) -> str:
    return "|".join(_of_date(*each) for each in sorted(readings, key=str))


def _of_date(year: int | None, month: int, day: int | None) -> str:
    """A pattern for a date as figures, and with the name of the month."""
    names = "|".join(name for name, number in MONTHS.items() if number == month)
    name, number = rf"(?:{names})\.?", f"0?{month}"
    years = r"(?:19|20)?\d\d" if year is None else f"(?:{year // 100})?{year % 100:02}"
    full = r"(?:19|20)\d\d" if year is None else str(year)
    if day is None:
        months = (
            rf"{full}[-/.]{number}|(?:\d{{1,2}}[-/.] ?)?{number}[-/.] ?{full}"
            rf"|{name},? (?:del? )?{full}"
        )
        return rf"(?<![\w.])(?:{months})(?!\d)"
    days = rf"0?{day}(?:st|nd|rd|th|er|\.)?"
    after = rf"(?:(?:,|\.)?[ -](?:del? )?{years}|(?!,? \d{{4}}))"
    return (
        rf"(?<![\w.])(?:{full}(?:[-/.]{number}[-/.]0?{day}|{month:02}{day:02})(?=T|\D|$)"
        rf"|(?:0?{day}[-/.] ?{number}|{number}/0?{day})[-/.] ?{years}(?!\d)"
        rf"|{days}[ -](?:of |de )?{name}{after}(?!\d)"
        rf"|{name} {{1,2}}{days}{after}(?![\d:]))"
    )


def _of_time(values: frozenset[Value]) -> str | None:
    """A pattern for a time of day; None if these are the values of something else."""
    clocks = [value for value in values if isinstance(value, str) and value.endswith(" of 24")]
    if not clocks:
        return None
    hour, minute, *second = (int(float(part)) for part in clocks[0][: -len(" of 24")].split(":"))
    rest = "".join(f":{part:02}" for part in second)
    half = f"{hour % 12 or 12}(?:[:.]{minute:02})" + ("" if minute else "?")
    return (
        rf"(?<![\d:])(?:0?{hour}[:.]{minute:02}{rest}(?!\d)"
        rf"|0?{half}{rest} ?{'pa'[hour < 12]}\.?m\b)"
    )


def _of_number(value: float) -> str:
    """A pattern for a number with or without separators of thousands, and zeros after decimals. A
    comma before one with decimals separates columns."""
    whole, _, decimals = f"{value:,.{MAX_DECIMALS}f}".rstrip("0").partition(".")
    digits = whole.replace(",", "[,.'’ \u202f\u00a0]?")
    if decimals:
        return rf"(?<!\d)(?<!\d\.){digits}[.,]{decimals}0*+(?!\d)"
    return rf"(?<!\d)(?<!\d[.,]){digits}(?![.,]?\d{{3}}|\d)"
