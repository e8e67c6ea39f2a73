"""An unsent message and its read mode, on the screen and as a record of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.chat.conversation import Question, effective_mode
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Document
from app.settings.definitions import Settings
from app.store import records
from app.store.records import Overrides
from app.ui.attach.attachment import (
    Attachment,
    documents_of,
    group_documents,
    merge,
    to_notes,
    with_notes,
)
from app.util import formatting

_ONCE = " once, then "


@dataclass(frozen=True, slots=True)
class NextMode:
    """`chosen` holds until it is changed. With `other_way_once` the next message alone is read the
    other way: in full, or in auto mode where `chosen` is full."""

    keep: float
    chosen: Mode = Mode.AUTO
    other_way_once: bool = False

    @property
    def mode(self) -> Mode:
        return self._other if self.other_way_once else self.chosen

    def toggled(self) -> NextMode:
        return replace(self, other_way_once=not self.other_way_once)

    def after_send(self) -> NextMode:
        return replace(self, other_way_once=False)

    def after_unsend(self, mode: Mode) -> NextMode:
        """The mode once a message was taken back, which is still to be read in its `mode`."""
        return replace(self, other_way_once=(mode is Mode.FULL) != (self.chosen is Mode.FULL))

    def at_keep(self, keep: float) -> NextMode:
        return NextMode(keep, Mode.SPARSE)

    def automatic(self) -> NextMode:
        return NextMode(AUTO_KEEP)

    @property
    def label(self) -> str:
        if self.mode is Mode.SPARSE:
            return f"SPARSE {formatting.keep(self.keep)}"
        return self.mode.value.upper()

    @property
    def toggle_label(self) -> str:
        """What Ctrl+T switches to."""
        mode = self.chosen if self.other_way_once else self._other
        return "in full" if mode is Mode.FULL else mode.value

    @property
    def _other(self) -> Mode:
        return Mode.AUTO if self.chosen is Mode.FULL else Mode.FULL


def default_next_mode(settings: Settings) -> NextMode:
    return NextMode(settings.reading.keep, settings.reading.mode)


def next_mode_for(choices: Overrides, default: NextMode) -> NextMode:
    """The mode and keep of one conversation; `default` for what it does not override."""
    mode, keep = effective_mode(choices, default.chosen, default.keep)
    return replace(default, chosen=mode, keep=keep)


@dataclass(frozen=True, slots=True)
class UnsentMessage:
    next_mode: NextMode
    text: str = ""
    attached: tuple[Attachment, ...] = ()

    def prepend(self, question: Question, sent: Sequence[Attachment]) -> UnsentMessage:
        """This draft after a question that was taken back; `sent` are its attachments, if known."""
        attached = tuple(sent)
        if documents_of(attached) != question.documents:
            attached = group_documents(question.documents)
        first = UnsentMessage(self.next_mode.after_unsend(question.mode), question.text, attached)
        return first.append(self.text, self.attached)

    def append(self, text: str, attached: Sequence[Attachment]) -> UnsentMessage:
        """This draft, followed by what was typed since."""
        joined = "\n".join(filter(None, (self.text, text)))
        return UnsentMessage(self.next_mode, joined, merge(self.attached, attached))


def to_record(
    draft: UnsentMessage,
    conversation: int | None,
    attachments: tuple[records.AttachmentRecord, ...],
) -> records.DraftRecord:
    mode = str(draft.next_mode.chosen)
    if draft.next_mode.other_way_once:
        mode = f"{draft.next_mode.mode}{_ONCE}{mode}"
    keep, notes = draft.next_mode.keep, to_notes(draft.attached)
    return records.DraftRecord(conversation, draft.text, attachments, mode, keep, notes)


def from_record(
    record: records.DraftRecord, documents: Sequence[Document], default: NextMode
) -> UnsentMessage:
    """`default` is the read mode if the record has none."""
    attached = with_notes(group_documents(documents), record.notes)
    _, once, mode = record.mode.rpartition(_ONCE)
    if mode not in (Mode.AUTO, Mode.SPARSE, Mode.FULL) or not 0 <= record.keep <= 1:
        return UnsentMessage(default, record.text, attached)
    next_mode = NextMode(record.keep, Mode(mode), bool(once))
    return UnsentMessage(next_mode, record.text, attached)
