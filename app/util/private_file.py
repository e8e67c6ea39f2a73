"""Secrets in files that only this user can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from app.util.regular_files import read_file

MAX_BYTES = 4096


def read_secret(path: Path) -> str:
    """Empty where there is none. Raises OSError, or UnicodeDecodeError for something else."""
    try:
        return read_file(path, MAX_BYTES).decode("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def make_secret(path: Path) -> str:
    """Write a new one. Raises OSError."""
    secret = f"specchat-{secrets.token_urlsafe(24)}"
    write_private(path, secret + "\n")
    return secret


def write_private(path: Path, text: str) -> None:
    """Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(opened, "w", encoding="utf-8") as file:
        os.fchmod(opened, 0o600)
        file.write(text)
