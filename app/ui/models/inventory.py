"""What the models screen shows: the models on the disk and in the catalogues. No widgets."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.models import speedup
from app.models.cache import Installed, is_repository
from app.models.catalogue import CatalogueEntry, catalogue
from app.models.errors import ModelError
from app.models.fit import Machine
from app.models.found import FoundModel, Kind, find_models, missing_places, user_places
from app.models.library import Library, ModelDetails, find_model, known_models
from app.models.pairs import ModelOverview, embedded_pair, overview
from app.models.unfinished import UnfinishedDownload, unfinished
from app.store.records import AnswerStats


@dataclass(frozen=True, slots=True)
class Inventory:
    """`models` are those whose memory need is known, the demo model first; `undescribed` are
    repositories of the user's catalogue that only the hub could describe. `found` are those that
    other programs keep; `models` has them by their paths, if they can be loaded. `free_bytes` are
    those of the cache's disk, and `problem` says what is wrong with the user's catalogue or
    folders."""

    machine: Machine
    models: tuple[ModelOverview, ...] = ()
    installed: tuple[Installed, ...] = ()
    unfinished: tuple[UnfinishedDownload, ...] = ()
    undescribed: tuple[str, ...] = ()
    found: tuple[FoundModel, ...] = ()
    free_bytes: int = 0
    problem: str = ""

    def find(self, name: str) -> ModelOverview | None:
        return next((each for each in self.models if each.model.name == name), None)

    def installed_model(self, name: str) -> Installed | None:
        return next((each for each in self.installed if each.repository == name), None)

    def found_model(self, path: str) -> FoundModel | None:
        return next((each for each in self.found if str(each.path) == path), None)


def scan(
    library: Library,
    machine: Machine,
    answer_stats: Sequence[AnswerStats],
    described: Iterable[ModelDetails] = (),
    folders: str = "",
) -> Inventory:
    """Read the disk and the catalogues; `described` are models that the hub described, `folders`
    those of the setting. Blocks, for seconds the first time."""
    entries, problem = _entries(library)
    models = known_models(library.cache, entries)
    found, loadable = _found(library, folders)
    known_names = {model.name for model in models}
    models += [model for model in loadable if model.name not in known_names]
    names = {model.name for model in models}
    models += [model for model in described if model.name not in names]
    names |= {model.name for model in models}
    known = overview(models, machine, partial(speedup.measured_ratio, answer_stats))
    with suppress(ModelError):  # `doctor` says what is wrong with it
        known.insert(0, embedded_pair(library.cache, machine))
    return Inventory(
        machine,
        tuple(known),
        tuple(library.cache.installed()),
        tuple(unfinished(library.cache)),
        tuple(
            e.name for e in entries if e.custom and is_repository(e.name) and e.name not in names
        ),
        found,
        _free_bytes(library.cache.folder),
        problem or " ".join(missing_places(folders)),
    )


def _found(library: Library, folders: str) -> tuple[tuple[FoundModel, ...], list[ModelDetails]]:
    """Models of other programs, and the details of those that can be loaded."""
    found, loadable = [], []
    for each in find_models((*library.places(), *user_places(folders))):
        if each.kind is Kind.MLX and each.fault is None:
            try:
                loadable.append(find_model(str(each.path), library.cache, ()))
            except (ModelError, OSError) as error:
                each = replace(each, fault=str(error))
        found.append(each)
    return tuple(found), loadable


def _entries(library: Library) -> tuple[tuple[CatalogueEntry, ...], str]:
    try:
        return library.entries(), ""
    except ModelError as error:
        return catalogue(), str(error)


def _free_bytes(folder: Path) -> int:
    """Free bytes of the disk that `folder` is on, or will be."""
    for existing in (folder, *folder.parents):
        with suppress(OSError):
            return shutil.disk_usage(existing).free
    return 0
