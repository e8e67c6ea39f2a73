"""The compose box, what is attached, and what can be chosen in it."""

from __future__ import annotations

import threading

from app.ingest.records import ReadCancelled, ReadProgress
from app.ui.attach.attachment import Attachment, FileJob
from app.ui.attach.chips import Chip
from tests.ingest.helpers import written
from tests.ui.pictures import samples
from tests.ui.pictures.stage import Stage


async def question(stage: Stage) -> None:
    """Up to the moment before it is sent."""
    written(stage.home / "contract.txt", samples.licence())
    written(stage.home / "contracts" / "supply.pdf", b"%PDF-1.7")
    written(stage.home / "control panel.md", "# Control\n")
    written(stage.home / ".env", "TOKEN=1\n")
    written(stage.home / "notes.md", "# Notes\n")
    async with stage.opened():
        await stage.shown("ready")
        await stage.paste(samples.licence())
        await stage.shown("tok")
        await stage.write(samples.QUESTION)
        await stage.take("chip")
        await stage.press("ctrl+g")
        await stage.shown("keep", "20%")
        await stage.take("keep")
        await stage.press("escape", "ctrl+t")
        await stage.write(" How many times is it named, and\nis every exception listed?")
        await stage.press("ctrl+t")
        await stage.shown("to need the whole text")
        await stage.take("counting")
        stage.app.chat.composer.box.replace_all("")
        await stage.press("@", "c", "o", "n")
        await stage.shown("contracts/")
        await stage.take("files")
        await stage.press("escape")
        stage.app.chat.composer.box.replace_all("")
        await stage.press("/")
        await stage.shown("/attach")
        await stage.take("commands")


async def attaching(stage: Stage) -> None:
    """A folder, from its first file to the list of what was skipped."""
    project = stage.home / "parser"
    written(project / "README.md", "# A parser\n" * 120)
    for name in ("lexer", "grammar", "tree", "errors"):
        written(project / "src" / f"{name}.py", f"def {name}():\n    return None\n" * 400)
    written(project / ".gitignore", "build/\n*.log\n")
    written(project / ".env", "TOKEN=secret\n")
    written(project / "build" / "out.js", "x\n")
    written(project / "trace.log", "x\n")
    written(project / "logo.png", b"\x89PNG\r\n\0\0")
    written(project / "empty.py", "")
    (project / "latest").symlink_to("src")
    held = Held()
    async with stage.opened(prepared=lambda app: setattr(app.chat.attachments, "read", held)):
        await stage.shown("ready")
        await stage.attach("parser")
        await stage.shown("reading · 1,204 files")
        await stage.write("Where are errors reported?")
        await stage.take("reading-folder")
        await stage.press("enter")
        await stage.shown("will be sent once")
        await stage.take("waits-for-folder")
        await stage.press("escape")
        held.goes_on.set()
        await stage.shown("skipped", "tok")
        await stage.paste(samples.licence())
        await stage.shown("Paste 1")
        await stage.paste(samples.licence()[:9_000])
        await stage.shown("Paste 2")
        await stage.take("chips")
        for chip in reversed(stage.app.screen.query(Chip)):
            await stage.press("shift+tab")
            await stage.until(lambda chip=chip: chip.has_focus, "the chip before")
        await stage.press("space")
        await stage.shown("symbolic link")
        await stage.take("skipped")


class Held:
    """A reading that goes on only when it is told to."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def __call__(self, reading: FileJob) -> Attachment:
        reading.progress = ReadProgress(1_410, 1_204, 8_400_000, "src/x")
        while not self.goes_on.wait(0.01):
            if reading.cancelled.is_set():
                raise ReadCancelled
        return reading.run()
