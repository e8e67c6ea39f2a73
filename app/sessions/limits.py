"""What the store allows where nothing else was set."""

from __future__ import annotations

ATTACHMENT_LIMIT = 256 * 2**20
"""The most bytes of one document."""
TRASH_DAYS = 30.0
"""How long what was deleted can come back."""
