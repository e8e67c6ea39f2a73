"""Several measurements of one thing: their median, and how far they lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    """In JSON a list of the three."""

    median: float
    least: float
    most: float

    def text(self, form: str = ".2f") -> str:
        """The median, with the least and the most behind it."""
        return f"{self.median:{form}} ({self.least:{form}} to {self.most:{form}})"


def spread(values: Iterable[float]) -> Spread:
    """Of at least one value."""
    every = list(values)
    return Spread(statistics.median(every), min(every), max(every))
