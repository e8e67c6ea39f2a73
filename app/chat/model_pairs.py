"""Resolves the names of a target and a draft to a `Load` command, and checks their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import Turn
from app.models.cache import resolve_model
from app.models.check import check_encoder, check_files, check_model, is_encoder, read_json
from app.models.embedded import BUILT_IN, EMBEDDED
from app.models.errors import ModelError
from app.models.tokenizers import same_tokenizer
from app.protocol.commands import Load
from app.protocol.hosts import Hosts
from app.protocol.options import DEMO_DRAFT, DEMO_MODEL
from app.protocol.prompt import Document
from app.util.regular_files import read_file

if TYPE_CHECKING:
    from app.models.cache import ModelCache


def resolve_pair(
    target: str = EMBEDDED,
    draft: str | None = None,
    cache: ModelCache | None = None,
    kv_bits: int | None = None,
    hosts: Hosts | None = None,
) -> Load:
    """The command that loads this pair, from `cache` or the default one, its files checked. Without
    a draft it is the built-in one, but the demo target has its own. With `kv_bits`, the
    target's KV cache is quantised; with `hosts`, it is spread over them, where it has the same
    name. Raises ModelError, in one sentence."""
    return check_pair(find_pair(target, draft, cache, kv_bits, hosts))


def find_pair(
    target: str = EMBEDDED,
    draft: str | None = None,
    cache: ModelCache | None = None,
    kv_bits: int | None = None,
    hosts: Hosts | None = None,
) -> Load:
    """As `resolve_pair`, but quick: of the files only those of a few kilobytes are read, so the
    pair is not `checked`."""
    if draft is None and target == EMBEDDED:
        draft = EMBEDDED
    if draft == BUILT_IN:
        draft = None
    target_folder = resolve_model(target, cache=cache)
    check_files(target_folder)
    if is_encoder(read_json(target_folder / "config.json")):
        raise ModelError(
            f"{_short_name(target)} is a text encoder, which cannot answer",
            "use it as the draft of another model",
        )
    quotes = target == EMBEDDED
    spread = None if hosts is None else replace(hosts, model=target)
    draft_folder, shown_draft, encodes = None, "", False
    if draft is not None:
        draft_folder = resolve_model(draft, draft=True, cache=cache)
        check_files(draft_folder)
        encodes = is_encoder(read_json(draft_folder / "config.json"))
        shown_draft = DEMO_DRAFT if draft == EMBEDDED else _short_name(draft)
    return Load(
        str(target_folder),
        None if draft_folder is None else str(draft_folder),
        (DEMO_MODEL if target == EMBEDDED else _short_name(target), shown_draft),
        kv_bits,
        draft_is_encoder=encodes,
        only_quotes=quotes,
        hosts=spread,
        checked=False,
    )


def check_pair(load: Load) -> Load:
    """The same pair, checked. Parses both tokenizers, about half a second each. ModelError."""
    target = Path(load.target)
    check_model(target)
    if load.draft is None:
        return replace(load, checked=True)
    draft = Path(load.draft)
    check_model(draft)
    if load.draft_is_encoder:
        check_encoder(draft)
        return replace(load, checked=True)
    return replace(load, foreign_draft=not same_tokenizer(target, draft), checked=True)


def lacks_document(load: Load, turns: Iterable[Turn], documents: Sequence[Document]) -> bool:
    """Whether a demo target, which needs a document, would be asked without one."""
    if documents or not load.only_quotes:
        return False
    return not any(turn.question.documents for turn in turns)


@dataclass(frozen=True, slots=True)
class ModelPair:
    """The models of an answer. Token ids are only valid for the same `target_revision`."""

    target: str
    target_revision: str
    draft: str | None = None
    draft_revision: str | None = None


def model_pair(load: Load) -> ModelPair:
    """The models of a pair that was found and checked. Raises ModelError."""
    target, draft = load.names
    return ModelPair(
        target, _revision(load.target), draft, _revision(load.draft) if load.draft else None
    )


def _revision(path: str) -> str:
    """A repository's commit; for any other folder a digest of its config and tokenizer."""
    folder = Path(path)
    if folder.parent.name == "snapshots":
        return folder.name
    digest = hashlib.sha256()
    try:
        for name in ("config.json", "tokenizer.json"):
            digest.update(read_file(folder / name))
    except OSError as error:
        raise ModelError(
            f"{path!r} cannot be read ({error.strerror})", "choose another model"
        ) from error
    return digest.hexdigest()[:40]


def _short_name(name: str) -> str:
    """A repository without its owner, also for its folder in the hub's cache; another folder
    without its path."""
    parts = name.rstrip("/").split("/")
    if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        parts = parts[-3].split("--")
    return parts[-1] or name
