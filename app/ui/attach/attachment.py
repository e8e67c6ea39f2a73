"""The attachments of a question, one object for each chip. No widgets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.ingest.records import FileRead, Skipped
from app.protocol.prompt import Document
from app.util import formatting

_PASTE = re.compile(r"paste-(\d+)\.txt")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A paste, a file or a folder. A folder's first document is its file tree."""

    documents: tuple[Document, ...]
    size: int
    """Bytes of its texts, without the tree."""
    lines: int
    skipped: tuple[Skipped, ...] = field(default=(), compare=False)
    doubtful: tuple[FileRead, ...] = field(default=(), compare=False)
    """Files whose encoding was guessed, or that have bad bytes."""
    tokens: int | None = field(default=None, compare=False)
    """Of the target model, once counted."""
    tokens_estimated: bool = field(default=False, compare=False)
    """Whether only a sample was counted."""

    @property
    def is_folder(self) -> bool:
        return self.documents[0].name.endswith("/")

    @property
    def texts(self) -> tuple[Document, ...]:
        return self.documents[1:] if self.is_folder else self.documents

    @property
    def name(self) -> str:
        """As the chip shows it; not sanitised."""
        name = self.documents[0].name
        paste = _PASTE.fullmatch(name)
        return f"Paste {paste[1]}" if paste else name

    @property
    def facts(self) -> str:
        """`34 files · 118,204 tok · 5,120 lines`, with the size until the tokens are counted."""
        parts = []
        if self.is_folder:
            parts.append(formatting.plural(len(self.texts), "file"))
        if self.tokens is None:
            parts.append(formatting.size(self.size))
        elif self.tokens_estimated:
            parts.append(f"about {formatting.short_count(self.tokens)} tok")
        else:
            parts.append(f"{self.tokens:,} tok")
        return " · ".join((*parts, formatting.plural(self.lines, "line")))

    @property
    def skipped_text(self) -> str:
        """`12 skipped`, `12 and the rest skipped (limit 5,000 files)`, or empty."""
        listed = sum(not each.rest and not each.pages for each in self.skipped)
        pages = sum(each.pages for each in self.skipped)
        limits = [each.limit for each in self.skipped if each.limit]
        what = [f"{listed:,}"] if listed else []
        what += [formatting.plural(pages, "page")] if pages else []
        what += ["the rest"] if limits else []
        limit = f" (limit {limits[0]})" if limits else ""
        return f"{' and '.join(what)} skipped{limit}" if what else ""

    @property
    def doubt_text(self) -> str:
        """`read as Windows-1252 (Western European)`, `3 files in guessed encodings`, or empty."""
        guessed = [each for each in self.doubtful if each.guessed]
        if len(guessed) > 1:
            return f"{len(guessed):,} files in guessed encodings"
        if guessed:
            return f"read as {guessed[0].label}"
        return "bad bytes" if self.doubtful else ""


def make_attachment(documents: Iterable[Document]) -> Attachment:
    """Takes a while for megabytes."""
    whole = Attachment(tuple(documents), 0, 0)
    size = sum(byte_count(each.text) for each in whole.texts)
    return replace(whole, size=size, lines=sum(line_count(each.text) for each in whole.texts))


def paste_attachment(text: str, number: int) -> Attachment:
    """Terminals send a carriage return for every line end of a paste; a text without newlines gets
    them back. `number` counts the pastes of a message, from 1."""
    text = text if "\n" in text else text.replace("\r", "\n")
    return make_attachment([Document(f"paste-{number}.txt", text)])


def group_documents(documents: Sequence[Document]) -> tuple[Attachment, ...]:
    """The documents of a message as attachments: those of a folder belong together."""
    groups: list[list[Document]] = []
    folder = ""
    for document in documents:
        if folder and document.name.startswith(folder) and document.name != folder:
            groups[-1].append(document)
            continue
        folder = document.name if document.name.endswith("/") else ""
        groups.append([document])
    return tuple(make_attachment(group) for group in groups)


def documents_of(attachments: Iterable[Attachment]) -> tuple[Document, ...]:
    """For the model, in the order of the chips."""
    return tuple(document for each in attachments for document in each.documents)


def next_paste_number(attachments: Iterable[Attachment]) -> int:
    """For the next paste."""
    numbers = (_PASTE.fullmatch(each.documents[0].name) for each in attachments)
    return 1 + max((int(number[1]) for number in numbers if number), default=0)


def merge(first: Sequence[Attachment], second: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Both. Pastes of the second are renumbered if the first has their number."""
    every, names = [*first], {each.documents[0].name for each in first}
    for each in second:
        name = each.documents[0].name
        if _PASTE.fullmatch(name) and name in names:
            document = replace(each.documents[0], name=f"paste-{next_paste_number(every)}.txt")
            each = replace(each, documents=(document,))
        every.append(each)
        names.add(each.documents[0].name)
    return tuple(every)


def find_duplicate(new: Attachment, attachments: Iterable[Attachment]) -> Attachment | None:
    """An attachment that already has all texts of `new`."""
    texts = {each.text for each in new.texts}
    return next((old for old in attachments if texts <= {each.text for each in old.texts}), None)


def byte_count(text: str) -> int:
    """In UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def line_count(text: str) -> int:
    """Counts a last line without a line end too."""
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    return ends + (not text.endswith(("\r", "\n")))
