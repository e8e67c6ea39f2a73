"""Regular expressions hold the interpreter's lock while they search, so each must take time in
proportion to its text, whatever the text is."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.estimate.guard import asks_for_every_token
from app.ingest.walk import DirListing, FolderEntry
from app.serve.cutting import cut
from app.ui.completion import PathCompleter
from app.util.prose import as_markdown
from app.util.sentences import questions_in
from tests.tables import table

APP = Path(__file__).resolve().parent.parent / "app"
SHORT, LONG = 2_000, 40_000
LIMIT = 0.5
"""CPU seconds for a LONG text, at most. By the square of its length it takes a second, in
proportion to it some milliseconds."""
SUSPICIOUS = ((SHORT, 0.001), (8_000, LIMIT / 5**2))
"""Lengths of shorter texts, and the CPU seconds from which on a longer one is tried."""
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
    ("# a", " ", "a"),
    *((start, "a", "") for start in ('"', "“", "«", "`", "<file ", "```", "“a”“")),
)
"""What a text starts with, is made of, and ends with."""
SEARCHES = ("compile", "search", "findall", "finditer", "sub", "split")


def expressions() -> Iterator[tuple[str, bool, re.Pattern[Any]]]:
    """Each expression in app/ that is not made of other texts: where it is, whether it is only
    tried at one place of a text, and what it is."""
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
            anchored = bool(uses) and uses <= {"match", "fullmatch"}
            yield f"{path.relative_to(APP)}:{node.lineno}", anchored, pattern


def slow_texts(search: Callable[[str], object]) -> Iterator[str]:
    """What texts are made of for which it is not linear."""

    def seconds(shape: tuple[str, str, str], length: int) -> float:
        start, piece, end = shape
        text = start + piece * (length // len(piece)) + end
        started = time.thread_time()
        search(text)
        return time.thread_time() - started

    for shape in SHAPES:
        if all(seconds(shape, length) > limit for length, limit in (*SUSPICIOUS, (LONG, LIMIT))):
            yield "".join(shape)


def test_every_expression_is_linear() -> None:
    found, slow = list(expressions()), {}
    assert len(found) > 40
    for place, anchored, pattern in found:

        def search(text: str, anchored: bool = anchored, pattern: Any = pattern) -> object:
            given = text.encode() if isinstance(pattern.pattern, bytes) else text
            return pattern.fullmatch(given) if anchored else pattern.findall(given)

        if texts := list(slow_texts(search)):
            slow[place] = texts
    assert not slow


def complete(text: str) -> None:
    listing = DirListing((FolderEntry(text[:250], False),))
    PathCompleter("/").completions(text[:30] + "~", listing)


@table("function", [cut, asks_for_every_token, questions_in, as_markdown, complete])
def test_what_searches_texts_is_linear(function: Callable[[Any], object]) -> None:
    assert not list(slow_texts(lambda text: function([text] if function is cut else text)))
