"""The line above an answer that says which files of how many were put before the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from app.chat.conversation import Turn
from app.protocol.prompt import Document, RetrievedPart
from app.ui.click_line import ClickLine, Piece
from app.ui.files.overview import by_file, names_with_lines
from app.util import formatting
from app.util.sanitize import sanitize_line

CHANGE = " · ^F to change"
MIN_NAMES = 2
"""Names with their folders are shown if at least this number fits."""


class FilesLine(ClickLine):
    """Hidden where everything fits."""

    def __init__(self, turn: Turn, files: Sequence[Document]) -> None:
        """`files` are all from which some were chosen."""
        super().__init__()
        self._turn, self._files = turn, files
        self._shown: Sequence[RetrievedPart] | None = None
        self._names: list[str] = []
        self.display = False
        self.show()

    def show(self) -> None:
        """What was put before the model may have changed."""
        parts = self._turn.retrieved
        if parts is not None and parts is not self._shown:
            self._shown = parts
            self._names = [sanitize_line(each) for each in names_with_lines(parts, self._files)]
            self.display = True
            self.refresh()

    def pieces(self) -> Iterator[Piece]:
        room = self.content_size.width - cell_len(CHANGE)
        yield Piece(chosen_text(self._shown or (), self._files, self._names, room), "$ink-dim")
        yield Piece(CHANGE, "$ink-dim", lambda: self.screen.run_action("files"))


def chosen_text(
    parts: Sequence[RetrievedPart], files: Sequence[Document], names: Sequence[str], width: int
) -> str:
    """`5 of 2,293 files: urls/base.py, …`, or of a single document `12% of contract.pdf`."""
    if len(files) == 1:
        share = sum(len(part.document.text) for part in parts) / max(len(files[0].text), 1)
        head = f"{formatting.percent(share)} of "
        return head + (fit_files(names, width - cell_len(head)) or "the document")
    head = f"{formatting.count(len(by_file(parts)))} of {formatting.plural(len(files), 'file')}"
    fitting = fit_files(names, width - cell_len(head) - 2)
    return f"{head}: {fitting}" if fitting else head


def fit_files(names: Sequence[str], width: int) -> str:
    """As much as fits of names such as `urls/base.py:1–80`. Folders and lines give way to the names
    of more files."""
    short = [_last(each) for each in names]
    bare = [_without_lines(each) for each in names]
    shortest = [_last(each) for each in bare]
    for complete in (names, short, bare, shortest):
        text = fit_names(complete, width)
        if text and not text.endswith("…"):
            return text
    with_folders = fit_names(bare, width)
    return with_folders if with_folders.count(", ") >= MIN_NAMES else fit_names(shortest, width)


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _without_lines(name: str) -> str:
    return name.rpartition(":")[0] or name


def fit_names(names: Sequence[str], width: int) -> str:
    """As many names as fit into `width` cells, then an ellipsis if some are missing."""
    text = ""
    for number, name in enumerate(names):
        longer = f"{text}, {name}" if text else name
        rest = ", …" if number + 1 < len(names) else ""
        if cell_len(longer + rest) > width:
            return f"{text}, …" if text else ""
        text = longer
    return text
