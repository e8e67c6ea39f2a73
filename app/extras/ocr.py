"""Recognises the text of pages that are pictures, in the process of `document_worker.py`.

On a Mac with Apple's Vision framework, elsewhere with RapidOCR, whose models are in its package.
Both are optional.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

from app.ingest.recognition import Recogniser, Recognition

MAX_SIDE = 2000
"""Maximum width and height of a picture, in pixels. RapidOCR shrinks larger ones."""
MAX_SCALE = 200 / 72
"""Maximum pixels per point: 200 dpi."""
MIN_COLUMN = 0.25
"""Minimum width of a column of text, as a fraction of the page's text."""
MIN_COLUMN_ROWS = 4
MAX_LINES = 500
"""Pages with more lines are not searched for columns."""
MAX_CROSSING = 0.2
"""Maximum share of lines that are wider than a column."""
MAX_GAP = 0.8
"""Space between the lines of a paragraph, in heights of a line."""
MIN_FILLED, MIN_CHARACTERS = 0.5, 25
"""Rows of a column of text are at least this wide, as a fraction of the column, and have this many
characters on average. Cells of a table are shorter."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in a picture, or a part of one. In pixels from the top left corner."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def height(self) -> float:
        return self.bottom - self.top


class Reader(Protocol):
    """Reads the text in a picture, which is a bitmap of pypdfium2."""

    def lines(self, picture: Any) -> list[Line]: ...


class AppleVision:
    """Apple's Vision framework, through ocrmac. It was never run on a Mac."""

    def lines(self, picture: Any) -> list[Line]:
        from ocrmac.ocrmac import text_from_image

        width, height = picture.width, picture.height
        return [
            Line(text, x * width, (1 - y - h) * height, (x + w) * width, (1 - y) * height)
            for text, _, (x, y, w, h) in text_from_image(picture.to_pil())
        ]


class RapidOcr:
    """RapidOCR on the CPU, with the models of its package, for Latin and Chinese scripts."""

    def __init__(self) -> None:
        from rapidocr import RapidOCR

        self._engine: Any = RapidOCR(params={"Global.log_level": "critical"})

    def lines(self, picture: Any) -> list[Line]:
        found = self._engine(picture.to_numpy())
        if found.txts is None:
            return []
        corners = [(*zip(*box, strict=True),) for box in found.boxes]
        return [
            Line(text, min(x), min(y), max(x), max(y))
            for text, (x, y) in zip(found.txts, corners, strict=True)
        ]


class PageRecogniser(Recogniser):
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def text(self, page: Any) -> str:
        scale = min(MAX_SCALE, MAX_SIDE / max(*page.get_size(), 1))
        picture = page.render(scale=scale)
        try:
            lines = [each for each in self._reader.lines(picture) if each.text.strip()]
        finally:
            picture.close()
        return text_of(lines)


class InstalledRecognition(Recognition):
    def package(self) -> str:
        if sys.platform == "darwin" and find_spec("ocrmac") is not None:
            return "ocrmac"
        if find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None:
            return "rapidocr"
        return ""

    def install_command(self) -> str:
        return _install_command()

    def load(self, package: str) -> Recogniser:
        """RapidOCR would download models that its package lacks."""

        def refuse(*_: object, **__: object) -> None:
            raise OSError("text recognition uses no network")

        socket.socket.connect = refuse  # type: ignore[method-assign]
        return PageRecogniser(AppleVision() if package == "ocrmac" else RapidOcr())


RECOGNITION = InstalledRecognition()


@cache
def _install_command() -> str:
    """Installs the packages of the optional dependencies `ocr` into the environment that runs."""
    # These are slow to import.
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        every = [Requirement(each) for each in requires("specchat") or ()]
    except PackageNotFoundError:  # run from its folder, without being installed
        every = []
    wanted = [
        str(each).partition(";")[0].strip()
        for each in every
        if each.marker is not None
        and each.marker.evaluate({"extra": "ocr"})
        and not each.marker.evaluate({"extra": ""})
    ]
    packages = [shlex.quote(each) for each in wanted] or ["'specchat[ocr]'"]
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None and shutil.which("uv"):
        return " ".join(["uv pip install --python", python, *packages])
    return " ".join([python, "-m pip install", *packages])


def text_of(lines: Sequence[Line]) -> str:
    """The lines in reading order. An empty line separates paragraphs and columns."""
    text, before = "", None
    for row in _rows(lines):
        if before is not None:
            gap = row[0].top - before.bottom
            is_near = -before.height < gap < MAX_GAP * before.height
            text += "\n" if is_near else "\n\n"
        text += "  ".join(each.text.strip() for each in row)
        before = row[0]
    return text


def _rows(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines that stand side by side, in reading order: columns from left to right, after the lines
    above them that are wider than a column."""
    cut = _gutter(lines)
    if cut is None:
        return _sorted_rows(lines)
    rows: list[list[Line]] = []
    beside: list[Line] = []

    def add_columns() -> None:
        rows.extend(_rows([each for each in beside if each.right <= cut]))
        rows.extend(_rows([each for each in beside if each.right > cut]))
        beside.clear()

    for line in sorted(lines, key=lambda each: each.top):
        if line.left < cut < line.right:
            add_columns()
            rows.append([line])
        else:
            beside.append(line)
    add_columns()
    return rows


def _sorted_rows(lines: Sequence[Line]) -> list[list[Line]]:
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda each: each.top + each.bottom):
        if rows and (line.top + line.bottom) / 2 < rows[-1][0].bottom:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda each: each.left) for row in rows]


def _gutter(lines: Sequence[Line]) -> float | None:
    """Where the space between two columns of text is; None if there are none."""
    if not 2 * MIN_COLUMN_ROWS <= len(lines) <= MAX_LINES:
        return None
    width = max(each.right for each in lines) - min(each.left for each in lines)
    best, max_crossing = None, MAX_CROSSING * len(lines)
    for cut in sorted({each.left for each in lines}):
        left = [each for each in lines if each.right <= cut]
        right = [each for each in lines if each.left >= cut]
        crossing = len(lines) - len(left) - len(right)
        if crossing < max_crossing and _is_column(left, width) and _is_column(right, width):
            best, max_crossing = cut, crossing
    return best


def _is_column(lines: Sequence[Line], width: float) -> bool:
    """Whether lines are running text in a column of a page that is `width` wide."""
    rows = _sorted_rows(lines)
    if len(rows) < MIN_COLUMN_ROWS:
        return False
    own = max(each.right for each in lines) - min(each.left for each in lines)
    filled = sum(row[-1].right - row[0].left for row in rows) / len(rows)
    characters = sum(len(each.text) for each in lines) / len(rows)
    return own >= MIN_COLUMN * width and filled >= MIN_FILLED * own and characters >= MIN_CHARACTERS
