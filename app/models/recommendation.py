"""The pair of the catalogue that a machine is offered when its user has chosen none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.models.catalogue import Entry, catalogue
from app.models.draft_selection import candidates, choice
from app.models.fit import Fit, Machine, Sized, machine_of
from app.models.model_info import Described

LONG = 65_536
"""Tokens of a long document: a pair that reads those comes before a larger one that does not."""


@dataclass(frozen=True, slots=True)
class Offer:
    target: Described
    draft: Described
    fit: Fit

    @property
    def download(self) -> int:
        """Bytes of both."""
        return self.target.sized.weights + self.draft.sized.weights


def offer(entries: Iterable[Entry], machine: Machine) -> Offer | None:
    """The largest target that reads a long document there, or the longest one, with the draft that
    makes it sooner."""
    models = [
        Described(Sized(entry.name, entry.shape, entry.download), None, entry)
        for entry in entries
        if entry.shape is not None and entry.download
    ]
    found = [
        Offer(target, taken.draft, taken.fit)
        for target in models
        if (taken := choice(candidates(target, models, machine))) is not None
    ]

    def worth(each: Offer) -> tuple[int, int]:
        return min(each.fit.longest, LONG), each.target.sized.weights

    return max(found, key=worth, default=None)


def offer_here() -> Offer | None:
    """For this machine, taken for a Mac. Looks at no disk."""
    import psutil  # here: the screen is drawn before it is needed

    return offer(catalogue(), machine_of(psutil.virtual_memory().total))
