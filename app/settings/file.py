"""The user's settings, and the file that they are kept in."""

from __future__ import annotations

import difflib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.errors import UserError
from app.paths import display_path
from app.settings.schema import Setting, Value, format_value, groups
from app.settings.toml import EditError, parse_lenient, template, with_setting
from app.settings.values import Settings
from app.util.atomic_files import make_folder, replace_durably, temp_file

MAX_QUOTE_LENGTH = 40


class SettingsError(UserError):
    """The settings cannot be kept."""


class SettingsFile:
    """`settings` are those that hold now. Without a `path` they are kept nowhere.

    The file is only written when something was changed, and then only what was: comments, unknown
    keys, and what another program wrote meanwhile, stay.
    """

    def __init__(self, path: Path | None = None, settings: Settings | None = None) -> None:
        """What is wrong with the file is in `problems`, a sentence each, and costs no other
        setting: `settings`, or the defaults, hold for what the file does not say."""
        self.path = path
        self.settings = settings or Settings()
        self.problems: tuple[str, ...] = ()
        self.is_new = path is not None and not path.exists()
        """Whether nothing was ever kept there when this was opened."""
        self._unsaved: dict[str, Setting] = {}
        self._lock = threading.Lock()
        if path is not None:
            self.problems = tuple(self._read(path))

    @property
    def problem(self) -> str:
        """What is wrong with the file, in a line, or nothing."""
        first, *more = self.problems or ("",)
        return f"{first} {len(more)} more: F2 says which." if more else first

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def set(self, setting: Setting, value: Value) -> None:
        """Let it hold from now on; `save` keeps it."""
        self.settings = setting.with_value(self.settings, setting.validate(value))
        self._unsaved[setting.key] = setting

    def save(self) -> None:
        """Keep what was set since the last time. May be called from any thread, and waits for the
        disk. Raises SettingsError; what is not kept then is tried again the next time."""
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
            data, faults = parse_lenient(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no TOML in UTF-8"
            yield f"'{display_path(path)}' cannot be read ({why}). Defaults are used."
            return
        for fault in faults:
            line = fault.line[:MAX_QUOTE_LENGTH]
            yield f"Line {fault.number} of '{display_path(path)}' isn't valid TOML: '{line}'."
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
            holds = format_value(setting.value_in(self.settings))
            yield (
                f"'{setting.key}' in '{display_path(path)}' is {repr(value)[:MAX_QUOTE_LENGTH]},"
                f" but must be {setting.requirement}: {holds} holds instead."
            )

    # -------------------------------------------------------------------------- writing

    def _save(self, path: Path, settings: Settings, unsaved: dict[str, Setting]) -> None:
        path = path.resolve()  # it may be a link into a folder that is kept elsewhere
        keys = "', '".join(unsaved)
        try:
            text = path.read_bytes().decode() if path.exists() else template()
            for setting in unsaved.values():
                value = setting.value_in(settings)
                text = with_setting(text, setting, None if value == setting.default else value)
            make_folder(path.parent)
            aside = path.with_name(f".{path.name}-{uuid4().hex}")
            with temp_file(aside) as file:
                file.write(text.encode())
                if path.exists():
                    shutil.copymode(path, aside)
            replace_durably(aside, path)
        except OSError as error:
            why = error.strerror or os.strerror(error.errno or 0)
            raise _save_error(
                path, keys, why, "make room there, or change its permissions"
            ) from None
        except EditError:
            why = "what stands there would have to be rewritten"
            raise _save_error(path, keys, why, "change it there with an editor") from None
        except ValueError:
            raise _save_error(path, keys, "it is no TOML", "put it right first") from None


def _unknown_key(path: Path, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    meant = f": is '{near[0]}' meant?" if near else "."
    return f"'{key[:MAX_QUOTE_LENGTH]}' in '{display_path(path)}' is no setting{meant}"


def _save_error(path: Path, keys: str, why: str, advice: str) -> SettingsError:
    return SettingsError(
        f"'{keys}' only holds until specchat ends, since '{display_path(path)}' cannot be changed"
        f" ({why})",
        advice,
    )
