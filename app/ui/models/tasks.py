"""What the models screen does on the disk and asks the hub. Everything here blocks, and raises
UserError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.errors import UserError
from app.models import catalogue
from app.models.formats import Summary, gguf
from app.models.library import Library, ModelDetails, find_model
from app.models.removal import remove
from app.models.unfinished import pause
from app.ui.models.rows import RowKind, row_key
from app.util import formatting


@dataclass(frozen=True, slots=True)
class Result:
    """`message` is shown, and the row of this key is highlighted."""

    message: str
    row: str = ""


class ModelTasks:
    """Holds what the screen found since it was opened."""

    def __init__(self, library: Callable[[], Library]) -> None:
        self._library = library
        self.described: dict[str, ModelDetails] = {}
        """Models that the hub described, by their names."""
        self.summaries: dict[Path, Summary | str] = {}
        """What the headers of GGUF files say, or why they cannot be read."""
        self._search: tuple[str, tuple[str, ...]] = ("", ())

    def summarise(self, path: Path) -> None:
        """Read the header of a GGUF file, unless that was done."""
        if path not in self.summaries:
            try:
                self.summaries[path] = gguf().summarise(path)
            except UserError as error:
                self.summaries[path] = str(error)

    def pause_elsewhere(self, name: str) -> Result:
        """Pause a download that another process runs."""
        pause(self._library().cache, name)
        return Result(f"The download of {name} is being paused.")

    def remove(self, name: str, older: bool = False) -> Result:
        """Delete a model, or only its older commits."""
        freed = formatting.size(remove(self._library().cache, name, older))
        what = f"older commits of {name}" if older else name
        return Result(f"Deleted {what}: {freed} freed.")

    def search(self, text: str) -> Result:
        found = self._library().search(text)
        self._search = text, found
        if not found:
            return Result(f"No MLX model on Hugging Face matches '{text}'.")
        count = formatting.plural(len(found), "model")
        return Result(f"{count} found on Hugging Face.", row_key(RowKind.FOUND, found[0]))

    def found(self, text: str) -> tuple[str, ...]:
        """The names that the last search of the hub found, if it was for this text."""
        searched, found = self._search
        return found if searched == text else ()

    def describe(self, name: str) -> Result:
        library = self._library()
        self.described[name] = find_model(
            name, library.cache, library.entries(), library.fetch_hub_model
        )
        return Result("", row_key(RowKind.MODEL, name))

    def add_to_catalogue(self, name: str) -> Result:
        """Add a repository or a folder to the user's own catalogue."""
        added = catalogue.add(self._library().config_folder, name)
        return Result(f"Added {added} to your catalogue.", row_key(RowKind.MODEL, added))
