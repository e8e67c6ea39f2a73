"""The folder of the files that ship with the program."""

from __future__ import annotations

from pathlib import Path


def assets_path() -> Path:
    """In the package once installed, next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "assets"
    return installed if installed.is_dir() else package.parent / "assets"
