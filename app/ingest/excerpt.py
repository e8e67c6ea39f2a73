"""Parts of documents, named after a `#`: `contract.pdf#5-10` (pages; slides, sections and lines
likewise), `server.log#-500` (the last ones), `table.xlsx#Costs` (a sheet), `notes.md#Next steps` (a
heading with what is below it). Pages that have labels are named by these: `book.pdf#iv-3`.

Several are separated by commas. In documents with pages, slides or sections, a heading means those
that it and its text are on.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from app.ingest.filenames import printable
from app.ingest.parts import (
    Ranges,
    from_start,
    parse_ranges,
    ranges_text,
    runs,
    without_groups,
)
from app.ingest.records import Rejected, SkipReason
from app.protocol.prompt import Document
from app.util.places import Heading, headings, label_of, marks

MAX_LISTED = 8
"""Maximum number of sheets or headings to list in a sentence."""
_MAX_PATH = 4_096
"""Maximum characters of a path; systems allow no longer ones."""
_RANGE_COMMAS = 4
_MAX_LABELS = 500
"""Maximum characters of the labels of two pages, such as `iv-3`."""
_HIDDEN = " (hidden)"
_TEXT = re.compile(r"\S")
_NUMBERED = re.compile(r"#-?\d[\d,-]*$")
"""The name of a part that has only numbers."""
_NUMBER = re.compile(r"^[a-z]?[\d.]+\s+")
"""The number of a chapter, before its title."""


def split_path(path: str) -> tuple[str, str]:
    """The path of a file, and the part that is named after it. The part is empty if the path itself
    exists, or no file does. Waits for the disk."""
    if "#" in path and not os.path.lexists(path):
        end = min(len(path), _MAX_PATH)
        while (end := path.rfind("#", 0, end)) > 0:
            if os.path.isfile(path[:end]):
                return path[:end], path[end + 1 :].strip()
    return path, ""


def page_ranges(wanted: str, total: int, labels: Sequence[str]) -> Ranges:
    """The numbers of the pages `wanted`, such as `5-10` or `iv-3`; empty if it names other parts.
    `labels`: those of all pages, if they are not their numbers."""
    pages = Outline("page", range(1, total + 1), labels=tuple(labels))
    found: list[tuple[int, int | None]] = []
    for each in without_groups(wanted).split(","):
        if (labelled := pages.labelled(each)) is not None:
            found.append(labelled)
        elif ranges := parse_ranges(each):
            found += from_start(ranges, total)
        else:
            return ()
    return tuple(found)


def check_pages(ranges: Ranges, total: int, labels: Sequence[str] = ()) -> None:
    """Raise Rejected if a document of `total` pages does not have these."""
    pages = Outline("page", range(1, total + 1), labels=tuple(labels))
    for number in (each for range_ in ranges for each in range_):
        if number is not None and number not in pages.numbers:
            raise pages.missing(str(number))


@dataclass(frozen=True)
class Outline:
    """The units of a document (pages, slides, sections, sheets or lines), and the headings in
    them."""

    unit: str
    """`page`, `slide`, `section`, `sheet` or `line`."""
    numbers: Sequence[int]
    """The number of each unit, ascending. Sheets are counted from 1."""
    starts: Sequence[int] = ()
    """The offset of each unit."""
    sheets: tuple[str, ...] = ()
    headings: tuple[tuple[Heading, int, int], ...] = ()
    """Each with the numbers of the first and the last unit of its text."""
    labels: tuple[str, ...] = ()
    """The label of each page, such as `iv`, if these are not their numbers."""

    def find(self, wanted: str) -> tuple[str, list[tuple[int, int]]]:
        """The name of a part, or of several, and the first and last numbers of their units. Raises
        Rejected."""
        found, pieces, at = [], wanted.split(","), 0
        while at < len(pieces):  # names may have commas: the longest one that there is counts
            for end in range(min(len(pieces), at + 1 + self._commas), at, -1):
                name = ",".join(pieces[at:end]).strip()
                if (one := self._find_one(name) if name else None) is not None:
                    found.append(one)
                    break
            else:
                if name or (not found and at == len(pieces) - 1):
                    raise self.missing(name)
            at = end
        return ",".join(name for name, *_ in found), [(first, last) for _, first, last in found]

    def can_find(self, wanted: str) -> bool:
        """Whether these are numbers of units, or several parts, such as `3,5-10`."""
        is_units = parse_ranges(wanted) is not None or self.labelled(wanted) is not None
        if not is_units and "," not in wanted:
            return False
        try:
            self.find(wanted)
        except Rejected:
            return False
        return True

    def spans(self, found: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
        """The characters of these units in a text that ends at `end`; those that touch are one."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(found):
            after = bisect_right(self.numbers, last)
            start = self.starts[bisect_left(self.numbers, first)]
            stop = self.starts[after] if after < len(self.starts) else end
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            else:
                merged.append((start, stop))
        return merged

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield the names of sheets and headings, and where each heading is, such as `page 3`."""
        found = dict.fromkeys(self.sheets, "")
        for heading, first, last in () if self.sheets else self.headings:
            title = heading.title
            is_units = parse_ranges(title) is not None or self.labelled(title) is not None
            if not is_units or self._find_one(title) == (title, first, last):
                found.setdefault(title, f"{self.unit} {self._label(first)}")
        yield from found.items()

    @cached_property
    def units(self) -> str:
        """`pages 1 to 40`, `only page 1`, `the sheets 'Costs' and 'Income'`"""
        if self.sheets:
            return _listed("sheet", self.sheets)
        if len(self.numbers) == 1:
            return f"only {self.unit} {self._label(self.numbers[0])}"
        ends = [(self._label(a), self._label(b)) for a, b in runs(self.numbers)]
        found = [a if a == b else f"{a} to {b}" for a, b in ends]
        return f"{self.unit}s {', '.join(found)}"

    def missing(self, wanted: str) -> Rejected:
        """The error for a part that does not exist, which says which parts do."""
        ranges, has = parse_ranges(wanted), self.units
        if ranges is not None:
            numbers = [each for range_ in ranges for each in range_ if each is not None]
            known = (self.labelled(str(each)) or each in self.numbers for each in numbers)
            gone = (each for each, is_known in zip(numbers, known, strict=True) if not is_known)
            what = f"{self.unit} {next(gone, numbers[-1]):,}"
        elif self.sheets:
            what = f"sheet '{printable(wanted)}'"
        elif self.headings:
            what = f"heading '{printable(wanted)}'"
            has += f", and {_listed('heading', [each.title for each, *_ in self.headings])}"
        else:
            what = f"part '{printable(wanted)}'"
        return Rejected(SkipReason.NO_PART, f"has no {what}", f"it has {has}")

    def _find_one(self, wanted: str) -> tuple[str, int, int] | None:
        """The name of a part, and the first and last numbers of its units."""
        if (sheet := _match(wanted, self.sheets)) is not None:
            return self.sheets[sheet], sheet + 1, sheet + 1
        if (labelled := self.labelled(wanted)) is not None:
            return self._name(*labelled), *labelled
        ranges = parse_ranges(wanted)
        if ranges is not None:
            first, last = ranges[0]
            if first < 0 and self.numbers:
                at = max(0, len(self.numbers) + first)
                return str(first), self.numbers[at], self.numbers[-1]
            if last is None:
                last = self.numbers[-1]
            has_both = first in self.numbers and last in self.numbers and first <= last
            if len(ranges) == 1 and has_both:
                return self._name(first, last), first, last
        heading = _match(wanted, [each.title for each, *_ in self.headings])
        if heading is None:
            return None
        found, first, last = self.headings[heading]
        return found.title, first, last

    @cached_property
    def _commas(self) -> int:
        """Maximum commas of a name, or of a range of numbers such as `1,000-1,000,000`."""
        titles = (each.title for each, *_ in self.headings)
        names = (*self.sheets, *self.labels, *titles)
        return max(_RANGE_COMMAS, *(name.count(",") for name in names), 0)

    @cached_property
    def _by_label(self) -> dict[str, int]:
        """The number of the first page with each label."""
        found: dict[str, int] = {}
        for spelling in (str, str.casefold):
            for label, number in zip(map(spelling, self.labels), self.numbers, strict=False):
                found.setdefault(label, number)
        return found

    def labelled(self, wanted: str) -> tuple[int, int] | None:
        """The numbers of the first and the last page by their labels, such as `iv` or `iv-3`."""
        numbers = self._by_label
        wanted = wanted.strip()
        if not numbers or len(wanted) > _MAX_LABELS:
            return None
        for spelling in (wanted, wanted.casefold()):
            if spelling in numbers:
                return numbers[spelling], numbers[spelling]
            for hyphen in re.finditer("-", spelling):
                before, after = spelling[: hyphen.start()].strip(), spelling[hyphen.end() :].strip()
                first = numbers.get(before)
                last = numbers.get(after) if after else self.numbers[-1]
                if first is not None and last is not None and first <= last:
                    return first, last
        return None

    def _label(self, number: int) -> str:
        return self.labels[bisect_left(self.numbers, number)] if self.labels else f"{number:,}"

    def _name(self, first: int, last: int) -> str:
        """`5-10`, or the labels of these pages, or the name of a sheet."""
        if self.sheets and first == last:
            return self.sheets[first - 1]
        if not self.labels:
            return ranges_text([(first, last)])[0]
        return "-".join(dict.fromkeys((self._label(first), self._label(last))))


def outline_of(document: Document) -> Outline:
    """The units of a document by the marks in its text, or else its lines."""
    text = document.text
    starts, bodies, numbers, names = [0], [0], [0], [""]
    unit = ""
    for mark in marks(text, document.name):
        name = mark[2].removesuffix(_HIDDEN)
        kind = mark[1].lower()
        if kind == "sheet":
            number = numbers[-1] + 1
        elif kind == "page":
            name, own = label_of(mark)
            number = own or 0
        else:
            number = int(name) if name.isdecimal() else 0
        if kind == (unit or kind) and number > numbers[-1]:
            unit = kind
            starts.append(mark.start())
            bodies.append(mark.end())
            numbers.append(number)
            names.append(name)
    if not unit:
        starts = bodies = [0, *(match.end() for match in re.finditer("\n", text[:-1]))]
        lines = range(document.line, document.line + len(starts))
        return Outline("line", lines, starts, (), _below(document, starts, bodies, lines))
    del starts[0], bodies[0], numbers[0], names[0]
    sheets = tuple(names) if unit == "sheet" else ()
    is_labelled = unit == "page" and names != [str(number) for number in numbers]
    labels = tuple(names) if is_labelled else ()
    below = _below(document, starts, bodies, numbers)
    return Outline(unit, numbers, starts, sheets, below, labels)


def _below(
    document: Document, starts: Sequence[int], bodies: Sequence[int], numbers: Sequence[int]
) -> tuple[tuple[Heading, int, int], ...]:
    """The headings with the first and last units of what is below each, up to the next heading of
    the same or a higher level. `bodies` are the offsets of the units' texts."""
    found, text = [*headings(document.text, document.name)], document.text
    ends = [len(text)] * len(found)
    pending: list[int] = []
    for index, each in enumerate(found):
        while pending and found[pending[-1]].level >= each.level:
            ends[pending.pop()] = each.start
        pending.append(index)
    result = []
    begins: dict[int, int] = {}  # where the text of a unit begins
    for each, end in zip(found, ends, strict=True):
        first = bisect_right(starts, each.start) - 1
        last = bisect_right(starts, end) - 1
        if last not in begins:
            begin = _TEXT.search(text, bodies[last])
            begins[last] = len(text) if begin is None else begin.start()
        if end < len(text) and end <= begins[last]:
            last -= 1
        if 0 <= first <= last:
            result.append((each, numbers[first], numbers[last]))
    return tuple(result)


