"""Errors of the store."""

from __future__ import annotations

from app.errors import UserError


class StoreError(UserError):
    """Conversations cannot be saved or read."""


class DamagedError(StoreError):
    """SQLite reports that the file is damaged."""

    def __init__(self) -> None:
        super().__init__(
            "The conversations file is damaged",
            "start specchat again to repair it or to restore the newest backup",
        )
