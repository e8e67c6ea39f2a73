"""Finds the folder of a model by the name that a user typed. Never downloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.models import embedded
from app.models.errors import ModelError

if TYPE_CHECKING:
    from app.models.cache import ModelCache


def resolve_model(name: str, *, draft: bool = False, cache: ModelCache | None = None) -> Path:
    """The folder of `embedded`, of a path, or of a Hugging Face repository (`organisation/name`) in
    `cache`, by default the user's.

    `draft` selects the embedded pair's draft instead of its target. A folder takes precedence over
    a repository of the same name. ModelError when there is no such model; whether it can be loaded
    is checked by `check_model`.
    """
    if not name.strip():
        raise ModelError("The name of the model is empty", _ADVICE)
    if name == embedded.EMBEDDED:
        return embedded.draft_path() if draft else embedded.target_path()
    folder = _folder(name)
    if folder is not None:
        return folder
    # Imported here because it is slow, and a folder does not need it.
    from app.models.cache import default_cache, is_repository

    if not is_repository(name):
        raise ModelError(f"There is no model folder {name!r}", _ADVICE)
    snapshot = (cache or default_cache()).snapshot_folder(name)
    if snapshot is None:
        raise ModelError(
            f"There is no folder {name!r}, and no installed model of that name",
            f"download it with `specchat models pull {name}`, or use a model's folder",
        )
    return snapshot


_ADVICE = "use a model's folder, the name of an installed model, or `embedded`"


def _folder(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return path.absolute()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    if exists:
        raise ModelError(
            f"{name!r} is a file, not a model's folder", "use the folder with its config.json"
        )
    return None
