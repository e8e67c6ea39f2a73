"""The list of contents of a snapshot, and which snapshots begin with the same tokens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.util.regular_files import NotRegular, read_text

FORMAT = 9
MANIFEST = "manifest.json"
BLOCK = 256
"""Tokens between two digests of a conversation's beginning."""


FILE_NAME = re.compile(
    r"([0-9]{1,18})-(?:(?:target|draft)-(?:[0-9]+|rows-([0-9a-f]{32}))\.safetensors|manifest\.part)"
)
"""Names of a snapshot's other files. The number tells one save from the next."""


KnownBlocks = dict[str, tuple[Path, dict[str, Any]]]
"""Files of rows by what they hold, and what a manifest says about each."""


class SnapshotError(ValueError):
    """Why a snapshot cannot be used; a clause."""


def with_checksum(manifest: dict[str, Any]) -> str:
    """A manifest as it is written: its checksum, then itself."""
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() + "\n" + text


def parse(written: str) -> dict[str, Any]:
    """Raises SnapshotError, or what json raises."""
    checksum, _, text = written.partition("\n")
    if hashlib.sha256(text.encode()).hexdigest() != checksum:
        raise SnapshotError("its list of contents is damaged")
    manifest: dict[str, Any] = json.loads(text)
    if manifest["format"] != FORMAT:
        raise SnapshotError("another version of specchat wrote it")
    return manifest


def read_manifest(folder: Path) -> str:
    """Raises OSError, UnicodeDecodeError, or SnapshotError if it is not a file."""
    try:
        return read_text(folder / MANIFEST)
    except NotRegular:
        raise SnapshotError("its list of contents is not a file") from None


def block_digest(name: str) -> str | None:
    """In the name of a file of rows: what it holds (`row_blocks.py`). None for other files."""
    ours = FILE_NAME.fullmatch(name)
    return ours[2] if ours else None


def beginnings(ids: NDArray[np.int32]) -> list[str]:
    """A digest of the first 256 tokens, of the first 512, and so on: for finding a snapshot that
    begins with the same tokens."""
    digest, found = hashlib.sha256(), []
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        digest.update(ids[end - BLOCK : end].tobytes())
        found.append(digest.hexdigest()[:16])
    return found


def shared_beginning(one: Sequence[str], other: Sequence[str]) -> int:
    """How many tokens two conversations with these `beginnings` share at least."""
    same = takewhile(lambda each: each[0] == each[1], zip(one, other, strict=False))
    return BLOCK * sum(1 for _ in same)


class _Known(NamedTuple):
    """What is in a snapshot."""

    conversation: str
    beginnings: list[str]
    dense_prefix_len: int
    files: list[dict[str, Any]]


class SnapshotIndex:
    """Of the snapshots in `folder` that were made with the same models."""

    def __init__(self, folder: Path, identity: dict[str, str]) -> None:
        self._folder, self._identity = folder, identity
        self._manifests: dict[Path, tuple[int, _Known | None]] = {}
        """By folder: when a manifest was changed, nanoseconds since 1970, and what is in it; None
        for those that are damaged or of other models."""

    def find_longest(self, ids: NDArray[np.int32], dense: bool) -> tuple[str, int]:
        """The conversation whose snapshot begins with most of these tokens, and how many; of
        those without a gap only, if `dense`. An empty name if there is none."""
        wanted, best = beginnings(ids), ("", 0)
        for _, known in self._all():
            length = shared_beginning(wanted, known.beginnings)
            length = min(length, known.dense_prefix_len) if dense else length
            best = max(best, (known.conversation, length), key=lambda each: each[1])
        return best

    def blocks(self) -> KnownBlocks:
        """Of all snapshots."""
        return {
            digest: (folder / file["name"], file)
            for folder, known in self._all()
            for file in known.files
            if (digest := block_digest(file["name"])) is not None
        }

    def _all(self) -> Iterator[tuple[Path, _Known]]:
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            with suppress(OSError):  # not a snapshot, or just deleted
                changed = (folder / MANIFEST).stat().st_mtime_ns
                if self._manifests.get(folder, (None, None))[0] != changed:
                    self._manifests[folder] = changed, self._read(folder)
                if (known := self._manifests[folder][1]) is not None:
                    yield folder, known

    def _read(self, folder: Path) -> _Known | None:
        """What its manifest says; None if it is damaged, which `load` deals with, or of other
        models."""
        with suppress(Exception):
            manifest = parse(read_manifest(folder))
            if manifest["identity"] == self._identity:
                dense = manifest["target"]["dense_prefix_len"]
                found = manifest["conversation"], manifest["beginnings"], dense, manifest["files"]
                return _Known(*found)
        return None
