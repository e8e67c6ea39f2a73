"""What is said of tokens that were proposed, verified and right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.cli.report import _ahead
from app.protocol.options import Mode
from app.protocol.stats import Reading, Statistics
from app.ui.prefill.panel_render import ahead

PLAIN = Statistics(Reading.SPARSE, Mode.SPARSE, 0.2, "", 100, 90, 20, 0, 0, 61, 1, 1.0, (), 2.0, 0)
FAST = replace(PLAIN, proposed_tokens=60, accepted_tokens=45, verified_steps=10, plain_rate=12.0)


@pytest.mark.parametrize(
    ("statistics", "panel", "line"),
    [
        (
            FAST,
            "proposed 60 tokens in 10 steps: 75% right, 4.5 a step; 30 a second instead of 12",
            " instead of 12, 45 of 60 proposed right",
        ),
        (
            replace(FAST, plain_rate=0.0),  # hardly any were written one at a time
            "proposed 60 tokens in 10 steps: 75% right, 4.5 a step",
            ", 45 of 60 proposed right",
        ),
        (
            replace(FAST, plain_rate=29.0),  # as fast, up to noise
            "proposed 60 tokens in 10 steps: 75% right, 4.5 a step",
            ", 45 of 60 proposed right",
        ),
        (
            replace(FAST, proposed_tokens=1, accepted_tokens=0, verified_steps=1),
            "proposed 1 token in 1 step: 0% right, 0.0 a step",
            ", 0 of 1 proposed right",
        ),
    ],
)
def test_what_was_proposed_is_said(statistics: Statistics, panel: str, line: str) -> None:
    assert ahead(statistics) == panel
    assert _ahead(statistics) == line


def test_nothing_is_said_where_nothing_was_proposed() -> None:
    assert _ahead(PLAIN) == ""
