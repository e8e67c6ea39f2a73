"""What is drawn on a page of a PDF file, and which of its letters nobody sees.

Coordinates of letters are upright: as if the page were turned so that most of them can be read.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice, pairwise, repeat
from operator import mul, neg
from typing import Any

import pypdfium2
from pypdfium2 import raw

from app.ingest.pdf_tables import MIN_COLUMNS

MAX_OBJECTS = 20_000
"""Maximum number of objects of a page that is looked at more closely."""
MAX_DEPTH = 12
"""Maximum depth of objects inside others."""
MAX_LAYERS, MAX_FONTS = 50, 10_000
"""Maximum numbers of layers that are looked at, and of fonts that are remembered."""
_MAX_PICTURES = 100
_MAX_PAIRS = 500_000
"""Maximum number of white letters times drawings that they may stand on."""
_THIN = 2.0
"""Maximum height of a line, in points."""
_MAX_THICKNESS = 2.1
"""Maximum side of PDFium's box around a line that is not slanted, in the width of the line."""
_WHITE = 250
"""Minimum of red, green and blue."""
_NARROW, _WIDE = "il.,", "mwMW"
_MAX_FIXED_WIDTH = 0.9
"""Maximum width of letters that all have one, in their size."""
_MAX_MARKS = 10
"""Maximum number of marks of an object that are looked at."""
_MAX_NAME = 512
"""Maximum bytes of the name of a layer or a font."""
_LETTERS_OF_LAYER = 3
"""Number of objects that tell whether a layer is shown."""
_MAX_SCALE, _MAX_SIDE = 2.0, 400
"""Pixels per point, and width and height in pixels, of a picture of letters."""
_SLANT = 0.03
"""Maximum deviation from a quarter turn, in quarter turns."""
_FIXED_PITCH = 1
"""Flag of fonts."""
_TEXT: int = raw.FPDF_PAGEOBJ_TEXT
_FILLED = (raw.FPDF_TEXTRENDERMODE_FILL, raw.FPDF_TEXTRENDERMODE_FILL_CLIP)


