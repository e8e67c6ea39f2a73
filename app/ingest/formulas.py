"""Formulas in one line of text: `(a+b)/2`, `x^2`, `√(x+1)`.

Of Office documents (Office Math), of web pages, books and OpenDocument (MathML), and of Word's
older fields (EQ).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from xml.etree.ElementTree import Element

from app.ingest.elements import attribute, child, name_of
from app.ingest.markdown import ruby

_SINGLE = re.compile(r"[^\W_]+(?:[.,][^\W_]+)*|.", re.DOTALL)
_INVISIBLE = dict.fromkeys(range(0x2061, 0x2065))
_SKIPPED = ("annotation", "annotation-xml", "mphantom", "ctrlPr", "rPr", "argPr", "none")
_LARGE = tuple("∑∏∐∫∬∭∮⋃⋂⨁⨂")
"""Signs of which the formula behind them is no part."""
_DEPTH = 60
"""Formulas that are nested deeper are cut."""


def linear(element: Element, depth: int = 0) -> str:
    """The text of a formula, or of a part of it."""
    name = name_of(element)
    if name in _SKIPPED or name.endswith("Pr") or depth > _DEPTH:
        return ""
    if name in ("t", "mi", "mn", "mo", "mtext", "ms"):
        return "".join(element.itertext()).strip("\n").translate(_INVISIBLE)
    if name == "mspace":
        return " "
    if name == "semantics":
        return "".join(linear(each, depth + 1) for each in islice(element, 1))
    if name in _OFFICE:
        return _OFFICE[name](element, _Named(element, depth))
    parts = [linear(each, depth + 1) for each in element if name_of(each) not in _SKIPPED]
    if name in _MATHML and parts:
        return _MATHML[name](element, parts + [""] * 3)
    if name == "mtable":
        return f"[{'; '.join(parts)}]"
    if name == "mtr":
        return ", ".join(parts)
    return "".join(parts)


class _Named:
    """The parts of an Office formula by their names."""

    def __init__(self, element: Element, depth: int) -> None:
        self._element, self._depth = element, depth

    def __call__(self, name: str) -> str:
        found = child(self._element, name)
        return "" if found is None else linear(found, self._depth + 1)

    def each(self, name: str) -> list[str]:
        found = self._element.findall(f"{{*}}{name}")
        return [linear(part, self._depth + 1) for part in found]

    def property(self, name: str, default: str) -> str:
        """A value in the properties of this element. Empty values hide a sign."""
        found = child(self._element, f"{name_of(self._element)}Pr", name)
        return default if found is None else attribute(found, "val", default)


def _group(text: str) -> str:
    """In brackets, unless it is a single number, word or sign, or has brackets."""
    text = text.strip()
    if not text or _SINGLE.fullmatch(text) or _is_bracketed(text):
        return text
    return f"({text})"


def _is_bracketed(text: str) -> bool:
    depth = 0
    for at, each in enumerate(text):
        depth += (each in "([{") - (each in ")]}")
        if depth == 0 and at < len(text) - 1:
            return False
    return len(text) > 1 and depth == 0


def _fraction(above: str, below: str, bar: bool = True) -> str:
    return f"{_group(above)}/{_group(below)}" if bar else f"({above} choose {below})"


def _scripts(base: str, below: str = "", above: str = "") -> str:
    base = _group(base) if below or above else base
    lowered = f"_{_group(below)}" if below.strip() else ""
    shown = base + lowered + (f"^{_group(above)}" if above.strip() else "")
    return f"{shown} " if base in _LARGE else shown


def _root(inside: str, degree: str = "") -> str:
    sign = {"3": "∛", "4": "∜"}.get(degree.strip(), f"{degree.strip()}√")
    grouped = _group(inside)
    return sign + (grouped if grouped.startswith("(") else f"({grouped})")


def _accented(base: str, sign: str) -> str:
    sign = sign.strip()
    combining = len(base.strip()) == 1 and sign and 0x300 <= ord(sign[0]) < 0x370
    return base.strip() + sign if combining else base


def _nary(sign: str, below: str, above: str, inside: str) -> str:
    return f"{_scripts(sign, below, above).strip()} {inside}"


def _matrix(rows: Sequence[Sequence[str]]) -> str:
    return f"[{'; '.join(', '.join(row) for row in rows)}]"


def _bracketed(parts: _Named) -> str:
    begin, end = parts.property("begChr", "("), parts.property("endChr", ")")
    return begin + parts.property("sepChr", "|").join(parts.each("e")) + end


_OFFICE: dict[str, Callable[[Element, _Named], str]] = {
    "f": lambda _, part: _fraction(
        part("num"), part("den"), bar=part.property("type", "bar") != "noBar"
    ),
    "sSup": lambda _, part: _scripts(part("e"), above=part("sup")),
    "sSub": lambda _, part: _scripts(part("e"), below=part("sub")),
    "sSubSup": lambda _, part: _scripts(part("e"), part("sub"), part("sup")),
    "sPre": lambda _, part: _scripts("", part("sub"), part("sup")) + part("e"),
    "rad": lambda _, part: _root(part("e"), part("deg")),
    "nary": lambda _, part: _nary(part.property("chr", "∫"), part("sub"), part("sup"), part("e")),
    "d": lambda _, part: _bracketed(part),
    "func": lambda _, part: f"{part('fName')} {part('e')}",
    "limLow": lambda _, part: _scripts(part("e"), below=part("lim")),
    "limUpp": lambda _, part: _scripts(part("e"), above=part("lim")),
    "acc": lambda _, part: _accented(part("e"), part.property("chr", "\u0302")),
    "eqArr": lambda _, part: "; ".join(part.each("e")),
    "m": lambda element, _: _matrix(
        [[linear(cell) for cell in row.findall("{*}e")] for row in element.findall("{*}mr")]
    ),
}
_MATHML: dict[str, Callable[[Element, Sequence[str]], str]] = {
    "mfrac": lambda element, part: _fraction(
        part[0], part[1], bar=element.get("linethickness", "1").strip("0pxemt.") != ""
    ),
    "msup": lambda _, part: _scripts(part[0], above=part[1]),
    "msub": lambda _, part: _scripts(part[0], below=part[1]),
    "msubsup": lambda _, part: _scripts(part[0], part[1], part[2]),
    "munder": lambda _, part: _scripts(part[0], below=part[1]),
    "mover": lambda _, part: (
        _accented(part[0], part[1])
        if len(part[1].strip()) == 1 and not part[1].strip().isalnum()
        else _scripts(part[0], above=part[1])
    ),
    "munderover": lambda _, part: _scripts(part[0], part[1], part[2]),
    "msqrt": lambda _, part: _root("".join(part)),
    "mroot": lambda _, part: _root(part[0], part[1]),
    "mfenced": lambda element, part: (
        element.get("open", "(") + ", ".join(part[:-3]) + element.get("close", ")")
    ),
}


_COMMAND = re.compile(r"\\[A-Za-z*]+(?:\d+)?")
_OPTION = re.compile(r"\s*\\[A-Za-z*]+\d*\s*")
_OPENING = re.compile(r"\s*\(")
_READING = re.compile(r"\\s\s*\\up[\s\d]*\(([^()]*)\)\s*[,;]([^()]*)\)\s*$")


def field_formula(code: str) -> str:
    """The text of Word's field EQ, such as `EQ \\f(1,2)`, or of the words with readings that older
    programs write with it."""
    code = code.strip().removeprefix("EQ").removeprefix("eq").strip()
    readings = _READING.search(code)
    if readings:
        return ruby(readings[2].lstrip(), readings[1])
    return " ".join(_field_part(code, 0)[0].split())


def _field_part(code: str, at: int, depth: int = 0) -> tuple[str, int]:
    """The text from an index up to a closing bracket or comma, and where that is."""
    pieces = []
    while at < len(code) and code[at] not in ",;)":
        command = _COMMAND.match(code, at)
        if command is None:
            pieces.append(code[at])
            at += 1
            continue
        kind, at = command[0][1:2].lower(), command.end()
        while (more := _OPTION.match(code, at)) is not None:
            at = more.end()
        arguments = []
        opened = _OPENING.match(code, at)
        if opened is not None and depth < _DEPTH:
            at = opened.end() - 1
            while at < len(code) and code[at] != ")":
                argument, at = _field_part(code, at + 1, depth + 1)
                arguments.append(argument.strip())
            at += 1
        first, second = [*arguments, "", ""][:2]
        if kind == "f":
            pieces.append(_fraction(first, second))
        elif kind == "r":
            pieces.append(_root(second or first, first if second else ""))
        elif kind == "b":
            pieces.append(f"({first})")
        else:
            pieces.append(", ".join(filter(None, arguments)))
    return "".join(pieces), at
