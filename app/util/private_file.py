"""Secrets in files that only this user can read."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

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


def make_private(folder: Path, *files: Path) -> None:
    """Let only this user enter a folder, and read these files, as far as they exist. Raises
    OSError."""
    for path, mode in ((folder, 0o700), *((file, 0o600) for file in files)):
        with suppress(FileNotFoundError):
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                path.chmod(mode)


def create_private(path: Path) -> BinaryIO:
    """A new file for this user alone. Raises OSError."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")


def write_private(path: Path, text: str) -> None:
    """Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(opened, "w", encoding="utf-8") as file:
        os.fchmod(opened, 0o600)
        file.write(text)
