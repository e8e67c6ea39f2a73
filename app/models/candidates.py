"""Every model that is known, with what it takes on a machine and the drafts it could have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.models import draft_selection
from app.models.cache import Cache
from app.models.draft_selection import Candidate, Measured, Tokenizers
from app.models.embedded import EMBEDDED
from app.models.fit import Fit, Machine, fit
from app.models.model_info import Described, describe


@dataclass(frozen=True, slots=True)
class Known:
    """A model, what it takes `alone`, and its `drafts`, the best one first."""

    model: Described
    alone: Fit
    drafts: tuple[Candidate, ...]

    @property
    def taken(self) -> Candidate | None:
        """The draft that it would get, or None when reading everything is as good."""
        return draft_selection.choice(self.drafts)

    @property
    def fit(self) -> Fit:
        """With that draft, or alone."""
        return self.taken.fit if self.taken else self.alone


def overview(
    models: Iterable[Described],
    machine: Machine,
    measured: Measured = lambda target, draft: None,
    tokenizers: Tokenizers | None = None,
) -> list[Known]:
    """Each of `models`, any other of which may be its draft. Reads the tokenizers of those that are
    here, which takes about a second each, unless `tokenizers` knows them."""
    models, tokenizers = list(models), tokenizers or Tokenizers()
    return [
        Known(
            target,
            fit(target.sized, None, machine),
            tuple(draft_selection.candidates(target, models, machine, measured, tokenizers)),
        )
        for target in models
    ]


def embedded_pair(cache: Cache, machine: Machine) -> Known:
    """The pair that ships with the program. ModelError when it is damaged."""
    target = describe(EMBEDDED, cache, ())
    draft = draft_selection.candidate(target, describe(EMBEDDED, cache, (), draft=True), machine)
    return Known(target, fit(target.sized, None, machine), (draft,))
