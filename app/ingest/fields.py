"""What the fields of Word and Rich Text show, by their codes, such as `HYPERLINK "https://a.org"`."""

from __future__ import annotations

import re

from app.ingest import markdown
from app.ingest.formulas import field_formula
from app.ingest.symbols import symbol

PAGE_FIELDS = ("PAGE", "NUMPAGES", "SECTIONPAGES")
NUMBER_FIELDS = ("LISTNUM", "AUTONUM", "AUTONUMLGL", "AUTONUMOUT")
"""Numbers that files do not hold."""
_LINK = re.compile(r'HYPERLINK\s+"([^"]+)"', re.IGNORECASE)
_SYMBOL = re.compile(
    r'SYMBOL\s+(?:0x([0-9a-f]{1,6})|(\d{1,7}))(?:.*\\f\s+"?([^"\\]+))?', re.IGNORECASE
)
_BUTTON = re.compile(r"(?:MACRO|GOTO)BUTTON\s+\S+\s+(.*)", re.IGNORECASE | re.DOTALL)


def field_kind(code: str) -> str:
    """The first word of a code, in capitals."""
    return next(iter(code.split(None, 1)), "").upper()


def field_text(code: str, result: str) -> str:
    """What is shown in addition to the result that the file has."""
    code, kind = code.strip(), field_kind(code)
    if kind == "HYPERLINK" and (link := _LINK.match(code)):
        return markdown.address(link[1], result)
    if result.strip():
        return ""
    if kind == "EQ":
        return field_formula(code)
    if button := _BUTTON.match(code):
        return button[1]
    if kind == "SYMBOL" and (sign := _SYMBOL.match(code)):
        return symbol(sign[3] or "", int(sign[1], 16) if sign[1] else int(sign[2]))
    return ""
