"""Numbers as the screen writes them."""

from __future__ import annotations

from app.util import formatting
from tests.tables import table


@table(
    "seconds, words",
    [
        (0.01, "0.0 s"),
        (9.9, "9.9 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (65, "1 min 5 s"),
        (3600, "1 h"),
        (7717, "2 h 8 min"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert formatting.seconds(seconds) == words
