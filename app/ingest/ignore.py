"""Applies nested .gitignore files, like git, where git itself is not available.

The rules are not trusted: pathspec converts them to regular expressions, and a rule with many
wildcards can take years. Such rules are not applied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from pathspec import GitIgnoreSpec, RegexPattern

from app.ingest.limits import ReadBudget
from app.ingest.records import Rejected, SkipReason
from app.ingest.safe_open import open_folder, read_file

NAME = ".gitignore"
_MAX_BYTES = 128 * 1024
_MAX_RULES = 1_000
_MAX_WILDCARDS = 3
"""Maximum wildcards in a rule. The cost of a rule is the name's length to the power of this."""
_MAX_COSTLY_RULES = 50
"""Maximum rules with _MAX_WILDCARDS wildcards in a file."""
_FOLDER_MARK = "ps_d"
"""pathspec's name for the group that matches the slash after a folder's name."""
_WILDCARD = re.compile(r"\*+")


class IgnoreRules:
    """Rules about ignored files. This base class ignores none."""

    def in_folder(self, folder: int, path: str) -> IgnoreRules:
        """The rules for a folder. `folder` is its descriptor, `path` its path from the top, which
        ends with '/' (empty for the top)."""
        return self

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether an entry of the folder is ignored. `path` is its path from the top, without '/'
        at the end."""
        return False


class IgnoreFiles(IgnoreRules):
    """Rules from the .gitignore files of the current folder and its parents."""

    def __init__(self, budget: ReadBudget, report: Callable[[str, Rejected], None]) -> None:
        """`report` is called with the path of each .gitignore file that was not fully applied."""
        self._budget = budget
        self._report = report
        # Innermost first: prefix to add to a path, prefix to remove from it, and rules.
        self._chain: tuple[tuple[str, str, RuleFile], ...] = ()

    def in_folder(self, folder: int, path: str) -> IgnoreRules:
        spec = self._read(folder, path + NAME)
        return self if spec is None else self._with(("", path, spec))

    def with_parents(self, top: Path, folder: Path) -> IgnoreFiles:
        """A copy with the rules of all folders from `top` to the parent of `folder`. Without them
        if they ignore `folder` itself, because the user named it."""
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
        rules = IgnoreFiles(self._budget, self._report)
        rules._chain = (link, *self._chain)
        return rules

    def _read(self, folder: int, path: str) -> RuleFile | None:
        try:
            data = read_file(NAME, folder, lambda head: _MAX_BYTES, self._budget)
        except Rejected as rejected:
            # git does not use a link or FIFO of that name either. The walk lists it.
            if rejected.reason is SkipReason.TOO_LARGE:
                self._report(path, Rejected(SkipReason.RULES, rejected.detail))
            return None
        spec, whole = parse(data, self._budget)
        if not whole:
            self._report(path, Rejected(SkipReason.RULES))
        return spec

    def ignores(self, path: str, is_folder: bool) -> bool:
        for prefix, removed, spec in self._chain:
            decided = spec.match(prefix + path[len(removed) :], is_folder)
            if decided is not None:
                return decided
        return False


class RuleFile:
    """The rules of a .gitignore file.

    pathspec parses the rules, but they are matched one by one here: pathspec's match of a whole
    file applies rules for a folder to everything inside, so that `!*/` includes too much. Since
    ignored folders are never entered, each rule only needs to match the path itself.
    """

    def __init__(self, lines: Iterable[str], budget: ReadBudget | None = None) -> None:
        self._budget = budget
        self._last_first = [
            (pattern.regex, bool(pattern.include))
            for pattern in reversed(list(_spec(list(lines)).patterns))
            if isinstance(pattern, RegexPattern) and pattern.regex is not None
        ]

    def match(self, path: str, is_folder: bool) -> bool | None:
        """Whether the last rule that matches `path` ignores it; None if no rule matches."""
        for regex, ignores in self._last_first:
            if self._budget is not None:
                self._budget.check()
            if _matches(regex, path, is_folder):
                return ignores
        return None


def _matches(regex: re.Pattern[str], path: str, is_folder: bool) -> bool:
    has_mark = _FOLDER_MARK in regex.groupindex
    match = regex.search(path)
    if match is not None and not (has_mark and match[_FOLDER_MARK]):
        return True
    if not (is_folder and has_mark):
        return False
    # Some expressions are anchored at the start, and some match a slash anywhere.
    found = (regex.search(path + "/", start) for start in (0, len(path)))
    return any(match is not None and match.end(_FOLDER_MARK) > len(path) for match in found)


def parse(data: bytes, budget: ReadBudget | None = None) -> tuple[RuleFile, bool]:
    """Parse a .gitignore file. Returns the rules, and whether all of them are applied."""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    usable = list(_bounded(lines))[:_MAX_RULES]
    return RuleFile(usable, budget), len(usable) == len(lines)


def _bounded(lines: Iterable[str]) -> Iterable[str]:
    costly = 0
    for line in lines:
        wildcards = len(_WILDCARD.findall(line))
        costly += wildcards == _MAX_WILDCARDS
        if wildcards < _MAX_WILDCARDS or (
            wildcards == _MAX_WILDCARDS and costly <= _MAX_COSTLY_RULES
        ):
            yield line


def _spec(lines: list[str]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines)
    except (ValueError, re.error):
        return GitIgnoreSpec.from_lines([line for line in lines if _is_valid(line)])


def _is_valid(line: str) -> bool:
    """Whether a rule is valid. Like git, invalid rules are silently ignored."""
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True
