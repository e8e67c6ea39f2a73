"""The models that are known by name: those of `catalog.toml`, and those a user added to a file of
the same form."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.models.architecture import Architecture, parse_architecture
from app.models.cache import is_repository
from app.models.check import check_model
from app.models.errors import ModelError
from app.util.atomic_files import make_folder, replace_durably, temp_file

FILE = "catalog.toml"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. `download` is in bytes. What a user's entry does not say is empty, 0 or None, and
    is read from the model itself. `own` is whether a user wrote it."""

    name: str
    family: str = ""
    tokenizer: str = ""
    quantised: str = ""
    download: int = 0
    licence: str = ""
    draft: bool = False
    measured: str = ""
    architecture: Architecture | None = None
    custom: bool = False

    def matches(self, word: str) -> bool:
        architecture = self.architecture.model_type if self.architecture else ""
        said = (self.name, self.family, self.quantised, self.licence, architecture)
        return any(word in text.casefold() for text in said)


def catalogue(folder: Path | None = None) -> tuple[Entry, ...]:
    """Every model known by name, a user's own ones first; these are read from the catalogue's file
    in `folder`, if it is there. One of theirs takes the place of ours of the same name. ModelError,
    in one sentence, when their file cannot be used."""
    ours = _entries((files("app.models") / FILE).read_text("utf-8"), FILE, own=False)
    own: tuple[Entry, ...] = ()
    path = folder / FILE if folder is not None else None
    if path is not None and path.is_file():
        try:
            own = _entries(path.read_text("utf-8"), str(path), own=True)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"'{path}' cannot be read ({error})", "put it right") from None
    taken = {entry.name for entry in own}
    return (*own, *(entry for entry in ours if entry.name not in taken))


def search(entries: tuple[Entry, ...], text: str) -> tuple[Entry, ...]:
    """Those that mention every word of `text`, in the order given."""
    words = text.casefold().split()
    return tuple(entry for entry in entries if all(map(entry.matches, words)))


def find(entries: tuple[Entry, ...], name: str) -> Entry | None:
    """The one of this name, whatever the case of its letters."""
    return next((e for e in entries if e.name.casefold() == name.casefold()), None)


def add(folder: Path | None, name: str) -> str:
    """Write a model into the user's catalogue in `folder`: a repository, or the path of a folder
    with a model. Returns its name there. ModelError when it is neither, or cannot be written."""
    if folder is None:
        raise ModelError("There is no place for a catalogue", "name the model with --target")
    kept = name.strip()
    if not is_repository(kept):
        path = Path(kept).expanduser().absolute()
        check_model(path)
        kept = str(path)
    if not kept.isprintable():
        raise ModelError(f"{kept!r} cannot be written into a catalogue", "rename the folder")
    path = folder / FILE
    try:
        text = path.read_text("utf-8") if path.is_file() else _BEGINNING
        if find(_entries(text, str(path), own=True) if "[[model]]" in text else (), kept) is None:
            text = f"{text.rstrip()}\n\n[[model]]\nname = {json.dumps(kept, ensure_ascii=False)}\n"
            _entries(text, str(path), own=True)
            make_folder(folder)
            aside = folder / f"{uuid4().hex}.part"
            with temp_file(aside) as out:
                out.write(text.encode())
            replace_durably(aside, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"'{path}' cannot be changed ({error})", "put it right") from None
    return kept


_BEGINNING = "# Your own models, beside those that specchat knows: `name` is all that is needed.\n"
_TEXTS = ("name", "family", "tokenizer", "quantised", "licence", "measured", "known")
_OLD_KEYS = {"known": "measured"}
"""Keys of catalogues that were written before they were renamed."""


def _entries(text: str, file: str, own: bool) -> tuple[Entry, ...]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ModelError(f"'{file}' is not valid TOML ({error})", "put it right") from None
    models = content.get("model")
    if not isinstance(models, list):
        raise ModelError(f"'{file}' lists no models", "begin each with a line [[model]]")
    return tuple(_entry(model, f"model {i} of '{file}'", own) for i, model in enumerate(models, 1))


def _entry(model: Any, where: str, own: bool) -> Entry:
    if not isinstance(model, dict) or not model.get("name"):
        raise ModelError(f"{where[0].upper()}{where[1:]} has no name", "add a line name = …")
    kinds = dict.fromkeys(_TEXTS, str) | {"download": int, "draft": bool, "config": dict}
    for key, value in model.items():
        kind = kinds.get(key)
        if kind is None:
            raise ModelError(
                f"{where[0].upper()}{where[1:]} has a line {key!r}, which means nothing",
                f"leave it out; there may be {', '.join(kinds)}",
            )
        if type(value) is not kind:
            raise ModelError(
                f"{key!r} in {where} is no {_KINDS[kind]}", "write it as specchat's own are"
            )
    rest: dict[str, Any] = {
        _OLD_KEYS.get(key, key): value for key, value in model.items() if key != "config"
    }
    architecture = parse_architecture(model["config"]) if "config" in model else None
    return Entry(**rest, architecture=architecture, custom=own)


_KINDS = {str: "text in quotes", int: "whole number", bool: "true or false", dict: "table"}
