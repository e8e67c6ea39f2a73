"""The folders and files of specchat. None of these functions creates them."""

from __future__ import annotations

import shlex
from pathlib import Path

import platformdirs

APP = "specchat"


def data_path() -> Path:
    """Conversations, documents and their backup."""
    return platformdirs.user_data_path(APP, appauthor=False)


def cache_path() -> Path:
    """Snapshots and other data that can be recreated."""
    return platformdirs.user_cache_path(APP, appauthor=False)


def snapshots_path() -> Path:
    """Saved KV caches of conversations."""
    return cache_path() / "snapshots"


def shard_snapshots_path(owner: str) -> Path:
    """This machine's parts of KV caches that `owner` spreads over several: "own" for itself,
    another machine's number otherwise."""
    return cache_path() / "shards" / owner


def costs_path() -> Path:
    """Measured costs of model pairs on this machine."""
    return cache_path() / "costs"


def config_path() -> Path:
    """The user's settings and catalogue."""
    return platformdirs.user_config_path(APP, appauthor=False)


def settings_path() -> Path:
    return config_path() / "settings.toml"


def logs_path() -> Path:
    """Logs and notes about crashes."""
    return platformdirs.user_log_path(APP, appauthor=False)


def display_path(path: Path) -> str:
    """As people write it: with ~ for the home folder."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def shell_path(path: Path) -> str:
    """As it is typed in a shell: with ~ for the home folder, or in quotes if it needs some."""
    text = display_path(path)
    plain = text.removeprefix("~")
    return text if shlex.quote(plain) == plain else shlex.quote(str(path))
