"""Numbers as spreadsheets and charts show them: percentages, dates, hours, currencies and units.

Numbers keep all their digits, without separators of thousands, since that is what can be calculated
with. Dates are in ISO 8601, unless the format names the month.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

_PIECE = re.compile(
    r"\"([^\"]{0,99})\"|\\(.)|\[\$([^\]-]{0,20})(?:-[^\]]{0,20})?\]|\[(h{1,9}|m{1,9}|s{1,9})\]"
    r"|\[[^\]]{0,40}\]|_.|\*."
    r"|(AM/PM|A/P|General|[yYmMdDhHsSbBeEgG]+|%|[0#?.,/]+)|(.)",
    re.DOTALL,
)
_LETTERS = frozenset("ymdhs")
_DAY = timedelta(days=1)
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


@dataclass(frozen=True, slots=True)
class _Format:
    before: str = ""
    after: str = ""
    """Texts around the number, such as signs of currencies and units."""
    percent: int = 0
    """How often 100 is multiplied."""
    pieces: tuple[str, ...] = ()
    """Of a date or time: its parts and the texts between them."""
    elapsed: str = ""
    """The largest part of a duration: `h`, `m` or `s`."""


@functools.lru_cache(512)
def _parsed(code: str) -> _Format:
    section = _sections(code)[0] if code else ""
    before, after, pieces = "", "", []
    percent, in_number, is_date, elapsed = 0, False, False, ""
    for match in _PIECE.finditer(section):
        quoted, escaped, currency, duration, part, other = match.groups()
        literal = quoted if quoted is not None else escaped or currency or other or ""
        if duration:
            is_date, elapsed = True, elapsed or duration[0]
            pieces.append(duration)
        elif part == "%":
            percent += 1
            pieces.append(part)
        elif part and (part in ("AM/PM", "A/P") or part[0].lower() in _LETTERS):
            is_date = True
            pieces.append(part.lower())
        elif part and part[0] in "0#?.,/":
            in_number = True
            pieces.append(f"'{part}" if part in (".", ",", "/") else part)
        elif part == "General":
            in_number = True
        elif literal:
            pieces.append(f"'{literal}")
            if in_number:
                after += literal
            else:
                before += literal
    if is_date:
        return _Format(pieces=tuple(pieces), elapsed=elapsed)
    before, after = (text.strip("()-+ ") and text for text in (before, after))
    return _Format(before.lstrip("(-+"), after.rstrip(")"), percent)


def _sections(code: str) -> list[str]:
    """The parts for positive, negative and other values."""
    found, quoted, escaped = [""], False, False
    for each in code:
        if each == ";" and not quoted and not escaped:
            found.append("")
            continue
        quoted = quoted != (each == '"' and not escaped)
        escaped = each == "\\" and not escaped
        found[-1] += each
    return found


def is_date_format(code: str) -> bool:
    return bool(_parsed(code).pieces)


def shown_number(value: float, code: str, since_1904: bool = False) -> str:
    """A number in a format such as `0.0%`, `[h]:mm` or `#,##0.00 "kg"`."""
    form = _parsed(code)
    if form.elapsed:
        return _duration(value, form)
    if form.pieces:
        return _date(value, form, since_1904)
    number = value * 100**form.percent
    digits = f"{number:.10g}" if form.percent else f"{number:.15g}"
    return f"{form.before}{digits}{'%' * form.percent}{form.after}".strip()


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
    shown = ""
    for each in form.pieces:
        if each[0] == "'":
            shown += each[1:]
        elif each[0] == "y":
            shown += f"{moment.year:04}" if len(each) > 2 else f"{moment.year % 100:02}"
        elif each[0] == "m" and len(each) > 2:
            month = _MONTHS[moment.month - 1]
            shown += month if len(each) == 4 else month[: 1 if len(each) == 5 else 3]
        elif each[0] == "d" and len(each) < 3:
            shown += f"{moment.day:0{len(each)}}"
        elif each[0] == "d":
            shown += moment.strftime("%A" if len(each) > 3 else "%a")
        elif each[0] == "h":
            shown += f"{moment.hour:0{min(2, len(each))}}"
        elif each[0] == "m":
            shown += f"{moment.minute:02}"
        elif each[0] == "s":
            shown += f"{moment.second:02}"
    return " ".join(shown.split())
