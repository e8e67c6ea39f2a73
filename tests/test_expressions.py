"""Regular expressions hold the interpreter's lock while they search, so each must take time in
proportion to its text, whatever the text is."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from app.estimate.guard import asks_for_every_token
from app.extras.serve.cutting import cut
from app.ingest.walk import DirListing, FolderEntry
from app.ui.completion import PathCompleter
from app.util.prose import as_markdown
from app.util.sentences import questions_in
from tests.tables import table

APP = Path(__file__).resolve().parent.parent / "app"
SHORT, LONG = 2_000, 40_000
LIMIT = 0.5
"""CPU seconds for a LONG text, at most. By the square of its length it takes a second, in
proportion to it some milliseconds."""
STEPS = ((SHORT, 0.001), (8_000, LIMIT / 5**2), (LONG, LIMIT))
"""Lengths of texts, and the CPU seconds from which on the next one is tried."""
PIECES = (
    *("a", "A", "1", " ", "\n", "\t", ".", "?", "!", "'", '"', "`", "~", "“", "«", "„", "(", "["),
    *("<", "@", "-", "_", "=", ":", "#", ",", "{", "*", "\\", "\ue000", "あ", "a ", "a\n", "a."),
    *("1.", "\n ", "```py\n", "~~~\n", "<file>", "<file ", "</file>", "name='", '\\"', "@a ", "“a"),
    *("total number ", "count ", "-----BEGIN ", "https://a", "blk.1.", "r=0 ", "[Page 1", "- 1. "),
    *("a(a", "a = ", "a: ", ".gguf.part1", "~~~x\n~~~\n", "a?"),
)
SHAPES = (
    *(("", piece, "") for piece in PIECES),
    *(("", piece, "!") for piece in (" ", "a", "1", "`", "~")),
    *((start, "a", "") for start in ('"', "“", "«", "`", "<file ", "```", "“a”“")),
)
"""What a text starts with, is made of, and ends with."""
Shape = tuple[str, str, str]
SEARCHES = ("compile", "search", "findall", "finditer", "sub", "split")
ENDS = ("", "\0", "\0\n", "\na")
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
OF_CATEGORIES = {
    codes.CATEGORY_DIGIT: "1", codes.CATEGORY_NOT_DIGIT: "a", codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_NOT_SPACE: "a", codes.CATEGORY_WORD: "a", codes.CATEGORY_NOT_WORD: "-",
}  # fmt: skip


# ------------------------------------------------------------- texts made from an expression


def shapes_of(pattern: re.Pattern[Any]) -> set[Shape]:
    """Texts on which an expression may try much: what it repeats, very often, after what it wants
    before that and before what it does not want."""
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    found = {*_pumps(parser.parse(text, pattern.flags & ~re.UNICODE & ~re.LOCALE), "")}
    alone = {("", piece) for _, piece in found}
    return {(start, piece, end) for start, piece in found | alone for end in ENDS}


def _pumps(items: Iterable[Any], before: str) -> Iterator[tuple[str, str]]:
    """Yield what may be repeated, and what stands before it."""
    repeated = ""
    for code, value in items:
        for inner in _inner(code, value):
            yield from _pumps(inner, before)
        if code in REPEATS and value[1] > 50:
            if before:
                yield "", before
            pieces = [*dict.fromkeys(filter(None, _samples(value[2])))]
            for piece in pieces:
                yield before, piece
                if repeated and repeated != piece:
                    yield before, repeated + piece
            repeated = pieces[0] if pieces else ""
        before += next(_samples([(code, value)]), "")


def _inner(code: Any, value: Any) -> Iterator[Iterable[Any]]:
    """Yield the expressions inside of one."""
    if code in REPEATS:
        yield value[2]
    elif code is codes.SUBPATTERN:
        yield value[3]
    elif code in (codes.ASSERT, codes.ASSERT_NOT):
        yield value[1]
    elif code is codes.ATOMIC_GROUP:
        yield value
    elif code is codes.BRANCH:
        yield from value[1]


def _samples(items: Iterable[Any]) -> Iterator[str]:
    """Yield short texts that match, as far as that is easy to see."""
    texts = [""]
    for code, value in items:
        some: list[str] = [""]
        if code is codes.LITERAL:
            some = [chr(value)]
        elif code is codes.NOT_LITERAL:
            some = ["b" if value == ord("a") else "a"]
        elif code is codes.ANY:
            some = ["a", " "]
        elif code is codes.IN:
            some = [*_members(value)][:3]
        elif code in REPEATS:
            inner = [*_samples(value[2])]
            some = [text * value[0] for text in inner] if value[0] else ["", *inner[:1]]
        elif code is codes.BRANCH:
            some = [text for each in value[1] for text in _samples(each)]
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            some = [*_samples(value[3] if code is codes.SUBPATTERN else value)]
        texts = [before + after for before in texts[:4] for after in some[:6]]
    yield from texts


def _members(items: Iterable[Any]) -> Iterator[str]:
    (first, *_), rest = [*items][:1], [*items]
    if first[0] is codes.NEGATE:
        excluded = {*chain.from_iterable(_of_member(*each) for each in rest[1:])}
        yield from (each for each in "a 1-\n." if each not in excluded)
        return
    for each in rest:
        yield next(iter(_of_member(*each)), "a")


def _of_member(code: Any, value: Any) -> Iterable[str]:
    if code is codes.LITERAL:
        return (chr(value),)
    if code is codes.RANGE:
        return map(chr, range(value[0], min(value[1], value[0] + 200) + 1))
    return (OF_CATEGORIES[value],) if value in OF_CATEGORIES else ("a",)


# ---------------------------------------------------------------------------- what is in app/


def compiled() -> Iterator[tuple[str, str, re.Pattern[Any]]]:
    """Each expression that a module of app/ keeps under a name, or in a list or a table."""
    for path in sorted(APP.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "re.compile" not in source or path.name == "__main__.py":
            continue
        module = import_module(".".join(path.relative_to(APP.parent).with_suffix("").parts))
        for name, value in vars(module).items():
            values = value.values() if isinstance(value, dict) else (value,)
            for each in chain.from_iterable(
                value if isinstance(value, tuple | list) else (value,) for value in values
            ):
                if isinstance(each, re.Pattern) and re.search(rf"\b{name}\b.*=", source):
                    uses = set(re.findall(rf"\b{name}\.(\w+)\(", source))
                    yield f"{path.relative_to(APP)}:{name}", _method(uses), each


def expressions() -> Iterator[tuple[str, str, re.Pattern[Any]]]:
    """Each expression in app/ that is not made of other texts: where it is, how it is used, and
    what it is."""
    for path in sorted(APP.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "re." not in source:
            continue
        nodes = list(ast.walk(ast.parse(source)))
        names = {
            node.value: node.targets[0].id
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in nodes:
            function = node.func if isinstance(node, ast.Call) else None
            if not isinstance(function, ast.Attribute) or function.attr not in SEARCHES:
                continue
            if ast.unparse(function.value) != "re":
                continue
            is_compiled = function.attr == "compile"
            given = ", ".join(map(ast.unparse, node.args if is_compiled else node.args[:1]))
            try:
                pattern = eval(f"re.compile({given})", {"re": re})
            except NameError:
                continue
            uses = set(re.findall(rf"\b{names.get(node, ' ')}\.(\w+)\(", source))
            yield f"{path.relative_to(APP)}:{node.lineno}", _method(uses), pattern


def _method(uses: set[str]) -> str:
    """How to try an expression that is used so."""
    return "findall" if not uses or uses - {"match", "fullmatch"} else min(uses)


def slow_texts(
    search: Callable[[str], object],
    shapes: Iterable[Shape] = SHAPES,
    steps: Sequence[tuple[int, float]] = STEPS,
) -> Iterator[str]:
    """What texts are made of for which it is not linear."""

    def seconds(shape: Shape, length: int) -> float:
        start, piece, end = shape
        text = start + piece * (length // len(piece)) + end
        started = time.thread_time()
        search(text)
        return time.thread_time() - started

    for shape in shapes:
        if all(seconds(shape, length) > limit for length, limit in steps):
            yield "".join(shape)


def slow_texts_of(
    pattern: re.Pattern[Any], method: str, shapes: Iterable[Shape], *steps: Any
) -> Iterator[str]:
    def search(text: str) -> object:
        given = text.encode() if isinstance(pattern.pattern, bytes) else text
        return getattr(pattern, method)(given)

    return slow_texts(search, shapes, *steps)


def test_every_expression_is_linear() -> None:
    found = {each[2]: each for each in (*expressions(), *compiled())}
    assert len(found) > 200, len(found)
    slow = {
        place: texts
        for place, method, pattern in found.values()
        if (texts := [*slow_texts_of(pattern, method, {*SHAPES, *shapes_of(pattern)})])
    }
    assert not slow


SLOW = (
    *(
        r"^ {0,3}(#{1,6}) +(\S.*?)(?: +#+)? *$",
        r"\s+$",
        r"<!--.*?-->",
        r"(?:a|b)*c",
        r"x*y",
        r"(\w+)=;",
    ),
    *(r"[a-z]+@[a-z]+", r"(?:ab)+z", r"¶[^§]*§"),
)


@pytest.mark.parametrize("source", SLOW)
def test_an_expression_that_is_not_linear_is_found(source: str) -> None:
    pattern = re.compile(source, re.MULTILINE)
    assert next(slow_texts_of(pattern, "findall", shapes_of(pattern), STEPS[:2]), None)


def complete(text: str) -> None:
    listing = DirListing((FolderEntry(text[:250], False),))
    PathCompleter("/").completions(text[:30] + "~", listing)


@table("function", [cut, asks_for_every_token, questions_in, as_markdown, complete])
def test_what_searches_texts_is_linear(function: Callable[[Any], object]) -> None:
    assert not list(slow_texts(lambda text: function([text] if function is cut else text)))
