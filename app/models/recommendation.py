"""The pair that is recommended when the user has chosen none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.models.catalogue import Entry, catalogue
from app.models.draft_selection import best_draft, draft_candidates
from app.models.fit import Fit, Machine, mac_with
from app.models.model_details import ModelDetails, listed_size

LONG_DOCUMENT_TOKENS = 65_536
"""A pair that can read this many tokens is preferred to a larger one that cannot."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    target: ModelDetails
    draft: ModelDetails
    fit: Fit

    @property
    def download(self) -> int:
        """Bytes to download for both."""
        return self.target.download + self.draft.download


def recommend(entries: Iterable[Entry], machine: Machine) -> Recommendation | None:
    """The largest target that can read a long document, or the one that can read the longest, with
    its best draft."""
    models = [
        ModelDetails(size, None, entry)
        for entry in entries
        if (size := listed_size(entry)) is not None
    ]
    found = [
        Recommendation(target, taken.draft, taken.fit)
        for target in models
        if (taken := best_draft(draft_candidates(target, models, machine))) is not None
    ]

    def worth(each: Recommendation) -> tuple[int, int]:
        return min(each.fit.max_tokens, LONG_DOCUMENT_TOKENS), each.target.size.weight_bytes

    return max(found, key=worth, default=None)


def recommend_for_this_machine() -> Recommendation | None:
    """For this machine, as if it were a Mac. Does not read the disk."""
    import psutil  # a slow import

    return recommend(catalogue(), mac_with(psutil.virtual_memory().total))
