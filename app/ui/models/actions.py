"""What can be done with each row of the models screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from app.models.cache import is_repository
from app.models.draft_selection import DraftCandidate
from app.models.overview import ModelOverview
from app.ui.models.action_dialog import Action
from app.ui.models.inventory import Inventory, is_embedded
from app.ui.models.jobs import Job, JobKind, JobState
from app.ui.models.rows import draft_name, short
from app.util import formatting

if TYPE_CHECKING:
    from app.ui.models.screen import ModelsScreen

MOST_DRAFTS = 3


def of_model(screen: ModelsScreen, known: ModelOverview, stock: Inventory) -> list[Action]:
    deeds = [*_answering(screen, known)] if known.model.installed else [*_fetching(screen, known)]
    if screen.answers(known):
        deeds.append(Action("Time it here: a few seconds", lambda: screen.say(screen.measure())))
    return [*deeds, *_looking_after(screen, known.model.name, stock, known.model.installed)]


def of_fault(screen: ModelsScreen, name: str, stock: Inventory) -> list[Action]:
    """Of a model that is here and cannot be used."""
    return [*_looking_after(screen, name, stock, True)]


def of_trash(screen: ModelsScreen, name: str, stock: Inventory) -> list[Action]:
    total = sum(each.size for each in stock.trash)
    return [
        Action("Bring it back", lambda: screen.doing.restore(name)),
        Action(
            f"Empty the trash for good · {formatting.size(total)}",
            lambda: screen.doing.empty_trash(),
        ),
    ]


def of_download(screen: ModelsScreen, name: str, job: Job | None, stock: Inventory) -> list[Action]:
    begun = next((each for each in stock.unfinished if each.repository == name), None)
    if job is not None and not job.state.ended:
        stop = "Stop checking" if job.kind is JobKind.CHECK else "Pause it"
        deeds = [Action(stop, lambda: screen.jobs.pause(name))]
    elif job is None and begun is not None and begun.running:
        return [Action("Pause it", lambda: screen.doing.pause_elsewhere(name))]
    elif job is not None and job.state is JobState.DONE:
        known = stock.find(name)
        deeds = [*_answering(screen, known)] if known and known.model.installed else []
        return [*deeds, Action("Take it off this list", lambda: screen.jobs.dismiss(name))]
    else:
        kind = job.kind if job else JobKind.DOWNLOAD
        words = "Check again" if kind is JobKind.CHECK else "Go on with it"
        deeds = [Action(words, lambda: screen.jobs.start(name, kind))]
    if job is None or job.kind is JobKind.DOWNLOAD:
        done = job.progress.done if job and job.progress.total else begun.done if begun else 0
        fetched = f", throwing away {formatting.size(done)}" if done else ""
        deeds.append(Action(f"Give it up{fetched}", lambda: screen.jobs.cancel(name)))
    return deeds


def _answering(screen: ModelsScreen, known: ModelOverview) -> Iterator[Action]:
    here = [each for each in known.drafts if each.draft.installed]
    taken = known.best_draft
    if taken is not None and not taken.draft.installed:
        size = formatting.size(taken.draft.size.weight_bytes)
        name = taken.draft.name
        yield Action(
            f"Download {short(name)}, its draft · {size}", lambda: screen.doing.fetch(name)
        )
    for each in here[:MOST_DRAFTS]:
        words = (
            f"Answer with it, {draft_name(known, each)} skims · {each.speedup():.1f} times sooner"
        )
        yield Action(words, _choosing(screen, known, each))
    yield Action("Answer with it alone: everything is read", _choosing(screen, known, None))


def _choosing(
    screen: ModelsScreen, known: ModelOverview, candidate: DraftCandidate | None
) -> Callable[[], object]:
    return lambda: screen.ask_cost(known, candidate)


def _fetching(screen: ModelsScreen, known: ModelOverview) -> Iterator[Action]:
    model, taken = known.model, known.best_draft
    if not is_repository(model.name):
        return
    weights = model.size.weight_bytes
    if taken is not None and not taken.draft.installed:
        draft, both = taken.draft.name, weights + taken.draft.size.weight_bytes
        yield Action(
            f"Download it and {short(draft)}, its draft · {formatting.size(both)}",
            lambda: screen.doing.fetch(draft, model.name),
        )
    yield Action(
        f"Download it · {formatting.size(weights)}", lambda: screen.doing.fetch(model.name)
    )
    if model.entry is None:
        yield Action("Add it to your catalogue", lambda: screen.doing.add(model.name))


def _looking_after(
    screen: ModelsScreen, name: str, stock: Inventory, here: bool
) -> Iterator[Action]:
    installed = stock.installed_model(name)
    if is_embedded(name) or installed is None or not here:
        return
    yield Action("Check its files", lambda: screen.doing.check(name))
    yield Action("Look for changes at the hub", lambda: screen.doing.fetch(name))
    if installed.older:
        size = formatting.size(installed.older)
        yield Action(
            f"Move older commits to the trash · {size}", lambda: screen.doing.remove(name, True)
        )
    size = formatting.size(installed.size)
    yield Action(f"Move it to the trash · {size}", lambda: screen.doing.remove(name))
