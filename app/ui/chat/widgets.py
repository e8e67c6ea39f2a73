"""The widgets of the chat screen."""

from __future__ import annotations

from dataclasses import dataclass

from app.ui.chat.chrome import Footer, Header, NewTextMarker, Notice
from app.ui.chat.composer import Composer
from app.ui.conversations.list_rows import Sidebar
from app.ui.transcript.status_banner import StatusBanner
from app.ui.transcript.transcript import Transcript


@dataclass(frozen=True, slots=True)
class ChatWidgets:
    header: Header
    sidebar: Sidebar
    transcript: Transcript
    new_text_marker: NewTextMarker
    composer: Composer
    footer: Footer

    @property
    def notice(self) -> Notice:
        return self.composer.notice

    @property
    def banner(self) -> StatusBanner:
        return self.transcript.banner
