"""Finds models in the cache, in other programs, in the catalogues and at the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.architecture import Architecture, parse_architecture
from app.models.cache import ModelCache, check_repository, default_cache, resolve_model
from app.models.catalogue import CatalogueEntry, catalogue, find
from app.models.check import listed_bytes, loaded_bytes, read_json, weight_format
from app.models.errors import ModelError
from app.models.fit import ModelSize
from app.models.found import ModelPlace
from app.models.packaged import conversion_bits, find_packaged
from app.paths import config_path
from app.protocol.generation_config import read_generation_config
from app.protocol.options import ModelSampling

if TYPE_CHECKING:
    from app.models.hub import HubModel, HubSettings


def _user_settings() -> HubSettings:
    from app.models.hub import default_hub_settings

    return default_hub_settings()


def _nowhere() -> tuple[ModelPlace, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Library:
    """All sources of models. `config_folder` has the user's catalogue. `places` are folders of
    other programs, by default none, so that tests do not find this machine's models. The hub's
    modules are imported when needed, because importing them is slow."""

    cache: ModelCache
    config_folder: Path | None = None
    hub_settings: Callable[[], HubSettings] = _user_settings
    places: Callable[[], tuple[ModelPlace, ...]] = _nowhere

    def entries(self) -> tuple[CatalogueEntry, ...]:
        """Entries of both catalogues. Raises ModelError if the user's is invalid."""
        return catalogue(self.config_folder)

    def fetch_hub_model(self, repository: str) -> HubModel:
        """Ask the hub about a repository. Blocks. Raises ModelError."""
        from app.models.hub import fetch_hub_model

        return fetch_hub_model(repository, self.hub_settings())

    def search(self, words: str) -> tuple[str, ...]:
        """Search the hub for models whose names contain these words. Blocks. Raises ModelError."""
        from app.models.hub import search_hub

        return search_hub(words, self.hub_settings())


def default_library(places: Callable[[], tuple[ModelPlace, ...]] = _nowhere) -> Library:
    """The user's library."""
    return Library(default_cache(), config_path(), places=places)


# ------------------------------------------------------------------------------ one model


HubLookup = Callable[[str], "HubModel"]
"""Asks the hub about a repository. Raises ModelError."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """A model's size and where it was found. `folder` is None if it is not installed, `entry` is
    None if it is not in the catalogue."""

    size: ModelSize
    folder: Path | None
    entry: CatalogueEntry | None
    quantised: str = ""
    """Format of the weights in memory, such as `4-bit`."""
    sampling: ModelSampling | None = None
    """The sampling that its makers recommend, if it is installed."""

    @property
    def name(self) -> str:
        return self.size.name

    @property
    def download(self) -> int:
        """Bytes to download."""
        listed = self.entry.download if self.entry is not None else 0
        return listed or self.size.weight_bytes

    @property
    def installed(self) -> bool:
        return self.folder is not None


def find_model(
    name: str,
    cache: ModelCache,
    entries: tuple[CatalogueEntry, ...],
    look_up: HubLookup | None = None,
    draft: bool = False,
) -> ModelDetails:
    """Look for a model in folders and the cache, then in the catalogue, then (with `look_up`) at
    the hub. `draft` selects the demo model's draft instead of its target. Raises ModelError."""
    entry = find(entries, name)
    if entry is not None:
        name = entry.name
    folder = _folder(name, cache, draft)
    if folder is not None:
        config = read_json(folder / "config.json")
        shape = parse_architecture(config)
        weights = shape.weight_bytes if shape.is_encoder else loaded_bytes(folder)
        sized = ModelSize(name, shape, weights)
        bits = weight_format(config) or _bits(sized)
        return ModelDetails(sized, folder, entry, bits, read_generation_config(folder))
    if entry is not None and (size := listed_size(entry)) is not None:
        return ModelDetails(size, None, entry, _listed_format(entry))
    check_repository(name)
    if look_up is None:
        raise ModelError(
            f"{name} is neither installed nor in the catalogue",
            f"`specchat models fit {name}` asks the hub, `specchat models search` lists others",
        )
    remote = look_up(name)
    shape = parse_architecture(remote.config)
    sized = ModelSize(name, shape, _weights(shape, listed_bytes(remote.files)))
    return ModelDetails(sized, None, entry, weight_format(remote.config))


def listed_size(entry: CatalogueEntry) -> ModelSize | None:
    """A model's size according to the catalogue; None if the catalogue does not know it."""
    shape = entry.architecture
    if shape is None:
        return None
    if find_packaged(entry.name) is not None:
        bits = conversion_bits()
        weights = shape.parameters * bits // 8 if bits else entry.download
    else:
        weights = _weights(shape, entry.download)
    return ModelSize(entry.name, shape, weights)


def _weights(shape: Architecture, listed: int) -> int:
    """Bytes of the weights in memory. A repository may have files that are not loaded; an encoder's
    weights are converted while they are loaded."""
    if shape.is_encoder:
        return shape.weight_bytes
    return min(listed, shape.weight_bytes + shape.mtp_bytes) if listed else shape.weight_bytes


def _bits(size: ModelSize) -> str:
    """Format of the weights, from their size, for a model that does not state it."""
    return f"{round(8 * size.weight_bytes / size.architecture.parameters)}-bit"


def _listed_format(entry: CatalogueEntry) -> str:
    """Format of the weights once the model is installed. The download may have another format."""
    bits = conversion_bits() if find_packaged(entry.name) is not None else None
    return entry.quantised if bits is None else f"{bits}-bit"


def _folder(name: str, cache: ModelCache, draft: bool) -> Path | None:
    """The model's folder; None if it is not installed. A folder takes precedence over a
    repository."""
    try:
        return resolve_model(name, draft=draft, cache=cache)
    except ModelError:
        return None


def known_models(cache: ModelCache, entries: tuple[CatalogueEntry, ...]) -> list[ModelDetails]:
    """All models of the cache and the catalogue whose memory can be estimated. Reads no weights."""
    names = dict.fromkeys([*cache.names(), *(entry.name for entry in entries)])
    found = []
    for name in names:
        try:
            found.append(find_model(name, cache, entries))
        except (ModelError, OSError):
            # `list` reports incomplete models and unknown architectures.
            continue
    return found
