"""The first start: what specchat does, a sample to ask about, and models that suit this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from textual.content import Content

from app.chat.sample import QUESTION, sample
from app.protocol.prompt import Document
from app.ui.background import in_background
from app.ui.chat.attachments import AttachmentReader
from app.ui.chat.composer import Composer
from app.ui.state.open_chats import OpenChats
from app.ui.transcript.panel import DIM
from app.ui.transcript.status_banner import StatusBanner
from app.ui.transcript.turn_view import ONLY_QUOTES
from app.util import formatting

if TYPE_CHECKING:
    from app.models.pairs import Recommendation

WHAT_IT_IS = (
    "  specchat answers questions about long documents, on this machine only. It finds what matters"
    " for your question; the model reads only that. Each answer says how much."
    " ^S shows what was read, ^R reads in full."
)
TRY_IT = "  Press ⏎ to ask about a sample, the GNU GPL. Or paste a text, or type @."


async def show_welcome(
    open_chats: OpenChats, composer: Composer, attachments: AttachmentReader, banner: StatusBanner
) -> None:
    """Explain the app above the conversation, and fill in a sample question, which what the user
    types or attaches replaces."""
    chat = open_chats.shown
    lines = [Content(WHAT_IT_IS)]
    banner.show_guide(lines)
    document = await in_background(_read_sample)
    started = composer.box.text or composer.chips.items or open_chats.shown.conversation.turns
    if document is not None and not started:
        attachments.attach_sample(document, QUESTION)
        lines += [Content(""), Content(TRY_IT)]
        banner.show_guide(lines)
    found = await in_background(_recommend)
    if found is not None and open_chats.shown is chat:
        banner.show_guide([*lines, *_recommendation_lines(found)])


def _read_sample() -> Document | None:
    with suppress(OSError):
        return sample()
    return None


def _recommend() -> Recommendation | None:
    from app.models.pairs import recommend_for_this_machine  # slow to import

    return recommend_for_this_machine()


def _recommendation_lines(found: Recommendation) -> list[Content]:
    from app.models.fit import format_tokens

    name, tokens = found.target.name.rpartition("/")[2], format_tokens(found.fit.max_tokens)
    memory, download = found.fit.machine.total / formatting.GIB, found.target.download / 1e9
    small = f"  {ONLY_QUOTES}"
    large = (
        f"  {name} runs in {memory:.0f} GB of memory with prompts of up to {tokens} tokens. ^L"
        f" downloads it ({download:.1f} GB)."
    )
    return [Content.styled(line, DIM) for line in (small, large)]
