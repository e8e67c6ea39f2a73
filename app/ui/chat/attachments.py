"""Turns pastes, files and folders into chips. Slow work runs on threads, and its result goes to the
conversation it was started in."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from os.path import isfile

from textual.message import Message
from textual.widgets.text_area import Selection

from app.errors import UserError
from app.ingest.recognition import install_advice, installed_recogniser
from app.ingest.records import RECOGNISABLE, Changes, IngestError, ReadCancelled
from app.protocol.prompt import Document, searched_paths
from app.settings.file import SettingsFile
from app.ui.attach.attachment import (
    Attachment,
    FileJob,
    ReadFile,
    documents_of,
    find_duplicate,
    group_documents,
    make_attachment,
    merge,
)
from app.ui.attach.chips import Chip, Chips, OcrScreen, Shown
from app.ui.background import in_background, start_task
from app.ui.chat.changed_files import ChangedFiles, sent_files, sent_files_in
from app.ui.chat.composer import DISK_SECONDS, ComposeBox, Composer
from app.ui.chat.token_counts import TokenCounts
from app.ui.completion import CompletionList, typed_path
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import OpenChat

RECOGNISE = "to recognise it, select the chip with Shift+Tab and press o"


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
        composer.known_names = self._known_names
        self._settings_file = settings_file
        self.read: ReadFile = FileJob.run
        self._jobs: dict[FileJob, OpenChat] = {}
        self.counts = TokenCounts(composer.chips, target)
        self.changed = ChangedFiles(composer, open_chats, settings_file, self.jobs)
        self._deferred: tuple[OpenChat, str] | None = None
        self._refused = ""
        """A question that was not sent, because it names a file that does not exist."""
        self._sample: tuple[Document, str] | None = None
        """The sample and its question, until the user attaches something."""
        self._not_searchable: set[str] = set()
        """Files that were searched for earlier questions, but cannot be read any more."""

    def on_message(self, event: Message) -> None:
        """What the user does with pastes, files and chips."""
        composer = self._composer
        match event:
            case ComposeBox.LongPaste():
                composer.notice.show("")
                self.paste(event.text)
            case ComposeBox.Dropped():
                composer.notice.show("")
                for path in event.paths:
                    self.attach(path, typed_path(path))
            case CompletionList.FileChosen():
                composer.notice.show("")
                self.attach(event.path, event.typed)
            case ComposeBox.ErasedNothing():
                if composer.chips.items:
                    self.remove(composer.chips.items[-1])
            case Chip.Removed():
                self.remove(event.item)
            case Chip.ReadAgain():
                composer.notice.show("")
                self.read_again(event.item)
                composer.box.focus()
            case Chip.Recognise():
                start_task(composer, partial(self._recognise, event.item))
            case Chips.Changed():
                self.counts.count()

    # -------------------------------------------------------------------------- reading

    def attach(self, path: str, typed: str, mention: str = "") -> None:
        """Start reading a file, a part of one, or a folder for the conversation on the screen."""
        self._remove_sample()
        job = FileJob(path, typed, self._settings_file.settings.limits(), mention=mention)
        self._composer.chips.add(job)
        self._start(job)

    def read_again(self, item: Attachment | Changes) -> None:
        """Start reading what has changed: in place of an attachment that was not sent yet, or for
        the next message."""
        chips, limits = self._composer.chips, self._settings_file.settings.limits()
        if isinstance(item, Changes):
            folder = item.name.endswith("/")
            files = sent_files_in(self._open_chats.shown, item) if folder else {}
            job = FileJob(item.path, "", limits, item, files)
            chips.offer(each for each in chips.offers if each is not item)
            chips.add(job)
        elif item.changes is not None:
            job = FileJob(item.changes.path, typed_path(item.changes.path), limits, item)
            chips.replace(item, job)
        else:
            return
        self._start(job)

    def _start(self, job: FileJob) -> None:
        self._jobs[job] = self._open_chats.shown
        start_task(self._composer, lambda: self._read(job))

    async def _recognise(self, item: Attachment) -> None:
        """Read a file again, and recognise the text of pages that are pictures."""
        from app.ingest.changes import read_again_path  # slow to import

        document, chips = (item.whole or item).documents[0], self._composer.chips
        if not item.has_pictures:
            self._composer.notice.show(f"'{item.name}' has no pages without text.")
        elif document.origin is None:
            self._composer.notice.show(f"Attach '{item.name}' again to recognise its text.")
        elif not await in_background(installed_recogniser):
            self._composer.notice.show(f"No text recognition is installed: {install_ocr()}.")
        elif item in chips.attached:
            path, limits = read_again_path(document), self._settings_file.settings.limits()
            job = FileJob(path, typed_path(path), replace(limits, ocr=True), item)
            chips.replace(item, job)
            self._start(job)

    def paste(self, text: str) -> None:
        chips = self._composer.chips
        self._remove_sample()
        new = chips.paste(text)
        if not self._is_duplicate(new, chips.attached):
            chips.add(new)

    async def attach_again(self, documents: tuple[Document, ...]) -> None:
        """Attach documents of an earlier conversation as they were read there, and say whether
        their files have changed since."""
        self._remove_sample()
        chips, documents = self._composer.chips, tuple(documents)
        for new in group_documents(documents):
            if not self._is_duplicate(new, chips.attached):
                chips.add(new)
        await self.changed.find(self._open_chats.shown)
        for each in chips.attached:
            if each.changes and each.documents[0] is documents[0]:
                self._composer.notice.show(_since_read(each.name, each.changes))

    def remove(self, item: Shown) -> None:
        """Remove a chip. If its file is still being read, stop that; one that was read before stays
        as it was."""
        chips = self._composer.chips
        if isinstance(item, Changes):
            self.changed.dismiss(item)
            chips.offer(each for each in chips.offers if each is not item)
        elif isinstance(item, FileJob):
            item.cancelled.set()
            self._jobs.pop(item, None)
            self.cancel_deferred()
            self._remove_job(item)
        else:
            chips.remove_item(item)
        self._composer.box.focus()

    def _remove_job(self, job: FileJob) -> None:
        if isinstance(job.previous, Attachment):
            self._composer.chips.replace(job, job.previous)
        else:
            self._composer.chips.remove_item(job)

    def jobs(self, chat: OpenChat) -> tuple[FileJob, ...]:
        """The files being read for a conversation."""
        return tuple(job for job, owner in self._jobs.items() if owner is chat)

    def _known_names(self) -> set[str]:
        """Names of the files and folders of the conversation on the screen."""
        chat = self._open_chats.shown
        paths = [path for path, _ in sent_files(chat)]
        paths += [job.path for job in self.jobs(chat)]
        attached = documents_of(self._composer.chips.attached)
        paths += [each.origin.path for each in attached if each.origin is not None]
        return {os.path.basename(path.rstrip("/")) for path in paths}

    def reassign(self, before: OpenChat, after: OpenChat) -> None:
        """Move the files that are being read from one conversation to another."""
        for job in self.jobs(before):
            self._jobs[job] = after

    def shutdown(self) -> None:
        """At exit, stop reading; at the next start the typed paths are in the composer again."""
        shown = self._open_chats.shown
        for job, chat in [*self._jobs.items()]:
            job.cancelled.set()
            _put_back(chat, job)
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
                self._failed(job, await _with_ocr_advice(error))
            return
        offers_ocr = new.has_pictures and not job.limits.ocr
        offers_ocr = offers_ocr and bool(await in_background(installed_recogniser))
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
            self._show_doubts(new, offers_ocr)
        if new.is_searched and self._deferred is not None and self._deferred[0] is chat:
            await self._read_for(self._deferred[1])
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
            limits = replace(job.limits, ocr=True)
            again = FileJob(job.path, job.typed, limits, job.previous, job.known, job.mention)
            self._composer.chips.replace(job, again)
            self._start(again)
        return True

    def _failed(self, job: FileJob, error: UserError) -> None:
        """Put the typed path back into the composer, or the draft."""
        chat = self._jobs.pop(job, None)
        if chat is None:
            return
        if job.questions and job.previous is None:
            self._not_searchable.add(job.path)
        if chat is self._open_chats.shown:
            self._remove_job(job)
            if isinstance(job.previous, Changes):
                self.changed.dismiss(job.previous)
            elif job.previous is None:
                self._composer.put_back(job)
        else:
            _put_back(chat, job)
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

    def _show_doubts(self, new: Attachment, offers_ocr: bool) -> None:
        if new.is_folder:
            return
        scanned = RECOGNISABLE if offers_ocr else ()
        skipped = [
            replace(each, advice=RECOGNISE) if each.reason in scanned else each
            for each in new.skipped
        ]
        sentences = [each.sentence for each in skipped]
        sentences += [each.sentence for each in new.doubtful]
        if sentences:
            self._composer.notice.show(" ".join(sentences))

    # -------------------------------------------------------------------------- changed files

    async def read_changed(self) -> bool:
        """Start reading the first attached file that has changed. False: none has."""
        await self.changed.find(self._open_chats.shown)
        chips = self._composer.chips
        changed: list[Attachment | Changes] = [each for each in chips.attached if each.changes]
        changed += chips.offers
        if changed:
            self.read_again(changed[0])
        return bool(changed)

    # -------------------------------------------------------------------------- asking

    async def question(self, typed: str) -> str | None:
        """The typed question. Files that it names are attached, and removed from it. Returns None
        if it cannot be sent now; if files are still being read, a `QuestionReady` follows."""
        question = await self._attach_named(typed)
        if question is not None and question.strip():
            await self._read_for(question)
        jobs = self.jobs(self._open_chats.shown)
        if question is None or not jobs or not question.strip():
            return question
        self._deferred = self._open_chats.shown, question
        name = jobs[-1].name
        self._composer.notice.show(
            f"The question will be sent once '{name}' has been read. Esc cancels it."
        )
        return None

    async def _read_for(self, question: str) -> None:
        """Start reading what each question reads again: parts that go up to the end of a watched
        file, and files that are searched."""
        if self.changed.watched:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._read_ends(), DISK_SECONDS)
        chat, chips = self._open_chats.shown, self._composer.chips
        before = [turn.question.text for turn in chat.conversation.branch[-1:]]
        limits = self._settings_file.settings.limits()
        searched = searched_paths(sent_files(chat).values())
        done = {job.path for job in self.jobs(chat)} | self._not_searchable
        for each in chips.attached:
            for path in searched_paths(each.documents):
                done.add(path)
                if each.question != question:
                    again = FileJob(
                        path, typed_path(path), limits, each, questions=(question, *before)
                    )
                    chips.replace(each, again)
                    self._start(again)
        for path in searched:
            if path not in done and await self._is_there(path):
                job = FileJob(path, "", limits, questions=(question, *before))
                chips.add(job)
                self._start(job)

    @staticmethod
    async def _is_there(path: str) -> bool:
        try:
            found = await asyncio.wait_for(in_background(partial(isfile, path)), DISK_SECONDS)
        except TimeoutError:
            return False
        return found

    async def _read_ends(self) -> None:
        """Start reading parts again that go up to the end of a file, if that has grown."""
        from app.ingest.changes import follows_end  # slow to import

        await self.changed.find(self._open_chats.shown)
        chips = self._composer.chips
        items: list[Attachment | Changes] = [*chips.attached, *chips.offers]
        for item in items:
            changes = item.changes if isinstance(item, Attachment) else item
            if changes is not None and changes.changed and follows_end(changes.path):
                self.read_again(item)

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
        for path, mention in paths.items():
            self.attach(path, typed_path(path), mention)
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


async def _with_ocr_advice(error: UserError) -> UserError:
    """An error about pictures, with how to install text recognition if there is none."""
    reason = error.reason if isinstance(error, IngestError) else None
    installed = await in_background(installed_recogniser)
    if reason not in RECOGNISABLE or installed:
        return error
    return UserError(error.problem, install_ocr())


def install_ocr() -> str:
    return f"to recognise it, {install_advice()} and attach it again"


def _since_read(name: str, changes: Changes) -> str:
    """A sentence about files that have changed since they were read for another conversation."""
    if changes.gone and not name.endswith("/"):
        return f"'{name}' is gone from the disk: the text that was read before is used."
    return f"'{name}' has changed since it was read: Shift+Tab and Enter read it again."


def _put_back(chat: OpenChat, job: FileJob) -> None:
    text = chat.draft.text
    start, end, typed = job.put_back(text)
    chat.draft = replace(chat.draft, text=text[:start] + typed + text[end:])
