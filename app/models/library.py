"""Where models come from and lie: the cache, the catalogues and the hub, as one thing to be given
to whoever looks after models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.cache import Cache, default_cache
from app.models.catalogue import Entry, catalogue
from app.paths import config_path

if TYPE_CHECKING:
    from app.models.hub_info import Remote
    from app.models.pull import Settings


def _user_settings() -> Settings:
    from app.models.pull import default_settings

    return default_settings()


@dataclass(frozen=True, slots=True)
class Library:
    """`own` is the folder of the user's catalogue; `hub` says how the hub is reached. What speaks
    to it is imported when it is needed: that takes longer than all else here."""

    cache: Cache
    own: Path | None = None
    hub: Callable[[], Settings] = _user_settings

    def entries(self) -> tuple[Entry, ...]:
        """Of both catalogues. ModelError when the user's cannot be used."""
        return catalogue(self.own)

    def look(self, repository: str) -> Remote:
        """Ask the hub for a repository. Blocks; ModelError."""
        from app.models.hub_info import look

        return look(repository, self.hub())

    def search(self, words: str) -> tuple[str, ...]:
        """Ask the hub for models with these words in their names. Blocks; ModelError."""
        from app.models.hub_info import search

        return search(words, self.hub())


def default_library() -> Library:
    """The user's own."""
    return Library(default_cache(), config_path())
