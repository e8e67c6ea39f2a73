"""All known models, with their memory on a machine and their possible drafts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.models import draft_selection
from app.models.cache import ModelCache
from app.models.draft_selection import DraftCandidate, MeasuredRatio, TokenizerCache
from app.models.embedded import EMBEDDED
from app.models.fit import Fit, Machine, fit
from app.models.model_details import ModelDetails, find_model


@dataclass(frozen=True, slots=True)
class ModelOverview:
    """A model, its memory with the built-in draft, and its possible draft models, the best one
    first. `default_draft` is the draft it gets where none is chosen; None is the built-in one."""

    model: ModelDetails
    alone_fit: Fit
    drafts: tuple[DraftCandidate, ...]
    default_draft: DraftCandidate | None = None

    @property
    def best_draft(self) -> DraftCandidate | None:
        """The draft model to offer beside the default, or None when none fits and is fast
        enough."""
        return None if self.default_draft else draft_selection.best_draft(self.drafts)

    @property
    def fit(self) -> Fit:
        """The memory with the default draft."""
        return self.default_draft.fit if self.default_draft else self.alone_fit


def overview(
    models: Iterable[ModelDetails],
    machine: Machine,
    measured: MeasuredRatio = lambda target, draft: None,
    tokenizers: TokenizerCache | None = None,
) -> list[ModelOverview]:
    """Overviews of `models`, which may all be drafts of each other. Reads the tokenizers of
    installed ones, about a second each, unless they are in `tokenizers`."""
    models, tokenizers = list(models), tokenizers or TokenizerCache()
    return [
        ModelOverview(
            target,
            fit(target.size, None, machine),
            tuple(draft_selection.draft_candidates(target, models, machine, measured, tokenizers)),
        )
        for target in models
    ]


def embedded_pair(cache: ModelCache, machine: Machine) -> ModelOverview:
    """The overview of the embedded pair, whose default is its own draft. ModelError when it is
    damaged."""
    target = find_model(EMBEDDED, cache, ())
    draft = draft_selection.assess_draft(
        target, find_model(EMBEDDED, cache, (), draft=True), machine
    )
    return ModelOverview(target, fit(target.size, None, machine), (draft,), draft)
