"""Finds out which attached and sent files have changed since they were read; the chips show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import monotonic

from app.ingest.records import Changes
from app.protocol.prompt import Document
from app.settings.file import SettingsFile
from app.ui.attach.attachment import FileJob, documents_of
from app.ui.background import in_background, start_task
from app.ui.chat.composer import Composer
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import OpenChat

WATCH_SECONDS = 5.0
MIN_PAUSE = 10.0
"""Minimum pause after a check, as a multiple of the time that it took."""


class ChangedFiles:
    def __init__(
        self,
        composer: Composer,
        open_chats: OpenChats,
        settings_file: SettingsFile,
        jobs: Callable[[OpenChat], Iterable[FileJob]],
    ) -> None:
        """`jobs` returns the files that are being read for a conversation."""
        self._composer, self._open_chats = composer, open_chats
        self._settings_file, self._jobs = settings_file, jobs
        self.watched, self._next_check = False, 0.0
        self._checking: OpenChat | None = None
        """The conversation whose files are being checked."""
        self._dismissed: set[Changes] = set()
        """Changes that the user does not want to be read."""

    def dismiss(self, changes: Changes) -> None:
        """Do not offer these changes any more."""
        self._dismissed.add(changes)

    def watch(self) -> None:
        """From now on, check every few seconds, and also look for new files in folders."""
        self.watched = True
        self._composer.set_interval(WATCH_SECONDS, self.check)

    def check(self, at_once: bool = False) -> None:
        """Find out on a thread which attached files have changed since they were read; the chips
        say so. On a slow drive this is done less often, unless `at_once`. A drive that does not
        answer holds up the checks of one conversation only."""
        chat = self._open_chats.shown
        if self._checking is not chat and (at_once or monotonic() >= self._next_check):
            self._checking = chat
            start_task(self._composer, lambda: self.find(chat))

    async def find(self, chat: OpenChat) -> None:
        """The same for a conversation at once, and wait for it."""
        started = monotonic()
        limits = self._settings_file.settings.limits() if self.watched else None
        attached = self._composer.chips.attached
        unsent = {path_and_name(each) for each in documents_of(attached)}
        folders = tuple(f"{path.rstrip('/')}/" for path, name in unsent if name.endswith("/"))
        sent = [
            each
            for key, each in sent_files(chat).items()
            if key not in unsent and not key[0].startswith(folders)
        ]

        def find() -> tuple[list[Changes | None], list[Changes]]:
            from app.ingest.changes import find_changes  # slow to import

            of_chips = [find_changes(each.documents, limits) for each in attached]
            return [next(iter(each), None) for each in of_chips], find_changes(sent, limits)

        try:
            if any(each.origin for each in (*documents_of(attached), *sent)):
                of_chips, offers = await in_background(find)
            else:
                of_chips, offers = [None] * len(attached), []
        finally:
            if self._checking is chat:
                self._checking = None
            self._next_check = monotonic() + MIN_PAUSE * (monotonic() - started)
        if chat is not self._open_chats.shown:
            return
        chips = self._composer.chips
        for each, found in zip(attached, of_chips, strict=True):
            if found != each.changes:
                chips.replace(each, replace(each, changes=found))
        reading = {job.path for job in self._jobs(chat)}
        chips.offer(
            each for each in offers if each.path not in reading and each not in self._dismissed
        )


def path_and_name(document: Document) -> tuple[str, str]:
    """What identifies a file, or a part of one, whose name may change as the file grows."""
    origin = document.origin
    return ("", document.name) if origin is None else (origin.path, origin.part or document.name)


def sent_files(chat: OpenChat) -> dict[tuple[str, str], Document]:
    """The newest version of each file that was sent, or is queued, in a conversation."""
    asked = [turn.question for turn in chat.conversation.branch]
    queued = chat.conversation.queued
    return {
        path_and_name(document): document
        for question in (*asked, *([] if queued is None else [queued]))
        for document in question.documents
        if document.origin is not None
    }


def sent_files_in(chat: OpenChat, folder: Changes) -> dict[str, Document]:
    """The newest version that was sent of each file of a folder, by path."""
    return {
        path: each
        for (path, name), each in sent_files(chat).items()
        if name.startswith(folder.name)
        and name != folder.name
        and path.startswith(folder.path.rstrip("/") + "/")
    }
