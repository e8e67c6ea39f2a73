"""The first start: what specchat does, a sample to ask about, and models that suit this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from app.ui.background import in_background
from app.ui.chat.attachments import Attachments
from app.ui.chat.composer import Composer
from app.ui.prefill.panel import DIM
from app.ui.state.open_chats import OpenChats
from app.ui.transcript.status_banner import StatusBanner
from app.util import formatting

if TYPE_CHECKING:
    from app.models.pairs import Recommendation

WHAT_IT_IS = (
    "  specchat answers questions about long documents, on this machine only.",
    "  A draft finds what matters for your question, and the model reads only that.",
    "  Every answer says how much was read. ^S shows what, ^R reads everything.",
)
TRY_IT = "  ⏎ asks a question of a sample, the GNU GPL. Or type, paste, or @ a file."


class Welcome:
    """Shown once. What the user types or attaches replaces the sample."""

    def __init__(
        self,
        open_chats: OpenChats,
        composer: Composer,
        attachments: Attachments,
        banner: StatusBanner,
    ) -> None:
        self._open_chats, self._composer = open_chats, composer
        self._attachments, self._banner = attachments, banner
        self.enabled = False
        """Whether the user has not changed any settings yet."""

    async def show(self) -> None:
        """Called once the store is open; does nothing if it has ever held a conversation."""
        if not self.enabled or not self._open_chats.repository.is_first_run:
            return
        chat = self._open_chats.shown
        lines = [Content(line) for line in WHAT_IT_IS]
        self._banner.show_guide(lines)
        if await self._attach_sample():
            lines += [Content(""), Content(TRY_IT)]
            self._banner.show_guide(lines)
        found = await in_background(_recommend)
        if found is not None and self._open_chats.shown is chat:
            self._banner.show_guide([*lines, *_recommendation_lines(found)])

    async def _attach_sample(self) -> bool:
        """Attach the sample and fill in its question, unless the user has typed something."""
        from app.chat.sample import QUESTION, sample

        try:
            document = await in_background(sample)
        except OSError:
            return False
        started = self._composer.box.text or self._composer.chips.items
        if started or self._open_chats.shown.conversation.turns:
            return False
        self._attachments.attach_sample(document, QUESTION)
        return True


def _recommend() -> Recommendation | None:
    from app.models.pairs import recommend_for_this_machine  # slow to import

    return recommend_for_this_machine()


def _recommendation_lines(found: Recommendation) -> list[Content]:
    from app.models.fit import format_tokens

    name, tokens = found.target.name.rpartition("/")[2], format_tokens(found.fit.max_tokens)
    memory, download = found.fit.machine.total / formatting.GIB, found.target.download / 1e9
    return [
        Content.styled(f"  This model is tiny. {memory:.0f} GB of memory can run {name},", DIM),
        Content.styled(f"  up to {tokens} tokens ({download:.1f} GB to download): ^L.", DIM),
    ]
