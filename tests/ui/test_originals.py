"""Opening the file of a document: with which program, at which page, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.errors import UserError
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.prompt import Document, Origin
from app.ui.originals import OpenOriginal, SystemOpener, open_original
from app.ui.spans.screen import SpansScreen
from app.ui.transcript.citations import CitationsScreen
from tests.fakes import FakeEngine, Story
from tests.ingest.helpers import written
from tests.ingest.test_changes import origin_of
from tests.tables import table
from tests.ui.helpers import app_with, ask, attach, until, until_shown

TWO_PAGES = "[Page 1]\nThe tenant pays.\n\n[Page 2]\nThe notice is 30 days.\n"


class ScriptedOpener:
    """Notes what it opens. `at_page`: whether its program takes a page."""

    def __init__(self, at_page: bool = True) -> None:
        self.opened: list[tuple[str, int | None]] = []
        self._at_page = at_page

    def open(self, path: str, page: int | None) -> bool:
        self.opened.append((path, page))
        return self._at_page and page is not None


class Desktop:
    """Programs of a Linux desktop, and what was started there."""

    def __init__(self, viewer: str = "", status: int | None = 0, installed: bool = True) -> None:
        self.started: list[list[str]] = []
        self._viewer, self._status, self._installed = viewer, status, installed

    def opener(self, platform: str = "linux", display: str = ":0") -> SystemOpener:
        return SystemOpener(self._start, self._ask, self._find, platform, {"DISPLAY": display})

    def _start(self, command: Sequence[str]) -> int | None:
        self.started.append([*command])
        return self._status

    def _ask(self, command: Sequence[str]) -> str:
        assert [*command] == ["/bin/xdg-mime", "query", "default", "application/pdf"]
        return self._viewer + "\n"

    def _find(self, name: str) -> str | None:
        return f"/bin/{name}" if self._installed else None


def pdf(folder: Path) -> Path:
    return written(folder / "a report #1.pdf", b"%PDF-")


@table(
    "viewer, command",
    [
        ("org.gnome.Evince.desktop", ["/bin/evince", "--page-index=12", "PATH"]),
        ("okularApplication_pdf.desktop", ["/bin/okular", "--page=12", "PATH"]),
        ("org.pwmt.zathura.desktop", ["/bin/zathura", "--page=12", "PATH"]),
        ("firefox.desktop", ["/bin/firefox", "URI#page=12"]),
        ("some-other.desktop", ["/bin/xdg-open", "PATH"]),
        ("", ["/bin/xdg-open", "PATH"]),
    ],
)
def test_a_pdf_opens_at_its_page_where_the_viewer_takes_one(
    viewer: str, command: list[str], tmp_path: Path
) -> None:
    path, desktop = pdf(tmp_path), Desktop(viewer)
    at_page = desktop.opener().open(str(path), 12)
    expected = [each.replace("PATH", str(path)).replace("URI", path.as_uri()) for each in command]
    assert desktop.started == [expected]
    assert at_page is (command[0] != "/bin/xdg-open")


def test_without_a_page_and_for_other_files_the_default_program_is_used(tmp_path: Path) -> None:
    desktop = Desktop("org.gnome.Evince.desktop", status=None)
    assert not desktop.opener().open(str(pdf(tmp_path)), None)
    slides = written(tmp_path / "slides.pptx")
    assert not desktop.opener().open(str(slides), 3)
    assert [each[0] for each in desktop.started] == ["/bin/xdg-open"] * 2


def test_a_mac_opens_documents_with_open_and_other_files_as_text(tmp_path: Path) -> None:
    desktop = Desktop()
    script, report = written(tmp_path / "run.py", "print()"), pdf(tmp_path)
    assert not desktop.opener("darwin", "").open(str(report), 12)
    assert not desktop.opener("darwin", "").open(str(script), None)
    assert desktop.started == [
        ["/usr/bin/open", str(report)],
        ["/usr/bin/open", "-t", str(script)],
    ]


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_programs_and_what_is_no_file_are_refused(platform: str, tmp_path: Path) -> None:
    desktop = Desktop()
    script = written(tmp_path / "run.sh", "rm -rf x")
    script.chmod(0o755)
    launcher = written(tmp_path / "evil.desktop", "[Desktop Entry]")
    folder = tmp_path / "bundle.app"
    folder.mkdir()
    pipe = tmp_path / "pipe.pdf"
    os.mkfifo(pipe)
    for path in (script, launcher, folder, pipe, tmp_path / "missing.pdf"):
        with pytest.raises(UserError):
            desktop.opener(platform).open(str(path), None)
    assert desktop.started == []
    report = pdf(tmp_path)
    report.chmod(0o755)  # as on drives without permissions
    desktop.opener(platform).open(str(report), None)
    assert len(desktop.started) == 1


@table(
    "desktop, display, why",
    [
        (Desktop(installed=False), ":0", "xdg-open is not installed"),
        (Desktop(), "", "there is no desktop here"),
        (Desktop(status=3), ":0", "No program could open 'a report #1.pdf'"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(
    desktop: Desktop, display: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why):
        desktop.opener(display=display).open(str(pdf(tmp_path)), 12)


def test_a_program_is_started_without_a_shell(tmp_path: Path) -> None:
    path, marker = written(tmp_path / "$(touch marker);.txt", "text"), tmp_path / "marker"
    done = written(tmp_path / "bin" / "xdg-open", f'#!/bin/sh\nprintf "%s" "$1" > {marker}.seen\n')
    done.chmod(0o755)
    opener = SystemOpener(find=lambda name: str(done), environment={"DISPLAY": ":0"})
    opener.open(str(path), None)
    assert (tmp_path / "marker.seen").read_text() == str(path)
    assert not marker.exists()


async def test_it_is_said_what_was_opened_and_whether_it_has_changed(tmp_path: Path) -> None:
    path = written(tmp_path / "report.txt", "one\n")
    origin, opener = origin_of(path), ScriptedOpener()
    wanted = OpenOriginal("report.txt", origin, None)
    assert await open_original(opener, wanted) == "'report.txt' is open."
    wanted = OpenOriginal("report.txt", origin, 12)
    assert await open_original(opener, wanted) == "'report.txt' is open at page 12."
    without = ScriptedOpener(at_page=False)
    said = await open_original(without, wanted)
    assert said == "'report.txt' is open; the passage is on page 12."
    written(path, "another\n")
    assert await open_original(opener, wanted) == (
        "'report.txt' is open, but it has changed since it was read."
    )
    path.unlink()
    with pytest.raises(UserError, match=r"The file of 'report\.txt' is gone"):
        await open_original(opener, wanted)
    with pytest.raises(UserError, match=r"'paste-1\.txt' has no file"):
        await open_original(opener, OpenOriginal("paste-1.txt", None, None))
    with pytest.raises(UserError, match="Files cannot be opened"):
        await open_original(None, wanted)
    assert len(opener.opened) == 3


def report(folder: Path) -> Document:
    path = written(folder / "report.pdf", b"%PDF-")
    info = path.stat()
    origin = Origin(str(path), info.st_size, info.st_mtime_ns, "digest")
    return Document("report.pdf", TWO_PAGES, origin=origin)


async def asked(pilot: Pilot[None], engine: FakeEngine, document: Document) -> None:
    await until_shown(pilot, "ready")
    attach(pilot, [document])
    await ask(pilot, engine)


async def test_a_citation_and_the_spans_view_open_the_file_at_the_page(tmp_path: Path) -> None:
    start = TWO_PAGES.index("The notice")
    citation = Citation(CitationKind.QUOTATION, 0, 9, 0, 0, start, start + 22)
    engine = FakeEngine(Story(answer="30 days.", citations=Citations((citation,))))
    document, opener = report(tmp_path), ScriptedOpener()
    assert document.origin is not None
    app = app_with(engine, opener=opener)
    async with app.run_test(size=(110, 30)) as pilot:
        await asked(pilot, engine, document)
        await pilot.press("tab", "ctrl+x")
        await until(pilot, lambda: isinstance(app.screen, CitationsScreen))
        await until_shown(pilot, "report.pdf, page 2", "^O open the file")
        await pilot.press("ctrl+o")
        await until_shown(pilot, "'report.pdf' is open at page 2.")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, SpansScreen))
        await until_shown(pilot, "o open")
        await pilot.press("home", "o")
        await until_shown(pilot, "'report.pdf' is open at page 1.")
        Path(document.origin.path).unlink()
        await pilot.press("o")
        await until_shown(pilot, "The file of 'report.pdf' is gone")
    assert opener.opened == [(document.origin.path, 2), (document.origin.path, 1)]


@pytest.mark.slow
async def test_a_paste_has_no_file_to_open() -> None:
    engine = FakeEngine()
    app = app_with(engine, opener=ScriptedOpener())
    async with app.run_test(size=(110, 30)) as pilot:
        await asked(pilot, engine, Document("paste-1.txt", TWO_PAGES))
        await pilot.press("ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, SpansScreen))
        await pilot.press("o")
        await until_shown(pilot, "'paste-1.txt' has no file")
