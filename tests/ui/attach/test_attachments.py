"""Files and folders as chips: read, counted, kept, taken back, refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.geometry import Size
from textual.pilot import Pilot

from app.errors import UserError
from app.ingest.reader import read
from app.ingest.records import (
    REASON_TEXTS,
    FileRead,
    ReadCancelled,
    ReadProgress,
    Skipped,
    SkipReason,
)
from app.models.embedded import target_path
from app.protocol.commands import Load
from app.protocol.prompt import Document
from app.settings.definitions import Settings
from app.store.store import Store
from app.ui.app import SpecchatApp
from app.ui.attach.attachment import (
    MAX_SKIPPED,
    Attachment,
    FileJob,
    make_attachment,
    paste_attachment,
    to_notes,
    with_notes,
)
from app.ui.attach.chips import Chip, SkippedScreen, lines
from app.ui.start import Start
from tests.extras.test_ocr import fake_rapidocr
from tests.fakes import FakeEngine, Story
from tests.ingest.helpers import written
from tests.ingest.test_pdf import pdf_of
from tests.store.samples import answered
from tests.tables import table
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    ask,
    box_text,
    kept_app,
    paste,
    screen_text,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)


def attach(pilot: Pilot[None], path: Path) -> None:
    assert isinstance(pilot.app, SpecchatApp)
    pilot.app.chat.attachments.attach(str(path), f"@{path.name}")


class Held:
    """A reading that goes on only when it is told to."""

    def __init__(self, then: Callable[[FileJob], Attachment] = FileJob.run) -> None:
        self._then, self._goes_on = then, threading.Event()
        self.progress = ReadProgress(40, 34, 1_200_000, "src/x")

    def __call__(self, reading: FileJob) -> Attachment:
        reading.progress = self.progress
        while not self._goes_on.wait(0.01):
            if reading.cancelled.is_set():
                raise ReadCancelled
        return self._then(reading)

    def go_on(self) -> None:
        self._goes_on.set()


def repository(root: Path) -> Path:
    written(root / "src" / "main.py", "print()\n" * 30)
    written(root / "src" / "data.bin", b"\0\1\2\3" * 100)
    written(root / "src" / ".env", "SECRET=1\n")
    return root / "src"


# ------------------------------------------------------------------------------ what is read


async def test_a_folder_says_what_was_read_and_what_was_skipped(tmp_path: Path) -> None:
    scan = written(tmp_path / "scan.pdf", pdf_of("Cover", *[""] * 9))
    old = written(tmp_path / "old.txt", "Výpovědní lhůta činí třicet dní.".encode("cp1250"))
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, size=(110, 30)) as pilot:
        attach(pilot, repository(tmp_path))
        await until_shown(pilot, "▣ src/ · 1 file · 240 B · 30 lines · 2 skipped")
        await pilot.press("shift+tab", "space")
        await until_shown(pilot, "src/.env may contain passwords", "src/data.bin is a binary file")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, SkippedScreen))
        chip = pilot.app.screen.query_one(Chip)
        await pilot.click(chip, offset=(3, 0))
        await until_shown(pilot, "src/.env may contain passwords")
        await pilot.press("q")
        pilot.app.screen.query_one("ComposeBox").focus()
        await ask(pilot, engine)
        documents = engine.asks[0].messages[0].documents
        assert [each.name for each in documents] == ["src/", "src/main.py"]
        await until_shown(pilot, "▣ src/  1 file · 240 B")
        # A chip says what is missing or guessed.
        attach(pilot, scan)
        await until_shown(pilot, "▣ scan.pdf", "9 pages skipped", "9 of 10 pages (2-10)")
        await pilot.press("shift+tab", "space")
        await until_shown(pilot, "scan.pdf has 9 of 10 pages (2-10) without text")
        await pilot.press("escape")
        attach(pilot, old)
        await until_shown(pilot, "old.txt", "read as Windows-1250 (Central European)")
        for chip in pilot.app.screen.query(Chip):
            assert isinstance(chip.item, Attachment)
            (restored,) = with_notes([make_attachment(chip.item.documents)], to_notes([chip.item]))
            assert restored.skipped_text == chip.item.skipped_text
            assert restored.doubt_text == chip.item.doubt_text


async def test_a_part_is_chosen_from_the_chip(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pdf", pdf_of(*(f"This is page {n}." for n in range(1, 13))))
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine) as pilot:
        attach(pilot, path)
        await until_shown(pilot, "▣ a.pdf · ")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "A part of a.pdf", "pages 1 to 12", "Type pages, such as 2")
        await pilot.press(*"5-70")
        await until_shown(pilot, "a.pdf has no page 70: it has pages 1 to 12.")
        await pilot.press("enter", "backspace", "backspace")
        await pilot.press(*"6,9", "enter")
        await until_shown(pilot, "▣ a.pdf#5-6,9 · ")
        await pilot.press("enter")
        await until_shown(pilot, "All of it")
        await pilot.press("enter")
        await until_shown(pilot, "▣ a.pdf · ")
        await pilot.press("enter")
        await until_shown(pilot, "A part of a.pdf")
        await pilot.press("1", "0", "-", "enter")
        await until_shown(pilot, "▣ a.pdf#10-12 · ")
        pilot.app.screen.query_one("ComposeBox").focus()
        await ask(pilot, engine)
        (document,) = engine.asks[0].messages[0].documents
        assert (document.name, document.text[:28]) == (
            "a.pdf#10-12",
            "[Page 10]\nThis is page 10.\n\n",
        )


@pytest.mark.slow
async def test_a_heading_is_chosen_from_the_chip(tmp_path: Path) -> None:
    path = written(tmp_path / "a.md", "# Plan\n\n## Next\nBuy.\n## Next\nSell.\n\n## Last\nRest.\n")
    folder = repository(tmp_path)
    async with started() as pilot:
        attach(pilot, folder)
        await until_shown(pilot, "▣ src/")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "To attach a part of 'src/', type @ and its file.")
        await pilot.press("backspace")
        attach(pilot, path)
        await until_shown(pilot, "▣ a.md")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "Plan", "line 1", "Next", "line 3", "Last", "line 8")
        await pilot.press(*"last", "enter")
        await until_shown(pilot, "▣ a.md#Last · ")
        (chip,) = pilot.app.screen.query(Chip)
        assert isinstance(chip.item, Attachment)
        assert [(each.text, each.line) for each in chip.item.documents] == [("## Last\nRest.\n", 8)]


async def test_the_text_of_pictures_is_recognised_if_the_user_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rapidocr(tmp_path / "packages", monkeypatch)
    path = written(tmp_path / "scan.pdf", pdf_of("", ""))
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine) as pilot:
        attach(pilot, path)
        await until_shown(pilot, "pictures but no text", "Recognise the text of its pictures?")
        await pilot.press("escape")
        await until_shown(pilot, "run text recognition")
        assert box_text(pilot) == "@scan.pdf"
        pilot.app.chat.composer.box.replace_all("")
        attach(pilot, path)
        await until_shown(pilot, "Recognise the text of its pictures?")
        await pilot.press("enter")
        await until_shown(pilot, "▣ scan.pdf", "2 pages read by OCR", "figures may be wrong")
        await ask(pilot, engine)
        (document,) = engine.asks[0].messages[0].documents
        assert document.text.startswith("[Page 1]\nNotice of three months.\n")


@pytest.mark.slow
async def test_pages_that_are_pictures_are_recognised_from_the_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rapidocr(tmp_path / "packages", monkeypatch)
    path = written(tmp_path / "scan.pdf", pdf_of("Cover", "", "Three."))
    note = written(tmp_path / "note.txt", "Note.\n")
    async with started(size=(110, 30)) as pilot:
        attach(pilot, path)
        await until_shown(pilot, "1 page skipped", "(2) without text: to recognise it")
        attach(pilot, note)
        await until_shown(pilot, "▣ note.txt")
        await pilot.press("shift+tab", "o")
        await until_shown(pilot, "'note.txt' has no pages without text.")
        await pilot.press("shift+tab", "o")
        await until_shown(pilot, "▣ scan.pdf", "1 page read by OCR")
        first, last = pilot.app.screen.query(Chip)
        assert (first.item.name, last.item.name) == ("scan.pdf", "note.txt")
        assert isinstance(first.item, Attachment)
        (restored,) = with_notes([make_attachment(first.item.documents)], to_notes([first.item]))
        assert restored.doubt_text == "1 page read by OCR"


@pytest.mark.slow
async def test_recognition_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rapidocr(tmp_path / "packages", monkeypatch, "time.sleep(60)")
    path = written(tmp_path / "scan.pdf", pdf_of(""))
    async with started() as pilot:
        attach(pilot, path)
        await until_shown(pilot, "Recognise the text of its pictures?")
        await pilot.press("enter")
        await until_shown(pilot, "◌ scan.pdf · recognising text")
        await pilot.press("shift+tab", "backspace")
        await until_gone(pilot, "scan.pdf")


def test_files_beyond_a_limit_are_reported_with_the_limit(tmp_path: Path) -> None:
    for number in range(4):
        written(tmp_path / "docs" / f"{number}.txt", "Text.\n")
    written(tmp_path / "docs" / "0.bin", b"\0")
    limits = replace(Settings().limits(), files=2)
    (read_result,) = read([str(tmp_path / "docs")], limits=limits).results
    folder = replace(make_attachment(read_result.documents), skipped=read_result.skipped)
    assert folder.skipped_text == "the rest not read (limit 2 files), 1 skipped"
    assert read_result.skipped_summary == "1: 1 binary, and the rest (limit 2 files)"
    (restored,) = with_notes([make_attachment(read_result.documents)], to_notes([folder]))
    assert restored.skipped_text == folder.skipped_text
    only_limit = replace(folder, skipped=folder.skipped[-1:])
    assert only_limit.skipped_text == "the rest not read (limit 2 files)"

    class Wide(Chip):
        content_size = Size(80, 1)

    shown = Wide(folder).render().plain
    assert shown.startswith("▣ docs/ · the rest not read (limit 2 files), 1 skipped · ")


def test_many_skipped_files_of_a_kind_are_one_line(tmp_path: Path) -> None:
    for number in range(30):
        written(tmp_path / "docs" / f"{number:02}.mo", b"\0")
    written(tmp_path / "docs" / "a.txt", "Text.\n")
    written(tmp_path / "docs" / ".env", "KEY=1\n")
    (found,) = read([str(tmp_path / "docs")]).results
    folder = replace(make_attachment(found.documents), skipped=found.skipped)
    heading, *sentences = (each.plain for each in lines(folder))
    assert heading == "docs/  1 file read, 31 skipped"
    assert sentences[0].startswith("docs/.env may contain passwords")
    assert sentences[1:] == [
        "30 binary: docs/00.mo, docs/01.mo, docs/02.mo and 27 more"
        " (only text, PDF and office documents are supported)."
    ]


async def test_paths_of_the_command_line_go_to_a_new_conversation(tmp_path: Path) -> None:
    note = written(tmp_path / "My note.txt", "Note.\n")
    missing = tmp_path / "gone.txt"
    with Store(tmp_path / "data") as store:
        answered(store, "Before?", "Yes.")
    engine = FakeEngine(Story(answer="Yes."))
    paths = [str(note), str(repository(tmp_path)), str(missing)]
    async with kept_app(tmp_path / "data", engine, attached=paths) as (pilot, app):
        await until_shown(pilot, "▣ My note.txt", "▣ src/", "There is no file or folder")
        assert app.chat.composer.box.text == f"@{missing}"
        app.chat.composer.box.replace_all("")
        await ask(pilot, engine)
        (message,) = engine.asks[0].messages
        assert [each.name for each in message.documents] == ["My note.txt", "src/", "src/main.py"]


async def test_keys_reach_every_chip(tmp_path: Path) -> None:
    async with started() as pilot:
        for number in range(3):
            await paste(pilot, f"{number}{DOCUMENT}")
            await until_shown(pilot, f"Paste {number + 1}")
        chips = [*pilot.app.screen.query(Chip)]
        for chip in reversed(chips):
            await pilot.press("shift+tab")
            await until(pilot, lambda chip=chip: pilot.app.focused is chip, "the chip before")
        await pilot.press("shift+tab")
        await until(pilot, lambda: pilot.app.focused is pilot.app.chat.composer.box)
        # The same text is attached once.
        await paste(pilot, f"1{DOCUMENT}")
        await until_shown(pilot, "Already attached, as part of 'Paste 2'.")
        attach(pilot, written(tmp_path / "fox.txt", f"2{DOCUMENT}"))
        await until_shown(pilot, "Already attached, as part of 'Paste 3'.")
        await until(pilot, lambda: len(pilot.app.screen.query(Chip)) == 3)
        # Progress is shown, and reading can be stopped.
        await pilot.press("backspace", "backspace", "backspace")
        await until(pilot, lambda: not pilot.app.screen.query(Chip))
        pilot.app.chat.attachments.read = Held()
        attach(pilot, repository(tmp_path))
        await until_shown(pilot, "◌ src · reading · 34 files · 1.2 MB")
        await pilot.press("backspace")
        await until_gone(pilot, "src")
        assert pilot.app.chat.attachments.jobs(pilot.app.chat.open_chats.shown) == ()
        # Of a PDF file the pages are counted.
        held = Held()
        held.progress = ReadProgress(1, 0, 0, "a.pdf", 41, 300)
        pilot.app.chat.attachments.read = held
        attach(pilot, written(tmp_path / "a.pdf", "x"))
        await until_shown(pilot, "◌ a.pdf · reading · page 41 of 300")
        await pilot.press("backspace")
        await until_gone(pilot, "a.pdf")


UNREADABLE = (
    ("gone", None, "There is no file"),
    ("a.bin", b"\0" * 999, "binary"),
    ("e", b"", "empty"),
)


async def test_an_unreadable_file_is_reported_and_the_typed_text_stays(tmp_path: Path) -> None:
    def fails(reading: FileJob) -> Attachment:
        raise UserError("It is \x1b[31mgone", "look elsewhere")

    async with started(size=(60, 24)) as pilot:
        # A long name gives way, and the cross stays.
        thing = make_attachment([Document("n" * 300 + "\x1b[31m", "a\n" * 3000)])
        pilot.app.chat.composer.chips.add(thing)
        for width in (60, 80, 120):
            await pilot.resize_terminal(width, 24)
            await until_shown(pilot, "nnn", "… · 6 KB · 3,000 lines ✕")
            assert "\x1b" not in screen_text(pilot)
            assert all(len(line) <= width for line in screen_text(pilot).splitlines())
        await pilot.press("backspace")
        await pilot.resize_terminal(200, 24)
        for name, content, words in UNREADABLE:
            if content is not None:
                written(tmp_path / name, content)
            await type_in(pilot, "What is")
            attach(pilot, tmp_path / name)
            await until_shown(pilot, words)
            assert box_text(pilot) == f"What is @{name}"
            await until(pilot, lambda: not pilot.app.screen.query(Chip))
            await pilot.press("ctrl+u")
        # An error is one sentence.
        pilot.app.chat.attachments.read = fails
        attach(pilot, tmp_path / "x")
        await until_shown(pilot, "It is ␛[31mgone: look elsewhere.")


# ------------------------------------------------------------------------------ asking meanwhile


async def test_a_question_waits_for_what_is_being_read(tmp_path: Path) -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine) as pilot:
        pilot.app.chat.attachments.read = held = Held()
        attach(pilot, written(tmp_path / "a.txt", "Text.\n"))
        await type_in(pilot, "What?")
        await pilot.press("enter")
        await until_shown(pilot, "The question will be sent once 'a.txt' has been read.")
        await pilot.press("escape")
        await until_shown(pilot, "Not sent.")
        await pilot.press("enter")
        held.go_on()
        await until(pilot, lambda: engine.asks)
        assert engine.asks[0].messages[0].documents == (Document("a.txt", "Text.\n"),)
        assert box_text(pilot) == ""
        await until(pilot, lambda: not pilot.app.chat.readiness.busy)
        # The models get documents in the order of the chips.
        pilot.app.chat.attachments.read = held = Held()
        attach(pilot, written(tmp_path / "slow.txt", "Slow.\n"))
        await until_shown(pilot, "slow.txt")
        pilot.app.chat.attachments.read = FileJob.run
        attach(pilot, written(tmp_path / "quick.txt", "Quick.\n"))
        await until_shown(pilot, "▣ quick.txt")
        held.go_on()
        await until_shown(pilot, "▣ slow.txt")
        await ask(pilot, engine)
        documents = engine.asks[1].messages[-1].documents
        assert [each.name for each in documents] == ["slow.txt", "quick.txt"]


# ------------------------------------------------------------------------------ tokens


async def test_a_chip_says_tokens_once_they_are_counted() -> None:
    app = SpecchatApp(Start(FakeEngine(), Load(str(target_path()))))
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, " tok · 2,276 lines")
        (chip,) = app.chat.composer.chips.attached
        assert chip.tokens is not None
        assert f"Paste 1 · {chip.tokens:,} tok" in screen_text(pilot)


# ------------------------------------------------------------------------------ keeping


async def test_attachments_are_there_at_the_next_start(tmp_path: Path) -> None:
    src = repository(tmp_path)
    written(src / "same.py", "print()\n" * 30)
    log = written(tmp_path / "a.log", "".join(f"request {n}\n" for n in range(1, 21)))
    async with kept_app(tmp_path / "store", size=(130, 30)) as (pilot, app):
        attach(pilot, written(tmp_path / "a.txt", "A.\n"))
        attach(pilot, src)
        await until_shown(pilot, "▣ src/", "▣ a.txt")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, "▣ Paste 1")
        app.chat.attachments.attach(f"{log}#5-6,9", "@a.log#5-6,9")
        await until_shown(pilot, "▣ a.log#5-6,9 · ", "3 lines")
    written(tmp_path / "a.txt", "Changed since.\n")
    engine = FakeEngine(Story(answer="Yes."))
    async with kept_app(tmp_path / "store", engine, size=(130, 30)) as (pilot, app):
        await until_shown(pilot, "▣ a.txt", "▣ src/ · 2 files", "2 skipped", "▣ Paste 1")
        await until_shown(pilot, "▣ a.log#5-6,9 · ", "3 lines")
        assert len(app.screen.query(Chip)) == 4
        await pilot.click(app.screen.query(Chip)[1], offset=(4, 0))
        await until_shown(pilot, "2 files read, 2 skipped", "src/.env", "src/data.bin")
        await pilot.press("escape")
        await until_gone(pilot, "2 files read")
        await pilot.press("escape")  # back to the box
        await ask(pilot, engine)
        documents = engine.asks[0].messages[0].documents
        part = ["a.log#5-6,9"] * 2
        names = ["a.txt", "src/", "src/main.py", "src/same.py", "paste-1.txt", *part]
        assert [each.name for each in documents] == names
        assert [(each.line, each.text) for each in documents[-2:]] == [
            (5, "request 5\nrequest 6\n"),
            (9, "request 9\n"),
        ]
        assert documents[0].text == "A.\n"


@pytest.mark.slow
async def test_parts_keep_their_line_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log", "".join(f"request {n}\n" for n in range(1, 21)))
    lines = [("a.log#5-6,9", 5, "request 5\nrequest 6\n"), ("a.log#5-6,9", 9, "request 9\n")]
    async with kept_app(tmp_path / "store") as (pilot, app):
        app.chat.attachments.attach(f"{path}#5-6,9", "@a.log#5-6,9")
        await until_shown(pilot, "▣ a.log#5-6,9 · ", "3 lines")
    async with kept_app(tmp_path / "store", engine := FakeEngine(Story(answer="Yes."))) as (
        pilot,
        app,
    ):
        await until_shown(pilot, "▣ a.log#5-6,9 · ", "3 lines")
        assert len(app.screen.query(Chip)) == 1
        await ask(pilot, engine)
        documents = engine.asks[0].messages[0].documents
        assert [(each.name, each.line, each.text) for each in documents] == lines
    async with kept_app(tmp_path / "store", engine := FakeEngine(Story(answer="Yes."))) as (
        pilot,
        app,
    ):
        await until_shown(pilot, "▣ a.log#5-6,9  ")
        await ask(pilot, engine, "And then?")
        documents = engine.asks[0].messages[0].documents
        assert [(each.name, each.line, each.text) for each in documents] == lines


@pytest.mark.slow
async def test_what_is_being_read_at_the_end_is_written_again(tmp_path: Path) -> None:
    async with kept_app(tmp_path / "store") as (pilot, app):
        app.chat.attachments.read = Held()
        await type_in(pilot, "What is in")
        attach(pilot, written(tmp_path / "a.txt", "A.\n"))
        await until_shown(pilot, "◌ a.txt")
    async with kept_app(tmp_path / "store") as (pilot, app):
        assert box_text(pilot) == "What is in @a.txt"


async def test_a_file_goes_to_the_conversation_in_which_it_was_attached(tmp_path: Path) -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with kept_app(tmp_path / "store", engine) as (pilot, app):
        await ask(pilot, engine, "First?")
        await until_shown(pilot, "Yes.")
        app.chat.attachments.read = held = Held()
        attach(pilot, written(tmp_path / "a.txt", "A.\n"))
        await until_shown(pilot, "◌ a.txt")
        first = app.chat.open_chats.shown
        await pilot.press("ctrl+n")
        await until_gone(pilot, "a.txt")
        held.go_on()
        await until(pilot, lambda: first.draft.attached)
        assert app.chat.composer.chips.items == ()
        await pilot.press("ctrl+o")
        await until_shown(pilot, "First?")
        await pilot.press("enter")
        await until_shown(pilot, "▣ a.txt")


# ------------------------------------------------------------------------------ narrow, hostile


FOLDER = make_attachment([Document("src/", "tree"), Document("src/a.py", "a")])
ODD = FileRead("src/odd\u202e.txt", 9, "cp1250", lossy=True, guessed=True)
FILE = make_attachment([Document("a.txt", "A.")])


def skipped(reason: SkipReason, detail: str = "", limit: str = "") -> Skipped:
    _, words, advice = REASON_TEXTS[reason]
    return Skipped(f"src/{reason}", reason, detail or words, advice, limit)


def test_every_reason_is_restored() -> None:
    every = tuple(skipped(reason) for reason in SkipReason)
    own = (
        skipped(SkipReason.TOO_MUCH, "is over the limit of 7 files", "7 files"),
        replace(
            skipped(SkipReason.BAD_PAGES, "has 2 of 3 pages (1-2) that cannot be read"), pages=2
        ),
    )
    folder = replace(FOLDER, skipped=every + own, doubtful=(ODD,))
    found, file = with_notes((FOLDER, FILE), to_notes((folder, FILE)))
    assert (found.skipped, found.doubtful) == (every + own, (ODD,))
    assert [each.sentence for each in found.skipped] == [each.sentence for each in every + own]
    assert file.skipped == ()


def test_no_notes_for_files_and_for_too_many_skipped() -> None:
    assert to_notes(()) == to_notes((FILE, FOLDER)) == ""
    many = tuple(replace(skipped(SkipReason.IGNORED), path=f"src/{n}") for n in range(MAX_SKIPPED))
    assert len(with_notes((FOLDER,), to_notes((replace(FOLDER, skipped=many),)))[0].skipped)
    assert to_notes((replace(FOLDER, skipped=many, doubtful=(ODD,)),)) == ""


@table(
    "notes",
    [
        "",
        "nonsense",
        "7",
        "[]",
        '{"src/": 7}',
        '{"src/": [[]]}',
        '{"src/": [[["a", "no reason", "b", "c"]], []]}',
        '{"src/": [[["a", "empty"]], []]}',
        '{"src/": [3, []]}',
    ],
)
def test_damaged_notes_are_ignored(notes: str) -> None:
    (found,) = with_notes((FOLDER,), notes)
    assert (found.skipped, found.doubtful) == ((), ())


@table(
    "given, text",
    [
        ("a\rb\r", "a\nb\n"),  # what a terminal makes of newlines
        ("a\nb\r", "a\nb\r"),  # real newlines: nothing is touched
        ("a\r\nb", "a\r\nb"),
        ("a\x00\x1b[31m\x0cb", "a\x00\x1b[31m\x0cb"),
    ],
)
def test_a_paste_keeps_its_text_but_gets_its_newlines_back(given: str, text: str) -> None:
    (document,) = paste_attachment(given, 2).documents
    assert document.text == text
    assert document.name == "paste-2.txt"
