"""What is written and not sent, and how it would be read: on the screen, and as it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.chat.conversation import Question
from app.engine.messages import Mode
from app.sessions import records
from app.ui.chat.chips import Paste
from app.ui.keep.next_mode import NextMode

_ONCE = "full once, then "


@dataclass(frozen=True, slots=True)
class Draft:
    next_mode: NextMode
    text: str = ""
    pastes: tuple[Paste, ...] = ()

    def behind(self, question: Question) -> Draft:
        """Behind a question that was sent and comes back."""
        texts = [document.text for document in question.documents]
        first = Draft(self.next_mode.taken_back(question.mode), question.text, _numbered(texts))
        return first.before(self.text, self.pastes)

    def before(self, text: str, pastes: Sequence[Paste]) -> Draft:
        """This one, and behind it what was written since."""
        joined = "\n".join(filter(None, (self.text, text)))
        texts = [paste.text for paste in (*self.pastes, *pastes)]
        return Draft(self.next_mode, joined, _numbered(texts))


def packed(
    draft: Draft, conversation: int | None, attachments: tuple[records.Attachment, ...]
) -> records.Draft:
    mode = str(draft.next_mode.settled)
    if draft.next_mode.full_once:
        mode = _ONCE + mode
    return records.Draft(conversation, draft.text, attachments, mode, draft.next_mode.keep)


def unpacked(kept: records.Draft, pastes: Sequence[str], otherwise: NextMode) -> Draft:
    """`otherwise` is how it would be read where nobody has said."""
    numbered = _numbered(pastes)
    settled = kept.mode.removeprefix(_ONCE)
    if settled not in (Mode.AUTO, Mode.SPARSE, Mode.FULL) or not 0 <= kept.keep <= 1:
        return Draft(otherwise, kept.text, numbered)
    next_mode = NextMode(kept.keep, Mode(settled), kept.mode.startswith(_ONCE))
    return Draft(next_mode, kept.text, numbered)


def _numbered(texts: Sequence[str]) -> tuple[Paste, ...]:
    return tuple(Paste(number, text) for number, text in enumerate(texts, 1))
