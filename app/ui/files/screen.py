"""Ctrl+F: the files that were chosen for a question, then a tree of the others; and choosing
others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from app.store.records import Overrides
from app.ui.files.overview import FileFacts, summary
from app.ui.filter_list import FilterList, FilterListScreen
from app.ui.help import Section
from app.ui.keys import SafeInput
from app.ui.text import fit_path, spread
from app.util import formatting
from app.util.sanitize import sanitize_line


class ReadChoice(StrEnum):
    """Whether the model gets a file, where not all fit."""

    AUTOMATIC = "automatic"
    ALWAYS = "always"
    NEVER = "never"

    @property
    def next(self) -> ReadChoice:
        choices = list(ReadChoice)
        return choices[(choices.index(self) + 1) % len(choices)]


@dataclass(frozen=True, slots=True)
class TreeRow:
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
    """The files that were chosen for a question, best first, then a tree of the others. Top folders
    start open, and so do folders with a file that the user chose."""

    def __init__(self, facts: Sequence[FileFacts], choices: Mapping[str, ReadChoice]) -> None:
        self.choices = dict(choices)
        """The choices that are not automatic, by name."""
        self._facts = facts
        chosen = (each for each in facts if each.in_prompt and not each.estimated)
        self._first = sorted(chosen, key=lambda each: each.rank)
        self._listed = {each.name for each in self._first}
        self._opened = {folder for each in facts for folder in _folders(each.name)[:1]}
        for name in self.choices:
            self._opened.update(_folders(name))

    def rows(self, text: str = "") -> list[TreeRow]:
        """The chosen files and the rows of open folders or, with a `text`, all files whose names
        have its words."""
        words = text.casefold().split()
        if words:
            every = [*self._first, *(each for each in self._facts if each.name not in self._listed)]
            names = ((each, each.name.casefold()) for each in every)
            found = (each for each, name in names if all(word in name for word in words))
            return [TreeRow(0, each.name, (each,)) for each in found]
        first = [TreeRow(0, each.name, (each,)) for each in self._first]
        return [*first, *self._rows_in("", self._facts, 0)]

    def _rows_in(self, path: str, files: Sequence[FileFacts], depth: int) -> Iterator[TreeRow]:
        """Rows of the folder `path`, which ends with a slash; `files` are all below it."""
        folders: dict[str, list[FileFacts]] = {}
        for file in files:
            name, slash, _ = file.name.removeprefix(path).partition("/")
            folders.setdefault(name + slash, []).append(file)
        for name, inner in sorted(folders.items(), key=lambda each: not each[0].endswith("/")):
            if all(each.name in self._listed for each in inner):
                continue
            if not name.endswith("/"):
                yield from (TreeRow(depth, name, (file,)) for file in inner)
                continue
            is_open = path + name in self._opened
            yield TreeRow(depth, name, inner, path + name, is_open)
            if is_open:
                yield from self._rows_in(path + name, inner, depth + 1)

    def set_open(self, path: str, is_open: bool) -> None:
        if is_open:
            self._opened.add(path)
        else:
            self._opened.discard(path)

    def choice(self, row: TreeRow) -> ReadChoice | None:
        """The choice for a file, or for all files of a folder; None if they differ."""
        found = {self.choices.get(each.name, ReadChoice.AUTOMATIC) for each in row.files}
        return found.pop() if len(found) == 1 else None

    def cycle(self, row: TreeRow) -> None:
        """The next choice, for all files of a folder."""
        choice = (self.choice(row) or ReadChoice.AUTOMATIC).next
        for each in row.files:
            if choice is ReadChoice.AUTOMATIC:
                self.choices.pop(each.name, None)
            else:
                self.choices[each.name] = choice

    def chosen(self, choice: ReadChoice) -> tuple[str, ...]:
        return tuple(name for name, each in self.choices.items() if each is choice)


def _folders(name: str) -> list[str]:
    """The paths of the folders that a file is in, from the top."""
    return [name[: at + 1] for at, character in enumerate(name) if character == "/"]


MARKS = {ReadChoice.ALWAYS: "●", ReadChoice.NEVER: "×"}


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """`always` and `never` are names; `again` if the question is to be asked again with them."""

    always: tuple[str, ...]
    never: tuple[str, ...]
    again: bool


class FilterLine(SafeInput):
    """The filter. Space marks a file instead of being typed."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return key != "space" and super().check_consume_key(key, character)


