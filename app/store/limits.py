"""Defaults of the store's limits, and where the ids of unsaved conversations start."""

from __future__ import annotations

ATTACHMENT_LIMIT = 256 * 2**20
"""The most bytes of one document."""
TRASH_DAYS = 30.0
"""How long deleted conversations and messages can be restored."""
FIRST_UNSAVED_ID = 2**40
"""Ids from here on are of conversations in a `TemporaryStore`; no saved one has them."""
