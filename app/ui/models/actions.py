"""What can be done with a model or a download."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from app.models.cache import Installed, is_repository
from app.models.embedded import EMBEDDED
from app.models.packaged import find_packaged
from app.models.pairs import DraftCandidate, ModelOverview
from app.models.speedup import built_in_speedup
from app.ui.models.jobs import JobKind, JobState
from app.ui.models.known import KnownModels
from app.ui.models.rows import ModelRow, RowKind, draft_name, short
from app.ui.models.tasks import Result
from app.util import formatting

Run = Callable[[], object]
MAX_DRAFTS = 3


class ModelVerbs(Protocol):
    """What the models screen does when an action is chosen."""

    def download(self, *names: str) -> None: ...

    def check(self, name: str) -> None: ...

    def convert(self, path: str) -> None: ...

    def add(self, name: str) -> None:
        """Add a repository or a folder to the user's catalogue."""

    def measure(self) -> None: ...

    def confirm_pair(self, target: str, candidate: DraftCandidate | None) -> None: ...

    def confirm_removal(self, installed: Installed, older: bool = False) -> None: ...

    def start(self, task: Callable[[], Result], progress: str = "") -> None: ...


class RowActions:
    """Labels, and what runs when one is chosen."""

    def __init__(self, known: KnownModels, do: ModelVerbs) -> None:
        self._known, self._do = known, do

    def of(self, row: ModelRow) -> Iterator[tuple[str, Run]]:
        overview, name = self._known.inventory.find(row.name), row.name
        match row.kind:
            case RowKind.MODEL if overview is not None and not overview.model.installed:
                yield from self._download(overview)
            case RowKind.MODEL:
                if overview is not None:
                    yield from self._use(overview)
                    if self._known.is_target(overview):
                        yield "Measure its speed (a few seconds)", self._do.measure
                yield from self._maintenance(name)
            case RowKind.DOWNLOAD:
                yield from self._job(name)
            case RowKind.GGUF:
                found = self._known.inventory.found_model(name)
                if found is not None and found.fault is None:
                    label = f"Convert it once · needs about {formatting.size(found.size)}"
                    yield label, partial(self._do.convert, name)

    def _use(self, overview: ModelOverview) -> Iterator[tuple[str, Run]]:
        """Actions that load the model, with the default draft first."""
        name, best = overview.model.name, overview.best_draft
        drafts: list[DraftCandidate | None] = [None]
        installed = [each for each in overview.drafts if each.draft.installed]
        drafts += [each for each in installed if not each.is_encoder][:MAX_DRAFTS]
        drafts += [each for each in installed if each.is_encoder]
        for each in sorted(drafts, key=lambda draft: draft is not overview.default_draft):
            draft = draft_name(overview, each) if each else "the built-in scorer"
            speedup = each.speedup() if each else built_in_speedup()
            label = f"Use with {draft} · {speedup:.1f}x faster"
            yield label, partial(self._do.confirm_pair, name, each)
        if best is not None and not best.draft.installed:
            size, draft = formatting.size(best.draft.download), best.draft.name
            yield f"Download the draft {short(draft)} · {size}", partial(self._do.download, draft)
        for each in overview.encoders:
            if not each.draft.installed and each.worthwhile:
                size, encoder = formatting.size(each.draft.download), each.draft.name
                label = f"Download the text encoder {short(encoder)} · {size}"
                yield label, partial(self._do.download, encoder)

    def _download(self, overview: ModelOverview) -> Iterator[tuple[str, Run]]:
        model, best = overview.model, overview.best_draft
        if not is_repository(model.name):
            return
        size = formatting.size(model.download)
        yield f"Download · {size}", partial(self._do.download, model.name)
        if best is not None and not best.draft.installed:
            draft = best.draft.name
            size = formatting.size(model.download + best.draft.download)
            label = f"Download with the draft {short(draft)} · {size}"
            yield label, partial(self._do.download, draft, model.name)
        if model.entry is None:
            yield "Add to your catalogue", partial(self._do.add, model.name)

    def _maintenance(self, name: str) -> Iterator[tuple[str, Run]]:
        """Actions for the files of an installed model, even if it cannot be used."""
        installed = self._known.inventory.installed_model(name)
        if name == EMBEDDED or installed is None:
            return
        yield "Check its files", partial(self._do.check, name)
        if not name.startswith("local/"):  # those were converted here
            yield "Check Hugging Face for updates", partial(self._do.download, name)
        if installed.older:
            size = formatting.size(installed.older)
            yield (
                f"Delete older commits · {size}",
                partial(self._do.confirm_removal, installed, True),
            )
        size = formatting.size(installed.size)
        yield f"Delete · {size}", partial(self._do.confirm_removal, installed)

    def _job(self, name: str) -> Iterator[tuple[str, Run]]:
        """Actions for a download, a check or a conversion. A download without a job was started by
        another process or in an earlier run."""
        jobs, job = self._known.jobs, self._known.jobs.find(name)
        pause, dismiss = partial(jobs.pause, name), partial(jobs.dismiss, name)
        unfinished = (each for each in self._known.inventory.unfinished if each.repository == name)
        partly = next(unfinished, None)
        if job is None and partly is not None and partly.running:
            yield "Pause", partial(self._do.start, partial(self._known.tasks.pause_elsewhere, name))
        elif job is not None and job.state is JobState.DONE:
            overview = self._known.inventory.find(name)
            if overview and overview.model.installed:
                yield from self._use(overview)
            yield "Remove from this list", dismiss
        elif job is not None and job.source is not None:
            if not job.state.ended:
                yield "Stop converting", pause
            else:
                yield "Convert it again", partial(self._do.convert, str(job.source))
                yield "Remove from this list", dismiss
        elif job is not None and job.kind is JobKind.CHECK:
            if not job.state.ended:
                yield "Stop checking", pause
            else:
                yield "Check again", partial(self._do.check, name)
        elif find_packaged(name) is not None:  # stopped, nothing is left of its download
            if job is not None and not job.state.ended:
                yield "Stop downloading", pause
            else:
                yield "Download it again", partial(self._do.download, name)
                yield "Remove from this list", dismiss
        else:
            if job is not None and not job.state.ended:
                yield "Pause", pause
            else:
                yield "Resume", partial(self._do.download, name)
            done = job.progress.done if job and job.progress.total else partly.done if partly else 0
            deleting = f", deleting {formatting.size(done)}" if done else ""
            yield f"Cancel{deleting}", partial(jobs.cancel, name)
