"""Compares where sentences of PDF files are cited with what PDFium alone says.

    python -m benchmarks.places FOLDER [--sentences 60] [--seed 1] [--titles]

Sentences are lines of words on random pages of random files with bookmarks. Right is the number of
the page, and the title of the last bookmark above the line: in its column, if bookmarks lead to two
columns. Titles count as equal if their letters are, without the number of the section. `--titles`
counts the bookmarks of all files whose titles are headings on their page or on the next one.
"""

from __future__ import annotations

import argparse
import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pypdfium2
from pypdfium2 import raw

from app.ingest.reader import read
from app.ingest.records import IngestError
from app.util.places import headings, place_of

TRIES = 30
"""Pages of a file that are tried until one has a sentence."""
_SENTENCE = re.compile(r"(?:[A-Za-z(][A-Za-z,.'()-]* ){7,}[A-Za-z]+[.,]?")
_NUMBER = re.compile(r"^(?:§ ?)?[A-Z]?[\d.]+ +")
Position = tuple[int, int, float]
"""Page, column, and how far down, in points."""


@dataclass(frozen=True)
class Sentence:
    text: str
    page: int
    position: Position


def positions(file: pypdfium2.PdfDocument) -> list[tuple[Position, str]]:
    """Where bookmarks lead, and their titles."""
    found = []
    for bookmark in file.get_toc():
        if (target := bookmark.get_dest()) is None or (page := target.get_index()) is None:
            continue
        mode, numbers = target.get_view()
        x = numbers[0] if mode == raw.PDFDEST_VIEW_XYZ and numbers else 0.0
        y = numbers[1] if mode == raw.PDFDEST_VIEW_XYZ and len(numbers) > 1 else 0.0
        y = numbers[0] if mode == raw.PDFDEST_VIEW_FITH and numbers else y
        width, height = file[page].get_size()
        found.append(((page, int(x > width * 0.45), -(y or height)), bookmark.get_title()))
    return found


def sentence(file: pypdfium2.PdfDocument, rng: random.Random, has_columns: bool) -> Sentence | None:
    for _ in range(TRIES):
        number = rng.randrange(len(file))
        page = file[number]
        text = page.get_textpage()
        lines = [each.strip() for each in text.get_text_range().split("\r\n")]
        found = [each for each in lines if _SENTENCE.fullmatch(each)]
        if found and (hit := text.search(line := rng.choice(found)).get_next()) is not None:
            left, _, _, top = text.get_charbox(hit[0])
            column = int(has_columns and left > page.get_width() * 0.45)
            return Sentence(line, number, (number, column, -top))
    return None


def bare(title: str) -> str:
    plain = unicodedata.normalize("NFKD", _NUMBER.sub("", title)).casefold()
    return "".join(filter(str.isalnum, plain))


def is_same(heading: str, title: str) -> bool:
    """Whether a heading, which may be cut, repeats a title or ends with it."""
    shown, wanted = bare(heading), bare(title)
    return shown.endswith(wanted) if not shown or len(wanted) < 40 else wanted[:40] in shown


def places(path: Path, text: str) -> Iterator[tuple[int | None, str]]:
    """Yield the page (from 0) and the nearest heading of each occurrence."""
    for document in read([str(path)]).documents:
        for found in re.finditer(r"\s+".join(map(re.escape, text.split())), document.text):
            place = place_of(document.text, found.start(), name=document.name)
            page = None if place.page is None else place.page - 1
            yield page, place.headings[-1].rstrip("…") if place.headings else ""


def count_titles(paths: Sequence[Path]) -> None:
    found = total = 0
    for path in paths:
        try:
            titles = positions(pypdfium2.PdfDocument(path))
            (document,) = read([str(path)]).documents
        except (pypdfium2.PdfiumError, IngestError):
            continue
        shown: dict[int, list[str]] = {}
        for each in headings(document.text, document.name):
            page = place_of(document.text, each.start, name=document.name).page or 0
            shown.setdefault(page - 1, []).append(bare(each.title))
        for (page, _, _), title in titles:
            wanted = bare(title)
            near = shown.get(page, []) + shown.get(page + 1, [])
            total, found = total + 1, found + any(wanted in each for each in near)
    print(f"{found:,} of {total:,} titles of bookmarks are headings ({found / total:.1%}).")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare places of sentences with PDFium's.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--titles", action="store_true", help="count titles that are headings")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    paths = sorted(options.folder.rglob("*.pdf"))
    if options.titles:
        count_titles(paths)
        return
    rng.shuffle(paths)
    asked = right = 0
    for path in paths:
        try:
            file = pypdfium2.PdfDocument(path)
        except pypdfium2.PdfiumError:
            continue
        titles = positions(file)
        has_columns = any(column for (_, column, _), _ in titles)
        if not titles or (wanted := sentence(file, rng, has_columns)) is None:
            continue
        above = [each for each in titles if each[0] <= wanted.position]
        title = max(reversed(above), key=lambda each: each[0])[1] if above else ""
        found = [*places(path, wanted.text)]
        is_right = any(page == wanted.page and is_same(heading, title) for page, heading in found)
        asked, right = asked + 1, right + is_right
        if not is_right:
            print(f"{path.name}, page {wanted.page + 1}, {title!r}: {wanted.text!r} is at {found}")
        if asked == options.sentences:
            break
    print(f"{right} of {asked} sentences have the right page and heading.")


if __name__ == "__main__":
    main()
