"""Files as rows of a tree by folder, and what the user chose for each. No widgets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from app.ui.files.overview import FileFacts


class Choice(StrEnum):
    """Whether the model gets a file, where not all fit."""

    AUTOMATIC = "automatic"
    ALWAYS = "always"
    NEVER = "never"

    @property
    def next(self) -> Choice:
        choices = list(Choice)
        return choices[(choices.index(self) + 1) % len(choices)]


@dataclass
class Folder:
    """`path` ends with a slash; the top's is empty."""

    path: str
    folders: dict[str, Folder] = field(default_factory=dict)
    files: list[FileFacts] = field(default_factory=list)
    every: list[FileFacts] = field(default_factory=list)
    """Its files and those of all folders in it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A folder or a file, `depth` folders down. `label` is its name there."""

    depth: int
    label: str
    files: Sequence[FileFacts]
    """The file, or all files of the folder."""
    folder: str = ""
    """The path of a folder; empty for a file."""
    is_open: bool = False

    @property
    def key(self) -> str:
        return self.folder or self.files[0].name


class FileTree:
    """The top folders start open, and those with a file that is chosen, or in the prompt if not
    all are."""

    def __init__(self, facts: Sequence[FileFacts], choices: Mapping[str, Choice]) -> None:
        self.choices = dict(choices)
        """Of the files that are not chosen automatically, by name."""
        self._facts = facts
        self._top = Folder("")
        self._opened: set[str] = set()
        all_fit = all(each.in_prompt for each in facts)
        for each in facts:
            self._add(each, each.name in self.choices or (each.in_prompt and not all_fit))
        for folder in self._top.folders.values():
            self._opened.add(folder.path)

    def _add(self, file: FileFacts, shown: bool) -> None:
        folder, parts = self._top, file.name.split("/")
        folder.every.append(file)
        for part in parts[:-1]:
            path = f"{folder.path}{part}/"
            folder = folder.folders.setdefault(part, Folder(path))
            folder.every.append(file)
            if shown:
                self._opened.add(path)
        folder.files.append(file)

    def rows(self, text: str = "") -> list[Row]:
        """What is open; with a `text`, all files whose names have its words."""
        words = text.casefold().split()
        if words:
            found = (each for each in self._facts if _has(each.name, words))
            return [Row(0, each.name, (each,)) for each in found]
        return [*self._rows_in(self._top, 0)]

    def _rows_in(self, folder: Folder, depth: int) -> Iterator[Row]:
        for name, inner in folder.folders.items():
            is_open = inner.path in self._opened
            yield Row(depth, f"{name}/", inner.every, inner.path, is_open)
            if is_open:
                yield from self._rows_in(inner, depth + 1)
        for file in folder.files:
            yield Row(depth, file.name.rpartition("/")[2], (file,))

    def set_open(self, path: str, is_open: bool) -> None:
        if is_open:
            self._opened.add(path)
        else:
            self._opened.discard(path)

    def choice(self, row: Row) -> Choice | None:
        """Of a file, or of all files of a folder; None if they differ."""
        return _common(self.choices.get(each.name, Choice.AUTOMATIC) for each in row.files)

    def cycle(self, row: Row) -> None:
        """The next choice, for all files of a folder."""
        choice = (self.choice(row) or Choice.AUTOMATIC).next
        for each in row.files:
            if choice is Choice.AUTOMATIC:
                self.choices.pop(each.name, None)
            else:
                self.choices[each.name] = choice

    def chosen(self, choice: Choice) -> tuple[str, ...]:
        return tuple(name for name, each in self.choices.items() if each is choice)


def _has(name: str, words: Iterable[str]) -> bool:
    name = name.casefold()
    return all(word in name for word in words)


def _common(choices: Iterable[Choice]) -> Choice | None:
    found = set(choices)
    return found.pop() if len(found) == 1 else None
