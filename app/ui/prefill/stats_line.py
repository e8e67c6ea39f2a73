"""The one line of figures that stays with every answer."""

from __future__ import annotations

from app.protocol.stats import FinishReason, Phase, Reading, Statistics
from app.util import formatting

PARTS_OF_TTFT = (Phase.SCORE, Phase.PREFILL)


def stats_line(statistics: Statistics, ended: FinishReason | None, width: int) -> str:
    """The fullest wording that fits into `width` cells; the shortest when none does."""
    wordings = _wordings(statistics, ended)
    return next((line for line in wordings if len(line) <= width), wordings[-1])


def _wordings(statistics: Statistics, ended: FinishReason | None) -> list[str]:
    """From fullest to shortest. How much was read and in which way is in all of them."""
    read = f"read {formatting.percent(statistics.read_fraction)}"
    way = "full" if statistics.reading is Reading.DENSE else "sparse"
    tokens = _tokens(statistics)
    first = f"first word {formatting.seconds(statistics.ttft)}" if statistics.ttft > 0 else ""
    rate = f"{statistics.decode_rate:.0f} tok/s" if statistics.decode_rate else ""
    stops = (FinishReason.CANCELLED, FinishReason.MEMORY, FinishReason.REPEATED)
    stopped = "stopped" if ended in stops else ""
    parts = _parts_of_ttft(statistics)
    return [
        _join(stopped, read, tokens, way, first + parts, rate),
        _join(stopped, read, tokens, way, first, rate),
        _join(stopped, read, tokens.removesuffix(" tokens"), way, first, rate),
        _join(stopped, read, way, first, rate),
        _join(stopped, read, way, first),
        _join(stopped, read, way),
    ]


def _tokens(statistics: Statistics) -> str:
    total = formatting.count(statistics.prompt_tokens)
    if statistics.read_tokens >= statistics.prompt_tokens:
        return f"{total} tokens"
    return f"{formatting.count(statistics.read_tokens)} of {total} tokens"


def _parts_of_ttft(statistics: Statistics) -> str:
    """` (score 0.8, prefill 0.9)`, in seconds; nothing for a reading that is all prefill."""
    if statistics.reading is Reading.DENSE or statistics.ttft <= 0:
        return ""
    spent = {time.phase: time.seconds for time in statistics.phases}
    named = [f"{phase.value} {spent[phase]:.1f}" for phase in PARTS_OF_TTFT if phase in spent]
    return f" ({', '.join(named)})" if named else ""


def _join(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
