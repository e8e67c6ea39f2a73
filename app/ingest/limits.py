"""How much of what was given is read."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one call of `app.ingest.reader.read`. What lies beyond one is left out and said."""

    total_bytes: int = 64 * MIB
    """Bytes, over everything given; also the most that one file named directly may have."""
    file_bytes: int = 8 * MIB
    """Bytes of one file inside a folder."""
    pdf_bytes: int = 64 * MIB
    """Bytes of one PDF file."""
    files: int = 5_000
    """Files taken from one folder."""
    entries: int = 200_000
    """Files and folders looked at inside one folder, taken or not."""
    depth: int = 40
    """Folders inside folders."""
    path_bytes: int = 1_024
    """Bytes of a path below the folder given."""
    documents: int = 200
    """Documents that one folder becomes. With more files than that, neighbours share one."""
    tree_lines: int = 300
    """Lines of the tree at the top of a folder."""
    seconds: float = 60.0
    """Seconds for everything but standard input, which comes when it comes."""
    git_seconds: float = 10.0
    """Seconds for git to list a repository; after that the .gitignore files are read instead."""
    pdf_seconds: float = 30.0
    """Seconds for the text of one PDF file."""
    pdf_memory: int = 1024 * MIB
    """Bytes of memory for the text of one PDF file (where the system can bound it)."""
    include_private: bool = False
    """Whether files that may hold passwords or keys are read too."""
    include_ignored: bool = False
    """Whether what git ignores is read too."""
