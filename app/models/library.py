"""The cache, the catalogues and the hub in one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.cache import ModelCache, default_cache
from app.models.catalogue import Entry, catalogue
from app.models.found import Place
from app.paths import config_path

if TYPE_CHECKING:
    from app.models.hub import HubModel, HubSettings


def _user_settings() -> HubSettings:
    from app.models.hub import default_hub_settings

    return default_hub_settings()


def _nowhere() -> tuple[Place, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Library:
    """`config_folder` has the user's catalogue; `places` are where other programs keep models, by
    default nowhere, so that no test finds those of this machine. The modules for the hub are
    imported when they are needed, because they are slow."""

    cache: ModelCache
    config_folder: Path | None = None
    hub_settings: Callable[[], HubSettings] = _user_settings
    places: Callable[[], tuple[Place, ...]] = _nowhere

    def entries(self) -> tuple[Entry, ...]:
        """The entries of both catalogues. ModelError when the user's is invalid."""
        return catalogue(self.config_folder)

    def fetch_hub_model(self, repository: str) -> HubModel:
        """Ask the hub about a repository. Blocks; ModelError."""
        from app.models.hub import fetch_hub_model

        return fetch_hub_model(repository, self.hub_settings())

    def search(self, words: str) -> tuple[str, ...]:
        """Search the hub for models with these words in their names. Blocks; ModelError."""
        from app.models.hub import search_hub

        return search_hub(words, self.hub_settings())


def default_library(places: Callable[[], tuple[Place, ...]] = _nowhere) -> Library:
    """The user's library."""
    return Library(default_cache(), config_path(), places=places)
