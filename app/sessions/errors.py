"""What can go wrong with the store, in sentences."""

from __future__ import annotations

from app.errors import UserError


class StoreError(UserError):
    """Conversations cannot be kept or read."""


class DamagedError(StoreError):
    """SQLite has found the file damaged."""

    def __init__(self) -> None:
        super().__init__(
            "The file of conversations is damaged",
            "start specchat again, and it mends the file or uses the newest good backup",
        )
