"""Applies nested .gitignore files like git, where git itself is not available, and the attribute
`linguist-generated` of .gitattributes files.

The rules are not trusted. Each becomes a regular expression that never goes back to an earlier
wildcard, so its time grows only in proportion to the lengths of the rule and the path.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from app.ingest.limits import ReadBudget
from app.ingest.records import Rejected, SkipReason
from app.ingest.safe_open import open_folder, read_file

IGNORED, ATTRIBUTES = ".gitignore", ".gitattributes"
_MAX_BYTES = 128 * 1024
_MAX_RULES = 1_000
_MAX_RULE = 1_000
"""Maximum bytes of a rule."""
_GENERATED = {
    b"linguist-generated": True,
    b"linguist-generated=true": True,
    b"linguist-generated=1": True,
    b"-linguist-generated": False,
    b"linguist-generated=false": False,
    b"linguist-generated=0": False,
}
_DIGITS, _LETTERS = string.digits.encode(), string.ascii_letters.encode()
_CLASSES = {
    b"alnum": _DIGITS + _LETTERS,
    b"alpha": _LETTERS,
    b"blank": b" \t",
    b"cntrl": bytes([*range(0x20), 0x7F]),
    b"digit": _DIGITS,
    b"graph": bytes(range(0x21, 0x7F)),
    b"lower": string.ascii_lowercase.encode(),
    b"print": bytes(range(0x20, 0x7F)),
    b"punct": string.punctuation.encode(),
    b"space": string.whitespace.encode(),
    b"upper": string.ascii_uppercase.encode(),
    b"xdigit": string.hexdigits.encode(),
}
_NAMED = re.compile(rb"\[:([^\]]*):\]")
_ATTRIBUTES = re.compile(rb'[ \t]*(?:"((?:[^"\\]|\\.)*+)"|([^\s"]\S*))[ \t]([^\n]*)')
"""A quoted pattern, or a bare one, and attributes."""

Rule = tuple[re.Pattern[bytes], bool, bool]
"""What a path must match, whether it must be a folder's, and the answer for it."""


