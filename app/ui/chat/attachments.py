"""Turns pastes, files and folders into chips and counts their tokens. Slow work runs on threads,
and its result goes to the conversation it was started in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from textual.message import Message
from textual.widgets.text_area import Selection

from app.errors import UserError
from app.ingest.ocr import installed_recogniser
from app.ingest.records import RECOGNISABLE, IngestError, ReadCancelled
from app.models.tokenizers import MAX_COUNTED, TokenCounter
from app.protocol.prompt import Document
from app.settings.file import SettingsFile
from app.ui.attach.attachment import (
    Attachment,
    FileJob,
    ReadFile,
    find_duplicate,
    make_attachment,
    merge,
)
from app.ui.attach.chips import Item, OcrScreen
from app.ui.background import in_background, start_task
from app.ui.chat.composer import Composer
from app.ui.completion import typed_path
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import OpenChat

NO_OCR = "No text recognition is installed: install specchat with its extra `ocr`."
RECOGNISE = "to recognise it, select the chip with Shift+Tab and press o"
MAX_SCANS = 8
"""Files with pages that are pictures to remember, so that their text can be recognised."""
DISK_SECONDS = 1.0
"""Maximum time for checking whether a file that the question names exists."""


@dataclass
class QuestionReady(Message):
    """All files that this question of `chat` waited for have been read."""

    chat: OpenChat
    typed: str


class AttachmentReader:
    def __init__(
        self, composer: Composer, open_chats: OpenChats, settings_file: SettingsFile, target: str
    ) -> None:
        """`target` is the folder of the model whose tokens are counted."""
        self._composer, self._open_chats = composer, open_chats
        self._settings_file = settings_file
        self.read: ReadFile = FileJob.run
        self._jobs: dict[FileJob, OpenChat] = {}
        self._target, self._counter = target, TokenCounter(Path(target))
        self._counting: list[tuple[Document, ...]] = []
        self.uncountable = False
        """Whether the model's tokenizer cannot be used."""
        self._deferred: tuple[OpenChat, str] | None = None
        self._refused = ""
        """A question that was not sent, because it names a file that does not exist."""
        self._scans: list[tuple[tuple[Document, ...], FileJob]] = []
        """Documents with pages that are pictures, and how they were read."""
        self._can_recognise = False
        self._sample: tuple[Document, str] | None = None
        """The sample and its question, until the user attaches something."""

    # -------------------------------------------------------------------------- reading

    def attach(self, path: str, typed: str) -> None:
        """Start reading a file, a part of one, or a folder for the conversation on the screen."""
        self._remove_sample()
        self._composer.chips.add(self._start(path, typed))

    def _start(self, path: str, typed: str, ocr: bool = False) -> FileJob:
        """`ocr`: recognise the text of pages that are pictures."""
        limits = replace(self._settings_file.settings.limits(), ocr=ocr)
        job = FileJob(path, typed, limits)
        self._jobs[job] = self._open_chats.shown
        start_task(self._composer, lambda: self._read(job))
        return job

    def recognise(self, item: Attachment) -> None:
        """Read a file again, and recognise the text of pages that are pictures."""
        documents = (item.whole or item).documents
        known = (job for read, job in self._scans if read is documents)
        job = next(known, None)
        if not item.has_pictures:
            self._composer.notice.show(f"'{item.name}' has no pages without text.")
        elif job is None:
            self._composer.notice.show(f"Attach '{item.name}' again to recognise its text.")
        elif not self._can_recognise:
            self._composer.notice.show(NO_OCR)
        else:
            self._composer.chips.replace(item, self._start(job.path, job.typed, ocr=True))

    def paste(self, text: str) -> None:
        chips = self._composer.chips
        self._remove_sample()
        new = chips.paste(text)
        if not self._is_duplicate(new, chips.attached):
            chips.add(new)

    def remove(self, item: Item) -> None:
        """Remove a chip; if its file is still being read, stop that."""
        if isinstance(item, FileJob):
            item.cancelled.set()
            self._jobs.pop(item, None)
            self.cancel_deferred()
        self._composer.chips.remove_item(item)
        self._composer.box.focus()

    def jobs(self, chat: OpenChat) -> tuple[FileJob, ...]:
        """The files being read for a conversation."""
        return tuple(job for job, owner in self._jobs.items() if owner is chat)

    def reassign(self, before: OpenChat, after: OpenChat) -> None:
        """Move the files that are being read from one conversation to another."""
        for job in self.jobs(before):
            self._jobs[job] = after

    def shutdown(self) -> None:
        """At exit, stop reading; at the next start the typed paths are in the composer again."""
        shown = self._open_chats.shown
        for job, chat in [*self._jobs.items()]:
            job.cancelled.set()
            _restore_typed(chat, job)
            if chat is not shown:
                self._open_chats.stash(chat)
                del self._jobs[job]

    async def _read(self, job: FileJob) -> None:
        try:
            new = await in_background(lambda: self.read(job))
        except ReadCancelled:
            return
        except UserError as error:
            if not await self._recognises(job, error):
                self._failed(job, error)
            return
        if new.has_pictures and not job.limits.ocr:
            self._scans = [*self._scans[1 - MAX_SCANS :], (new.documents, job)]
            self._can_recognise = bool(await in_background(installed_recogniser))
        chat = self._jobs.pop(job, None)
        if chat is None:  # the chip was removed
            return
        if chat is not self._open_chats.shown:
            if find_duplicate(new, chat.draft.attached) is None:
                chat.draft = replace(chat.draft, attached=merge(chat.draft.attached, [new]))
                self._open_chats.stash(chat)
            return
        chips = self._composer.chips
        if self._is_duplicate(new, chips.attached):
            chips.remove_item(job)
        else:
            chips.replace(job, new)
            self._show_doubts(new)
        self._send_deferred(chat)

    async def _recognises(self, job: FileJob, error: UserError) -> bool:
        """Offer to recognise the text of a file that has only pictures; returns whether that was
        started."""
        reason = error.reason if isinstance(error, IngestError) else None
        if reason not in RECOGNISABLE or job.limits.ocr:
            return False
        chat = self._jobs.get(job)
        if chat is not self._open_chats.shown or not await in_background(installed_recogniser):
            return False
        if not await self._composer.app.push_screen_wait(OcrScreen(error.problem)):
            return False
        if self._jobs.pop(job, None) is not None:
            self._composer.chips.replace(job, self._start(job.path, job.typed, ocr=True))
        return True

    def _failed(self, job: FileJob, error: UserError) -> None:
        """Put the typed path back into the composer, or the draft."""
        chat = self._jobs.pop(job, None)
        if chat is None:
            return
        if chat is self._open_chats.shown:
            self._composer.chips.remove_item(job)
            self._composer.append_typed(job.typed)
        else:
            _restore_typed(chat, job)
            self._open_chats.stash(chat)
        self._deferred = None
        self._composer.notice.show(str(error))

    def _is_duplicate(self, new: Attachment, attached: tuple[Attachment, ...]) -> bool:
        old = find_duplicate(new, attached)
        if old is not None:
            self._composer.notice.show(
                f"Already attached, as part of '{old.name}'."
                if new.name != old.name
                else f"'{old.name}' is already attached."
            )
        return old is not None

    def _show_doubts(self, new: Attachment) -> None:
        if new.is_folder:
            return
        scanned = RECOGNISABLE if self._can_recognise else ()
        skipped = [
            replace(each, advice=RECOGNISE) if each.reason in scanned else each
            for each in new.skipped
        ]
        sentences = [each.sentence for each in skipped]
        sentences += [each.sentence for each in new.doubtful]
        if sentences:
            self._composer.notice.show(" ".join(sentences))

    # -------------------------------------------------------------------------- asking

    async def question(self, typed: str) -> str | None:
        """The typed question. Files that it names are attached, and removed from it. Returns None
        if it cannot be sent now; if files are still being read, a `QuestionReady` follows."""
        question = await self._attach_named(typed)
        jobs = self.jobs(self._open_chats.shown)
        if question is None or not jobs or not question.strip():
            return question
        self._deferred = self._open_chats.shown, question
        name = jobs[-1].name
        self._composer.notice.show(
            f"The question will be sent once '{name}' has been read. Esc cancels it."
        )
        return None

    async def _attach_named(self, typed: str) -> str | None:
        """Attach the files named after an `@`, and return the question without them. If a file does
        not exist, show a notice and return None; if the same text is sent again, it is sent as it
        is."""
        refused, self._refused = self._refused, ""
        if "@" not in typed:
            return typed
        composer = self._composer
        take = partial(composer.box.choices.paths.take_named, typed, typed != refused)
        try:
            question, paths = await asyncio.wait_for(in_background(take), DISK_SECONDS)
        except TimeoutError:
            return typed
        except UserError as error:
            self._refused = typed
            hint = "Press Enter again to send it as it is."
            self._composer.notice.show(f"{error} {hint}")
            return None
        if not paths:
            return typed
        composer.replace_typed(typed, question)
        for path in paths:
            self.attach(path, typed_path(path))
        return question or None

    def cancel_deferred(self) -> bool:
        """Cancel the question that waits for files; returns whether there was one."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._composer.notice.show("Not sent. Press Enter to send it.")
        return deferred is not None

    def _send_deferred(self, chat: OpenChat) -> None:
        if self._deferred is None or self._deferred[0] is not chat or self.jobs(chat):
            return
        typed, self._deferred = self._deferred[1], None
        if self._composer.box.text.startswith(typed):
            self._composer.post_message(QuestionReady(chat, typed))

    # -------------------------------------------------------------------------- the sample

    def attach_sample(self, document: Document, question: str) -> None:
        """Attach the sample and fill in its question. What the user types replaces the question,
        and what they attach replaces the sample."""
        composer = self._composer
        self._sample = document, question
        composer.chips.add(make_attachment([document]))
        composer.box.replace_all(question)
        composer.box.selection = Selection((0, 0), composer.box.document.end)

    def _remove_sample(self) -> None:
        if self._sample is None:
            return
        composer, (document, question) = self._composer, self._sample
        self._sample = None
        for each in composer.chips.attached:
            if each.documents == (document,):
                composer.chips.remove_item(each)
                if composer.box.text == question:
                    composer.box.replace_all("")

    # -------------------------------------------------------------------------- counting

    def count_for(self, target: str) -> None:
        """Count all tokens again if this is another model."""
        if target == self._target:
            return
        self._target, self._counter = target, TokenCounter(Path(target))
        self.uncountable, self._counting = False, []
        for each in self._composer.chips.attached:
            self._composer.chips.replace(each, replace(each, tokens=None))
        self.count()

    def count(self) -> None:
        """Count the tokens of attachments where they are not known yet."""
        for each in self._composer.chips.attached:
            counting = any(documents is each.documents for documents in self._counting)
            if each.tokens is None and not counting and not self.uncountable:
                self._counting.append(each.documents)
                start_task(self._composer, partial(self._count, each.documents))

    async def _count(self, documents: tuple[Document, ...]) -> None:
        chips, counter = self._composer.chips, self._counter

        def cancelled() -> bool:
            return all(each.documents is not documents for each in chips.attached)

        texts = [document.text for document in documents]
        estimated = sum(map(len, texts)) > MAX_COUNTED
        count = counter.estimate if estimated else counter.count
        try:
            tokens = await in_background(lambda: count(texts, cancelled))
        except UserError:  # the chip shows the size instead
            self.uncountable = True
            return
        finally:
            self._counting = [each for each in self._counting if each is not documents]
        for each in chips.attached:
            if tokens is not None and counter is self._counter and each.documents is documents:
                known = replace(each, tokens=tokens, tokens_estimated=estimated)
                chips.replace(each, known)


def _restore_typed(chat: OpenChat, job: FileJob) -> None:
    chat.draft = replace(chat.draft, text=f"{chat.draft.text} {job.typed}".lstrip())
