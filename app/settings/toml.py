"""The settings file as text: invalid lines are skipped, and a change edits one line.

Everything else stays as it is: comments, order, unknown keys. tomlkit would edit the file, too, but
it deletes the comment of a removed key, adds new keys at the end of a section instead of below
their description, and mixes line endings.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from dataclasses import dataclass
from typing import Any

from app.settings.introspection import Setting, Value, format_value, groups

WIDTH = 88
_MAX_ISSUES = 20
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
_HEADER = re.compile(r"\s*\[")
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\[{#]+)"""

TITLE = "# Settings of specchat. Lines that begin with # are comments; they show the defaults."


class EditError(Exception):
    """The setting is written in a form that is not edited, such as an inline table."""


@dataclass(frozen=True, slots=True)
class SyntaxIssue:
    """An invalid line; `number` counts from 1."""

    number: int
    line: str


def parse_lenient(text: str) -> tuple[dict[str, Any], list[SyntaxIssue]]:
    """The file's values, without the invalid lines. Raises ValueError if too many are invalid."""
    lines = text.replace("\r\n", "\n").split("\n")
    issues: list[SyntaxIssue] = []
    while True:
        try:
            return tomllib.loads("\n".join(lines)), issues
        except RecursionError as error:
            raise ValueError("values are nested too deeply") from error
        except tomllib.TOMLDecodeError as error:
            at = _AT_LINE.search(str(error))
            filled = [number for number, line in enumerate(lines, 1) if line.strip()]
            number = int(at[1]) if at else (filled or [0])[-1]
            if number not in filled or len(issues) >= _MAX_ISSUES:
                raise ValueError(str(error)) from error
            issues.append(SyntaxIssue(number, lines[number - 1].strip()))
            lines[number - 1] = ""


def to_toml(value: Value) -> str:
    text = format_value(value)
    return f'"{text}"' if isinstance(value, str) else text


def template() -> str:
    """A new file: the description and default of every setting, as comments."""
    parts = [TITLE]
    for group in groups():
        parts.append(f"\n[{group.name}]\n# {group.doc}")
        parts += ["\n" + "\n".join(_comment(setting)) for setting in group.settings]
    return "\n".join(parts) + "\n"


def with_setting(text: str, setting: Setting, value: Value | None) -> str:
    """`text` with this value, or without one. Raises EditError, and
    ValueError if `text` is invalid. The result is parsed again: only this value is different."""
    expected = tomllib.loads(text)
    table = expected.setdefault(setting.group, {})
    if not isinstance(table, dict):
        raise EditError
    table.pop(setting.name, None)
    if value is not None:
        table |= tomllib.loads(f"{setting.name} = {to_toml(value)}")
    end = "\r\n" if "\r\n" in text else "\n"
    new = end.join(_changed(text.replace("\r\n", "\n").split("\n"), setting, value))
    try:
        found = {setting.group: {}} | tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        raise EditError from None
    if found != expected:
        raise EditError
    return new


def _changed(lines: list[str], setting: Setting, value: Value | None) -> list[str]:
    start, end = _section(lines, setting.group)
    line = re.compile(rf"(\s*{setting.name}\s*=\s*)({_VALUE})(\s*(?:#.*)?)")
    for index in range(start, end):
        if match := line.fullmatch(lines[index]):
            if value is not None:
                replacement = [match[1] + to_toml(value) + match[3]]
            else:
                replacement = [match[3].strip()] if match[3].strip() else []
            return [*lines[:index], *replacement, *lines[index + 1 :]]
    if value is None:
        return lines
    if start == end:  # no such section
        while lines and not lines[-1].strip():
            lines = lines[:-1]
        gap = [""] if lines else []
        added = [*_comment(setting), f"{setting.name} = {to_toml(value)}", ""]
        return [*lines, *gap, f"[{setting.group}]", *added]
    index = _insert_position(lines, start, end, setting)
    return [*lines[:index], f"{setting.name} = {to_toml(value)}", *lines[index:]]


def _section(lines: list[str], name: str) -> tuple[int, int]:
    """Index of the section's header, and of the line after its last; equal if there is none."""
    header = re.compile(rf"\s*\[\s*{name}\s*\]\s*(#.*)?")
    start = next((i for i, line in enumerate(lines) if header.fullmatch(line)), None)
    if start is None:
        return 0, 0
    later = range(start + 1, len(lines))
    return start, next((i for i in later if _HEADER.match(lines[i])), len(lines))


def _insert_position(lines: list[str], start: int, end: int, setting: Setting) -> int:
    """Below the comment with its default, or at the end of the section."""
    default = re.compile(rf"\s*#\s*{setting.name}\s*=.*")
    for index in range(start, end):
        if default.fullmatch(lines[index]):
            return index + 1
    while end > start + 1 and not lines[end - 1].strip():
        end -= 1
    return end


def _comment(setting: Setting) -> list[str]:
    """Its description, allowed values and default."""
    lines = textwrap.wrap(f"{setting.doc} ({setting.allowed})", WIDTH, break_on_hyphens=False)
    return [f"# {line}" for line in [*lines, f"{setting.name} = {to_toml(setting.default)}"]]
