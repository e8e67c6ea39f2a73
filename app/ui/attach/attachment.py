"""Attachments of a question, one object for each chip: how they are read, and how their facts are
saved with a draft. No widgets."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace

from app.ingest.limits import ReadLimits
from app.ingest.records import (
    RECOGNISABLE,
    Changes,
    FileRead,
    IngestError,
    ReadProgress,
    Skipped,
    SkipReason,
)
from app.protocol.prompt import Document, Origin
from app.util import formatting

DELETED = "This file was deleted."
"""The new version of a file of a folder that is gone."""
PASTE = re.compile(r"paste-(\d+)\.txt")
MAX_SKIPPED = 500
"""Maximum number of skipped files of a folder that are saved with a draft. With more, no facts are
saved, because drafts are saved often."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A paste, a file or a folder. A folder's first document is its file tree."""

    documents: tuple[Document, ...]
    size: int
    """Bytes of its texts, without the tree."""
    lines: int
    skipped: tuple[Skipped, ...] = field(default=(), compare=False)
    doubtful: tuple[FileRead, ...] = field(default=(), compare=False)
    """Files whose encoding was guessed, or with invalid bytes."""
    tokens: int | None = field(default=None, compare=False)
    """Tokens of the target model, once counted."""
    tokens_estimated: bool = field(default=False, compare=False)
    """Whether only a sample was counted."""
    changes: Changes | None = field(default=None, compare=False)
    """What has changed in its files since they were read."""
    whole: Attachment | None = field(default=None, compare=False, repr=False)
    """The document that this is a part of, if it was chosen from the chip."""

    question: str = field(default="", compare=False)
    """The question that a large file was searched for."""

    @property
    def is_searched(self) -> bool:
        """Whether it is lines of a file that is too large to be read whole."""
        return self.documents[0].is_searched

    @property
    def is_folder(self) -> bool:
        return self.documents[0].name.endswith("/")

    @property
    def texts(self) -> tuple[Document, ...]:
        return self.documents[1:] if self.is_folder else self.documents

    @property
    def name(self) -> str:
        """The name that the chip shows; not sanitised."""
        name = self.documents[0].name
        paste = PASTE.fullmatch(name)
        return f"Paste {paste[1]}" if paste else name

    @property
    def has_pictures(self) -> bool:
        """Whether text recognition may find more text."""
        return any(each.reason in RECOGNISABLE for each in self.skipped)

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
        lines = formatting.plural(self.lines, "line")
        if left := sum(e.pages for e in self.skipped if e.reason is SkipReason.SEARCHED):
            lines = f"{self.lines:,} of {formatting.plural(self.lines + left, 'line')}"
            lines += "" if self.question else " · searched for each question"
        elif self.is_searched and (origin := self.documents[0].origin) is not None:
            lines += f" of {formatting.size(origin.size)}"
        return " · ".join((*parts, lines))

    @property
    def skipped_text(self) -> str:
        """`12 skipped`, `the rest not read (limit 5,000 files), 12 skipped`, or empty."""
        listed = sum(not each.rest and not each.pages for each in self.skipped)
        pages = sum(
            each.pages
            for each in self.skipped
            if not each.rest and each.reason is not SkipReason.SEARCHED
        )
        what = [f"{listed:,}"] if listed else []
        what += [formatting.plural(pages, "page")] if pages else []
        rest = f"the rest not read (limit {self.limit})" if self.limit else ""
        skipped = f"{' and '.join(what)} skipped" if what else ""
        return ", ".join(filter(None, (rest, skipped)))

    @property
    def limit(self) -> str:
        """The limit that kept the rest from being read, such as `5,000 files`, or empty."""
        return next((each.limit for each in self.skipped if each.limit), "")

    @property
    def doubt_text(self) -> str:
        """`read as Windows-1252 (Western European)`, `3 files in guessed encodings`, `9 pages read
        by OCR`, or empty."""
        if recognised := sum(each.recognised for each in self.doubtful):
            return f"{formatting.plural(recognised, 'page')} read by OCR"
        guessed = [each for each in self.doubtful if each.guessed]
        if len(guessed) > 1:
            return f"{len(guessed):,} files in guessed encodings"
        if guessed:
            return f"read as {guessed[0].label}"
        return "invalid bytes" if self.doubtful else ""


def make_attachment(documents: Iterable[Document]) -> Attachment:
    """An attachment of these documents. Counting takes a while for megabytes of text."""
    whole = Attachment(tuple(documents), 0, 0)
    size = sum(byte_count(each.text) for each in whole.texts)
    return replace(whole, size=size, lines=sum(line_count(each.text) for each in whole.texts))


def part_of(attached: Attachment, wanted: str) -> Attachment:
    """A part of a document, or of the one that it is a part of. Raises Rejected."""
    from app.ingest.excerpt import excerpt  # slow to import: not before the first frame

    whole = attached.whole or attached
    part = make_attachment(excerpt(whole.documents[0], wanted))
    return replace(part, skipped=whole.skipped, doubtful=whole.doubtful, whole=whole)


def paste_attachment(text: str, number: int) -> Attachment:
    """Terminals send a carriage return for every line end of a paste; a text without newlines gets
    them back. `number` counts the pastes of a message, from 1."""
    text = text if "\n" in text else text.replace("\r", "\n")
    return make_attachment([Document(f"paste-{number}.txt", text)])


