"""The numbers of lists and headings, which Word and OpenDocument count when they show a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from string import ascii_lowercase, ascii_uppercase
from xml.etree.ElementTree import Element

from app.ingest.elements import attribute, child, integer, is_on, name_of, value_of
from app.ingest.symbols import symbol

LEVELS = 9
TICKED = tuple("☐☑☒✓✔✗✘")
"""Marks that say more than that an item begins."""
_PLACE = re.compile(r"%([1-9])")
_ROMAN = {
    1000: "m", 900: "cm", 500: "d", 400: "cd", 100: "c", 90: "xc", 50: "l", 40: "xl", 10: "x",
    9: "ix", 5: "v", 4: "iv", 1: "i",
}  # fmt: skip
_WORDS = (
    "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven",
    "Twelve", "Thirteen", "Fourteen", "Fifteen", "Sixteen", "Seventeen", "Eighteen", "Nineteen",
    "Twenty",
)  # fmt: skip
_ORDINALS = (
    "First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth", "Tenth",
    "Eleventh", "Twelfth", "Thirteenth", "Fourteenth", "Fifteenth", "Sixteenth", "Seventeenth",
    "Eighteenth", "Nineteenth", "Twentieth",
)  # fmt: skip
_REPEATED = {
    "lowerLetter": ascii_lowercase, "upperLetter": ascii_uppercase, "chicago": "*†‡§",
}  # fmt: skip
_HAN = "〇一二三四五六七八九"
_ALPHABETS = {
    "russianLower": "абвгдежзиклмнопрстуфхцчшщыэюя",
    "russianUpper": "АБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЫЭЮЯ",
    "hebrew2": "אבגדהוזחטיכלמנסעפצקרשת",
    "arabicAlpha": "أبتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "ganada": "가나다라마바사아자차카타파하",
    "chosung": "ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ",
    "aiueo": "アイウエオカキクケコサシスセソタチツテトナニヌネノ"
    "ハヒフヘホマミムメモヤユヨラリルレロワヲン",
    "iroha": "イロハニホヘトチリヌルヲワカヨタレソツネナラムウヰノ"
    "オクヤマケフコエテアサキユメミシヱヒモセス",
    "ideographTraditional": "甲乙丙丁戊己庚辛壬癸",
    "ideographZodiac": "子丑寅卯辰巳午未申酉戌亥",
}
_ALPHABETS |= {"aiueoFullWidth": _ALPHABETS["aiueo"], "irohaFullWidth": _ALPHABETS["iroha"]}


def formatted(number: int, kind: str) -> str:
    """A number as a format of Word shows it, such as `upperRoman`. Formats that are not known show
    digits."""
    if number < 1:
        return "" if kind == "none" else str(number)
    if signs := _REPEATED.get(kind):
        times, at = divmod(number - 1, len(signs))
        return signs[at] * min(times + 1, 30)
    if kind in ("lowerRoman", "upperRoman") and number < 4000:
        roman = ""
        for value, letters in _ROMAN.items():
            roman += letters * (number // value)
            number %= value
        return roman.upper() if kind == "upperRoman" else roman
    if kind in _ALPHABETS:
        letters = _ALPHABETS[kind]
        return letters[(number - 1) % len(letters)]
    if kind == "decimalZero":
        return f"{number:02}"
    if kind in ("cardinalText", "ordinalText") and number <= len(_WORDS):
        return (_WORDS if kind == "cardinalText" else _ORDINALS)[number - 1]
    if kind in ("ordinal", "ordinalText"):
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
    if kind.startswith("decimalEnclosedCircle") and number <= 20:
        return chr(0x2460 + number - 1)
    if kind in ("ideographDigital", "japaneseDigitalTenThousand", "taiwaneseDigital"):
        return "".join(_HAN[int(digit)] for digit in str(number))
    if "ounting" in kind and number < 100:  # Chinese and Japanese, in several forms
        tens, ones = divmod(number, 10)
        return (
            (_HAN[tens] if tens > 1 else "") + ("十" if tens else "") + (_HAN[ones] if ones else "")
        )
    return "" if kind == "none" else str(number)


def bullet(sign: str, font: str = "") -> str:
    """The mark of an item with a sign: `-`, and the sign if it is a tick or a cross."""
    sign = sign.strip()
    shown = symbol(font, ord(sign)) if len(sign) == 1 else sign
    return f"- {shown}" if shown in TICKED else "-" if sign else ""


@dataclass(frozen=True, slots=True)
class Level:
    """How a level of a list is counted and shown."""

    start: int = 1
    format: str = "decimal"
    pattern: str = ""
    """What is shown, with `%1` for the number of the first level."""
    restart: int | None = None
    """Begins again after this level (from 1) was counted; 0: never; None: after any before it."""
    is_legal: bool = False
    """Whether all numbers in it are shown in digits."""
    style: str = ""
    """The style of paragraphs that has this level."""
    font: str = ""
    """The font of a bullet."""


class ListCounter:
    """Counts the items of a list."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def set(self, level: int, number: int) -> None:
        """What the next item of a level gets."""
        self._counts[level] = number - 1

    def restart(self, levels: Iterable[int]) -> None:
        for each in levels:
            self._counts.pop(each, None)

    def next(self, level: int, levels: Mapping[int, Level]) -> str:
        """The mark of the next item of a level (from 0): its number as it is shown, or `-`; empty
        if it has none."""
        counts = self._counts
        first = {each: at.start for each, at in levels.items()}
        counts[level] = counts[level] + 1 if level in counts else first.get(level, 1)
        for deeper in [each for each in counts if each > level]:
            restart = levels[deeper].restart if deeper in levels else None
            if restart is None or 0 < level + 1 <= restart:
                del counts[deeper]
        shown = levels.get(level, Level(pattern=f"%{level + 1}."))
        if shown.format == "bullet":
            return bullet(shown.pattern, shown.font)

        def number(match: re.Match[str]) -> str:
            at = int(match[1]) - 1
            kind = levels[at].format if at in levels else "decimal"
            kind = "decimal" if shown.is_legal else kind
            return formatted(counts.setdefault(at, first.get(at, 1)), kind)

        return _PLACE.sub(number, shown.pattern).strip()


