"""The catalogue of known models, from specchat's `catalog.toml` and the user's."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.models.architecture import Architecture, parse_architecture
from app.models.cache import is_repository
from app.models.check import check_model, weight_format
from app.models.errors import ModelError
from app.util.atomic_files import make_folder, write_durably
from app.util.regular_files import read_text

FILE = "catalog.toml"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model. `download` is in bytes. `memory` is the memory in gigabytes of the smallest Mac for
    which the model is recommended. Unknown values are empty, 0 or None. `custom`: the entry is from
    the user's catalogue."""

    name: str
    family: str = ""
    tokenizer: str = ""
    licence: str = ""
    download: int = 0
    draft: bool = False
    memory: int = 0
    measured: str = ""
    quantised: str = ""
    """Format of the weights according to the configuration, such as `4-bit`."""
    architecture: Architecture | None = None
    custom: bool = False

    def matches(self, word: str) -> bool:
        architecture = self.architecture.model_type if self.architecture else ""
        texts = (self.name, self.family, self.quantised, self.licence, architecture)
        return any(word in text.casefold() for text in texts)


def catalogue(folder: Path | None = None) -> tuple[CatalogueEntry, ...]:
    """All models of both catalogues. The user's catalogue is read from `folder` if it exists. Its
    entries come first and replace specchat's entries of the same name. Raises ModelError if the
    user's file is invalid."""
    ours = _entries((files("app.models") / FILE).read_text("utf-8"), FILE, custom=False)
    custom: tuple[CatalogueEntry, ...] = ()
    path = folder / FILE if folder is not None else None
    if path is not None and path.is_file():
        try:
            custom = _entries(read_text(path), str(path), custom=True)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"'{path}' cannot be read ({error})", "correct it") from None
    names = {entry.name for entry in custom}
    return (*custom, *(entry for entry in ours if entry.name not in names))


def search(entries: tuple[CatalogueEntry, ...], text: str) -> tuple[CatalogueEntry, ...]:
    """Entries that contain every word of `text`."""
    words = text.casefold().split()
    return tuple(entry for entry in entries if all(map(entry.matches, words)))


def find(entries: tuple[CatalogueEntry, ...], name: str) -> CatalogueEntry | None:
    """The entry of this name, ignoring case."""
    return next((e for e in entries if e.name.casefold() == name.casefold()), None)


def add(folder: Path | None, name: str) -> str:
    """Add a repository or a model's folder to the user's catalogue in `folder`. Returns the name of
    the entry. Raises ModelError if `name` is neither, or if the catalogue cannot be written."""
    if folder is None:
        raise ModelError(
            "There is no settings folder for a catalogue", "name the model with --target"
        )
    entry = name.strip()
    if not is_repository(entry):
        path = Path(entry).expanduser().absolute()
        check_model(path)
        entry = str(path)
    if not entry.isprintable():
        raise ModelError(f"{entry!r} cannot be written to the catalogue", "rename the folder")
    path = folder / FILE
    try:
        text = read_text(path) if path.is_file() else _BEGINNING
        if (
            find(_entries(text, str(path), custom=True) if "[[model]]" in text else (), entry)
            is None
        ):
            text = f"{text.rstrip()}\n\n[[model]]\nname = {json.dumps(entry, ensure_ascii=False)}\n"
            _entries(text, str(path), custom=True)
            make_folder(folder)
            write_durably(path, text.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"'{path}' cannot be changed ({error})", "check its permissions") from None
    return entry


_BEGINNING = (
    "# Your own models, in addition to those that specchat knows. Only `name` is required.\n"
)
_KEYS: dict[str, type] = {
    **dict.fromkeys(("name", "family", "tokenizer", "licence", "measured"), str),
    **dict.fromkeys(("download", "memory"), int),
    "draft": bool,
    "config": dict,
}


def _entries(text: str, file: str, custom: bool) -> tuple[CatalogueEntry, ...]:
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{file}' is not valid TOML ({error})", "correct it") from None
    models = content.get("model")
    if not isinstance(models, list):
        raise ModelError(f"'{file}' lists no models", "start each with a line [[model]]")
    return tuple(
        _entry(model, f"model {i} of '{file}'", custom) for i, model in enumerate(models, 1)
    )


def _entry(model: Any, where: str, custom: bool) -> CatalogueEntry:
    if not isinstance(model, dict) or not model.get("name"):
        raise ModelError(f"{where[0].upper()}{where[1:]} has no name", "add a line name = …")
    for key, value in model.items():
        kind = _KEYS.get(key)
        if kind is None:
            raise ModelError(
                f"{where[0].upper()}{where[1:]} has an unknown key {key!r}",
                f"remove it; the keys are {', '.join(_KEYS)}",
            )
        if type(value) is not kind:
            raise ModelError(f"{key!r} in {where} must be {_KINDS[kind]}", "correct it")
    values: dict[str, Any] = {str(key): value for key, value in model.items()}
    config = values.pop("config", None)
    if config is None:
        return CatalogueEntry(**values, custom=custom)
    architecture, quantised = parse_architecture(config), weight_format(config)
    return CatalogueEntry(**values, architecture=architecture, quantised=quantised, custom=custom)


_KINDS = {str: "text in quotes", int: "a whole number", bool: "true or false", dict: "a table"}
