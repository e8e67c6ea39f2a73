"""Extracts the text of a Jupyter notebook: cells in order, each with its kind and outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from app.ingest import markdown
from app.ingest.web_page import markup_text
from app.util.json_amount import is_too_much

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_EMBEDDED = re.compile(  # on one line, or on several long ones and a last one
    r"(data:[\w/+.-]{1,60});base64,[A-Za-z0-9+/]{40,}+"
    r"(?:=|(?:\r?\n[A-Za-z0-9+/]{60,}+)++(?:\r?\n[A-Za-z0-9+/]++=)?)?=?"
)
_TEXTS = ("text/plain", "text/markdown", "text", "text/latex")
_KINDS = {"markdown": "text", "heading": "text", "raw": "raw text"}
_MAX_CONTAINERS, _MAX_VALUES = 1_000_000, 4_000_000
"""Files with more lists and objects, or values in these, are read as they are."""


def notebook_text(source: str) -> str | None:
    """The text of a notebook; None if `source` is not one. Pictures and other data are only
    named."""
    if '"cell_type"' not in source or is_too_much(source, _MAX_CONTAINERS, _MAX_VALUES):
        return None
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
    source = _EMBEDDED.sub(r"\1", _joined(cell.get("source", cell.get("input", "")))).strip("\n")
    if kind not in _KINDS and source.strip():
        source = markdown.fenced(source)
    elif kind == "raw":
        source = markdown.plain(source)
    lines = [f"[Cell {number}: {shown}]", source, ""]
    for text in _outputs(cell.get("outputs") or ()):
        if text := text.strip("\n"):
            lines += [f"[Output of cell {number}]", text, ""]
    return "\n".join(lines)


def _outputs(outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the texts of outputs. What was printed in several pieces is one text."""
    for stream, group in groupby(outputs, _stream):
        if stream:
            yield _printed("".join(_joined(each.get("text", "")) for each in group))
        else:
            yield from ("\n".join(_output(each)) for each in group)


def _stream(output: dict[str, Any]) -> str:
    """`stdout` or `stderr` for what was printed; empty for other outputs."""
    return str(output.get("name", "stdout")) if output["output_type"] == "stream" else ""


def _output(output: dict[str, Any]) -> Iterator[str]:
    if output["output_type"] in ("error", "pyerr"):
        trace = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
        yield _printed("\n".join(map(str, trace)))
        return
    # Before version 4, the contents of `data` were in the output itself.
    data = output.get("data", output)
    kind = next((name for name in _TEXTS if name in data), "")
    if kind:
        shown = _joined(data[kind])
        yield _EMBEDDED.sub(r"\1", shown) if kind == "text/markdown" else _printed(shown)
    elif "text/html" in data:
        yield markup_text(_joined(data["text/html"])) or "(HTML without text)"
    pictures = [name for name in data if name.startswith("image/") or name in ("png", "jpeg")]
    yield from (f"({name.removeprefix('image/')} picture)" for name in pictures)


def _printed(text: str) -> str:
    """A text as a terminal shows it: of progress bars the last state."""
    text = _EMBEDDED.sub(r"\1", _ESCAPE_SEQUENCE.sub("", text))
    if "\r" in text:
        lines = (line.rstrip("\r") for line in text.split("\n"))
        text = "\n".join(line.rpartition("\r")[2] for line in lines)
    return markdown.plain(_without_backspaces(text))


def _without_backspaces(text: str) -> str:
    if "\b" not in text:
        return text
    shown: list[str] = []
    for character in text:
        if character != "\b":
            shown.append(character)
        elif shown and shown[-1] != "\n":
            shown.pop()
    return "".join(shown)


def _joined(text: Any) -> str:
    """Join a text that is given as a string or as a list of lines."""
    return "".join(map(str, text)) if isinstance(text, list) else str(text)
