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
        count = formatting.count(len(by_file(self._shown or ())))
        head = f"{count} of {formatting.plural(len(self._files), 'file')}"
        room = self.content_size.width - cell_len(head) - cell_len(CHANGE) - 2
        names = fit_names(self._names, room)
        if names.endswith("…") or not names:
            short = [each.rpartition("/")[2] for each in self._names]
            names = fit_names(short, room) or fit_names([_without_lines(n) for n in short], room)
        yield Piece(f"{head}: {names}" if names else head, "$ink-dim")
        yield Piece(CHANGE, "$ink-dim", lambda: self.screen.run_action("files"))


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
