"""A model by its name, wherever it is known from: a folder, the cache, the catalogue or the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.models.architecture import shape_of
from app.models.cache import Cache, check_repository, is_repository
from app.models.catalogue import Entry, find
from app.models.check import read_json
from app.models.embedded import EMBEDDED
from app.models.errors import ModelError
from app.models.fit import Sized
from app.models.resolve import locate
from app.models.weights import listed_bytes, loaded_bytes

if TYPE_CHECKING:
    from app.models.hub_info import Remote

Look = Callable[[str], "Remote"]
"""Asks the hub for a repository. Raises ModelError."""


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a model. `folder` is None when it is not on this machine, `entry` when it
    is not in the catalogue."""

    sized: Sized
    folder: Path | None
    entry: Entry | None
    quantised: str = ""
    """How its weights are stored, by its configuration or the catalogue."""

    @property
    def name(self) -> str:
        return self.sized.name

    @property
    def here(self) -> bool:
        return self.folder is not None


def describe(
    name: str,
    cache: Cache,
    entries: tuple[Entry, ...],
    look: Look | None = None,
    draft: bool = False,
) -> Described:
    """What is here comes first, then the catalogue, then the hub, which is only asked with `look`.
    `draft` picks the embedded pair's draft instead of its target. ModelError."""
    entry = find(entries, name)
    if entry is not None:
        name = entry.name
    folder = _folder(name, cache, draft)
    if folder is not None:
        config = read_json(folder / "config.json")
        sized = Sized(name, shape_of(config), loaded_bytes(folder))
        return Described(sized, folder, entry, _quantised(config))
    if entry is not None and entry.shape is not None and entry.download:
        return Described(Sized(name, entry.shape, entry.download), None, entry, entry.quantised)
    check_repository(name)
    if look is None:
        raise ModelError(
            f"{name} is neither here nor in the catalogue",
            f"`specchat models fit {name}` asks the hub, `specchat models search` lists others",
        )
    remote = look(name)
    sized = Sized(name, shape_of(remote.config), listed_bytes(remote.files))
    return Described(sized, None, entry, _quantised(remote.config))


def _quantised(config: dict[str, Any]) -> str:
    """`4-bit`, or the type of its numbers."""
    stored = config.get("quantization")
    if isinstance(stored, dict) and isinstance(stored.get("bits"), int):
        return f"{stored['bits']}-bit"
    named = config.get("dtype") or config.get("torch_dtype")
    return named.removeprefix("torch.") if isinstance(named, str) else ""


def _folder(name: str, cache: Cache, draft: bool) -> Path | None:
    """Where a model lies on this machine, if it does. A folder comes before a repository."""
    try:
        if name == EMBEDDED or Path(name).expanduser().is_dir():
            return locate(name, draft=draft, cache=cache)
    except (OSError, ValueError, RuntimeError):
        return None
    return cache.snapshot(name) if is_repository(name) else None


def everything(cache: Cache, entries: tuple[Entry, ...]) -> list[Described]:
    """All models in the cache and in the catalogue whose memory can be told. Reads no weights."""
    names = dict.fromkeys([*cache.names(), *(entry.name for entry in entries)])
    found = []
    for name in names:
        try:
            found.append(describe(name, cache, entries))
        except (ModelError, OSError):
            # Incomplete ones, and architectures that nothing is known of: `list` says so.
            continue
    return found
