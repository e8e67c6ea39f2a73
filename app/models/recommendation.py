"""The model that is recommended when the user has chosen none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.models.catalogue import Entry, catalogue
from app.models.fit import Fit, Machine, fit, mac_with
from app.models.model_details import ModelDetails, listed_size

LONG_DOCUMENT_TOKENS = 32_768
"""A model that can read this many tokens is preferred to one that cannot."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A target for the built-in draft, which takes no memory of its own."""

    target: ModelDetails
    fit: Fit


def recommend(entries: Iterable[Entry], machine: Machine) -> Recommendation | None:
    """What people run on such a machine, if it can read a long document there; else the model that
    can read the longest. The newest of several."""
    targets = [
        ModelDetails(size, None, entry)
        for entry in entries
        if (size := listed_size(entry)) is not None
    ]
    found = [Recommendation(each, fit(each.size, None, machine)) for each in targets]

    def worth(each: Recommendation) -> tuple[int, int]:
        memory = each.target.entry.memory if each.target.entry is not None else 0
        return (
            min(each.fit.max_tokens, LONG_DOCUMENT_TOKENS),
            memory if memory << 30 <= machine.total else 0,
        )

    return max((each for each in found if each.fit.max_tokens), key=worth, default=None)


def recommend_for_this_machine() -> Recommendation | None:
    """For this machine, as if it were a Mac. Does not read the disk."""
    import psutil  # a slow import

    return recommend(catalogue(), mac_with(psutil.virtual_memory().total))
