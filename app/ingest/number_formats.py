"""Numbers as spreadsheets and charts show them: percentages, dates, hours, currencies and units.

Numbers keep all their digits, without separators of thousands, since that is what can be calculated
with. Dates are in ISO 8601, unless the format names the month.
"""

from __future__ import annotations

import functools
import operator
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

_PIECE = re.compile(
    r"\"([^\"]{0,99})\"|\\(.)|\[\$([^\]-]{0,20})(?:-[^\]]{0,20})?\]|\[(h{1,9}|m{1,9}|s{1,9})\]"
    r"|\[[^\]]{0,40}\]|_.|\*."
    r"|(AM/PM|A/P|General|@|[yYmMdDhHsSbBeEgG]+|%|[0#?.,]+(?:[eE][+-][0#?]{1,9}"
    r"|\\? ?[0#?]{0,9}/[0-9#?]{1,9})?)|(.)",
    re.DOTALL,
)
_LETTERS = frozenset("ymdhs")
_DIGITS = frozenset("0#?.,")
_SEPARATORS = " '\u2019\u00a0\u202f"
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip
_CONDITION = re.compile(r"\[([<>=]{1,2})(-?\d{1,15}(?:\.\d{1,9})?)\]")
_COMPARED = {
    "<": operator.lt, "<=": operator.le, "=": operator.eq,
    "<>": operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Format:
    before: str = ""
    after: str = ""
    """Texts around the number, such as signs of currencies and units."""
    percent: int = 0
    """How often 100 is multiplied."""
    thousands: int = 0
    """How often it is divided by 1,000: the commas behind the digits."""
    width: int = 0
    """Digits of a number such as `00123`; 0: as many as it has."""
    has_number: bool = True
    """Whether the number is shown, not only a text such as `"No"`."""
    mask: tuple[str, ...] = ()
    """The places of digits and the texts between them, in a format such as `000-00-0000`."""
    pieces: tuple[str, ...] = ()
    """The parts of a date or time, and the texts between them."""
    elapsed: str = ""
    """The largest part of a duration: `h`, `m` or `s`."""


@functools.lru_cache(512)
def _parsed(section: str) -> _Format:
    before: list[str] = []
    between: list[str] = []
    after: list[str] = []
    digits: list[str] = []
    pieces: list[str] = []
    percent, is_date, elapsed = 0, False, ""
    for match in _PIECE.finditer(section):
        quoted, escaped, currency, duration, part, other = match.groups()
        part = part or ""
        if duration:
            is_date, elapsed = True, elapsed or duration[0]
            pieces.append(duration)
        elif part == "%":
            percent += 1
            pieces.append(part)
        elif part in ("AM/PM", "A/P") or part[:1].lower() in _LETTERS:
            is_date = True
            pieces.append(part.lower())
        elif part in ("General", "@") or part[:1] in _DIGITS:
            if digits:
                between += after
                after = []
            digits.append(part)
            pieces.append(f"'{part}" if part in (".", ",") else part)
        elif literal := quoted or escaped or currency or other:
            pieces.append(f"'{literal}")
            (after if digits else before).append(literal)
    if is_date:
        return _Format(pieces=tuple(pieces), elapsed=elapsed)
    number = "".join(digits)
    left, right = (text.strip("()-+ ") and text for text in map("".join, (before, after)))
    thousands = len(number) - len(number.rstrip(",")) if number.strip(",") else 0
    width = len(number) if number.strip("0") == "" else 0
    is_mask = "".join(between).strip(_SEPARATORS) and not number.strip("0#?") and not percent
    mask = tuple(pieces) if is_mask else ()
    left, right = left.lstrip("(-+"), right.rstrip(")")
    return _Format(left, right, percent, thousands, width, bool(digits), mask)


@functools.lru_cache(512)
def _sections(code: str) -> tuple[str, ...]:
    """The parts for positive numbers, negative ones and 0, or those with conditions."""
    ends, quoted, escaped = [-1], False, False
    for at, each in enumerate(code):
        if each == ";" and not quoted and not escaped:
            ends.append(at)
            continue
        quoted = quoted != (each == '"' and not escaped)
        escaped = each == "\\" and not escaped
    return tuple(code[a + 1 : b] for a, b in pairwise([*ends, len(code)]))


def _section(value: float, code: str) -> str:
    """The part of a format that shows a number."""
    sections = _sections(code)
    conditions = [_CONDITION.search(each) for each in sections]
    if not any(conditions):
        number = 0 if value > 0 else 1 if value < 0 else 2
        return sections[number] if number < len(sections) else sections[0]
    for section, condition in zip(sections, conditions, strict=True):
        if condition is None or _COMPARED.get(condition[1], operator.eq)(
            value, float(condition[2])
        ):
            return section
    return ""


def shown_number(value: float, code: str, since_1904: bool = False) -> str:
    """A number in a format such as `0.0%`, `[h]:mm` or `#,##0.00 "kg"`."""
    if not code or code == "General":
        return f"{value:.15g}"
    form = _parsed(_section(value, code) if ";" in code else code)
    if form.elapsed:
        return _duration(value, form)
    if form.pieces:
        return _date(value, form, since_1904)
    if not form.has_number and form.before.strip():
        return form.before.strip()
    if form.mask and value >= 0 and value % 1 == 0:
        return _masked(f"{value:.0f}", form.mask)
    number = value * 100**form.percent / 1000**form.thousands
    digits = f"{number:.10g}" if form.percent else f"{number:.15g}"
    digits = digits.zfill(form.width) if digits.isdecimal() else digits
    return f"{form.before}{digits}{'%' * form.percent}{form.after}".strip()


def _masked(digits: str, mask: tuple[str, ...]) -> str:
    places = sum(len(each) for each in mask if each[0] != "'")
    more, digits = digits[:-places], digits[-places:].rjust(places)
    left = iter(digits)
    shown = []
    for each in mask:
        if each[0] == "'":
            shown.append(each[1:])
            continue
        for place, digit in zip(each, left, strict=False):
            shown.append(more + digit.replace(" ", "0" if place == "0" else ""))
            more = ""
    return "".join(shown).strip()


def shown_date(text: str) -> str:
    """A date of ISO 8601, such as `2024-05-01T00:00:00`, without a time of nothing."""
    return text.replace("T", " ").removesuffix(".000").removesuffix(" 00:00:00")


def _duration(days: float, form: _Format) -> str:
    """`36:00`: hours beyond a day go on counting."""
    sign, seconds = "-" if days < 0 else "", round(abs(days) * 86400)
    hours, rest = divmod(seconds, 3600)
    has_seconds = any(each[0] == "s" for each in form.pieces)
    if form.elapsed == "h":
        shown = f"{hours}:{rest // 60:02}" if len(form.pieces) > 1 else f"{hours}"
    elif form.elapsed == "m":
        shown = f"{seconds // 60}"
    else:
        return f"{sign}{seconds}"
    return f"{sign}{shown}:{rest % 60:02}" if has_seconds else sign + shown


def _date(days: float, form: _Format, since_1904: bool) -> str:
    if not 0 <= days < 2_958_466:
        return f"{days:.15g}"
    letters = [each[0] for each in form.pieces if each[0] != "'"]
    has_time = any(each in ("h", "s") for each in letters)
    has_date = any(each in ("y", "d") for each in letters) or not has_time
    if has_date and days < 1 and not since_1904:
        return "" if days == 0 else f"{days:.15g}"  # an empty date
    if since_1904:
        start = datetime(1904, 1, 1)
    else:  # Excel counts a 29 February 1900, which there was not
        start = datetime(1899, 12, 31) if days < 60 else datetime(1899, 12, 30)
    moment = start + timedelta(seconds=round(days * 86400))
    clock = f"{moment:%H:%M:%S}" if "s" in letters or moment.second else f"{moment:%H:%M}"
    if not has_date:
        return clock
    named = any(each.startswith("mmm") for each in form.pieces)
    date = _named(moment, form) if named else f"{moment:%Y-%m-%d}"
    if not named and "d" not in letters and "y" in letters:
        date = f"{moment:%Y-%m}" if "m" in letters else f"{moment:%Y}"
    return f"{date} {clock}" if has_time and not named else date


def _named(moment: datetime, form: _Format) -> str:
    """A date whose month is named, as its format says."""
    month = _MONTHS[moment.month - 1]
    shown = {
        "y": f"{moment.year % 100:02}", "yy": f"{moment.year % 100:02}",
        "mmm": month[:3], "mmmm": month, "mmmmm": month[:1],
        "d": f"{moment.day}", "dd": f"{moment.day:02}", "ddd": f"{moment:%a}",
        "h": f"{moment.hour}", "hh": f"{moment.hour:02}",
    }  # fmt: skip
    longer = {
        "y": f"{moment.year:04}", "m": f"{moment.minute:02}", "d": f"{moment:%A}",
        "h": f"{moment.hour:02}", "s": f"{moment.second:02}",
    }  # fmt: skip
    texts = (
        each[1:] if each[0] == "'" else shown.get(each) or longer.get(each[0], "")
        for each in form.pieces
    )
    return " ".join("".join(texts).split())
