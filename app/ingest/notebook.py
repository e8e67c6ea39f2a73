"""Extracts the text of a Jupyter notebook: cells in order, each with its kind and outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from app.ingest.web_page import page_text

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_EMBEDDED = re.compile(  # on one line, or on several long ones and a last one
    r"(data:[\w/+.-]{1,60});base64,[A-Za-z0-9+/]{40,}+"
    r"(?:=|(?:\r?\n[A-Za-z0-9+/]{60,}+)++(?:\r?\n[A-Za-z0-9+/]++=)?)?=?"
)
_TEXTS = ("text/plain", "text/markdown", "text", "text/latex")
_KINDS = {"markdown": "text", "heading": "text", "raw": "raw text"}


def notebook_text(source: str) -> str | None:
    """The text of a notebook; None if `source` is not one. Pictures and other data are only
    named."""
    try:
        notebook = json.loads(source)
        sheets = notebook.get("worksheets") or [notebook]  # before version 4, cells are in sheets
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        metadata = notebook.get("metadata") or {}
        language = str((metadata.get("language_info") or {}).get("name", ""))
        parts = [_cell(number, cell, language) for number, cell in enumerate(cells, 1)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return "\n".join(parts) if parts else None


def _cell(number: int, cell: dict[str, Any], language: str) -> str:
    kind = cell["cell_type"]
    shown = _KINDS.get(kind, f"{cell.get('language', language)} {kind}".strip())
    source = _joined(cell.get("source", cell.get("input", "")))
    lines = [f"[Cell {number}: {shown}]", _EMBEDDED.sub(r"\1", source).strip("\n"), ""]
    for output in cell.get("outputs") or ():
        if text := "\n".join(_output(output)).strip("\n"):
            lines += [f"[Output of cell {number}]", text, ""]
    return "\n".join(lines)


def _output(output: dict[str, Any]) -> Iterator[str]:
    kind = output["output_type"]
    if kind == "stream":
        yield _plain(output.get("text", ""))
    elif kind in ("error", "pyerr"):
        trace = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
        yield _plain("\n".join(map(str, trace)))
    else:
        # Before version 4, the contents of `data` were in the output itself.
        data = output.get("data", output)
        shown = next((data[name] for name in _TEXTS if name in data), "")
        if not shown and "text/html" in data:
            shown = page_text(_joined(data["text/html"]))
        pictures = [name for name in data if name.startswith("image/") or name in ("png", "jpeg")]
        yield _plain(shown)
        yield from (f"({name.removeprefix('image/')} picture)" for name in pictures)


def _plain(text: Any) -> str:
    return _EMBEDDED.sub(r"\1", _ESCAPE_SEQUENCE.sub("", _joined(text)))


def _joined(text: Any) -> str:
    """Join a text that is given as a string or as a list of lines."""
    return "".join(map(str, text)) if isinstance(text, list) else str(text)
