"""Where specchat keeps things. Asking for a folder does not create it."""

from __future__ import annotations

from pathlib import Path

import platformdirs

APP = "specchat"


def data_path() -> Path:
    """Conversations, documents and their backups: what must not be lost."""
    return platformdirs.user_data_path(APP, appauthor=False)


def cache_path() -> Path:
    """Snapshots and downloads: what can be made or fetched again."""
    return platformdirs.user_cache_path(APP, appauthor=False)


def snapshots_path() -> Path:
    """What was read of each conversation, so that a later start need not read it again."""
    return cache_path() / "snapshots"


def costs_path() -> Path:
    """How long reading takes here, by pairs of models."""
    return cache_path() / "costs"


def config_path() -> Path:
    """What the user has set."""
    return platformdirs.user_config_path(APP, appauthor=False)


def settings_path() -> Path:
    return config_path() / "settings.toml"


def logs_path() -> Path:
    """What is told of crashes."""
    return platformdirs.user_log_path(APP, appauthor=False)


def display_path(path: Path) -> str:
    """As people write it: with ~ for the home folder."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def assets_path() -> Path:
    """What ships with the program: inside the package once installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "assets"
    return installed if installed.is_dir() else package.parent / "assets"
