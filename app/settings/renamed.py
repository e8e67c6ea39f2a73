"""Keys and values of earlier versions: read as today's, and rewritten at the next change."""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from typing import Any

from app.settings.definitions import RENAMED, RENAMED_VALUES
from app.settings.introspection import groups

_HEADER = re.compile(r"(\s*\[\s*)(\w+)(\s*\].*)", re.DOTALL)
_KEY = re.compile(r"(\s*+#?\s*+)(\w+)(\s*+=\s*+)(.*)", re.DOTALL)


def with_current_keys(data: dict[str, Any]) -> dict[str, Any]:
    """A parsed file with today's keys and values. If it has both the old and the new key of a
    setting, the new one counts."""
    data = {name: dict(each) if isinstance(each, dict) else each for name, each in data.items()}
    for old, new in RENAMED.items():
        (old_group, old_name), (group, name) = old.split("."), new.split(".")
        table, target = data.get(old_group), data.get(group, {})
        if isinstance(table, dict) and isinstance(target, dict) and old_name in table:
            value = table.pop(old_name)
            data[group] = {name: value} | target
    for key, values in RENAMED_VALUES.items():
        group, name = key.split(".")
        table = data.get(group)
        if isinstance(table, dict) and isinstance(table.get(name), str):
            table[name] = values.get(table[name], table[name])
    return {name: each for name, each in data.items() if each or name not in _renamed_groups()}


def rewritten(text: str) -> str:
    """The file's text with today's keys and values, if nothing else changes by that."""
    group, lines = "", []
    for line in text.split("\n"):
        if header := _HEADER.fullmatch(line):
            group = header[2]
            line = header[1] + _renamed_groups().get(group, group) + header[3]
        elif (match := _KEY.fullmatch(line)) and (key := RENAMED.get(f"{group}.{match[2]}")):
            value = match[4]
            for old, new in RENAMED_VALUES.get(key, {}).items():
                value = re.sub(f"""^(["']){old}\\1""", f'"{new}"', value)
            line = match[1] + key.partition(".")[2] + match[3] + value
        lines.append(line)
    result = "\n".join(lines)
    with suppress(tomllib.TOMLDecodeError):
        if with_current_keys(tomllib.loads(result)) == with_current_keys(tomllib.loads(text)):
            return result
    return text


def _renamed_groups() -> dict[str, str]:
    """Groups that exist no more, with what they are called now."""
    known = {group.name for group in groups()}
    pairs = ((old.partition(".")[0], new.partition(".")[0]) for old, new in RENAMED.items())
    return {old: new for old, new in pairs if old not in known}
