"""From what is typed after `@` to the files and folders that it may mean. No widgets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.ingest.dir_listing import DirListing, Entry

MAX_ENTRIES = 2_000
"""Of a folder that are looked at."""
MAX_SECONDS = 2.0
MAX_SHOWN = 200

_AT_THE_CURSOR = re.compile(r"(?:^|(?<=\s))@((?:\\.|[^\s\\])*)$")
_ESCAPED = re.compile(r"\\(.)")
_TO_ESCAPE = re.compile(r"([\s\\])")


@dataclass(frozen=True, slots=True)
class PathCompletion:
    """`typed` is what stands for it in the box, after the `@`; `note` says a word about it."""

    path: str
    typed: str
    name: str
    is_folder: bool
    note: str = ""


def word_before(line: str) -> str | None:
    """What is typed after an `@` that begins a word, up to the end of `line`; a space in it is
    written behind a backslash. None when there is no such word."""
    found = _AT_THE_CURSOR.search(line)
    return None if found is None else found[1]


def start_folder() -> str:
    """The one that the app was started in."""
    try:
        return os.getcwd()
    except OSError:  # deleted meanwhile
        return str(Path.home())


class PathCompleter:
    """Names are looked for in one folder, the one that is being typed."""

    def __init__(self, start: str) -> None:
        self._start = start

    def folder(self, word: str) -> str:
        """Where the names lie that `word` may go on to."""
        return self._absolute(_split(word)[0])

    def completions(self, word: str, listing: DirListing) -> list[PathCompletion]:
        """The best ones first: what begins with what is typed, what holds it, what has its letters
        in order; and what reading the folder would leave out behind the others."""
        if _ESCAPED.sub(r"\1", word) == "~":
            return [self._choice("", "~", True, "home")]
        before, needle = _split(word)
        found = [self._choice(before, name, True, note) for name, note in _places(before, needle)]
        ranked = sorted(_ranked(listing.entries, needle), key=lambda each: each[0])
        found += [
            self._choice(before, entry.name, entry.is_folder, entry.skip_reason)
            for _, entry in ranked[:MAX_SHOWN]
        ]
        return found

    def _choice(self, before: str, name: str, is_folder: bool, note: str) -> PathCompletion:
        typed = _escaped(before + name) + "/" * (is_folder and bool(name))
        return PathCompletion(self._absolute(before + name), typed, name or ".", is_folder, note)

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._start, os.path.expanduser(path)))


def _split(word: str) -> tuple[str, str]:
    """The folder, which ends with '/' or is empty, and the beginning of a name in it."""
    folder, slash, name = _ESCAPED.sub(r"\1", word).rpartition("/")
    return folder + slash, name


def _escaped(path: str) -> str:
    return _TO_ESCAPE.sub(r"\\\1", path)


def _places(before: str, needle: str) -> Iterator[tuple[str, str]]:
    """The folder itself, once it is named, and the one above."""
    if before and not needle:
        yield "", "this folder"
    if needle == ".":
        yield ".", "this folder"
    if needle in (".", ".."):
        yield "..", "the folder above"


def _ranked(
    entries: Iterable[Entry], needle: str
) -> Iterator[tuple[tuple[bool, int, int, str], Entry]]:
    low = needle.lower()
    letters = re.compile(".*?".join(map(re.escape, low)), re.DOTALL)
    for entry in entries:
        if entry.name.startswith(".") is not needle.startswith("."):
            continue
        name = entry.name.lower()
        place = name.find(low)
        if place < 0 and letters.search(name) is None:
            continue
        kind = 2 if place < 0 else min(place, 1)
        yield (bool(entry.skip_reason), kind, len(name) if needle else 0, name), entry
