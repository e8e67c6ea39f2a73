"""The very first start: what specchat does, something to try it on, and a pair for this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets.text_area import Selection

from app.ui.attach.attachment import make_attachment
from app.ui.background import in_background
from app.ui.chat.attachments import Attachments
from app.ui.chat.context import ChatContext
from app.ui.prefill.panel_render import DIM
from app.util import formatting

if TYPE_CHECKING:
    from app.models.recommendation import Recommendation
    from app.protocol.prompt import Document

WHAT_IT_IS = (
    "  specchat answers questions about long documents, on this machine alone.",
    "  A small draft model skims all of it; the big target reads what matters.",
    "  Every answer says how much was read. ^S shows what, ^R reads everything.",
)
TRY_IT = "  ⏎ asks a question of a sample, the GNU GPL. Or type, paste, or @ a file."


class Welcome:
    """Shown once, and never in the way: what is typed takes the place of the question that is
    ready, and what is attached that of the sample."""

    def __init__(self, context: ChatContext, attachments: Attachments) -> None:
        self._context, self._attachments = context, attachments
        self.enabled = False
        """Whether the user has set nothing as yet."""
        self._sample: Document | None = None
        self._question = ""

    async def show(self) -> None:
        """Once it is known that nobody has ever written anything here."""
        if not self.enabled or not self._context.open_chats.repository.is_first_run:
            return
        chat = self._context.open_chats.shown
        lines = [Content(line) for line in WHAT_IT_IS]
        self._show(lines)
        if await self._lay_out():
            lines += [Content(""), Content(TRY_IT)]
            self._show(lines)
        pair = await in_background(_recommend)
        if pair is not None and self._context.open_chats.shown is chat:
            self._show([*lines, *_offered(pair)])

    def _show(self, lines: list[Content]) -> None:
        self._context.transcript.banner.show_guide(lines)

    async def _lay_out(self) -> bool:
        """The sample and its question, unless something is written already."""
        from app.chat.sample import QUESTION, sample

        try:
            document = await in_background(sample)
        except OSError:
            return False
        entry = self._context.composer
        if entry.box.text or entry.chips.items or self._context.open_chats.shown.conversation.turns:
            return False
        thing = make_attachment([document])
        self._sample, self._question = document, QUESTION
        self._attachments.on_user_attachment = self._remove_sample
        entry.chips.add(thing)
        entry.box.replace_all(QUESTION)
        entry.box.selection = Selection((0, 0), entry.box.document.end)
        return True

    def _remove_sample(self) -> None:
        """For what the user attaches."""
        self._attachments.on_user_attachment = lambda: None
        entry = self._context.composer
        for each in entry.chips.attached:
            if each.documents == (self._sample,):
                entry.chips.remove_item(each)
                if entry.box.text == self._question:
                    entry.box.replace_all("")


def _recommend() -> Recommendation | None:
    from app.models.recommendation import (
        recommend_for_this_machine,  # here: the screen is drawn before it is needed
    )

    return recommend_for_this_machine()


def _offered(pair: Recommendation) -> list[Content]:
    from app.models.fit import format_tokens

    target, draft = (each.name.rpartition("/")[2] for each in (pair.target, pair.draft))
    memory, download = pair.fit.machine.total / formatting.GIB, pair.download / 1e9
    return [
        Content.styled(f"  This pair is tiny. {memory:.0f} GB of memory hold {target}", DIM),
        Content.styled(
            f"  with {draft}, up to {format_tokens(pair.fit.max_tokens)} tokens"
            f" ({download:.1f} GB to download): ^L.",
            DIM,
        ),
    ]
