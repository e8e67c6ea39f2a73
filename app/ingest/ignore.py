"""The rules of .gitignore files, nested as git nests them. Used where git itself cannot be asked.

The rules may be hostile: pathspec makes regular expressions of them, and one with many wildcards
takes years. Such rules are not used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from pathspec import GitIgnoreSpec, RegexPattern

from app.ingest.budget import ReadBudget
from app.ingest.records import Reason, Rejected
from app.ingest.safe_open import open_folder, read_file

NAME = ".gitignore"
_MOST_BYTES = 128 * 1024
_MOST_RULES = 1_000
_MOST_WILDCARDS = 3
"""In one rule. Each may cost as many steps as a name has characters, times those of the others."""
_MANY_WILDCARDS = 50
"""Rules with the most wildcards in one file."""
_FOLDER_MARK = "ps_d"
"""pathspec's name for the slash that ends a folder's name, where a rule means the folder."""
_WILDCARD = re.compile(r"\*+")


class IgnoreRules(Protocol):
    """What is left out of a folder."""

    def in_folder(self, folder: int, path: str) -> IgnoreRules:
        """The rules inside a folder: its descriptor, and its path from the top (ending with '/',
        empty for the top itself)."""

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether something in that folder is left out. `path` as above, without a last '/'."""


class NoIgnore:
    """Nothing is left out."""

    def in_folder(self, folder: int, path: str) -> IgnoreRules:
        return self

    def ignores(self, path: str, is_folder: bool) -> bool:
        return False


class IgnoreFiles:
    """The rules of the folder we are in, and of those above it."""

    def __init__(self, watch: ReadBudget, report: Callable[[str, Rejected], None]) -> None:
        """`report` is called with the path of a .gitignore file that was not used wholly."""
        self._watch = watch
        self._report = report
        # The innermost first: what it prefixes to a path, what it takes off it, its rules.
        self._chain: tuple[tuple[str, str, RuleFile], ...] = ()

    def in_folder(self, folder: int, path: str) -> IgnoreRules:
        spec = self._read(folder, path + NAME)
        return self if spec is None else self._with(("", path, spec))

    def with_parents(self, top: Path, folder: Path) -> IgnoreFiles:
        """With the rules that lie above `folder`, down from `top`; without them if they leave out
        the folder itself, which was asked for."""
        names = folder.relative_to(top).parts
        rules = self
        for depth in range(len(names)):
            try:
                descriptor = open_folder(str(top.joinpath(*names[:depth])))
            except Rejected:
                return self
            try:
                spec = self._read(descriptor, NAME)
            finally:
                os.close(descriptor)
            if spec is None:
                continue
            below = names[depth:]
            if any(spec.match("/".join(below[: n + 1]), True) for n in range(len(below))):
                return self
            rules = rules._with(("/".join([*below, ""]), "", spec))
        return rules

    def _with(self, link: tuple[str, str, RuleFile]) -> IgnoreFiles:
        rules = IgnoreFiles(self._watch, self._report)
        rules._chain = (link, *self._chain)
        return rules

    def _read(self, folder: int, path: str) -> RuleFile | None:
        try:
            data = read_file(NAME, folder, lambda head: _MOST_BYTES, self._watch)
        except Rejected as refused:
            # A link or a FIFO of that name is no rule file for git either, and is listed itself.
            if refused.reason is Reason.TOO_LARGE:
                self._report(path, Rejected(Reason.RULES, refused.detail))
            return None
        spec, whole = parse(data, self._watch)
        if not whole:
            self._report(path, Rejected(Reason.RULES))
        return spec

    def ignores(self, path: str, is_folder: bool) -> bool:
        for prefix, taken_off, spec in self._chain:
            decided = spec.match(prefix + path[len(taken_off) :], is_folder)
            if decided is not None:
                return decided
        return False


class RuleFile:
    """The rules of one .gitignore file.

    pathspec reads the rules, but we ask one after the other: its own answer for a whole file takes
    what is said of a folder for what is said of everything in it, so that `!*/` brings too much
    back. A folder that is left out is never entered here, so that each rule need only be asked
    whether it means the very path.
    """

    def __init__(self, lines: Iterable[str], watch: ReadBudget | None = None) -> None:
        self._watch = watch
        self._last_first = [
            (pattern.regex, bool(pattern.include))
            for pattern in reversed(list(_spec(list(lines)).patterns))
            if isinstance(pattern, RegexPattern) and pattern.regex is not None
        ]

    def match(self, path: str, is_folder: bool) -> bool | None:
        """Whether the last rule that means this path leaves it out; None if there is none."""
        for regex, leaves_out in self._last_first:
            if self._watch is not None:
                self._watch.check()
            if _means(regex, path, is_folder):
                return leaves_out
        return None


def _means(regex: re.Pattern[str], path: str, is_folder: bool) -> bool:
    has_mark = _FOLDER_MARK in regex.groupindex
    match = regex.search(path)
    if match is not None and not (has_mark and match[_FOLDER_MARK]):
        return True
    if not (is_folder and has_mark):
        return False
    # Some expressions begin at the beginning, and some are a slash anywhere.
    found = (regex.search(path + "/", start) for start in (0, len(path)))
    return any(match is not None and match.end(_FOLDER_MARK) > len(path) for match in found)


def parse(data: bytes, watch: ReadBudget | None = None) -> tuple[RuleFile, bool]:
    """The rules of a .gitignore file, and whether they are all that it holds."""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    usable = list(_bounded(lines))[:_MOST_RULES]
    return RuleFile(usable, watch), len(usable) == len(lines)


def _bounded(lines: Iterable[str]) -> Iterable[str]:
    many = 0
    for line in lines:
        wildcards = len(_WILDCARD.findall(line))
        many += wildcards == _MOST_WILDCARDS
        if wildcards < _MOST_WILDCARDS or (
            wildcards == _MOST_WILDCARDS and many <= _MANY_WILDCARDS
        ):
            yield line


def _spec(lines: list[str]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines)
    except (ValueError, re.error):
        return GitIgnoreSpec.from_lines([line for line in lines if _is_valid(line)])


def _is_valid(line: str) -> bool:
    """git passes over what is no rule without a word."""
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True
