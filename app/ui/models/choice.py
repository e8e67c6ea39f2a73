"""Choosing a pair: what loading it would take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from app.models.pairs import DraftCandidate, ModelOverview
from app.protocol.commands import Load
from app.ui.models.detail_text import memory_lines
from app.ui.models.rows import DIM, WARN, draft_name, short
from app.util import formatting
from app.util.sanitize import sanitize_line


@dataclass(frozen=True, slots=True)
class PairStatus:
    """The loaded pair. `cached_tokens` are those of the conversation on the screen;
    `load_bytes_per_second` is how fast the pair was loaded, if known; `blocked_reason` says why no
    other pair can be loaded now."""

    load: Load
    cached_tokens: int = 0
    load_bytes_per_second: float | None = None
    blocked_reason: str = ""

    def uses(self, folder: Path | None) -> bool:
        """Whether the model in this folder is one of the pair."""
        return folder is not None and str(folder) in (self.load.target, self.load.draft)


@dataclass(frozen=True, slots=True)
class PairChoice:
    """A pair to load, whether it becomes the default, and whether the target is spread over the
    machines of `--hosts`."""

    target: str
    draft: str | None
    as_default: bool = False
    across: bool = False


def cost_text(
    overview: ModelOverview, candidate: DraftCandidate | None, status: PairStatus
) -> Content:
    """Load time, memory, and what must be read again."""
    model = overview.model
    weights = model.size.weight_bytes + (candidate.draft.size.weight_bytes if candidate else 0)
    target, draft = status.load.names
    loaded = short(target) + (f" + {short(draft)}" if draft else "")
    names = short(model.name) + (f" + {draft_name(overview, candidate)}" if candidate else "")
    seconds = ""
    if status.load_bytes_per_second:
        seconds = f" in about {formatting.seconds(weights / status.load_bytes_per_second)}"
    lines = [
        Content.styled(f"{names} instead of {loaded}", "bold"),
        Content(f"Loads {formatting.size(weights)}{seconds}."),
    ]
    if status.cached_tokens:
        tokens = formatting.plural(status.cached_tokens, "token")
        again = f"The next question reads this conversation again ({tokens})."
        lines.append(Content.assemble(("! ", WARN), again))
    if candidate is None:
        lines.append(Content("The built-in draft chooses what is read."))
    if status.blocked_reason:
        lines.append(Content.assemble(("! ", WARN), sanitize_line(status.blocked_reason)))
    lines += [Content(""), Content.styled("Memory", DIM), *memory_lines(overview, candidate)]
    return Content("\n").join(lines)
