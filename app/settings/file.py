"""The user's settings, and the file that stores them.

Invalid lines are skipped, and a change edits one line. Everything else stays as it is: comments,
order, unknown keys. tomlkit would edit the file, too, but it deletes the comment of a removed key,
adds new keys at the end of a section instead of below their description, and mixes line endings.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import textwrap
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.errors import UserError
from app.paths import display_path
from app.settings.definitions import Setting, Settings, Value, format_value, groups
from app.util import formatting
from app.util.atomic_files import make_folder, replace_durably, temp_file
from app.util.regular_files import read_file, read_text

WIDTH = 88
_MAX_ISSUES = 20
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
_HEADER = re.compile(r"\s*\[")
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\[{#]+)"""

TITLE = "# Settings of specchat. Lines that begin with # are comments; they show the defaults."


class EditError(Exception):
    """The setting is written in a form that is not edited, such as an inline table."""


def parse_lenient(text: str) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """The file's values, and the invalid lines with their numbers from 1, which are skipped. Raises
    ValueError if too many are invalid."""
    lines = text.replace("\r\n", "\n").split("\n")
    issues: list[tuple[int, str]] = []
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
            issues.append((number, lines[number - 1].strip()))
            lines[number - 1] = ""


def to_toml(setting: Setting, value: Value) -> str:
    text = setting.written(value)
    return text if text == format_value(value) and not isinstance(value, str) else f'"{text}"'


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
        table |= tomllib.loads(f"{setting.name} = {to_toml(setting, value)}")
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
                replacement = [match[1] + to_toml(setting, value) + match[3]]
            else:
                replacement = [match[3].strip()] if match[3].strip() else []
            return [*lines[:index], *replacement, *lines[index + 1 :]]
    if value is None:
        return lines
    if start == end:  # no such section
        while lines and not lines[-1].strip():
            lines = lines[:-1]
        gap = [""] if lines else []
        added = [*_comment(setting), f"{setting.name} = {to_toml(setting, value)}", ""]
        return [*lines, *gap, f"[{setting.group}]", *added]
    index = _insert_position(lines, start, end, setting)
    return [*lines[:index], f"{setting.name} = {to_toml(setting, value)}", *lines[index:]]


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
    return [
        f"# {line}" for line in [*lines, f"{setting.name} = {to_toml(setting, setting.default)}"]
    ]


MAX_QUOTE_LENGTH = 40
MAX_BYTES = 1 << 20
"""Size limit of the file, fifty times the size of one with every setting."""


class SettingsError(UserError):
    """The settings cannot be saved."""


class SettingsFile:
    """`settings` are the current ones. Without a `path` they are not saved.

    Saving edits only the values that were set here: comments, unknown keys and what another program
    has written in the meantime stay.
    """

    def __init__(self, path: Path | None = None, settings: Settings | None = None) -> None:
        """What the file does not set is taken from `settings`, or the defaults. An invalid line or
        value is skipped, with a sentence in `problems`."""
        self.path = path
        self.settings = settings or Settings()
        self.problems: tuple[str, ...] = ()
        self.is_new = path is not None and not path.exists()
        """Whether there was no file when this was opened."""
        self._unsaved: dict[str, Setting] = {}
        self._lock = threading.Lock()
        if path is not None:
            self.problems = tuple(self._read(path))

    @property
    def problem(self) -> str:
        """The first problem and the number of others, or nothing."""
        first, *more = self.problems or ("",)
        others = formatting.plural(len(more), "more problem")
        return f"{first} {others}: see F2." if more else first

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def set(self, setting: Setting, value: Value) -> None:
        """Takes effect at once; `save` writes it to the file."""
        self.settings = setting.with_value(self.settings, setting.validate(value))
        self._unsaved[setting.key] = setting

    def save(self) -> None:
        """Write what was set since the last time. May be called from any thread, and waits for the
        disk. Raises SettingsError; the next call tries again."""
        with self._lock:
            unsaved = dict(self._unsaved)
            settings = self.settings
            if self.path is not None and unsaved:
                self._save(self.path, settings, unsaved)
            for key, setting in unsaved.items():
                if setting.value_in(settings) == setting.value_in(self.settings):
                    del self._unsaved[key]

    # -------------------------------------------------------------------------- reading

    def _read(self, path: Path) -> Iterator[str]:
        try:
            data, issues = parse_lenient(read_text(path, MAX_BYTES))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "invalid TOML"
            yield f"'{display_path(path)}' cannot be read ({why}). Defaults are used."
            return
        for number, line in issues:
            shown = line[:MAX_QUOTE_LENGTH]
            yield f"Line {number} of '{display_path(path)}' isn't valid TOML: '{shown}'."
        yield from self._apply(path, data)

    def _apply(self, path: Path, data: dict[str, Any]) -> Iterator[str]:
        for name in data.keys() - {group.name for group in groups()}:
            yield _unknown_key(path, name, [group.name for group in groups()])
        for group in groups():
            table = data.get(group.name, {})
            if not isinstance(table, dict):
                yield f"'{group.name}' in '{display_path(path)}' must be a section, [{group.name}]."
                continue
            for setting in group.settings:
                if setting.name in table:
                    yield from self._apply_value(path, setting, table[setting.name])
            names = [setting.name for setting in group.settings]
            for name in table.keys() - set(names):
                yield _unknown_key(
                    path, f"{group.name}.{name}", [f"{group.name}.{n}" for n in names]
                )

    def _apply_value(self, path: Path, setting: Setting, value: object) -> Iterator[str]:
        try:
            self.settings = setting.with_value(self.settings, setting.validate(value))
        except ValueError:
            current = setting.written(setting.value_in(self.settings))
            yield (
                f"'{setting.key}' in '{display_path(path)}' is {_quoted(value)},"
                f" but must be {setting.requirement}. Using {current}."
            )

    # -------------------------------------------------------------------------- writing

    def _save(self, path: Path, settings: Settings, unsaved: dict[str, Setting]) -> None:
        path = path.resolve()  # it may be a link into another folder
        keys = "', '".join(unsaved)
        try:
            text = read_file(path, MAX_BYTES).decode() if path.exists() else template()
            for setting in unsaved.values():
                value = setting.value_in(settings)
                text = with_setting(text, setting, None if value == setting.default else value)
            make_folder(path.parent)
            temporary = path.with_name(f".{path.name}-{uuid4().hex}")
            with temp_file(temporary) as file:
                file.write(text.encode())
                if path.exists():
                    shutil.copymode(path, temporary)
            replace_durably(temporary, path)
        except OSError as error:
            why = error.strerror or os.strerror(error.errno or 0)
            raise _save_error(
                path, keys, why, "free some space, or change its permissions"
            ) from None
        except EditError:
            why = "it is not on a line of its own"
            raise _save_error(path, keys, why, "change it in an editor") from None
        except (ValueError, RecursionError):
            raise _save_error(path, keys, "invalid TOML", "fix it in an editor") from None


def _quoted(value: object) -> str:
    try:
        return repr(value)[:MAX_QUOTE_LENGTH]
    except ValueError:
        return "a number with too many digits"
    except RecursionError:
        return "nested too deeply"


def _unknown_key(path: Path, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"Unknown setting '{key[:MAX_QUOTE_LENGTH]}' in '{display_path(path)}'.{hint}"


def _save_error(path: Path, keys: str, why: str, advice: str) -> SettingsError:
    return SettingsError(
        f"'{keys}' applies only until specchat quits, since '{display_path(path)}' cannot be"
        f" changed ({why})",
        advice,
    )
