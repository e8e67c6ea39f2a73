"""`specchat` without a command: the app."""

from __future__ import annotations

import sys

from app.chat.pairs import pair
from app.errors import UserError
from app.paths import data_path, snapshots_path


def screen(target: str, draft: str | None) -> int:
    """Open the app on a pair; returns the exit status."""
    # Textual reads standard input and draws on standard error.
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise UserError("The app needs a terminal", "use `specchat ask` in scripts and pipes")
    models = pair(target, draft)
    from app.engine.engine import MlxEngine
    from app.ui.app import SpecchatApp

    app = SpecchatApp(MlxEngine(), models, folder=data_path(), snapshots=snapshots_path())
    app.run()
    return app.return_code or 0
