"""Reads office documents and e-books, in the process of `document_worker.py`.

They are zip archives of XML files. mammoth reads Word documents and openpyxl Excel workbooks; the
others are simple enough to read here. Links and external files are never followed, and macros are
never opened. Files that declare XML entities are refused.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, time
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from app.ingest.parts import OLE, Part, TooLarge, Unknown, WithPassword
from app.ingest.web_page import markdown_table, markup_text

MAX_MEMBERS = 20_000
MAX_UNPACKED = 256 * 1024 * 1024
"""Maximum bytes of all members of an archive, once unpacked."""
MAX_ROWS = 50_000
MAX_COLUMNS = 1_000
MAX_CELLS = 1_000_000
"""Cells after which no further row of a sheet is read."""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_DOCTYPE = tuple("<!DOCTYPE".encode(each) for each in ("utf-8", "utf-16-le", "utf-16-be"))
_BACK_LINK = re.compile(r'<a href="#(?:footnote|endnote|comment)-ref-[^"]*">[^<]*</a>')


def open_document(data: bytes) -> WordDocument | Workbook | Slides | OpenDocument | Book:
    """Open a document of any kind here. Raises WithPassword, TooLarge, Unknown, and anything for
    a damaged one."""
    if data.startswith(OLE):
        raise WithPassword if _ENCRYPTED in data else Unknown
    archive = _Archive(data)
    for beginning, kind in (
        ("word/", WordDocument),
        ("xl/", Workbook),
        ("ppt/presentation.xml", Slides),
        ("META-INF/container.xml", Book),
        ("content.xml", OpenDocument),
    ):
        if any(name.startswith(beginning) for name in archive.names):
            if kind is not Book:
                archive.refuse_entities()
            return kind(archive)
    raise Unknown


class _Archive:
    """The members of a zip archive."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS or sum(each.file_size for each in members) > MAX_UNPACKED:
            raise TooLarge
        if any(each.flag_bits & 1 for each in members):
            raise WithPassword
        self.names = {each.filename for each in members}

    def read(self, name: str) -> bytes:
        return self._zip.read(name)

    def refuse_entities(self) -> None:
        """Raise ValueError if a member declares entities, which the formats forbid."""
        for name in self.names:
            if name.endswith((".xml", ".rels")):
                data = self.read(name)
                if any(declared in data for declared in _DOCTYPE):
                    raise ValueError(name)

    def xml(self, name: str) -> Element:
        return ElementTree.fromstring(self.read(name))

    def links(self, name: str) -> dict[str, str]:
        """Members that a member of an Office document refers to, by their ids."""
        folder, base = posixpath.split(name)
        listed = f"{folder}/_rels/{base}.rels"
        if listed not in self.names:
            return {}
        found = {}
        for each in self.xml(listed):
            target = posixpath.normpath(posixpath.join("/", folder, each.get("Target", "")))[1:]
            if each.get("TargetMode") != "External" and target in self.names:
                found[each.get("Id", "")] = target
        return found

    def embedded(self) -> int:
        """Number of documents embedded in an Office document, without the data of charts."""
        inside = {name for name in self.names if "/embeddings/" in name and name[-1] != "/"}
        charts = [name for name in self.names if "/charts/chart" in name and name.endswith(".xml")]
        for chart in charts:
            inside -= set(self.links(chart).values())
        return len(inside)


