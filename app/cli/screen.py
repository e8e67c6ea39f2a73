"""`specchat` without a command: the app."""

from __future__ import annotations

from app.chat.pairs import pair


def screen(target: str, draft: str | None) -> int:
    """Open the app on a pair; returns the exit status."""
    models = pair(target, draft)
    from app.engine.engine import MlxEngine
    from app.ui.app import SpecchatApp

    raise NotImplementedError(models, MlxEngine, SpecchatApp)
