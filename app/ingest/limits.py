"""Limits on how much input is read."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one call of `app.ingest.reader.read`. What exceeds one is skipped and reported."""

    total_bytes: int = 64 * MIB
    """Bytes of all inputs together, and so of one file named directly."""
    file_bytes: int = 8 * MIB
    """Bytes of one file inside a folder."""
    pdf_bytes: int = 64 * MIB
    """Bytes of one PDF file."""
    files: int = 5_000
    """Files read from one folder."""
    entries: int = 200_000
    """Files and folders visited inside one folder, read or skipped."""
    depth: int = 40
    """Levels of folders."""
    path_bytes: int = 1_024
    """Bytes of a path below the folder."""
    tree_lines: int = 300
    """Lines of a folder's tree."""
    seconds: float = 60.0
    """Seconds for all inputs except standard input and pages of PDF files."""
    git_seconds: float = 10.0
    """Seconds for git to list a repository; after that, .gitignore files are read instead."""
    pdf_seconds: float = 30.0
    """Seconds to extract the text of one page of a PDF file."""
    pdf_memory: int = 1024 * MIB
    """Bytes of memory for extracting one PDF file, where the system can limit it."""
    include_private: bool = False
    """Also read files that may contain passwords or keys."""
    include_ignored: bool = False
    """Also read files that git ignores."""