def _name(element: Element) -> str:
    """An element's name without its namespace."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _attribute(element: Element, name: str, default: str = "") -> str:
    """An attribute by its name without its namespace."""
    for key, value in element.items():
        if key.rpartition("}")[2] == name:
            return value
    return default


def _every(element: Element, name: str) -> Iterator[Element]:
    """Yield all elements of a name inside another, in the order of the document."""
    return (each for each in element.iter() if _name(each) == name)


def _find(element: Element | None, *path: str) -> Element | None:
    for name in path:
        element = None if element is None else element.find(f"{{*}}{name}")
    return element


# ---------------------------------------------------------------------------- Word


class WordDocument:
    """A Word document, with headings, lists, tables, notes and comments; it has no pages."""

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        self.embedded = archive.embedded()

    def __len__(self) -> int:
        return 1

    def read(self, number: int) -> Part:
        import mammoth

        html = mammoth.convert_to_html(
            io.BytesIO(self._archive.data),
            convert_image=mammoth.images.img_element(lambda image: {}),
            style_map="comment-reference => sup\np[style-name='Title'] => h1:fresh",
            ignore_empty_paragraphs=True,
            external_file_access=False,
        ).value
        return Part("", markup_text(_BACK_LINK.sub("", html)))


# ---------------------------------------------------------------------------- Excel


class Workbook:
    """The sheets of an Excel workbook: the values of cells, not their formulas."""

    def __init__(self, archive: _Archive) -> None:
        import openpyxl

        self.embedded = archive.embedded()
        self._book: Any = openpyxl.load_workbook(
            io.BytesIO(archive.data), read_only=True, data_only=True, keep_links=False
        )
        self._sheets = [each for each in self._book.worksheets if hasattr(each, "iter_rows")]

    def __len__(self) -> int:
        return len(self._sheets)

    def read(self, number: int) -> Part:
        sheet = self._sheets[number]
        sheet.reset_dimensions()
        rows: list[list[str]] = []
        cells, more = 0, False
        for row in sheet.iter_rows():
            if len(rows) == MAX_ROWS or cells > MAX_CELLS:
                more = True
                break
            more = more or len(row) > MAX_COLUMNS
            cells += len(row)
            rows.append([_cell_text(cell) for cell in row[:MAX_COLUMNS]])
        return _sheet(sheet.title, rows, more, sheet.sheet_state != "visible")


def _sheet(name: str, rows: list[list[str]], more: bool, hidden: bool = False) -> Part:
    mark = f"[Sheet {' '.join(name.split())}{' (hidden)' if hidden else ''}]"
    note = f"only the first {len(rows):,} rows and {MAX_COLUMNS:,} columns" if more else ""
    return Part(mark, _table(rows), note)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table without its empty rows and columns."""
    rows = [row for row in rows if any(row)]
    used = sorted({column for row in rows for column, cell in enumerate(row) if cell})
    return markdown_table([[row[n] if n < len(row) else "" for n in used] for row in rows])


def _cell_text(cell: Any) -> str:
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        text = f"{value:.15g}"
        if "%" in (cell.number_format or ""):
            text = f"{value * 100:.10g}%"
        return text
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    if isinstance(value, time):
        return value.isoformat()
    return str(value)


# ---------------------------------------------------------------------------- PowerPoint


class Slides:
    """The slides of a PowerPoint presentation, with tables, charts and speaker notes."""

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        main = "ppt/presentation.xml"
        links = archive.links(main)
        listed = _every(archive.xml(main), "sldId")
        ids = (each.get(f"{{{_RELATIONSHIPS}}}id", "") for each in listed)
        self._slides = [links[each] for each in ids if each in links]
        self.embedded = archive.embedded()

    def __len__(self) -> int:
        return len(self._slides)

    def read(self, number: int) -> Part:
        name = self._slides[number]
        slide, links = self._archive.xml(name), self._archive.links(name)
        lines = [*_shapes(_find(slide, "cSld", "spTree"), self._archive, links)]
        for target in links.values():
            if "/notesSlides/" in target:
                tree = _find(self._archive.xml(target), "cSld", "spTree")
                notes = [*_shapes(tree, self._archive, {})]
                lines += ["", "Speaker notes:", *notes] if any(notes) else []
        hidden = " (hidden)" if slide.get("show") == "0" else ""
        return Part(f"[Slide {number + 1}{hidden}]", "\n".join(lines).strip("\n"))


_RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_NO_CONTENT = ("sldNum", "dt", "ftr", "hdr", "sldImg")
_TITLES = ("title", "ctrTitle")


def _shapes(tree: Element | None, archive: _Archive, links: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the shapes of a slide."""
    for shape in tree if tree is not None else ():
        kind = _name(shape)
        if kind == "grpSp":
            yield from _shapes(shape, archive, links)
        elif kind == "AlternateContent":
            yield from _shapes(_find(shape, "Choice"), archive, links)
        elif kind == "sp":
            yield from _shape(shape)
        elif kind == "graphicFrame":
            yield from _graphic(shape, archive, links)
        elif kind == "pic":
            properties = _find(shape, "nvPicPr", "cNvPr")
            if properties is not None and (shown := properties.get("descr", "").strip()):
                yield f"[{' '.join(shown.split())}]"


def _shape(shape: Element) -> Iterator[str]:
    placeholder = _find(shape, "nvSpPr", "nvPr", "ph")
    role = "" if placeholder is None else placeholder.get("type", "body")
    body = _find(shape, "txBody")
    if body is None or role in _NO_CONTENT:
        return
    numbers: dict[int, int] = {}
    paragraphs = [(each, _run_text(each)) for each in body.findall("{*}p")]
    if role in _TITLES:
        title = " ".join(text for _, text in paragraphs if text)
        yield f"# {' '.join(title.split())}" if title.strip() else ""
        return
    for paragraph, text in paragraphs:
        properties = _find(paragraph, "pPr")
        level = 0 if properties is None else int(properties.get("lvl", "0"))
        marks = set() if properties is None else {_name(each) for each in properties}
        if not text.strip():
            continue
        mark = ""
        if "buAutoNum" in marks:
            numbers[level] = numbers.get(level, 0) + 1
            mark = f"{numbers[level]}. "
        elif "buChar" in marks or (role == "body" and "buNone" not in marks):
            mark = "- "
        for deeper in [each for each in numbers if each > level]:
            del numbers[deeper]
        yield f"{'  ' * level if mark else ''}{mark}{text}"
    yield ""


def _run_text(paragraph: Element) -> str:
    pieces = []
    for each in paragraph.iter():
        if _name(each) == "t":
            pieces.append(each.text or "")
        elif _name(each) == "br":
            pieces.append("\n")
        elif _name(each) == "tab":
            pieces.append("\t")
    return "".join(pieces)


def _graphic(frame: Element, archive: _Archive, links: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a table, a chart or a diagram."""
    for table in _every(frame, "tbl"):
        rows = [
            [
                " ".join(_run_text(each) for each in _every(cell, "p"))
                for cell in row.findall("{*}tc")
            ]
            for row in table.findall("{*}tr")
        ]
        yield markdown_table(rows)
    data = next(_every(frame, "graphicData"), None)
    for each in data if data is not None else ():
        if _name(each) == "chart" and (part := links.get(_attribute(each, "id"))):
            yield from _chart(archive.xml(part))
        elif _name(each) == "relIds" and (part := links.get(_attribute(each, "dm"))):
            for paragraph in _every(archive.xml(part), "p"):
                if text := _run_text(paragraph).strip():
                    yield f"- {text}"
    yield ""


def _chart(chart: Element) -> Iterator[str]:
    """Yield a chart's title, and its values as a table."""

    def points(element: Element | None) -> list[str]:
        values = () if element is None else _every(element, "v")
        return [each.text or "" for each in values]

    title = next(_every(chart, "title"), None)
    if title is not None and (text := _run_text(title).strip()):
        yield text
    series = [*_every(chart, "ser")]
    if not series:
        return
    first = _find(series[0], "cat")
    columns = [["", *points(_find(series[0], "xVal") if first is None else first)]]
    for each in series:
        values = _find(each, "val")
        numbers = points(_find(each, "yVal") if values is None else values)
        columns.append([" ".join(points(_find(each, "tx"))), *numbers])
    longest = max(map(len, columns))
    columns = [column + [""] * (longest - len(column)) for column in columns]
    yield markdown_table([[*row] for row in zip(*columns, strict=True)])


# ---------------------------------------------------------------------------- OpenDocument


class OpenDocument:
    """A text, spreadsheet or presentation in OpenDocument format."""

    def __init__(self, archive: _Archive) -> None:
        manifest = "META-INF/manifest.xml"
        if manifest in archive.names and b"encryption-data" in archive.read(manifest):
            raise WithPassword
        content = archive.xml("content.xml")
        body = _find(content, "body")
        self._kind = _name(body[0]) if body is not None and len(body) else ""
        self._numbered = {
            _attribute(each, "name"): {
                int(_attribute(level, "level", "1"))
                for level in each
                if _name(level) == "list-level-style-number" and _attribute(level, "num-format")
            }
            for each in _every(content, "list-style")
        }
        self._titles = {"Title"} | {
            _attribute(each, "name")
            for each in _every(content, "style")
            if _attribute(each, "parent-style-name") == "Title"
        }
        self._notes: list[str] = []
        self._parts: list[Element] = []
        if body is not None and len(body):
            inside = {"spreadsheet": "table", "presentation": "page"}.get(self._kind)
            self._parts = [body[0]] if inside is None else body[0].findall(f"{{*}}{inside}")
        self.embedded = len({name.split("/")[0] for name in archive.names if _OBJECT.match(name)})

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, number: int) -> Part:
        part = self._parts[number]
        if self._kind == "spreadsheet":
            return _sheet(_attribute(part, "name"), *self._rows(part))
        self._notes = []
        text = "".join(self._blocks(part, 0)).strip("\n")
        if self._notes:
            text += "\n\n" + "\n".join(self._notes)
        return Part(f"[Slide {number + 1}]" if self._kind == "presentation" else "", text)

    def _blocks(self, element: Iterable[Element], depth: int) -> Iterator[str]:
        for each in element:
            kind = _name(each)
            if kind == "h":
                level = min(6, int(_attribute(each, "outline-level", "1")))
                if text := self._line(each):
                    yield f"{'#' * level} {text}\n\n"
            elif kind == "p":
                if text := self._line(each):
                    title = _attribute(each, "style-name") in self._titles
                    yield f"{'# ' if title else ''}{text}\n\n"
            elif kind == "list":
                yield self._list(each, depth, _attribute(each, "style-name")) + "\n"
            elif kind == "table":
                rows, _ = self._rows(each)
                yield f"{_table(rows)}\n\n"
            elif kind == "notes":
                yield "".join(["Speaker notes:\n", *self._blocks(each, depth)])
            elif kind not in _NO_TEXT:
                yield from self._blocks(each, depth)

    def _list(self, element: Element, depth: int, style: str) -> str:
        number, lines = 0, []
        if start := _attribute(element, "start-value"):
            number = int(start) - 1
        for item in element:
            if _name(item) not in ("list-item", "list-header"):
                continue
            number += _name(item) == "list-item"
            mark = f"{number}. " if depth + 1 in self._numbered.get(style, ()) else "- "
            marked = False
            for each in item:
                if _name(each) == "list":
                    inner = _attribute(each, "style-name", style)
                    lines.append(self._list(each, depth + 1, inner))
                else:
                    text = "".join(self._blocks([each], depth)).strip("\n")
                    if text:
                        lines.append(f"{'  ' * depth}{'  ' if marked else mark}{text}\n")
                        marked = True
        return "".join(lines)

    def _inline(self, element: Element) -> str:
        pieces = [_SPACE.sub(" ", element.text or "")]
        for each in element:
            kind = _name(each)
            if kind == "s":
                pieces.append(" " * min(100, int(_attribute(each, "c", "1"))))
            elif kind == "tab":
                pieces.append("\t")
            elif kind == "line-break":
                pieces.append("\n")
            elif kind == "note":
                pieces.append(self._note(each))
            elif kind == "frame":
                pieces.append(self._frame(each))
            elif kind not in _NO_TEXT:
                pieces.append(self._inline(each))
            pieces.append(_SPACE.sub(" ", each.tail or ""))
        return "".join(pieces)

    def _line(self, element: Element) -> str:
        """The text of a heading or paragraph; several lines if it has line breaks or frames."""
        lines = self._inline(element).split("\n")
        return "\n".join(line.strip(" ") for line in lines if line.strip())

    def _note(self, note: Element) -> str:
        citation, body = _find(note, "note-citation"), _find(note, "note-body")
        cited = "" if citation is None else "".join(citation.itertext()).strip()
        text = "" if body is None else " ".join("".join(self._blocks(body, 0)).split())
        self._notes.append(f"[^{cited}]: {text}")
        return f"[^{cited}]"

    def _frame(self, frame: Element) -> str:
        """The text inside a frame, or the description of its picture."""
        text = "".join(self._blocks(frame, 0)).strip("\n")
        shown = _find(frame, "desc")
        shown = _find(frame, "title") if shown is None else shown
        if not text and shown is not None and shown.text:
            text = f"[{' '.join(shown.text.split())}]"
        return f"\n{text}\n" if text else ""

    def _rows(self, table: Element) -> tuple[list[list[str]], bool]:
        """The rows of a table, and whether there are more."""
        rows: list[list[str]] = []
        for row in _every(table, "table-row"):
            cells: list[str] = []
            for cell in row:
                if _name(cell) in ("table-cell", "covered-table-cell"):
                    text = "\n".join("".join(self._blocks(cell, 0)).split("\n\n")).strip()
                    times = int(_attribute(cell, "number-columns-repeated", "1"))
                    cells += [text] * max(0, min(times, MAX_COLUMNS - len(cells)))
            times = int(_attribute(row, "number-rows-repeated", "1")) if any(cells) else 1
            rows += [cells] * min(times, MAX_ROWS + 1 - len(rows))
            if len(rows) > MAX_ROWS:
                return rows[:MAX_ROWS], True
        return rows, False


