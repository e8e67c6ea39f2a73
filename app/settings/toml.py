"""The settings' file as text: read line by line where it is broken, and edited where one value
changes, so that all else (comments, order, what nobody here knows) stays as it is.

tomllib only reads, and a library that writes would be one more dependency for one kind of line.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from dataclasses import dataclass
from typing import Any

from app.settings.schema import Setting, Value, format_value, groups

WIDTH = 88
_MAX_ISSUES = 20
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
_HEADER = re.compile(r"\s*\[")
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\[{#]+)"""

TITLE = "# The settings of specchat. What begins with # is no setting: it says what the default is."


class EditError(Exception):
    """A line would have to be changed that is not written as ours are."""


@dataclass(frozen=True, slots=True)
class SyntaxIssue:
    """A line that is no TOML, or no more: `number` counts from 1."""

    number: int
    line: str


def parse_lenient(text: str) -> tuple[dict[str, Any], list[SyntaxIssue]]:
    """What the file says; lines that are wrong are left out. Raises ValueError when nothing can be
    made of it."""
    lines = text.replace("\r\n", "\n").split("\n")
    faults: list[SyntaxIssue] = []
    while True:
        try:
            return tomllib.loads("\n".join(lines)), faults
        except tomllib.TOMLDecodeError as error:
            at = _AT_LINE.search(str(error))
            filled = [number for number, line in enumerate(lines, 1) if line.strip()]
            number = int(at[1]) if at else (filled or [0])[-1]
            if number not in filled or len(faults) >= _MAX_ISSUES:
                raise ValueError(str(error)) from error
            faults.append(SyntaxIssue(number, lines[number - 1].strip()))
            lines[number - 1] = ""


def to_toml(value: Value) -> str:
    """As TOML."""
    text = format_value(value)
    return f'"{text}"' if isinstance(value, str) else text


def template() -> str:
    """A new file: every setting's meaning and default, and nothing that is set."""
    parts = [TITLE]
    for group in groups():
        parts.append(f"\n[{group.name}]\n# {group.doc}")
        parts += ["\n" + "\n".join(_comment(setting)) for setting in group.settings]
    return "\n".join(parts) + "\n"


def with_setting(text: str, setting: Setting, value: Value | None) -> str:
    """`text` with this value, or without one. Raises CannotEdit, and ValueError when `text` is no
    TOML. The result was read again: nothing but this value is different."""
    wanted = tomllib.loads(text)
    table = wanted.get(setting.group, {})
    if not isinstance(table, dict):
        raise EditError
    if value is not None:
        wanted[setting.group] = table | {setting.name: tomllib.loads(f"v = {to_toml(value)}")["v"]}
    elif setting.name in table:
        del table[setting.name]
    end = "\r\n" if "\r\n" in text else "\n"
    new = end.join(_changed(text.replace("\r\n", "\n").split("\n"), setting, value))
    try:
        if tomllib.loads(new) != wanted:
            raise EditError
    except tomllib.TOMLDecodeError:
        raise EditError from None
    return new


def _changed(lines: list[str], setting: Setting, value: Value | None) -> list[str]:
    begin, end = _section(lines, setting.group)
    line = re.compile(rf"(\s*{setting.name}\s*=\s*)({_VALUE})(\s*(?:#.*)?)")
    for place in range(begin, end):
        if found := line.fullmatch(lines[place]):
            if value is not None:
                replacement = [found[1] + to_toml(value) + found[3]]
            else:
                replacement = [found[3].strip()] if found[3].strip() else []
            return [*lines[:place], *replacement, *lines[place + 1 :]]
    if value is None:
        return lines
    if begin == end:  # no such section
        while lines and not lines[-1].strip():
            lines = lines[:-1]
        gap = [""] if lines else []
        added = [*_comment(setting), f"{setting.name} = {to_toml(value)}", ""]
        return [*lines, *gap, f"[{setting.group}]", *added]
    place = _place(lines, begin, end, setting)
    return [*lines[:place], f"{setting.name} = {to_toml(value)}", *lines[place:]]


def _section(lines: list[str], name: str) -> tuple[int, int]:
    """Its lines, from its header on; empty when there is none."""
    header = re.compile(rf"\s*\[\s*{name}\s*\]\s*(#.*)?")
    begin = next((i for i, line in enumerate(lines) if header.fullmatch(line)), None)
    if begin is None:
        return 0, 0
    later = range(begin + 1, len(lines))
    return begin, next((i for i in later if _HEADER.match(lines[i])), len(lines))


def _place(lines: list[str], begin: int, end: int, setting: Setting) -> int:
    """Where a new line goes: below the comment with its default, else after all others."""
    default = re.compile(rf"\s*#\s*{setting.name}\s*=.*")
    for place in range(begin, end):
        if default.fullmatch(lines[place]):
            return place + 1
    while end > begin + 1 and not lines[end - 1].strip():
        end -= 1
    return end


def _comment(setting: Setting) -> list[str]:
    """What it means, what it can be, and its default."""
    lines = textwrap.wrap(f"{setting.doc} ({setting.allowed})", WIDTH, break_on_hyphens=False)
    return [f"# {line}" for line in [*lines, f"{setting.name} = {to_toml(setting.default)}"]]
