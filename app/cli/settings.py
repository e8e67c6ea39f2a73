"""`specchat settings`, and the settings of all other commands."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import TYPE_CHECKING

from app.paths import settings_path
from app.settings.definitions import KvBits, Setting, Settings, Value, groups
from app.settings.file import SettingsFile
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.protocol.commands import Load
    from app.protocol.hosts import Hosts

WIDTH = 88
INDENT = "    "


def user_settings() -> Settings:
    """The user's settings. Problems in their file go to standard error."""
    return _read().settings


def requested_pair(
    target: str | None, draft: str | None, settings: Settings
) -> tuple[str, str | None]:
    """Target and draft from the command line, or from the settings."""
    if target is None and draft is None:
        return settings.models.target, settings.models.draft or None
    return target or settings.models.target, draft


def requested_kv_bits(text: str | None, settings: Settings) -> int | None:
    """Bits of the KV cache from the command line, or from the settings; None for full precision."""
    return (KvBits(text) if text else settings.reading.kv_bits).bits


def requested_load(
    args: argparse.Namespace, settings: Settings, hosts: Hosts | None = None
) -> Load:
    """The pair to load. Raises UserError for models that are not installed."""
    from app.chat.model_pairs import resolve_pair

    pair = requested_pair(args.target, args.draft, settings)
    return resolve_pair(*pair, kv_bits=requested_kv_bits(args.kv_bits, settings), hosts=hosts)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the path of the settings, their values and their defaults."""
    file, out = _read(), sys.stdout
    if args.json:
        out.write(json.dumps(_plain(file), indent=2) + "\n")
        return 0
    note = "" if settings_path().exists() else " (no file yet: all settings have their defaults)"
    out.write(f"{sanitize_line(str(settings_path()))}{note}\n")
    for group in groups():
        out.write(f"\n[{group.name}] {group.doc}\n")
        for setting in group.settings:
            out.write(_line(setting, file.settings))
    out.write("\nChange them with F2 in the app, or in an editor.\n")
    return 0


def _read() -> SettingsFile:
    file = SettingsFile(settings_path())
    for problem in file.problems:
        sys.stderr.write(f"{sanitize_line(problem)}\n")
    return file


def _line(setting: Setting, settings: Settings) -> str:
    value = setting.value_in(settings)
    default = "" if value == setting.default else f" (default {_written(setting, setting.default)})"
    doc = textwrap.fill(setting.doc, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return f"{setting.name} = {_written(setting, value)}{default}\n{doc}\n"


def _written(setting: Setting, value: Value) -> str:
    return setting.written(value) or setting.display(value)


def _plain(file: SettingsFile) -> dict[str, object]:
    every = [setting for group in groups() for setting in group.settings]
    values = {
        s.key: {"value": s.value_in(file.settings), "default": s.default, "description": s.doc}
        for s in every
    }
    return {"file": str(settings_path()), "settings": values, "problems": file.problems}