def excerpt(document: Document, wanted: str) -> tuple[Document, ...]:
    """A part of a document, or several, under a name that says which. Lines that do not follow each
    other become documents with the same name; pages, slides, sections and sheets stay together.
    Raises Rejected."""
    outline = outline_of(document)
    label, found = outline.find(wanted)
    text = document.text
    name = f"{_NUMBERED.sub('', document.name)}#{printable(label).replace('/', '∕')}"
    spans = outline.spans(found, len(text))
    origin = document.origin and replace(document.origin, part=wanted)
    if outline.unit != "line":
        joined = "".join(text[start:end] for start, end in spans)
        return (replace(document, name=name, text=joined, pinned=(), origin=origin),)
    lines = (document.line + text.count("\n", 0, start) for start, _ in spans)
    return tuple(
        replace(document, name=name, text=text[start:end], pinned=(), line=line, origin=origin)
        for (start, end), line in zip(spans, lines, strict=True)
    )


def _match(wanted: str, names: Sequence[str]) -> int | None:
    """The index of a name, or of the only one that starts with `wanted`. Case, spaces and a number
    before the name do not matter."""
    key = _key(wanted)
    keys = [*map(_key, names)]
    bare = [_NUMBER.sub("", each) for each in keys]
    for each in (keys, bare):
        if key in each:
            return each.index(key)
    if parse_ranges(wanted) is not None:
        return None
    starting = [n for n, each in enumerate(keys) if each.startswith(key)]
    starting = starting or [n for n, each in enumerate(bare) if each.startswith(key)]
    # `Clause 1` is `Clause 1: Fees`, not `Clause 10`.
    whole = [n for n in starting if not keys[n].partition(key)[2][:1].isalnum()]
    starting = whole or starting
    return starting[0] if len(starting) == 1 else None


def _key(name: str) -> str:
    return " ".join(name.split()).casefold()


def _listed(what: str, names: Sequence[str]) -> str:
    """`the sheets 'A', 'B' and 'C'`"""
    if len(names) == 1:
        return f"only the {what} '{printable(names[0])}'"
    shown = [f"'{printable(each)}'" for each in names[:MAX_LISTED]]
    more = len(names) - len(shown)
    last = f"{more:,} more" if more else shown.pop()
    return f"the {what}s {', '.join(shown)} and {last}"
