"""An unsent message and its read mode, on the screen and as a record of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.chat.conversation import Question
from app.protocol.options import Mode
from app.protocol.prompt import Document
from app.store import records
from app.ui.attach.attachment import (
    Attachment,
    documents_of,
    group_documents,
    merge,
    to_notes,
    with_notes,
)
from app.ui.keep.next_mode import NextMode

_ONCE = " once, then "


@dataclass(frozen=True, slots=True)
class Draft:
    next_mode: NextMode
    text: str = ""
    attached: tuple[Attachment, ...] = ()

    def prepend(self, question: Question, sent: Sequence[Attachment]) -> Draft:
        """This draft after a question that was taken back; `sent` are its attachments, if known."""
        attached = tuple(sent)
        if documents_of(attached) != question.documents:
            attached = group_documents(question.documents)
        first = Draft(self.next_mode.after_unsend(question.mode), question.text, attached)
        return first.append(self.text, self.attached)

    def append(self, text: str, attached: Sequence[Attachment]) -> Draft:
        """This draft, followed by what was typed since."""
        joined = "\n".join(filter(None, (self.text, text)))
        return Draft(self.next_mode, joined, merge(self.attached, attached))


def to_record(
    draft: Draft, conversation: int | None, attachments: tuple[records.AttachmentRecord, ...]
) -> records.DraftRecord:
    mode = str(draft.next_mode.chosen)
    if draft.next_mode.other_way_once:
        mode = f"{draft.next_mode.mode}{_ONCE}{mode}"
    keep, notes = draft.next_mode.keep, to_notes(draft.attached)
    return records.DraftRecord(conversation, draft.text, attachments, mode, keep, notes)


def from_record(
    record: records.DraftRecord, documents: Sequence[Document], default: NextMode
) -> Draft:
    """`default` is the read mode if the record has none."""
    attached = with_notes(group_documents(documents), record.notes)
    _, once, mode = record.mode.rpartition(_ONCE)
    if mode not in (Mode.AUTO, Mode.SPARSE, Mode.FULL) or not 0 <= record.keep <= 1:
        return Draft(default, record.text, attached)
    next_mode = NextMode(record.keep, Mode(mode), bool(once))
    return Draft(next_mode, record.text, attached)
