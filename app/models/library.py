"""Where models come from and lie: the cache, the catalogues and the hub, as one thing to be given
to whoever looks after models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.models.cache import Cache, default_cache
from app.models.catalogue import Entry, catalogue
from app.models.pull import Settings, default_settings
from app.models.remote import Remote, look, search
from app.paths import config_path


@dataclass(frozen=True, slots=True)
class Library:
    """`own` is the folder of the user's catalogue; `hub` says how the hub is reached."""

    cache: Cache
    own: Path | None = None
    hub: Callable[[], Settings] = default_settings

    def entries(self) -> tuple[Entry, ...]:
        """Of both catalogues. ModelError when the user's cannot be used."""
        return catalogue(self.own)

    def look(self, repository: str) -> Remote:
        """Ask the hub for a repository. Blocks; ModelError."""
        return look(repository, self.hub())

    def search(self, words: str) -> tuple[str, ...]:
        """Ask the hub for models with these words in their names. Blocks; ModelError."""
        return search(words, self.hub())


def default_library() -> Library:
    """The user's own."""
    return Library(default_cache(), config_path())