_SPACE = re.compile(r"[ \t\r\n]+")
_OBJECT = re.compile(r"Object \d+/content\.xml$|Object \d+$")
_NO_TEXT = (
    "tracked-changes",
    "annotation",
    "annotation-end",
    "desc",
    "title",
    "sequence-decls",
    "variable-decls",
    "shapes",
    "user-field-decls",
    "forms",
    "event-listeners",
    "table-column",
)


# ---------------------------------------------------------------------------- EPUB


class Book:
    """The sections of an EPUB book in reading order."""

    embedded = 0

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        container = archive.xml("META-INF/container.xml")
        root = next(_every(container, "rootfile")).get("full-path", "")
        package = archive.xml(root)
        items = {
            each.get("id", ""): posixpath.normpath(
                posixpath.join(posixpath.dirname(root), unquote(each.get("href", "")))
            )
            for each in _every(package, "item")
        }
        order = (items.get(each.get("idref", ""), "") for each in _every(package, "itemref"))
        self._sections = [name for name in order if name in archive.names]
        if "META-INF/encryption.xml" in archive.names:
            listed = _every(archive.xml("META-INF/encryption.xml"), "CipherReference")
            if {unquote(each.get("URI", "")) for each in listed} & set(self._sections):
                raise WithPassword

    def __len__(self) -> int:
        return len(self._sections)

    def read(self, number: int) -> Part:
        from app.ingest.text import decode

        data = self._archive.read(self._sections[number])
        return Part(
            f"[Section {number + 1}]", markup_text(decode(data).text) if data.strip() else ""
        )
