"""Keep as a bar: `━━━━●──────`. The panel and the setter draw the same one."""

from __future__ import annotations

from textual.content import Content


def keep_bar(keep: float, width: int) -> Content:
    """`keep` is 0..1; the knob is always inside the bar."""
    knob = min(width - 1, max(0, round(keep * width) - 1))
    return Content.assemble(
        ("━" * knob, "$accent"), ("●", "$accent"), ("─" * (width - 1 - knob), "$ink-faint")
    )
