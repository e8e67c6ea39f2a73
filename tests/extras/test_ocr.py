"""Text recognition: which pages it reads, in which order, and what happens if it fails."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from app.extras import ocr
from app.extras.ocr import RECOGNITION, AppleVision, Line, PageRecogniser, text_of
from app.ingest.limits import ReadLimits
from app.ingest.pdf import PdfPages
from app.ingest.records import SkipReason
from tests.ingest.helpers import intake, refusal, written
from tests.ingest.test_pdf import NOTICE, PICTURE, assembled, pdf_of

WITH_OCR = ReadLimits(ocr=True)
PACKAGE = """
import socket, time
from types import SimpleNamespace

class RapidOCR:
    def __init__(self, params):
        print("a library that prints")

    def __call__(self, picture):
        height, width, _ = picture.shape
        assert (height, width) == (2000, 1546), "not larger than needed"
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError as error:
            text = str(error)
        ACT
        box = [[10, 10], [200, 10], [200, 30], [10, 30]]
        return SimpleNamespace(txts=("Notice of three months.", text), boxes=[box, BELOW])

BELOW = [[10, 40], [200, 40], [200, 60], [10, 60]]
"""


@pytest.fixture
def rapidocr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the place of rapidocr, for this process and the worker."""
    return fake_rapidocr(tmp_path / "packages", monkeypatch)


def fake_rapidocr(folder: Path, monkeypatch: pytest.MonkeyPatch, act: str = "pass") -> Path:
    written(folder / "onnxruntime.py", "")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return written(folder / "rapidocr.py", PACKAGE.replace("ACT", act))


class Scripted:
    """Recognises these lines in every picture."""

    def __init__(self, *lines: Line) -> None:
        self._lines = lines
        self.pictures = 0

    def lines(self, picture: Any) -> list[Line]:
        self.pictures += 1
        return [*self._lines]


def placed(text: str, left: float, top: float, characters: int = 0) -> Line:
    return Line(text, left, top, left + 10 * (characters or len(text)), top + 20)


def column(name: str, left: float, rows: int, top: float = 100) -> list[Line]:
    texts = [f"This is line {n} of the {name} column." for n in range(1, rows + 1)]
    return [placed(text, left, top + 25 * n) for n, text in enumerate(texts)]


def test_a_page_is_read_from_top_to_bottom_with_its_paragraphs() -> None:
    lines = [placed("Two.", 0, 25), placed("One.", 0, 0), placed("Next paragraph.", 0, 90)]
    assert text_of(lines) == "One.\nTwo.\n\nNext paragraph."
    assert text_of([]) == ""


def test_columns_are_read_one_after_the_other() -> None:
    title = placed("A title over both columns", 100, 40, 60)
    left, right = column("left", 0, 6), column("right", 420, 6, top=107)
    footer = placed("A footer over both columns", 100, 300, 60)
    mixed = [line for pair in zip(right, left, strict=True) for line in pair]
    read = text_of([footer, *mixed, title]).replace("\n\n", "\n").split("\n")
    assert read == [each.text for each in (title, *left, *right, footer)]


def test_three_columns() -> None:
    columns = [column(name, 420 * n, 5) for n, name in enumerate(("left", "middle", "right"))]
    wanted = [line.text for each in columns for line in each]
    read = text_of([line for row in zip(*columns, strict=True) for line in row])
    assert read.replace("\n\n", "\n").split("\n") == wanted


def test_the_rows_of_a_table_stay_together() -> None:
    places = [(name, left, row) for row in range(8) for name, left in (("b", 300), ("a", 0))]
    cells = [placed(f"{name}{row}", left, 40 * row) for name, left, row in places]
    assert text_of(cells).split("\n\n")[:2] == ["a0  b0", "a1  b1"]


