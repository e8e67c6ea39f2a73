"""Choosing a pair: what it would cost, said before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from app.models.candidates import Known
from app.models.draft_selection import Candidate
from app.protocol.commands import Load
from app.ui.models.detail_text import of_candidate
from app.ui.models.rows import DIM, WARN, short
from app.util import formatting
from app.util.sanitize import sanitize_line


@dataclass(frozen=True, slots=True)
class Standing:
    """Which pair is loaded, and how many tokens of the conversation on the screen were read. `pace`
    is how fast it was loaded, in bytes a second, if that is known; `hindrance` says why no other
    one can be loaded just now."""

    load: Load
    read: int = 0
    pace: float | None = None
    hindrance: str = ""

    def uses(self, folder: Path | None) -> bool:
        """Whether the model in this folder is one of the pair."""
        return folder is not None and str(folder) in (self.load.target, self.load.draft)


@dataclass(frozen=True, slots=True)
class Choice:
    """A pair that is to answer, and whether by default from now on."""

    target: str
    draft: str | None
    by_default: bool = False


def cost(known: Known, candidate: Candidate | None, standing: Standing) -> Content:
    """Time, memory, and what is read again."""
    model = known.model
    weights = model.sized.weights + (candidate.draft.sized.weights if candidate else 0)
    draft = candidate.draft.name if candidate else None
    names = short(model.name) + (
        f" + {'its draft' if draft == model.name else short(draft)}" if draft else ""
    )
    lines = [
        Content.styled(f"{names} instead of {_names(*standing.load.names)}", "bold"),
        Content(f"Loads {formatting.size(weights)}{_time(weights, standing)}."),
    ]
    if standing.read:
        lines.append(
            Content.assemble(
                ("! ", WARN),
                f"What was read of this conversation, {formatting.plural(standing.read, 'token')},"
                " is read again with the next question.",
            )
        )
    if candidate is None:
        lines.append(Content("Without a draft everything is read."))
    if standing.hindrance:
        lines.append(Content.assemble(("! ", WARN), sanitize_line(standing.hindrance)))
    lines += [Content(""), Content.styled("The memory that it takes", DIM)]
    return Content("\n").join([*lines, *of_candidate(known, candidate)])


def _time(weights: int, standing: Standing) -> str:
    if not standing.pace:
        return ""
    seconds = formatting.seconds(weights / standing.pace)
    return f", in about {seconds} at the pace of the last time"


def _names(target: str, draft: str | None) -> str:
    return short(target) + (f" + {short(draft)}" if draft else "")
