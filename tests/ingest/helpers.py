"""Folders to read, and what must hold of every refusal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from app.ingest.limits import ReadLimits
from app.ingest.reader import read
from app.ingest.records import IngestError, ReadResult


def written(path: Path, content: bytes | str = b"text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def folder(root: Path, **files: bytes | str) -> Path:
    """`root` with these files."""
    for name, content in files.items():
        written(root / name, content)
    return root


def intake(path: Path, limits: ReadLimits | None = None) -> ReadResult:
    (only,) = read([str(path)], limits=limits).results
    return only


def names(taken: ReadResult) -> list[str]:
    """The paths of what was taken, without the folder's name."""
    return [each.path.partition("/")[2] for each in taken.files]


def check_sentence(sentence: str) -> None:
    assert sentence.endswith(".")
    assert ": " in sentence, "it must say what to do"
    assert "\n" not in sentence
    assert len(sentence) < 6000


def refusal(
    *paths: str | Path, stdin: bytes | None = None, limits: ReadLimits | None = None
) -> str:
    with pytest.raises(IngestError) as caught:
        read([str(path) for path in paths], None if stdin is None else io.BytesIO(stdin), limits)
    check_sentence(str(caught.value))
    return str(caught.value)