@dataclass(slots=True)
class SharedList:
    """A list, which several instances may count together."""

    levels: dict[int, Level]
    counter: ListCounter = field(default_factory=ListCounter)
    used: set[str] = field(default_factory=set)
    """Its instances that were counted already."""


class Counters:
    """Counts the lists of a document."""

    def __init__(
        self, numbering: Element | None = None, of_styles: Mapping[str, str] | None = None
    ) -> None:
        """`numbering` is the root of a Word document's `numbering.xml`. `of_styles` are the lists
        of its styles, by the styles' ids."""
        self._instances: dict[str, tuple[SharedList, dict[int, Level], dict[int, int]]] = {}
        lists: dict[str, SharedList] = {}
        root = () if numbering is None else numbering
        same_as: dict[str, str] = {}
        for each in root:
            if name_of(each) == "abstractNum":
                id = attribute(each, "abstractNumId")
                lists[id] = SharedList(_levels(each))
                if (link := child(each, "numStyleLink")) is not None:
                    same_as[id] = (of_styles or {}).get(attribute(link, "val"), "")
        nums = {attribute(each, "numId"): each for each in root if name_of(each) == "num"}
        for id, each in nums.items():
            abstract = value_of(each, "abstractNumId")
            if abstract in same_as and same_as[abstract] in nums:
                abstract = value_of(nums[same_as[abstract]], "abstractNumId")
            if abstract not in lists:
                continue
            levels: dict[int, Level] = {}
            starts: dict[int, int] = {}
            for override in each.findall("{*}lvlOverride"):
                level = integer(attribute(override, "ilvl"), 0)
                levels |= _levels(override)
                start = child(override, "startOverride")
                if start is not None:
                    starts[level] = integer(attribute(start, "val"), 1)
            self.add(id, lists[abstract], levels, starts)

    def add(
        self, id: str, shared: SharedList, levels: dict[int, Level], starts: dict[int, int]
    ) -> None:
        """Add an instance of a list with levels of its own, and with numbers at which levels begin
        when it is first used."""
        self._instances[id] = shared, levels, starts

    def level_of(self, id: str, *styles: str) -> int | None:
        """The level of a list that names the first of these styles that any level names."""
        if id not in self._instances:
            return None
        shared, own, _ = self._instances[id]
        levels = (shared.levels | own).items()
        return next(
            (n for style in styles for n, each in levels if style == each.style != ""), None
        )

    def next(self, id: str, level: int) -> str | None:
        """The mark of the next item: its number as it is shown, or `-`; empty if it has none. None:
        there is no such list."""
        if id not in self._instances or not 0 <= level < LEVELS:
            return None
        shared, own, starts = self._instances[id]
        if id not in shared.used:
            shared.used.add(id)
            shared.counter.restart(starts)
        levels = shared.levels | own
        for each, start in starts.items():
            levels[each] = replace(levels.get(each, Level()), start=start)
        return shared.counter.next(level, levels)


def _levels(element: Element) -> dict[int, Level]:
    found = {}
    for each in element.findall("{*}lvl"):
        number = integer(attribute(each, "ilvl"), 0)
        pattern, fonts = child(each, "lvlText"), child(each, "rPr", "rFonts")
        level = Level(
            integer(value_of(each, "start"), 1 if child(each, "start") is None else 0),
            value_of(each, "numFmt") or "decimal",
            f"%{number + 1}." if pattern is None else attribute(pattern, "val"),
            is_legal=is_on(child(each, "isLgl")),
            style=value_of(each, "pStyle"),
            font="" if fonts is None else attribute(fonts, "ascii"),
        )
        if (restart := child(each, "lvlRestart")) is not None:
            level = replace(level, restart=integer(attribute(restart, "val"), 0))
        found[number] = level
    return found
