"""A file of measurements, written one by one, so that a stopped command can continue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.errors import UserError


class JsonLog:
    """JSON objects, one a line. Lines that are cut off or no objects are ignored."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        """Read the file, or make an empty one; `fresh` deletes it first. Raises UserError if it
        cannot be written."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                path.unlink(missing_ok=True)
            with path.open("a+b") as file:
                file.seek(0)
                data = file.read()
        except OSError as error:
            raise self._error(error) from None
        self._is_cut_off = bool(data) and not data.endswith(b"\n")
        found = (_parse(line) for line in data.splitlines())
        self.records = [record for record in found if record is not None]

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record at once. Raises UserError."""
        line = json.dumps(record).encode() + b"\n"
        try:
            with self._path.open("ab") as file:
                file.write(b"\n" + line if self._is_cut_off else line)
        except OSError as error:
            raise self._error(error) from None
        self._is_cut_off = False

    def _error(self, error: OSError) -> UserError:
        return UserError(
            f"Results cannot be written to '{self._path.parent}' ({error.strerror})",
            "make that folder writable, or free some space on its disk",
        )


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
