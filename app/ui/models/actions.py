"""What can be done with each row of the models screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from app.models.cache import is_repository
from app.models.candidates import Known
from app.models.draft_selection import Candidate
from app.ui.models.action_dialog import Deed
from app.ui.models.inventory import Stock, is_kept
from app.ui.models.jobs import Job, Kind, State
from app.ui.models.rows import draft_name, short
from app.util import formatting

if TYPE_CHECKING:
    from app.ui.models.screen import ModelsScreen

MOST_DRAFTS = 3


def of_model(screen: ModelsScreen, known: Known, stock: Stock) -> list[Deed]:
    deeds = [*_answering(screen, known)] if known.model.here else [*_fetching(screen, known)]
    if screen.answers(known):
        deeds.append(Deed("Time it here: a few seconds", lambda: screen.say(screen.measure())))
    return [*deeds, *_looking_after(screen, known.model.name, stock, known.model.here)]


def of_fault(screen: ModelsScreen, name: str, stock: Stock) -> list[Deed]:
    """Of a model that is here and cannot be used."""
    return [*_looking_after(screen, name, stock, True)]


def of_trash(screen: ModelsScreen, name: str, stock: Stock) -> list[Deed]:
    total = sum(each.size for each in stock.trash)
    return [
        Deed("Bring it back", lambda: screen.doing.restore(name)),
        Deed(
            f"Empty the trash for good · {formatting.size(total)}",
            lambda: screen.doing.empty_trash(),
        ),
    ]


def of_download(screen: ModelsScreen, name: str, job: Job | None, stock: Stock) -> list[Deed]:
    begun = next((each for each in stock.unfinished if each.repository == name), None)
    if job is not None and not job.state.over:
        stop = "Stop checking" if job.kind is Kind.CHECK else "Pause it"
        deeds = [Deed(stop, lambda: screen.jobs.pause(name))]
    elif job is None and begun is not None and begun.running:
        return [Deed("Pause it", lambda: screen.doing.pause_elsewhere(name))]
    elif job is not None and job.state is State.DONE:
        known = stock.find(name)
        deeds = [*_answering(screen, known)] if known and known.model.here else []
        return [*deeds, Deed("Take it off this list", lambda: screen.jobs.forget(name))]
    else:
        kind = job.kind if job else Kind.DOWNLOAD
        words = "Check again" if kind is Kind.CHECK else "Go on with it"
        deeds = [Deed(words, lambda: screen.jobs.begin(name, kind))]
    if job is None or job.kind is Kind.DOWNLOAD:
        done = job.progress.done if job and job.progress.total else begun.done if begun else 0
        fetched = f", throwing away {formatting.size(done)}" if done else ""
        deeds.append(Deed(f"Give it up{fetched}", lambda: screen.jobs.cancel(name)))
    return deeds


def _answering(screen: ModelsScreen, known: Known) -> Iterator[Deed]:
    here = [each for each in known.drafts if each.draft.here]
    taken = known.taken
    if taken is not None and not taken.draft.here:
        size = formatting.size(taken.draft.sized.weights)
        name = taken.draft.name
        yield Deed(f"Download {short(name)}, its draft · {size}", lambda: screen.doing.fetch(name))
    for each in here[:MOST_DRAFTS]:
        words = (
            f"Answer with it, {draft_name(known, each)} skims · {each.speedup():.1f} times sooner"
        )
        yield Deed(words, _choosing(screen, known, each))
    yield Deed("Answer with it alone: everything is read", _choosing(screen, known, None))


def _choosing(
    screen: ModelsScreen, known: Known, candidate: Candidate | None
) -> Callable[[], object]:
    return lambda: screen.ask_cost(known, candidate)


def _fetching(screen: ModelsScreen, known: Known) -> Iterator[Deed]:
    model, taken = known.model, known.taken
    if not is_repository(model.name):
        return
    weights = model.sized.weights
    if taken is not None and not taken.draft.here:
        draft, both = taken.draft.name, weights + taken.draft.sized.weights
        yield Deed(
            f"Download it and {short(draft)}, its draft · {formatting.size(both)}",
            lambda: screen.doing.fetch(draft, model.name),
        )
    yield Deed(f"Download it · {formatting.size(weights)}", lambda: screen.doing.fetch(model.name))
    if model.entry is None:
        yield Deed("Add it to your catalogue", lambda: screen.doing.add(model.name))


def _looking_after(screen: ModelsScreen, name: str, stock: Stock, here: bool) -> Iterator[Deed]:
    installed = stock.here(name)
    if is_kept(name) or installed is None or not here:
        return
    yield Deed("Check its files", lambda: screen.doing.check(name))
    yield Deed("Look for changes at the hub", lambda: screen.doing.fetch(name))
    if installed.older:
        size = formatting.size(installed.older)
        yield Deed(
            f"Move older commits to the trash · {size}", lambda: screen.doing.remove(name, True)
        )
    size = formatting.size(installed.size)
    yield Deed(f"Move it to the trash · {size}", lambda: screen.doing.remove(name))
