"""From the names of a target and a draft to a `Load` command, everything checked first."""

from __future__ import annotations

from app.engine.messages import Load
from app.models.check import check_model
from app.models.embedded import EMBEDDED
from app.models.errors import ModelError
from app.models.locate import locate
from app.models.tokenizers import same_tokenizer


def pair(target: str = EMBEDDED, draft: str | None = None) -> Load:
    """The command that loads this pair. A target without a draft reads everything, but for the
    embedded target, which brings its own. Raises ModelError, in one sentence."""
    if draft is None and target == EMBEDDED:
        draft = EMBEDDED
    target_folder = locate(target)
    check_model(target_folder)
    if draft is None:
        return Load(str(target_folder), shown_as=(_shown(target), ""))
    draft_folder = locate(draft, draft=True)
    check_model(draft_folder)
    difference = same_tokenizer(target_folder, draft_folder)
    if difference is not None:
        raise ModelError(difference.rstrip("."), "choose a draft of the target's own family")
    shown = (_shown(target), "its draft" if draft == target else _shown(draft))
    return Load(str(target_folder), str(draft_folder), shown)


def _shown(name: str) -> str:
    """A repository without its owner, a folder without its path, `embedded` as it is."""
    return name.rstrip("/").rpartition("/")[2] or name