def test_only_pages_without_text_are_recognised() -> None:
    recogniser = Scripted(placed("Notice\x07 of three months.", 0, 0))
    pages = PdfPages(assembled([NOTICE, PICTURE.encode(), b""]), PageRecogniser(recogniser))
    parts = [pages.read(number) for number in range(3)]
    assert [each.text for each in parts][1:] == ["Notice of three months.", ""]
    assert [each.recognised for each in parts] == [False, True, False]
    assert [each.blank for each in parts] == [False, False, True]
    assert recogniser.pictures == 1
    empty = PdfPages(pdf_of(""), PageRecogniser(Scripted(placed(" ", 0, 0)))).read(0)
    assert (empty.text, empty.recognised) == ("", False)


def test_a_scan_is_read_and_its_chip_says_so(tmp_path: Path, rapidocr: Path) -> None:
    path = written(tmp_path / "scan.pdf", pdf_of("Cover", "", ""))
    taken = intake(path, WITH_OCR)
    page = taken.texts[0].text.partition("[Page 3]\n")[2]
    assert page.startswith("Notice of three months.\n")
    assert "uses no network" in page or "Operation not permitted" in page
    assert taken.skipped == ()
    (file,) = taken.files
    assert (file.doubtful, file.recognised) == (True, 2)
    assert file.sentence == "scan.pdf has 2 pages read by OCR: names and figures may be wrong."
    assert intake(Path(f"{path}#3"), WITH_OCR).files[0].recognised == 1


def test_nothing_is_recognised_unless_it_is_wanted(tmp_path: Path, rapidocr: Path) -> None:
    path = written(tmp_path / "scan.pdf", pdf_of("Cover", ""))
    (skipped,) = intake(path).skipped
    assert skipped.reason is SkipReason.PAGES_WITHOUT_TEXT
    assert "run text recognition (OCR) on it first" in refusal(f"{path}#2")


@pytest.mark.parametrize("act", ["time.sleep(60)", "import os; os.abort()", "raise ValueError"])
def test_a_picture_that_cannot_be_recognised_costs_only_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    fake_rapidocr(tmp_path / "packages", monkeypatch, act)
    path = written(tmp_path / "scan.pdf", pdf_of("Cover", "", "Three."))
    taken = intake(path, replace(WITH_OCR, ocr_seconds=1.0))
    assert "[Page 2]\n(This page could not be read.)\n\n[Page 3]\nThree." in taken.texts[0].text
    assert "has 1 of 3 pages (2) that cannot be read" in taken.skipped[0].sentence


def test_a_blank_page_says_that_recognition_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = "return SimpleNamespace(txts=None, boxes=None)"
    fake_rapidocr(tmp_path / "packages", monkeypatch, nothing)
    path = written(tmp_path / "scan.pdf", pdf_of("Cover", ""))
    (skipped,) = intake(path, WITH_OCR).skipped
    assert skipped.sentence.endswith("(2) without text: text recognition (OCR) found none.")


def test_vision_counts_from_the_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("ocrmac.ocrmac")
    found = [("Notice", 0.9, [0.1, 0.7, 0.5, 0.1])]
    module.text_from_image = lambda image: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ocrmac", ModuleType("ocrmac"))
    monkeypatch.setitem(sys.modules, "ocrmac.ocrmac", module)
    picture = SimpleNamespace(width=1000, height=2000, to_pil=lambda: None)
    (line,) = AppleVision().lines(picture)
    assert line.text == "Notice"
    assert (line.left, line.top, line.right, line.bottom) == pytest.approx((100, 400, 600, 600))


def test_which_package_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: set[str] = set()
    monkeypatch.setattr(ocr, "find_spec", lambda name: name if name in installed else None)
    assert RECOGNITION.package() == ""
    installed |= {"rapidocr", "ocrmac"}
    assert RECOGNITION.package() == ""
    installed.add("onnxruntime")
    assert RECOGNITION.package() == "rapidocr"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert RECOGNITION.package() == "ocrmac"
