"""Finds the paths in what a terminal pastes when files are dropped on it; also of a part of a file,
such as `contract.pdf#5-10`, if nothing else is pasted."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Iterator, Sequence
from urllib.parse import unquote_to_bytes

MAX_DROPPED = 100
MAX_CHARACTERS = 64_000
_START = re.compile(r"""['"]?(?:file:/|~/|/)[^\s'"]""")
_PART = re.compile(r"[^\n#]+#[^\n]*[^\s#]\s*")


def dropped_paths(text: str) -> Sequence[str]:
    """The absolute paths, if the text has nothing else and all of them exist. Looks at the disk."""
    if _PART.fullmatch(text):
        from app.ingest.excerpt import split_path  # slow to import

        path = os.path.abspath(os.path.expanduser(text.strip()))
        if split_path(path)[1]:
            return [path]
    for candidates in _readings(text.strip()):
        paths = [_path(each) for each in candidates]
        if 0 < len(paths) <= MAX_DROPPED and all(each and os.path.exists(each) for each in paths):
            return paths
    return ()


def may_be_paths(text: str) -> bool:
    if len(text) > MAX_CHARACTERS:
        return False
    return _START.match(text.lstrip()) is not None or _PART.fullmatch(text) is not None


def _readings(text: str) -> Iterator[Sequence[str]]:
    """Terminals paste paths as they are, quoted or escaped for a shell, or as URIs, separated by
    blanks or line ends."""
    yield [text]
    yield [each.strip() for each in text.splitlines()]
    try:
        yield shlex.split(text)
    except ValueError:  # a quote that does not end
        return


def _path(text: str) -> str:
    """An absolute path; empty if the text is none."""
    if text.startswith("file:"):
        host, slash, rest = text.removeprefix("file:").removeprefix("//").partition("/")
        if host not in ("", "localhost", socket.gethostname()):
            return ""
        text = slash + os.fsdecode(unquote_to_bytes(rest))
    text = os.path.expanduser(text) if text.startswith("~/") else text
    is_path = text.startswith("/") and text.strip("/.") and "\0" not in text
    return text if is_path else ""