class _Functions:
    """PDFium's functions. They take and return addresses as numbers, not pointers: this is faster,
    and `map` can call them for all objects of a page."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(raw, name)
        kinds = [
            ctypes.c_void_p if hasattr(kind, "contents") else kind
            for kind in (function.restype, *function.argtypes)
        ]
        address = ctypes.cast(function, ctypes.c_void_p).value
        found = ctypes.CFUNCTYPE(*kinds)(address or 0)
        setattr(self, name, found)
        return found


pdfium = _Functions()
Matrix = tuple[float, float, float, float, float, float]
Box = tuple[float, float, float, float]
"""Left, bottom, right and top."""


@dataclass(slots=True)
class Drawn:
    """An object of the page, or one inside an object with the matrix `outer`."""

    handle: int
    kind: int
    number: int
    """In the order in which they are drawn."""
    outer: Matrix | None

    def box(self) -> Box:
        edges = [ctypes.c_float() for _ in range(4)]
        pdfium.FPDFPageObj_GetBounds(self.handle, *map(ctypes.byref, edges))
        left, bottom, right, top = (edge.value for edge in edges)
        if self.outer is None:
            return left, bottom, right, top
        return _around(_moved(x, y, self.outer) for x in (left, right) for y in (bottom, top))

    def middle(self) -> tuple[float, float]:
        left, bottom, right, top = self.box()
        return (left + right) / 2, (bottom + top) / 2


@dataclass(slots=True)
class Letters(Drawn):
    """Letters that are drawn together, beginning at `x` on the line at `y`."""

    x: float
    y: float
    size: float
    quarter: int
    """Quarter turns to the left; -1 for other directions."""
    is_fixed: bool
    """Whether all letters of their font have one width."""
    is_invisible: bool
    is_white: bool
    layers: tuple[str, ...]
    """The names of their layers."""


class Known:
    """What the pages read so far tell of a document."""

    def __init__(self) -> None:
        self.layers: dict[str, bool] = {}
        """Whether layers are shown, by name."""
        self.fixed: dict[bytes, bool] = {}
        """Whether all letters of fonts have one width, by name."""


class Rows:
    """Rows of numbers that PDFium writes."""

    def __init__(self, kind: str, width: int, count: int) -> None:
        """`kind`: that of `array`."""
        self._width = width
        self._numbers = array(kind, [0]) * (width * count)

    def column(self, number: int) -> range:
        """The addresses of a number in each row."""
        begin, count = self._numbers.buffer_info()
        size = self._numbers.itemsize
        begin += number * size
        return range(begin, begin + count * size, self._width * size)

    def values(self, number: int) -> Any:
        """A number of each row."""
        return self._numbers[number :: self._width]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*[iter(self._numbers)] * self._width, strict=True)


def consume(calls: Iterable[object]) -> None:
    deque(calls, maxlen=0)


class _Properties:
    """What PDFium says about the objects of a page, or of another object."""

    def __init__(self, owner: Any, get: Callable[[Any, int], int], count: int) -> None:
        self.handles = [*map(get, repeat(owner), range(count))]
        self.modes = [*map(pdfium.FPDFTextObj_GetTextRenderMode, self.handles)]
        self.fonts = [*map(pdfium.FPDFTextObj_GetFont, self.handles)]
        self.marks = [*map(pdfium.FPDFPageObj_CountMarks, self.handles)]
        self.colours = Rows("I", 4, count)
        colours = map(self.colours.column, range(4))
        self.have_colours = [*map(pdfium.FPDFPageObj_GetFillColor, self.handles, *colours)]
        self.sizes, self.matrices = Rows("f", 1, count), Rows("f", 6, count)
        consume(map(pdfium.FPDFTextObj_GetFontSize, self.handles, self.sizes.column(0)))
        consume(map(pdfium.FPDFPageObj_GetMatrix, self.handles, self.matrices.column(0)))

    def rows(self) -> Iterator[tuple[Any, ...]]:
        texts = self.handles, self.modes, self.fonts, self.have_colours, self.marks
        return zip(*texts, self.sizes, self.matrices, self.colours, strict=True)


class PageObjects:
    """The objects of a page."""

    def __init__(self, page: pypdfium2.PdfPage, known: Known) -> None:
        self.letters: list[Letters] = []
        self.others: list[Drawn] = []
        self._page, self._known = page, known
        self._fixed: dict[int, bool] = {}
        self._count = 0
        self.quarter = 0
        """Quarter turns to the left of most letters."""
        count = min(raw.FPDFPage_CountObjects(page), MAX_OBJECTS)
        self._properties = _Properties(page.raw, pdfium.FPDFPage_GetObject, count)

    @property
    def is_complete(self) -> bool:
        return self._count < MAX_OBJECTS

    def is_uniform(self) -> bool:
        """Whether there are only upright letters in a colour, from the top to the bottom, without
        columns and raised letters. Most pages of prose are like that, and are not `read`."""
        found = self._properties
        left, bottom, right, top = self.page_box()
        a, b, c, d, x, y = map(found.matrices.values, range(6))
        colours = {*compress(found.colours, found.have_colours)}
        sizes = [*map(mul, found.sizes.values(0), d)]
        places = [*zip(map(neg, y), x, strict=True)]
        return (
            len(found.handles) < MAX_OBJECTS
            and {*found.modes} == {raw.FPDF_TEXTRENDERMODE_FILL}
            and not any(found.marks)
            and not any(b)
            and not any(c)
            and min(*a, *d) > 0
            and all(alpha and min(colour) < _WHITE for *colour, alpha in colours)
            and not any(map(self._is_fixed, {*found.fonts}))
            and left <= min(x) <= max(x) <= right
            and bottom <= min(y) <= max(y) <= top
            and places == sorted(places)
            and max(Counter(y).values()) < MIN_COLUMNS
            and all(
                before == after or low == high or high - low >= max(before, after)
                for (before, after), (high, low) in zip(pairwise(sizes), pairwise(y), strict=True)
            )
        )

    def levels(self) -> int:
        """How often the height of letters changes."""
        heights = [each.y for each in self.letters] or [*self._properties.matrices.values(5)]
        return 1 + sum(before != after for before, after in pairwise(heights))

    def read(self) -> None:
        """Look at the objects one by one."""
        self._add(self._properties)
        turns = Counter([each.quarter for each in self.letters if each.quarter >= 0])
        self.quarter = turns.most_common(1)[0][0] if turns else 0
        if self.quarter:
            for each in self.letters:
                each.x, each.y = self.upright(each.x, each.y)

    def _add(self, found: _Properties, outer: Matrix | None = None, depth: int = 0) -> None:
        """Add the objects of the page, or of an object with the matrix `outer`."""
        for handle, mode, font, has_colour, marks, (size,), matrix, colour in found.rows():
            if self._count == MAX_OBJECTS:
                return
            self._count += 1
            if mode == raw.FPDF_TEXTRENDERMODE_UNKNOWN:
                self._add_other(handle, matrix, outer, depth)
                continue
            a, b, c, d, x, y = _product(matrix, outer) if outer else matrix
            is_filled = has_colour and mode in _FILLED
            self.letters.append(
                Letters(
                    handle,
                    _TEXT,
                    self._count,
                    outer,
                    x,
                    y,
                    size * (abs(d) if c == 0 else math.hypot(c, d)),
                    0 if b == 0 and a > 0 else _quarter(a, b),
                    self._is_fixed(font),
                    mode == raw.FPDF_TEXTRENDERMODE_INVISIBLE or (is_filled and not colour[3]),
                    is_filled and min(colour[:3]) >= _WHITE,
                    (*_layers(handle),) if marks > 0 else (),
                )
            )

    def _add_other(self, handle: int, matrix: Matrix, outer: Matrix | None, depth: int) -> None:
        """Add an object that is no text, and the objects inside it."""
        kind = pdfium.FPDFPageObj_GetType(handle)
        self.others.append(Drawn(handle, kind, self._count, outer))
        if kind == raw.FPDF_PAGEOBJ_FORM and depth < MAX_DEPTH:
            count = min(pdfium.FPDFFormObj_CountObjects(handle), MAX_OBJECTS - self._count)
            inside = _Properties(handle, pdfium.FPDFFormObj_GetObject, count)
            self._add(inside, _product(matrix, outer), depth + 1)

    def _is_fixed(self, font: int) -> bool:
        """Whether all letters of a font have one width."""
        if font not in self._fixed:
            self._fixed[font] = bool(font) and self._has_one_width(font)
        return self._fixed[font]

    def _has_one_width(self, font: int) -> bool:
        name = ctypes.create_string_buffer(_MAX_NAME)
        pdfium.FPDFFont_GetBaseFontName(font, name, _MAX_NAME)
        fixed = self._known.fixed
        if not name.value or len(fixed) > MAX_FONTS:
            return _has_one_width(font)
        if name.value not in fixed:
            fixed[name.value] = _has_one_width(font)
        return fixed[name.value]

    def by_address(self) -> dict[int, Letters]:
        """Letters by the address of their object."""
        return {each.handle: each for each in self.letters}

    def upright(self, x: float, y: float) -> tuple[float, float]:
        """A point of the page in upright coordinates."""
        return ((x, y), (y, -x), (-x, -y), (-y, x))[self.quarter]

    def upright_box(self, box: Box) -> Box:
        if not self.quarter:
            return box
        left, bottom, right, top = box
        return _around(self.upright(x, y) for x in (left, right) for y in (bottom, top))

    def page_box(self) -> Box:
        """What a viewer shows of the page."""
        box = raw.FS_RECTF()
        raw.FPDF_GetPageBoundingBox(self._page, box)
        return self.upright_box((box.left, box.bottom, box.right, box.top))

    def thin_lines(self) -> list[Box]:
        """Horizontal lines."""
        paths = (each for each in self.others if each.kind == raw.FPDF_PAGEOBJ_PATH)
        boxes = (self.upright_box(each.box()) for each in paths if any(_painted(each.handle)))
        return [box for box in boxes if box[3] - box[1] <= _THIN < box[2] - box[0]]

    def unseen(self) -> set[int]:
        """The numbers of letters on the page that nobody sees: invisible ones, but for the
        recognised text of a picture; white ones on white; those in layers that are off."""
        invisible = [each for each in self.letters if each.is_invisible]
        white = [each for each in self.letters if each.is_white and not each.is_invisible]
        off = self._layers_off()
        found = {each.number for each in self.letters if not off.isdisjoint(each.layers)}
        if len(invisible) < len(self.letters) or not self.others:
            found.update(each.number for each in self._apart_from_pictures(invisible))
        found.update(each.number for each in self._on_white(white))
        return found

    def _apart_from_pictures(self, invisible: Sequence[Letters]) -> Iterator[Letters]:
        images = (each for each in self.others if each.kind == raw.FPDF_PAGEOBJ_IMAGE)
        boxes = [each.box() for each in islice(images, _MAX_PICTURES)] if invisible else []
        for each in invisible:
            middle = each.middle()
            if not any(_is_in(middle, box) for box in boxes):
                yield each

    def _on_white(self, white: Sequence[Letters]) -> Iterator[Letters]:
        grounds = [*self._grounds()] if white else []
        if len(white) * len(grounds) > _MAX_PAIRS:
            return
        for each in white:
            middle = each.middle()
            below = (
                is_white
                for number, box, is_white in grounds
                if number < each.number and _is_in(middle, box)
            )
            if next(below, True):
                yield each

    def _grounds(self) -> Iterator[tuple[int, Box, bool]]:
        """Yield what letters may stand on, from the last one drawn: its number, where it is and
        whether it is white."""
        colour = [ctypes.c_uint() for _ in range(4)]
        for each in reversed(self.others):
            if each.kind == raw.FPDF_PAGEOBJ_PATH:
                is_filled, is_drawn = _painted(each.handle)
                kind = "Fill" if is_filled else "Stroke"
                colour_of = getattr(pdfium, f"FPDFPageObj_Get{kind}Color")
                has_colour = colour_of(each.handle, *map(ctypes.byref, colour))
                box = each.box() if is_filled else _thick_line(each) if is_drawn else None
                if box is not None and not (has_colour and colour[3].value == 0):
                    is_white = has_colour and min(each.value for each in colour[:3]) >= _WHITE
                    yield each.number, box, bool(is_white)
            elif each.kind in (raw.FPDF_PAGEOBJ_IMAGE, raw.FPDF_PAGEOBJ_SHADING):
                yield each.number, each.box(), False

    def _layers_off(self) -> set[str]:
        """Names of the layers on this page that are not shown."""
        layers = self._known.layers
        inside: dict[str, list[Drawn]] = defaultdict(list)
        for letters in self.letters:
            for name in letters.layers:
                inside[name].append(letters)
        for name, found in inside.items():
            if name not in layers and len(layers) < MAX_LAYERS:
                some = found[:: max(1, len(found) // _LETTERS_OF_LAYER)][:_LETTERS_OF_LAYER]
                layers[name] = any(map(self._is_shown, some))
        return {name for name in inside if not layers.get(name, True)}

    def _is_shown(self, each: Drawn) -> bool:
        """Whether the page looks different without this object. The page must be unturned."""
        with_it = self._picture(each.box())
        pdfium.FPDFPageObj_SetIsActive(each.handle, False)
        without = self._picture(each.box())
        pdfium.FPDFPageObj_SetIsActive(each.handle, True)
        return with_it != without

    def _picture(self, box: Box) -> bytes:
        """A part of the page as it is shown."""
        page = raw.FS_RECTF()
        raw.FPDF_GetPageBoundingBox(self._page, page)
        left, bottom, right, top = box
        scale = min(_MAX_SCALE, _MAX_SIDE / max(right - left, top - bottom, 1.0))
        size = (max(1, round(each * scale)) for each in (right - left, top - bottom))
        bitmap = pypdfium2.PdfBitmap.new_native(*size, raw.FPDFBitmap_Gray)
        try:
            bitmap.fill_rect((255, 255, 255, 255), 0, 0, bitmap.width, bitmap.height)
            raw.FPDF_RenderPageBitmap(
                bitmap,
                self._page,
                round((page.left - left) * scale),
                round((top - page.top) * scale),
                round((page.right - page.left) * scale),
                round((page.top - page.bottom) * scale),
                0,
                0,
            )
            return bytes(bitmap.buffer)
        finally:
            bitmap.close()


def _painted(path: Any) -> tuple[bool, bool]:
    """Whether a path is filled, and whether it is drawn as a line."""
    fill, stroke = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDFPath_GetDrawMode(path, ctypes.byref(fill), ctypes.byref(stroke))
    return fill.value != 0, stroke.value != 0


def _thick_line(path: Drawn) -> Box | None:
    """Where a single line along the page or across it covers the page. PDFium's box is larger on
    each side by half the width of the line."""
    if pdfium.FPDFPath_CountSegments(path.handle) != 2:
        return None
    left, bottom, right, top = path.box()
    width = ctypes.c_float()
    pdfium.FPDFPageObj_GetStrokeWidth(path.handle, ctypes.byref(width))
    if min(right - left, top - bottom) > _MAX_THICKNESS * width.value:
        return None
    margin = min(right - left, top - bottom) / 4
    return left + margin, bottom + margin, right - margin, top - margin


def _layers(handle: Any) -> Iterator[str]:
    for index in range(min(pdfium.FPDFPageObj_CountMarks(handle), _MAX_MARKS)):
        mark = pdfium.FPDFPageObj_GetMark(handle, index)
        if _entry(pdfium.FPDFPageObjMark_GetName, mark) == "OC" and (
            name := _entry(pdfium.FPDFPageObjMark_GetParamStringValue, mark, b"Name")
        ):
            yield name


def _entry(get: Callable[..., int], *arguments: object) -> str:
    """A name or a text of a mark; empty if it is long."""
    buffer, size = ctypes.create_string_buffer(_MAX_NAME), ctypes.c_ulong()
    get(*arguments, buffer, _MAX_NAME, ctypes.byref(size))
    return buffer.raw[: size.value].decode("utf-16-le", "replace").rstrip("\0")


def _has_one_width(font: Any) -> bool:
    """Whether a font says so, or narrow and wide letters have one width."""
    if pdfium.FPDFFont_GetFlags(font) & _FIXED_PITCH:
        return True
    narrow, wide = ({*_widths(font, letters)} for letters in (_NARROW, _WIDE))
    return len(narrow) == 1 and narrow == wide and max(narrow) < _MAX_FIXED_WIDTH


def _widths(font: Any, letters: str) -> Iterator[float]:
    """Yield the widths of the letters that a font has."""
    width = ctypes.c_float()
    for letter in letters:
        if (
            pdfium.FPDFFont_GetGlyphWidth(font, ord(letter), 1.0, ctypes.byref(width))
            and width.value > 0
        ):
            yield width.value


def _quarter(a: float, b: float) -> int:
    """Quarter turns to the left of letters along the vector (a, b); -1 if it is slanted."""
    turns = math.atan2(b, a) / (math.pi / 2)
    return round(turns) % 4 if abs(turns - round(turns)) < _SLANT else -1


def _product(first: Matrix, then: Matrix | None) -> Matrix:
    if then is None:
        return first
    a, b, c, d, e, f = first
    x, y = _moved(e, f, then)
    return (
        a * then[0] + b * then[2],
        a * then[1] + b * then[3],
        c * then[0] + d * then[2],
        c * then[1] + d * then[3],
        x,
        y,
    )


def _moved(x: float, y: float, by: Matrix) -> tuple[float, float]:
    return x * by[0] + y * by[2] + by[4], x * by[1] + y * by[3] + by[5]


def _around(points: Iterable[tuple[float, float]]) -> Box:
    x, y = zip(*points, strict=True)
    return min(x), min(y), max(x), max(y)


def _is_in(point: tuple[float, float], box: Box) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
