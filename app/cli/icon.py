"""specchat's icon: a page of which some lines are highlighted. Drawn from a few rectangles, as SVG
for Linux and as pixels for macOS, so that no picture needs to be kept in step with another."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

SIDE = 64
"""Units that the drawing is wide and high."""
PAGE, UNREAD, READ = "#15171b", "#676f7c", "#f2c14e"
LINES = ((36, UNREAD), (28, UNREAD), (40, READ), (34, UNREAD), (24, READ), (38, UNREAD))
"""From top to bottom, how long each is."""
LEFT, TOP, STEP, THICK = 12, 12, 7, 4
CORNER = 14

Rectangle = tuple[int, int, int, int, str]
"""x, y, width, height, colour."""


def _lines() -> Iterator[Rectangle]:
    for index, (length, colour) in enumerate(LINES):
        yield LEFT, TOP + index * STEP, length, THICK, colour


def svg() -> bytes:
    lines = "".join(
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="1" fill="{colour}"/>'
        for x, y, width, height, colour in _lines()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}">'
        f'<rect width="{SIDE}" height="{SIDE}" rx="{CORNER}" fill="{PAGE}"/>{lines}</svg>\n'
    ).encode()


def icns() -> bytes:
    """The container of macOS, with pictures of 256, 512 and 1,024 pixels."""
    parts = b""
    for kind, size in ((b"ic08", 256), (b"ic09", 512), (b"ic10", 1024)):
        picture = png(size)
        parts += kind + struct.pack(">I", len(picture) + 8) + picture
    return b"icns" + struct.pack(">I", len(parts) + 8) + parts


def png(size: int) -> bytes:
    """`size` is a multiple of SIDE."""
    scale = size // SIDE
    header = struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)  # 8 bits of red, green, blue, alpha
    rows = b"".join(b"\0" + _row(y, scale) for y in range(size))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _row(y: int, scale: int) -> bytes:
    """One row of pixels. What lies outside of the rounded corners is transparent."""
    size, radius = SIDE * scale, CORNER * scale
    above = radius - min(y, size - 1 - y) - 0.5
    indent = round(radius - (radius**2 - above**2) ** 0.5) if above > 0 else 0
    row = bytearray(_pixel(PAGE) * size)
    for x, top, width, height, colour in _lines():
        if top * scale <= y < (top + height) * scale:
            row[x * scale * 4 : (x + width) * scale * 4] = _pixel(colour) * (width * scale)
    row[: indent * 4] = bytes(indent * 4)
    row[(size - indent) * 4 :] = bytes(indent * 4)
    return bytes(row)


def _pixel(colour: str) -> bytes:
    return bytes.fromhex(colour[1:]) + b"\xff"