class FilesScreen(FilterListScreen[ChosenFiles | None]):
    """Typing filters, the arrow keys move in the tree."""

    HINTS = ("⏎ ask again", "Space always, never, automatic", "←→ fold", "type to find", "Esc")
    HINTS_BEFORE = ("⏎ done", *HINTS[1:])
    # With priority: the focused input would use some of these keys itself.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "left", "fold", "Close", id="files.fold",
            tooltip="Close the folder, or go to its parent folder", priority=True,
        ),
        Binding(
            "right", "unfold", "Open", id="files.unfold", tooltip="Open the folder", priority=True
        ),
        Binding(
            "space", "cycle", "Choose", id="files.choose",
            tooltip="Switch the file or folder between always read, never read and automatic",
            priority=True,
        ),
        Binding(
            "enter", "again", "Again", id="files.again",
            tooltip="Ask the question again with this choice", priority=True,
        ),
        Binding(
            "escape,ctrl+f", "close", "Close", id="files.close",
            tooltip="Close; the choice applies to the next question", priority=True,
        ),
    ]  # fmt: skip

    def __init__(
        self,
        facts: Sequence[FileFacts],
        overrides: Overrides,
        context: int = 0,
        room: int | None = None,
        can_ask: bool = False,
    ) -> None:
        """`context` is the model's in tokens, 0 if unknown; `room` is what there was for files;
        `can_ask` if there is a question to be asked again."""
        super().__init__()
        self.list.filter = FilterLine(placeholder="Type to find", compact=True)
        self._facts, self._room, self._can_ask = facts, room, can_ask
        choices = dict.fromkeys(overrides.never_read or (), ReadChoice.NEVER)
        choices |= dict.fromkeys(overrides.always_read or (), ReadChoice.ALWAYS)
        self.files = FileTree(facts, choices)
        self._context_length = context
        self._rows: dict[str, TreeRow] = {}
        if not can_ask:
            self.HINTS = self.HINTS_BEFORE  # type: ignore[misc]

    def help_sections(self) -> tuple[Section, ...]:
        return (("Files", FilesScreen), ("The list", FilterList))

    def compose(self) -> ComposeResult:
        yield self.heading
        yield self.list
        yield self.foot

    def on_mount(self) -> None:
        self.draw()

    def list_rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        self._rows = {}
        for row in self.files.rows(text):
            key = row.key
            while key in self._rows:  # two files can have one name
                key += " "
            self._rows[key] = row
            yield key, row_content(row, self.files.choice(row), self._context_length, width)

    @property
    def row(self) -> TreeRow | None:
        return self._rows.get(self.list.highlighted)

    def draw_frame(self) -> None:
        chosen = [len(self.files.chosen(each)) for each in (ReadChoice.ALWAYS, ReadChoice.NEVER)]
        self.show_heading("Files", summary(self._facts, self._room, *chosen))

    def action_fold(self) -> None:
        row = self.row
        if row is None or self.list.text:
            return
        if row.is_open:
            self._set_open(row, False)
        else:
            self.draw(row.key.rstrip("/").rpartition("/")[0] + "/")

    def action_unfold(self) -> None:
        row = self.row
        if row is not None and row.folder and not row.is_open:
            self._set_open(row, True)

    def _set_open(self, row: TreeRow, is_open: bool) -> None:
        self.files.set_open(row.folder, is_open)
        self.draw()

    def action_cycle(self) -> None:
        if (row := self.row) is not None:
            self.files.cycle(row)
            self.draw()

    @on(FilterList.RowChosen)
    def _clicked(self) -> None:
        row = self.row
        if row is not None and row.folder:
            self._set_open(row, not row.is_open)
        else:
            self.action_cycle()

    def action_again(self) -> None:
        self._dismiss_with(self._can_ask)

    def leave(self) -> None:
        self._dismiss_with(False)

    def _dismiss_with(self, again: bool) -> None:
        chosen = self.files.chosen
        self.dismiss(ChosenFiles(chosen(ReadChoice.ALWAYS), chosen(ReadChoice.NEVER), again))


def row_content(row: TreeRow, choice: ReadChoice | None, context: int, width: int) -> Content:
    """One line of at most `width` cells. Where it is narrow, the reason is cut first."""
    if row.folder:
        left = Content.assemble(
            "  " * row.depth, ("▾ " if row.is_open else "▸ ", "$accent"), sanitize_line(row.label)
        )
        shown = [each for each in row.files if each.in_prompt]
        count = f"{len(shown):,} of {len(row.files):,}" if shown else f"{len(row.files):,}"
        note = "" if choice in (None, ReadChoice.AUTOMATIC) else f"{choice} · "
        size = _size(sum(each.tokens for each in shown), False, context) if shown else " " * 15
        return spread(left, Content.styled(f"{note}{count}  {size}", "$ink-dim"), width)
    file = row.files[0]
    mark = MARKS.get(choice, "✓" if file.in_prompt else " ") if choice else " "
    name_style = "" if file.in_prompt and choice is not ReadChoice.NEVER else "$ink-dim"
    room = max(2 * width // 3 - 2 * row.depth - len(file.lines) - 10, width // 3)
    name = fit_path(sanitize_line(row.label), room)
    left = Content.assemble("  " * row.depth, (f"{mark} ", "$accent"), (name, name_style))
    if file.lines:
        left = Content.assemble(left, (f"  lines {file.lines}", "$ink-dim"))
    size = _size(file.tokens, file.estimated, context)
    notes = [file.reason] if file.reason else []
    if choice is ReadChoice.NEVER or (choice is ReadChoice.ALWAYS and not file.chosen):
        notes.insert(0, str(choice))
    reason = sanitize_line(" · ".join(notes))
    room = width - min(left.cell_length, 2 * width // 3) - cell_len(size) - 4
    cut = Content.styled(reason, "$ink-dim").truncate(room, ellipsis=True) if room > 7 else ""
    return spread(left, Content.assemble(cut, ("  " + size, "$ink-dim")), width)


def _size(tokens: int, estimated: bool, context: int) -> str:
    """`~1.2K tok   3%`"""
    text = f"{'~' if estimated else ''}{formatting.short_count(tokens)} tok"
    share = formatting.percent(tokens / context) if context and tokens <= context else ""
    return f"{text:>10} {share:>4}"
