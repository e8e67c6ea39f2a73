"""The folder of files that ship with specchat."""

from __future__ import annotations

from pathlib import Path


def assets_path() -> Path:
    """The folder `assets`: inside the package when installed, next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "assets"
    return installed if installed.is_dir() else package.parent / "assets"
