"""Completes the text after `@` to files and folders. No widgets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.ingest.walk import DirListing, FolderEntry

MAX_ENTRIES = 2_000
"""Names that are read in a folder."""
MAX_SECONDS = 2.0
MAX_SHOWN = 200

_AT_THE_CURSOR = re.compile(r"(?:^|(?<=\s))@((?:\\.|[^\s\\])*)$")
_WORDS = re.compile(r"(?:^|(?<=\s))@((?:\\.|[^\s\\])+)")
_LIKE_A_PATH = re.compile(r"~|.*/|.*\.\w{1,8}$", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)")
_AFTER_A_PATH = ".,;:!?)"
_TO_ESCAPE = re.compile(r"([\s\\])")


@dataclass(frozen=True, slots=True)
class PathCompletion:
    """`typed` is what stands for it in the box, after the `@`; `note` is a short remark."""

    path: str
    typed: str
    name: str
    is_folder: bool
    note: str = ""


def word_before(line: str) -> str | None:
    """What follows an `@` at the start of a word, up to the end of `line`; spaces in it are escaped
    with a backslash. None if there is no such word."""
    found = _AT_THE_CURSOR.search(line)
    return None if found is None else found[1]


def start_folder() -> str:
    """The working directory."""
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return str(Path.home())


class PathCompleter:
    """Completes names in the folder that is being typed."""

    def __init__(self, start: str) -> None:
        self._start = start

    def folder(self, word: str) -> str:
        """The folder whose names can complete `word`."""
        return self._absolute(_split(word)[0])

    def take_named(self, text: str, strict: bool) -> tuple[str, list[str]]:
        """A question without the files and folders that stand after an `@` (within a sentence
        their names stay), and the paths of these. Waits for the disk. If `strict`, raises
        IngestError for what does not exist and can hardly be anything but a path: it has a slash
        or an ending."""
        from app.ingest.reader import file_mode  # slow to import

        found: list[str] = []
        rest, at = "", 0
        for match in _WORDS.finditer(text):
            word = match[1].rstrip(_AFTER_A_PATH)
            path = _ESCAPED.sub(r"\1", word)
            absolute = self._absolute(path)
            if not os.path.lexists(absolute):
                if strict and _LIKE_A_PATH.match(path):
                    file_mode(path)
                continue
            found.append(absolute)
            rest += text[at : match.start()]
            at = match.start() + 1 + len(word)
            is_last = not text[at:].strip(_AFTER_A_PATH).strip()
            if rest.strip() and not (is_last and rest.rstrip().endswith((".", "?", "!", ":"))):
                rest += os.path.basename(absolute)
        return (rest + text[at:]).strip(), found

    def completions(self, word: str, listing: DirListing) -> list[PathCompletion]:
        """Best first: names that start with the typed text, contain it, or have its letters in this
        order. Names that attaching the folder would skip come last."""
        if _ESCAPED.sub(r"\1", word) == "~":
            return [self._choice("", "~", True, "home")]
        before, needle = _split(word)
        found = [
            self._choice(before, name, True, note) for name, note in _folders_nearby(before, needle)
        ]
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
    """The folder, which ends with '/' or is empty, and the start of a name in it."""
    folder, slash, name = _ESCAPED.sub(r"\1", word).rpartition("/")
    return folder + slash, name


def typed_path(path: str) -> str:
    """What stands for a path in the compose box, with the `@`."""
    return "@" + _escaped(path)


def _escaped(path: str) -> str:
    return _TO_ESCAPE.sub(r"\\\1", path)


def _folders_nearby(before: str, needle: str) -> Iterator[tuple[str, str]]:
    """The folder itself and its parent."""
    if before and not needle:
        yield "", "this folder"
    if needle == ".":
        yield ".", "this folder"
    if needle in (".", ".."):
        yield "..", "parent folder"


def _ranked(
    entries: Iterable[FolderEntry], needle: str
) -> Iterator[tuple[tuple[bool, int, int, str], FolderEntry]]:
    low = needle.lower()
    for entry in entries:
        if entry.name.startswith(".") is not needle.startswith("."):
            continue
        name = entry.name.lower()
        index = name.find(low)
        letters = iter(name)
        if index < 0 and not all(letter in letters for letter in low):
            continue
        kind = 2 if index < 0 else min(index, 1)
        yield (bool(entry.skip_reason), kind, len(name) if needle else 0, name), entry
