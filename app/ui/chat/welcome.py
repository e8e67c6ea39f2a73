"""The first start: what specchat does, a sample to ask about, and models that suit this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets.text_area import Selection

from app.ui.attach.attachment import make_attachment
from app.ui.background import in_background
from app.ui.chat.attachments import Attachments
from app.ui.chat.context import ChatContext
from app.ui.prefill.panel import DIM
from app.util import formatting

if TYPE_CHECKING:
    from app.models.pairs import Recommendation
    from app.protocol.prompt import Document

WHAT_IT_IS = (
    "  specchat answers questions about long documents, on this machine only.",
    "  A draft finds what matters for your question, and the model reads only that.",
    "  Every answer says how much was read. ^S shows what, ^R reads everything.",
)
TRY_IT = "  ⏎ asks a question of a sample, the GNU GPL. Or type, paste, or @ a file."


class Welcome:
    """Shown once. What the user types replaces the sample question, and what they attach replaces
    the sample document."""

    def __init__(self, context: ChatContext, attachments: Attachments) -> None:
        self._context, self._attachments = context, attachments
        self.enabled = False
        """Whether the user has not changed any settings yet."""
        self._sample: Document | None = None
        self._question = ""

    async def show(self) -> None:
        """Called once the store is open; does nothing if it has ever held a conversation."""
        if not self.enabled or not self._context.open_chats.repository.is_first_run:
            return
        chat = self._context.open_chats.shown
        lines = [Content(line) for line in WHAT_IT_IS]
        self._show(lines)
        if await self._attach_sample():
            lines += [Content(""), Content(TRY_IT)]
            self._show(lines)
        found = await in_background(_recommend)
        if found is not None and self._context.open_chats.shown is chat:
            self._show([*lines, *_recommendation_lines(found)])

    def _show(self, lines: list[Content]) -> None:
        self._context.transcript.banner.show_guide(lines)

    async def _attach_sample(self) -> bool:
        """Attach the sample and fill in its question, unless the user has typed something."""
        from app.chat.sample import QUESTION, sample

        try:
            document = await in_background(sample)
        except OSError:
            return False
        composer = self._context.composer
        if (
            composer.box.text
            or composer.chips.items
            or self._context.open_chats.shown.conversation.turns
        ):
            return False
        thing = make_attachment([document])
        self._sample, self._question = document, QUESTION
        self._attachments.on_user_attachment = self._remove_sample
        composer.chips.add(thing)
        composer.box.replace_all(QUESTION)
        composer.box.selection = Selection((0, 0), composer.box.document.end)
        return True

    def _remove_sample(self) -> None:
        """Called when the user attaches something."""
        self._attachments.on_user_attachment = lambda: None
        composer = self._context.composer
        for each in composer.chips.attached:
            if each.documents == (self._sample,):
                composer.chips.remove_item(each)
                if composer.box.text == self._question:
                    composer.box.replace_all("")


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
