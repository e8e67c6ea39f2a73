"""Parts of which tests make office documents: namespaces, relationships and archives."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DRAWING = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    ' xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
    ' xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
    ' xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"'
)
LINKS = "http://schemas.openxmlformats.org/package/2006/relationships"
TYPE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
OPEN_DOCUMENT = " ".join(
    f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for short, name in {
        "office": "office",
        "style": "style",
        "text": "text",
        "table": "table",
        "draw": "drawing",
        "presentation": "presentation",
        "svg": "svg-compatible",
        "form": "form",
    }.items()
)
OPEN_DOCUMENT += (
    ' xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xlink="http://www.w3.org/1999/xlink"'
)


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


def links(**targets: str) -> str:
    """Relationships: for each id its type and target, such as `slide slides/slide1.xml`."""
    listed = "".join(
        f'<Relationship Id="{name}" Type="{TYPE}{kind}" Target="{target}"/>'
        for name, (kind, target) in ((name, each.split(" ")) for name, each in targets.items())
    )
    return f'<Relationships xmlns="{LINKS}">{listed}</Relationships>'
