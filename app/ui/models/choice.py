"""Choosing a pair: what it would cost, said before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from app.models.draft_selection import DraftCandidate
from app.models.overview import ModelOverview
from app.protocol.commands import Load
from app.ui.models.detail_text import memory_lines
from app.ui.models.rows import DIM, WARN, short
from app.util import formatting
from app.util.sanitize import sanitize_line


@dataclass(frozen=True, slots=True)
class PairStatus:
    """Which pair is loaded, and how many tokens of the conversation on the screen were read. `pace`
    is how fast it was loaded, in bytes a second, if that is known; `hindrance` says why no other
    one can be loaded just now."""

    load: Load
    cached_tokens: int = 0
    load_bytes_per_second: float | None = None
    blocked_reason: str = ""

    def uses(self, folder: Path | None) -> bool:
        """Whether the model in this folder is one of the pair."""
        return folder is not None and str(folder) in (self.load.target, self.load.draft)


@dataclass(frozen=True, slots=True)
class PairChoice:
    """A pair that is to answer, and whether by default from now on."""

    target: str
    draft: str | None
    as_default: bool = False


def cost_text(
    known: ModelOverview, candidate: DraftCandidate | None, standing: PairStatus
) -> Content:
    """Time, memory, and what is read again."""
    model = known.model
    weights = model.size.weight_bytes + (candidate.draft.size.weight_bytes if candidate else 0)
    draft = candidate.draft.name if candidate else None
    names = short(model.name) + (
        f" + {'its draft' if draft == model.name else short(draft)}" if draft else ""
    )
    lines = [
        Content.styled(f"{names} instead of {_names(*standing.load.names)}", "bold"),
        Content(f"Loads {formatting.size(weights)}{_time(weights, standing)}."),
    ]
    if standing.cached_tokens:
        lines.append(
            Content.assemble(
                ("! ", WARN),
                "The next question reads this conversation again:"
                f" {formatting.plural(standing.cached_tokens, 'token')}.",
            )
        )
    if candidate is None:
        lines.append(Content("Without a draft everything is read."))
    if standing.blocked_reason:
        lines.append(Content.assemble(("! ", WARN), sanitize_line(standing.blocked_reason)))
    lines += [Content(""), Content.styled("The memory that it takes", DIM)]
    return Content("\n").join([*lines, *memory_lines(known, candidate)])


def _time(weights: int, standing: PairStatus) -> str:
    if not standing.load_bytes_per_second:
        return ""
    seconds = formatting.seconds(weights / standing.load_bytes_per_second)
    return f", in about {seconds} at the pace of the last time"


def _names(target: str, draft: str | None) -> str:
    return short(target) + (f" + {short(draft)}" if draft else "")
