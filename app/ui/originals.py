"""Opens the file that a document was read from in another program, at a page if that program takes
one. Only files are opened, never programs, and no shell is involved."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from textual.message import Message

from app.errors import UserError
from app.protocol.prompt import Origin
from app.ui.background import in_background

START_SECONDS = 1.0
"""A program that has not failed after this time has opened the file."""
_DOCUMENTS = frozenset(
    {
        *(".pdf", ".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".odg", ".rtf", ".epub"),
        *(".html", ".htm", ".xhtml", ".eml", ".mbox", ".txt", ".md", ".csv", ".tsv", ".log"),
    }
)
"""Files that are opened by the program for their kind, even if they are marked as executable, as
all files are on some drives."""
_PROGRAMS = frozenset({".desktop", ".appimage", ".app", ".command", ".exe", ".jar", ".workflow"})
_PAGE_OPTIONS = {
    "evince": "--page-index={}",
    "papers": "--page-index={}",
    "atril": "--page-index={}",
    "xreader": "--page-index={}",
    "okular": "--page={}",
    "zathura": "--page={}",
}
"""Options of PDF viewers, as their manuals document them."""
_BROWSERS = ("firefox", "google-chrome", "chromium")
"""These take a page as `file:///report.pdf#page=12`."""


@dataclass
class OpenOriginal(Message):
    """Open the file of a document, at a page if it is known. The app shows a sentence."""

    name: str
    origin: Origin | None
    page: int | None


@runtime_checkable
class ShowsMessages(Protocol):
    """A screen with a line for messages."""

    def show_message(self, text: str) -> None: ...


class Opener(Protocol):
    def open(self, path: str, page: int | None) -> bool:
        """Open a file; returns whether at the page. May wait for the disk and for a program. Raises
        UserError."""


async def open_original(opener: Opener | None, wanted: OpenOriginal) -> str:
    """Open a file, and return a sentence that says what was done. Raises UserError."""
    from app.ingest.changes import FileState, file_state  # slow to import

    origin, page = wanted.origin, wanted.page
    if origin is None or not origin.sha256:
        raise UserError(f"'{wanted.name}' has no file", "attach a file with @ to open it later")
    if opener is None:
        raise UserError("Files cannot be opened from here", f"open '{wanted.name}' yourself")

    def task() -> tuple[FileState, bool]:
        state = file_state(origin)
        if state is FileState.GONE:
            raise UserError(f"The file of '{wanted.name}' is gone", "it was at " + origin.path)
        return state, opener.open(origin.path, page)

    state, at_page = await in_background(task)
    if state is FileState.CHANGED:
        return f"'{wanted.name}' is open, but it has changed since it was read."
    if page is None:
        return f"'{wanted.name}' is open."
    return f"'{wanted.name}' is open{' at' if at_page else '; the passage is on'} page {page:,}."


class SystemOpener:
    """Uses `open` on macOS and `xdg-open` elsewhere, or the PDF viewer that this would start."""

    def __init__(
        self,
        start: Callable[[Sequence[str]], int | None] | None = None,
        ask: Callable[[Sequence[str]], str] | None = None,
        find: Callable[[str], str | None] = shutil.which,
        platform: str = sys.platform,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`start` runs a program and returns its status, or None while it runs. `ask` returns what
        a program prints."""
        self._start, self._ask = start or _start, ask or _printed_by
        self._find, self._mac = find, platform == "darwin"
        self._environment = environment

    def open(self, path: str, page: int | None) -> bool:
        name, suffix = os.path.basename(path), Path(path).suffix.lower()
        is_document, mode = suffix in _DOCUMENTS, _mode(path)
        if not stat.S_ISREG(mode):
            raise UserError(f"'{name}' is not a regular file", "look at it in your file manager")
        if not is_document and (mode & 0o111 or suffix in _PROGRAMS):
            raise UserError(
                f"'{name}' looks executable", "open it from your file manager if you trust it"
            )
        command = self._command(path, is_document)
        viewer = self._viewer(path, page) if page is not None else None
        try:
            status = self._start(viewer or command)
        except OSError as error:
            problem = f"'{name}' cannot be opened ({error.strerror})"
            raise UserError(problem, "open it yourself") from None
        if status:
            raise UserError(f"No program could open '{name}'", "open it yourself")
        return viewer is not None

    def _command(self, path: str, is_document: bool) -> list[str]:
        if self._mac:  # `-t`: in a text editor, where the program for the file might run it
            return ["/usr/bin/open", path] if is_document else ["/usr/bin/open", "-t", path]
        has_desktop = self._environment.get("DISPLAY") or self._environment.get("WAYLAND_DISPLAY")
        program = self._find("xdg-open") if has_desktop else None
        if program is None:
            why = "xdg-open is not installed" if has_desktop else "there is no desktop here"
            raise UserError(f"Files cannot be opened ({why})", f"open {path} yourself")
        return [program, path]

    def _viewer(self, path: str, page: int) -> list[str] | None:
        """The command that opens a PDF at a page, if its viewer takes one. On macOS, `open` cannot
        pass a page on."""
        asks = None if self._mac else self._find("xdg-mime")
        if asks is None or Path(path).suffix.lower() != ".pdf":
            return None
        default = self._ask([asks, "query", "default", "application/pdf"]).lower()
        for name in (*_PAGE_OPTIONS, *_BROWSERS):
            if name in default and (program := self._find(name)) is not None:
                if option := _PAGE_OPTIONS.get(name):
                    return [program, option.format(page), path]
                return [program, f"{Path(path).as_uri()}#page={page}"]
        return None


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        problem = f"'{os.path.basename(path)}' cannot be read ({error.strerror})"
        raise UserError(problem, "check its permissions") from None


def _start(command: Sequence[str]) -> int | None:
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=null, stdout=null, stderr=null, start_new_session=True
    )
    try:
        return process.wait(START_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _printed_by(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")
