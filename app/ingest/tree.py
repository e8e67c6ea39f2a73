"""Draws a folder as a tree of names, which tells the model what is where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_INDENT = "  "


@dataclass
class _Folder:
    entries: dict[str, _Folder | str] = field(default_factory=dict)
    """Subfolders, and for files a remark or an empty string."""
    total: int = 0
    """Files in it and in its subfolders."""


def tree(name: str, files: Iterable[tuple[str, str]], max_lines: int) -> str:
    """`files`: sorted paths below the folder `name`, each with a remark or ''.

    Draws as many levels as fit into `max_lines`, and says how many lines were left off.
    """
    top = _Folder()
    for path, remark in files:
        _put(top, path.split("/"), remark)
    depth = 1
    while (more := _count(top, depth + 1)) <= max_lines and more > _count(top, depth):
        depth += 1
    lines = [f"{name}/", *_draw(top, depth, _INDENT)]
    if len(lines) > max_lines:
        lines[max_lines:] = [f"{_INDENT}… and {len(lines) - max_lines:,} more"]
    return "\n".join(lines) + "\n"


def _put(folder: _Folder, names: list[str], remark: str) -> None:
    folder.total += 1
    for name in names[:-1]:
        below = folder.entries.get(name)
        if not isinstance(below, _Folder):
            below = folder.entries[name] = _Folder()
        folder = below
        folder.total += 1
    folder.entries[names[-1]] = remark


def _count(folder: _Folder, depth: int) -> int:
    if depth == 0:
        return 0
    below = folder.entries.values()
    return len(below) + sum(_count(each, depth - 1) for each in below if not isinstance(each, str))


def _draw(folder: _Folder, depth: int, indent: str) -> Iterator[str]:
    for name, entry in folder.entries.items():
        if isinstance(entry, str):
            yield f"{indent}{name} ({entry})" if entry else indent + name
        elif depth > 1:
            yield f"{indent}{name}/"
            yield from _draw(entry, depth - 1, indent + _INDENT)
        else:
            yield f"{indent}{name}/ ({entry.total:,} file{'s' * (entry.total != 1)})"
