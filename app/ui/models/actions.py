"""What can be done with each row of the models screen, as data: the screen carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from app.models import catalogue, trash
from app.models.cache import is_repository
from app.models.embedded import EMBEDDED
from app.models.found import FoundModel
from app.models.gguf.file import GgufError
from app.models.gguf.summary import GgufSummary, summarise
from app.models.library import Library
from app.models.model_details import ModelDetails, find_model
from app.models.packaged import find_packaged
from app.models.pairs import DraftCandidate, ModelOverview
from app.models.speedup import built_in_speedup
from app.models.unfinished import pause
from app.ui.models.inventory import Inventory
from app.ui.models.jobs import Job, JobKind, JobState
from app.ui.models.rows import RowKind, draft_name, row_key, short
from app.util import formatting

MAX_DRAFTS = 3


class Do(Enum):
    ANSWER = auto()
    """Load the model as the target, with `draft` if there is one."""
    MEASURE = auto()
    DOWNLOAD = auto()
    CHECK = auto()
    PAUSE = auto()
    PAUSE_ELSEWHERE = auto()
    CANCEL = auto()
    DISMISS = auto()
    ADD = auto()
    CONVERT = auto()
    REMOVE = auto()
    REMOVE_OLDER = auto()
    RESTORE = auto()
    EMPTY_TRASH = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """`names` are those of the models."""

    label: str
    do: Do
    names: tuple[str, ...] = ()
    draft: DraftCandidate | None = None


def model_actions(overview: ModelOverview, inventory: Inventory, is_target: bool) -> list[Action]:
    """`is_target`: it is the target that is loaded."""
    name, installed = overview.model.name, overview.model.installed
    actions = [*(_use(overview) if installed else _download(overview))]
    if is_target:
        actions.append(Action("Measure its speed (a few seconds)", Do.MEASURE))
    return [*actions, *(maintenance_actions(name, inventory) if installed else ())]


def gguf_actions(found: FoundModel | None) -> list[Action]:
    """For a file that another program keeps, which is never removed here."""
    if found is None or found.fault is not None:
        return []
    size = formatting.size(found.size)
    return [Action(f"Convert it once · needs about {size}", Do.CONVERT, (str(found.path),))]


def trash_actions(name: str, inventory: Inventory) -> list[Action]:
    total = formatting.size(sum(each.size for each in inventory.trash))
    return [
        Action("Restore", Do.RESTORE, (name,)),
        Action(f"Empty the trash permanently · {total}", Do.EMPTY_TRASH),
    ]


def job_actions(name: str, job: Job | None, inventory: Inventory) -> list[Action]:
    """For a download or a check. Without a `job`, another process or an earlier run started it."""
    names = (name,)
    partial = next((each for each in inventory.unfinished if each.repository == name), None)
    if job is None and partial is not None and partial.running:
        return [Action("Pause", Do.PAUSE_ELSEWHERE, names)]
    checking = job is not None and job.kind is JobKind.CHECK
    if job is not None and job.source is not None and job.state is not JobState.DONE:
        return _conversion_actions(job, job.source)
    if job is not None and job.state is JobState.DONE:
        overview = inventory.find(name)
        use = _use(overview) if overview and overview.model.installed else ()
        return [*use, Action("Remove from this list", Do.DISMISS, names)]
    if find_packaged(name) is not None and not checking:
        return _packaged_actions(name, job)
    if job is not None and not job.state.ended:
        actions = [Action("Stop checking" if checking else "Pause", Do.PAUSE, names)]
    elif checking:
        actions = [Action("Check again", Do.CHECK, names)]
    else:
        actions = [Action("Resume", Do.DOWNLOAD, names)]
    if not checking:
        done = job.progress.done if job and job.progress.total else partial.done if partial else 0
        deleting = f", deleting {formatting.size(done)}" if done else ""
        actions.append(Action(f"Cancel{deleting}", Do.CANCEL, names))
    return actions


def _conversion_actions(job: Job, source: Path) -> list[Action]:
    if not job.state.ended:
        return [Action("Stop converting", Do.PAUSE, (job.repository,))]
    return [
        Action("Convert it again", Do.CONVERT, (str(source),)),
        Action("Remove from this list", Do.DISMISS, (job.repository,)),
    ]


def _packaged_actions(name: str, job: Job | None) -> list[Action]:
    """Stopped, nothing is left of its download."""
    if job is not None and not job.state.ended:
        return [Action("Stop downloading", Do.PAUSE, (name,))]
    return [
        Action("Download it again", Do.DOWNLOAD, (name,)),
        Action("Remove from this list", Do.DISMISS, (name,)),
    ]


def maintenance_actions(name: str, inventory: Inventory) -> Iterator[Action]:
    """For the files of an installed model, even if it cannot be used."""
    installed = inventory.installed_model(name)
    if name == EMBEDDED or installed is None:
        return
    yield Action("Check its files", Do.CHECK, (name,))
    if not name.startswith("local/"):  # those were converted here
        yield Action("Check the hub for updates", Do.DOWNLOAD, (name,))
    if installed.older:
        size = formatting.size(installed.older)
        yield Action(f"Move older commits to the trash · {size}", Do.REMOVE_OLDER, (name,))
    yield Action(f"Move to the trash · {formatting.size(installed.size)}", Do.REMOVE, (name,))


def _use(overview: ModelOverview) -> Iterator[Action]:
    """With the default draft first."""
    names, best = (overview.model.name,), overview.best_draft
    installed = [each for each in overview.drafts if each.draft.installed][:MAX_DRAFTS]
    uses = [Action(_use_label("the built-in draft", built_in_speedup()), Do.ANSWER, names)]
    for each in installed:
        label = _use_label(draft_name(overview, each), each.speedup())
        uses.append(Action(label, Do.ANSWER, names, each))
    yield from sorted(uses, key=lambda use: use.draft is not overview.default_draft)
    if best is not None and not best.draft.installed:
        size, draft = formatting.size(best.draft.download), best.draft.name
        yield Action(f"Download the draft {short(draft)} · {size}", Do.DOWNLOAD, (draft,))


def _use_label(draft: str, speedup: float) -> str:
    return f"Use with {draft} · {speedup:.1f}x faster"


def _download(overview: ModelOverview) -> Iterator[Action]:
    model, best = overview.model, overview.best_draft
    if not is_repository(model.name):
        return
    size = formatting.size(model.download)
    yield Action(f"Download · {size}", Do.DOWNLOAD, (model.name,))
    if best is not None and not best.draft.installed:
        draft = best.draft.name
        size = formatting.size(model.download + best.draft.download)
        label = f"Download with the draft {short(draft)} · {size}"
        yield Action(label, Do.DOWNLOAD, (draft, model.name))
    if model.entry is None:
        yield Action("Add to your catalogue", Do.ADD, (model.name,))


@dataclass(frozen=True, slots=True)
class Result:
    """`message` is shown, and the row of this key is highlighted."""

    message: str
    row: str = ""


class ModelTasks:
    """Holds what the screen found and removed since it was opened."""

    def __init__(self, library: Callable[[], Library]) -> None:
        self._library = library
        self.described: dict[str, ModelDetails] = {}
        """Models that the hub described, by their names."""
        self.summaries: dict[Path, GgufSummary | str] = {}
        """What the headers of GGUF files say, or why they cannot be read."""
        self._search: tuple[str, tuple[str, ...]] = ("", ())
        self._removed: list[str] = []

    def summarise(self, path: Path) -> None:
        """Read the header of a GGUF file, unless that was done."""
        if path not in self.summaries:
            try:
                self.summaries[path] = summarise(path)
            except GgufError as error:
                self.summaries[path] = str(error)

    def pause_elsewhere(self, name: str) -> Result:
        """A download that another process runs."""
        pause(self._library().cache, name)
        return Result(f"The download of {name} is being paused.")

    def remove(self, name: str, older: bool = False) -> Result:
        """Move a model to the trash, or only its older commits."""
        removed = trash.remove(self._library().cache, name, older)
        self._removed.append(name)
        size = formatting.size(removed.size)
        return Result(f"Moved {name} to the trash ({size}). ^Z restores it.")

    def undo(self) -> Result:
        return self.restore(self._removed.pop()) if self._removed else Result("Nothing to undo.")

    def restore(self, name: str) -> Result:
        trash.restore(self._library().cache, name)
        return Result(f"Restored {name}.", row_key(RowKind.MODEL, name))

    def empty_trash(self) -> Result:
        freed = trash.empty(self._library().cache)
        self._removed.clear()
        return Result(f"{formatting.size(freed)} freed.")

    def search(self, text: str) -> Result:
        found = self._library().search(text)
        self._search = text, found
        if not found:
            return Result(f"No MLX model on the hub matches '{text}'.")
        count = formatting.plural(len(found), "model")
        return Result(f"{count} found on the hub.", row_key(RowKind.FOUND, found[0]))

    def found(self, text: str) -> tuple[str, ...]:
        """Names that the hub was last searched for with this text."""
        searched, found = self._search
        return found if searched == text else ()

    def describe(self, name: str) -> Result:
        """Ask the hub how much memory a model needs."""
        library = self._library()
        self.described[name] = find_model(
            name, library.cache, library.entries(), library.fetch_hub_model
        )
        return Result("", row_key(RowKind.MODEL, name))

    def add_to_catalogue(self, name: str) -> Result:
        """Add a repository or a folder to the user's own catalogue."""
        added = catalogue.add(self._library().config_folder, name)
        return Result(f"Added {added} to your catalogue.", row_key(RowKind.MODEL, added))
