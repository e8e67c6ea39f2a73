"""From the name of a model, as a user gives it, to its folder on this machine. Never downloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.models import embedded
from app.models.errors import ModelError

if TYPE_CHECKING:
    from app.models.cache import ModelCache


def resolve_model(name: str, *, draft: bool = False, cache: ModelCache | None = None) -> Path:
    """The folder of a model: `embedded`, the path of a folder, or a Hugging Face repository id
    (`organisation/name`) whose files are already in the local cache, or in `cache`.

    `draft` picks the embedded pair's draft instead of its target. A folder comes before a
    repository of the same name. ModelError when there is no such model here; whether the folder
    holds a usable model is `check_model`'s business.
    """
    if not name.strip():
        raise ModelError("The name of the model is empty", _ADVICE)
    if name == embedded.EMBEDDED:
        return embedded.draft_path() if draft else embedded.target_path()
    folder = _folder(name)
    if folder is not None:
        return folder
    # Here and not above: this import takes a while, and a folder does not need it.
    from app.models.cache import default_cache, is_repository

    if not is_repository(name):
        raise ModelError(f"There is no model folder {name!r}", _ADVICE)
    snapshot = (cache or default_cache()).snapshot_folder(name)
    if snapshot is None:
        raise ModelError(
            f"There is no folder {name!r}, and the local cache has no model of that name",
            f"download it first with `specchat models pull {name}`, or give the folder of a model",
        )
    return snapshot


_ADVICE = "give a model's folder, the id of a repository in the local cache, or 'embedded'"


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
            f"{name!r} is a file, not a model's folder", "give the folder that holds config.json"
        )
    return None