def group_documents(documents: Sequence[Document]) -> tuple[Attachment, ...]:
    """The documents of a message as attachments: those of a folder belong together, and so do
    several ranges of lines of a file, which have the same name."""
    groups: list[list[Document]] = []
    folder = ""
    for document in documents:
        if folder and document.name.startswith(folder) and document.name != folder:
            groups[-1].append(document)
            continue
        before = groups[-1][-1] if groups else None
        if before and before.name == document.name and before.line < document.line:
            groups[-1].append(document)
            continue
        folder = document.name if document.name.endswith("/") else ""
        groups.append([document])
    return tuple(make_attachment(group) for group in groups)


def documents_of(attachments: Iterable[Attachment]) -> tuple[Document, ...]:
    """The documents of all attachments, in the order of the chips."""
    return tuple(document for each in attachments for document in each.documents)


def next_paste_number(attachments: Iterable[Attachment]) -> int:
    numbers = (PASTE.fullmatch(each.documents[0].name) for each in attachments)
    return 1 + max((int(number[1]) for number in numbers if number), default=0)


def merge(first: Sequence[Attachment], second: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Both groups of attachments. Pastes of the second are renumbered if the first has their
    number."""
    every, names = [*first], {each.documents[0].name for each in first}
    for each in second:
        name = each.documents[0].name
        if PASTE.fullmatch(name) and name in names:
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
    """Length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def line_count(text: str) -> int:
    """Counts a last line without a line end too."""
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    return ends + (not text.endswith(("\r", "\n")))


def to_notes(attachments: Iterable[Attachment]) -> str:
    """Facts about attachments as JSON, for `with_notes`; empty if there is nothing to save."""
    notes = {
        each.documents[0].name: [[*map(astuple, each.skipped)], [*map(astuple, each.doubtful)]]
        for each in attachments
        if 0 < len(each.skipped) + len(each.doubtful) <= MAX_SKIPPED
    }
    return json.dumps(notes) if notes else ""


def with_notes(attachments: Iterable[Attachment], notes: str) -> tuple[Attachment, ...]:
    """Attachments with the facts from `to_notes`. Damaged or unknown notes are ignored."""

    def restored(each: Attachment) -> Attachment:
        with suppress(ValueError, TypeError, KeyError, IndexError):
            skipped, doubtful = json.loads(notes)[each.documents[0].name]
            return replace(
                each,
                skipped=tuple(
                    Skipped(path, SkipReason(why), *rest) for path, why, *rest in skipped
                ),
                doubtful=tuple(FileRead(*file) for file in doubtful),
            )
        return each

    return tuple(map(restored, attachments))


@dataclass(eq=False)
class FileJob:
    """`typed` goes back into the compose box if the file cannot be read: in place of the `mention`
    that stands for it in a sentence, or else at the end."""

    path: str
    typed: str
    limits: ReadLimits = field(default_factory=ReadLimits)
    previous: Attachment | Changes | None = None
    """What is read again: an attachment that was not sent yet, or changed files of sent ones."""
    known: Mapping[str, Document] = field(default_factory=dict)
    """For a folder that is read again: what was sent, by path. Only what differs is attached."""
    mention: str = ""
    questions: tuple[str, ...] = ()
    """See `app.ingest.reader.read`."""
    progress: ReadProgress | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return os.path.basename(self.path.rstrip("/")) or self.path

    @property
    def facts(self) -> str:
        progress = self.progress
        parts = ["recognising text" if self.limits.ocr else "reading"]
        if self.questions:
            parts = ["searching"]
        if progress is not None and progress.files:
            parts += [formatting.plural(progress.files, "file"), formatting.size(progress.size)]
        if progress is not None and progress.pages:
            parts.append(progress.page_text)
        return " · ".join(parts)

    def put_back(self, text: str) -> tuple[int, int, str]:
        """Which characters of a question what was typed for the file replaces, and with what."""
        mention = re.compile(rf"(?<!\S){re.escape(self.mention)}(?![\w/])")
        if self.mention and (found := mention.search(text)) is not None:
            return *found.span(), self.typed
        gap = " " if text and self.typed and not text[-1].isspace() else ""
        return len(text), len(text), gap + self.typed

    def run(self) -> Attachment:
        """Read the file or folder, on a thread. Raises IngestError and Cancelled."""
        from app.ingest.reader import read  # slow to import: not before the first frame

        gathered = read(
            [self.path],
            limits=self.limits,
            progress=self._on_progress,
            cancelled=self.cancelled.is_set,
            questions=self.questions,
        )
        (intake,) = gathered.results
        documents = _what_differs(intake.documents, self.known) if self.known else intake.documents
        return replace(
            make_attachment(documents),
            skipped=intake.skipped,
            doubtful=tuple(each for each in intake.files if each.doubtful),
            question=self.questions[0] if self.questions else "",
        )

    def _on_progress(self, progress: ReadProgress) -> None:
        self.progress = progress


def _what_differs(
    documents: Sequence[Document], known: Mapping[str, Document]
) -> tuple[Document, ...]:
    """The tree of a folder, the documents whose files are not `known` with the same content, and a
    note for each known file that is gone. Raises IngestError if there is nothing new."""
    tree, *texts = documents
    found = {each.origin.path: each.origin for each in texts if each.origin is not None}
    before = {path: each.origin.sha256 for path, each in known.items() if each.origin is not None}
    differing = [
        each
        for each in texts
        if each.origin is not None and each.origin.sha256 != before.get(each.origin.path)
    ]
    gone = [
        Document(known[path].name, DELETED, origin=Origin(path))
        for path, sha256 in before.items()
        if sha256 and path not in found and not os.path.lexists(path)
    ]
    if not differing and not gone:
        raise IngestError(
            f"Nothing that can be read has changed in '{tree.name}'", "save the file first"
        )
    return (tree, *differing, *gone)


ReadFile = Callable[[FileJob], Attachment]
"""`FileJob.run`, or a fake in tests."""
