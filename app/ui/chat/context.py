"""What the chat screen's helpers share: the engine, the open chats, and the widgets they draw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from textual.screen import Screen

from app.protocol.engine import Engine
from app.protocol.events import Listener
from app.settings.definitions import Settings
from app.settings.file import SettingsFile
from app.ui.chat.chrome import Footer, Header, Notice
from app.ui.chat.composer import Composer
from app.ui.state.draft import NextMode, default_next_mode
from app.ui.state.open_chats import OpenChats
from app.ui.transcript.transcript import Transcript


@dataclass(eq=False)
class ChatContext:
    """Each helper gets this instead of the chat screen, so that none of them imports it."""

    screen: Screen[None]
    """For Textual's services: workers, messages, and opening other screens."""
    engine: Engine
    settings_file: SettingsFile
    open_chats: OpenChats
    header: Header
    transcript: Transcript
    composer: Composer
    footer: Footer
    refresh: Callable[[], None]
    """Shows what has changed in the hints, the title, the sidebar and the footer."""
    on_engine_event: Listener
    """Gets the events of turns, on the engine's thread."""
    refresh_meter: Callable[[], None]
    """Shows the estimate of the next message again."""
    draw_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Locked while another conversation or turn is put on the screen."""
    engine_closed: bool = False
    """Whether the engine answers nothing any more."""

    @property
    def settings(self) -> Settings:
        return self.settings_file.settings

    @property
    def notice(self) -> Notice:
        return self.composer.notice

    @property
    def next_mode(self) -> NextMode:
        return self.composer.draft.next_mode

    @property
    def default_mode(self) -> NextMode:
        """How messages are read if nothing was chosen for their conversation."""
        return default_next_mode(self.settings)

    def set_next_mode(self, next_mode: NextMode) -> None:
        """Choose how the next message is read."""
        self.composer.show_next_mode(next_mode)
        self.open_chats.shown.draft = self.composer.draft
        self.footer.show_next_mode(next_mode)
        self.refresh_meter()
