"""What the app is started with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.machines import Machines
from app.protocol.commands import Load
from app.protocol.engine import Engine, LocalServer
from app.settings.file import SettingsFile
from app.ui.originals import Opener
from app.ui.terminal import Clipboard

if TYPE_CHECKING:
    from app.models.library import Library


@dataclass(frozen=True, slots=True)
class Start:
    engine: Engine
    load: Load
    """The pair to load first."""
    settings: SettingsFile = field(default_factory=SettingsFile)
    clock: Callable[[], float] = time.monotonic
    folder: Path | None = None
    """Where conversations are stored; None: they are in memory only."""
    snapshots: Path | None = None
    """The folder for caches."""
    costs: Path | None = None
    """The file for measured speeds."""
    startup_message: str = ""
    attached: Sequence[str] = ()
    """Absolute paths of files and folders to attach to a new conversation."""
    watches: bool = False
    """Whether attached files and folders are checked for changes every few seconds."""
    show_welcome: bool = False
    """Whether the first start explains the app and has a sample to ask about."""
    clipboard: Clipboard | None = None
    """The system's clipboard."""
    library: Callable[[], Library] | None = None
    """The models, by default the user's; called when it is first needed."""
    machines: Machines | None = None
    """Machines that a target may be spread over."""
    server: LocalServer | None = None
    """Answers other programs once the user starts it."""
    opener: Opener | None = None
    """Opens the files that documents were read from."""
    supervised: Callable[[], bool] = lambda: True
    """Whether there is a parent process that would restore the terminal; if not, the app exits."""
    restart_status: int | None = None
    """The exit status after which the parent process starts the app again, if there is one."""