class IgnoreRules:
    """Rules about files. This base class has none."""

    def in_folder(self, folder: int, path: str) -> IgnoreRules:
        """The rules for a folder. `folder` is its descriptor, `path` its path from the top, which
        ends with '/' (empty for the top)."""
        return self

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether an entry of the folder is ignored. `path` is its path from the top, without '/'
        at the end."""
        return False


class RuleFiles(IgnoreRules):
    """Rules from the .gitignore or .gitattributes files of the current folder and its parents."""

    def __init__(
        self,
        budget: ReadBudget,
        report: Callable[[str, Rejected], None],
        name: str = IGNORED,
    ) -> None:
        """`report` is called with the path of each file `name` that was not fully applied."""
        self._budget = budget
        self._report = report
        self._name = name
        # Innermost first: prefix to add to a path, prefix to remove from it, and rules.
        self._chain: tuple[tuple[str, str, RuleFile], ...] = ()

    def in_folder(self, folder: int, path: str) -> RuleFiles:
        spec = self._read(folder, path + self._name)
        return self if spec is None else self._with(("", path, spec))

    def with_parents(self, top: Path, folder: Path) -> RuleFiles:
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
                spec = self._read(descriptor, self._name)
            finally:
                os.close(descriptor)
            if spec is None:
                continue
            below = names[depth:]
            if any(spec.match("/".join(below[: n + 1]), True) for n in range(len(below))):
                return self
            rules = rules._with(("/".join([*below, ""]), "", spec))
        return rules

    def _with(self, link: tuple[str, str, RuleFile]) -> RuleFiles:
        rules = RuleFiles(self._budget, self._report, self._name)
        rules._chain = (link, *self._chain)
        return rules

    def _read(self, folder: int, path: str) -> RuleFile | None:
        try:
            data = read_file(self._name, folder, lambda head: _MAX_BYTES, self._budget)
        except Rejected as rejected:
            # git does not use a link or FIFO of that name either. The walk lists it.
            if rejected.reason is SkipReason.TOO_LARGE:
                self._report(path, Rejected(SkipReason.RULES, rejected.detail))
            return None
        rules, whole = (parse if self._name == IGNORED else parse_attributes)(data, self._budget)
        if not whole:
            self._report(path, Rejected(SkipReason.RULES))
        return rules

    def decide(self, path: str, is_folder: bool) -> bool | None:
        """What the innermost rule says that matches; None if none does."""
        for prefix, removed, spec in self._chain:
            decided = spec.match(prefix + path[len(removed) :], is_folder)
            if decided is not None:
                return decided
        return None

    def ignores(self, path: str, is_folder: bool) -> bool:
        return self.decide(path, is_folder) or False


class RuleFile:
    """The rules of a file, which are matched one by one: ignored folders are never entered, so each
    rule only needs to match the path itself."""

    def __init__(self, rules: Iterable[Rule], budget: ReadBudget | None = None) -> None:
        self._budget = budget
        self._last_first = [*rules][::-1]

    def match(self, path: str, is_folder: bool) -> bool | None:
        """What the last rule says that matches `path`; None if none does."""
        data = os.fsencode(path)
        for pattern, only_folders, answer in self._last_first:
            if self._budget is not None:
                self._budget.check()
            if (is_folder or not only_folders) and pattern.match(data) is not None:
                return answer
        return None


def parse(data: bytes, budget: ReadBudget | None = None) -> tuple[RuleFile, bool]:
    """Parse a .gitignore file. Returns the rules, and whether all of them are applied."""
    found = []
    for line in _lines(data):
        line = _trimmed(line.removesuffix(b"\r"))
        found.append((line.removeprefix(b"!"), not line.startswith(b"!")))
    return _rules(found, budget)


def parse_attributes(data: bytes, budget: ReadBudget | None = None) -> tuple[RuleFile, bool]:
    """Parse a .gitattributes file: whether files are marked as generated. Returns the rules, and
    whether all of them are applied."""
    found = []
    for line in _lines(data):
        match = _ATTRIBUTES.match(line)
        if match is None or (match[2] or b"").startswith((b"!", b"[attr]")):
            continue
        pattern = match[2] if match[1] is None else re.sub(rb"\\(.)", rb"\1", match[1])
        if not pattern.endswith(b"/"):  # folders have no attributes
            found += [
                (pattern, _GENERATED[each]) for each in match[3].split() if each in _GENERATED
            ]
    return _rules(found, budget)


def _lines(data: bytes) -> list[bytes]:
    lines = (line.partition(b"\0")[0] for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    return [line for line in lines if line.strip() and not line.startswith(b"#")]


def _trimmed(line: bytes) -> bytes:
    """A line without the spaces at its end, unless a backslash is before them."""
    stripped = line.rstrip(b" ")
    slashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return stripped + b" " if slashes % 2 and stripped != line else stripped


def _rules(
    patterns: Sequence[tuple[bytes, bool]], budget: ReadBudget | None
) -> tuple[RuleFile, bool]:
    usable = [each for each in patterns if len(each[0]) <= _MAX_RULE][:_MAX_RULES]
    rules = (_rule(*each) for each in usable)
    found = [rule for rule in rules if rule is not None]
    return RuleFile(found, budget), len(usable) == len(patterns)


def _rule(pattern: bytes, answer: bool) -> Rule | None:
    """A rule; None for one that matches nothing."""
    only_folders = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    anywhere = b"/" not in pattern
    tokens = _tokens(pattern.removeprefix(b"/"))
    if not tokens:
        return None
    before = rb"(?:.*/)?+" if anywhere else b""
    expression = re.compile(before + _expression(tokens), re.DOTALL)
    return expression, only_folders, answer


def _tokens(pattern: bytes) -> list[bytes] | None:
    """The pieces of a pattern: `/`, `*`, `**` (with the slash after it, if there is one), and
    expressions for one character each. None if it matches nothing."""
    tokens: list[bytes] = []
    at, literal = 0, next((n for n, each in enumerate(pattern) if each in b"*?[\\"), -1)
    while at < len(pattern):
        one = pattern[at : at + 1]
        if one == b"*":
            end = at + len(pattern[at:]) - len(pattern[at:].lstrip(b"*"))
            # git compares what is before the first wildcard on its own, and then begins again.
            is_first = at in (0, literal) or pattern[at - 1 : at] == b"/"
            if end - at > 1 and is_first and end == len(pattern):
                tokens.append(b"**")
            elif end - at > 1 and is_first and pattern[end : end + 1] == b"/":
                tokens.append(b"**/")
                end += 1
            elif tokens[-1:] != [b"*"]:
                tokens.append(b"*")
            at = end
        elif one == b"[":
            found = _class(pattern, at + 1)
            if found is None:
                return None
            token, at = found
            tokens.append(token)
        else:
            at += one == b"\\"
            if at == len(pattern):
                return None
            character = pattern[at : at + 1]
            tokens.append(b"[^/]" if one == b"?" else re.escape(character))
            at += 1
    return tokens


def _class(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """An expression for the class of characters that begins before `at`, and where it ends. None if
    it has no end, or none of its characters can be in a name."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    before, first = -1, at
    while pattern[at : at + 1] != b"]" or at == first:
        if at >= len(pattern):
            return None
        named = _NAMED.match(pattern, at)
        if named is not None:
            if named[1] not in _CLASSES:
                return None
            members.update(_CLASSES[named[1]])
            before, at = -1, named.end()
            continue
        is_range = before >= 0 and pattern[at : at + 1] == b"-" and at + 1 < len(pattern)
        is_range = is_range and pattern[at + 1 : at + 2] != b"]"
        at += is_range
        at += pattern[at : at + 1] == b"\\"
        if at >= len(pattern):
            return None
        members.update(range(before if is_range else pattern[at], pattern[at] + 1))
        before, at = -1 if is_range else pattern[at], at + 1
    members = (set(range(256)) - members if negated else members) - {ord("/")}
    token = b"".join(b"\\x%02x" % each for each in sorted(members))
    return (b"[" + token + b"]", at + 1) if members else None


def _expression(tokens: list[bytes]) -> bytes:
    """A pattern as an expression. The first place at which the pieces up to the next wildcard match
    is as good as a later one, so that atomic groups keep it."""
    groups, names = [b""], [[b""]]
    for token in tokens:
        if token == b"*":
            names[-1].append(b"")
        elif token == b"/":
            groups[-1] += _name(names.pop(), rb"(?=/)") + b"/"
            names.append([b""])
        elif token == b"**/":
            groups[-1] += b"".join(names.pop())
            groups.append(b"")
            names.append([b""])
        elif token == b"**":
            names[-1][-1] += b".*+"
        else:
            names[-1][-1] += token
    groups[-1] += _name(names.pop(), rb"\Z") + rb"\Z"
    first, *others = groups
    folders = rb"(?:[^/]*+/)*?"
    return first + b"".join(b"(?>" + folders + each + b")" for each in others)


def _name(pieces: list[bytes], end: bytes) -> bytes:
    """An expression for a name: `pieces` with any characters between them."""
    first, *others = pieces
    if not others:
        return first
    *middle, last = others
    expression = first + b"".join(rb"(?>[^/]*?" + each + b")" for each in middle if each)
    return b"(?>" + expression + (rb"[^/]*" + last + end if last else rb"[^/]*+") + b")"
