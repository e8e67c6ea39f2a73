"""What can be wrong with a model."""

from __future__ import annotations

from app.errors import UserError


class ModelError(UserError):
    """A model is not here, or its folder cannot be used."""
