"""The machines of `--hosts`, and what a model takes across them, as text. No widgets."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from app.models.across import (
    FitAcross,
    LinkSpeed,
    first_token_seconds,
    fit_across,
    steps_of,
)
from app.models.check import read_json
from app.models.errors import ModelError
from app.models.pairs import DraftCandidate, ModelOverview
from app.protocol.hosts import HostMachine
from app.protocol.options import DEFAULT_KEEP_RATIO
from app.ui.models.rows import DIM, WARN
from app.util import formatting
from app.util.sanitize import sanitize_line

TOKENS, STEP = 60_000, 512
"""Of the document whose reading is predicted, and of a step."""


def machines_text(
    overview: ModelOverview,
    draft: DraftCandidate | None,
    machines: Sequence[HostMachine],
    seconds_per_parameter: float | None,
) -> Content:
    """A line a machine, what fits across all of them, and the predicted time to the first token.
    `seconds_per_parameter` is what one parameter takes on this machine for one token, if it is
    known."""
    lines = [Content(""), Content.styled("Machines", DIM), *map(_machine_line, machines)]
    if (folder := overview.model.folder) is None:
        return Content("\n").join(lines)
    try:
        config = read_json(folder / "config.json")
    except ModelError:
        return Content("\n").join(lines)
    size = overview.model.size
    across = fit_across(config, size, draft.draft.size if draft else None, machines)
    lines.append(Content(_fit_sentence(across)))
    if not across.problem and seconds_per_parameter is not None:
        lines.append(Content(_time_sentence(overview, machines, seconds_per_parameter)))
    return Content("\n").join(lines)


def _machine_line(machine: HostMachine) -> Content:
    name = sanitize_line(machine.name)
    if machine.problem:
        return Content.assemble(("! ", WARN), sanitize_line(machine.problem))
    memory = f"{formatting.size(int(machine.free))} of {formatting.size(machine.total)} free"
    link = ""
    if machine.latency is not None and machine.rate is not None:
        link = f", {machine.latency * 1000:.1f} ms, {formatting.size(int(machine.rate))}/s"
    return Content.assemble(
        f"{name}: {memory}{link}", (f"  {sanitize_line(machine.processor)}", DIM)
    )


def _fit_sentence(across: FitAcross) -> str:
    where = f"Across {across.ranks} machines"
    if across.problem:
        return f"{where}: {sanitize_line(across.problem)}."
    each = f"{formatting.size(across.weight_bytes)} of weights on each"
    if not across.max_sparse_tokens:
        return f"{where}: {each}, which does not fit."
    full = f"{formatting.count(across.max_tokens)} tokens in full"
    return f"{where}: {each}, up to {full}, {formatting.count(across.max_sparse_tokens)} sparsely."


def _time_sentence(
    overview: ModelOverview, machines: Sequence[HostMachine], seconds_per_parameter: float
) -> str:
    shape = overview.model.size.architecture
    latency = max(machine.latency or 0.0 for machine in machines)
    link = LinkSpeed(latency, min(machine.rate or float("inf") for machine in machines[1:]))

    def seconds(tokens: int, ranks: int) -> str:
        target = tokens * shape.active_parameters * seconds_per_parameter
        steps = steps_of(tokens, STEP)
        return formatting.seconds(first_token_seconds(shape, target, 0.0, steps, ranks, link))

    few = round(TOKENS * DEFAULT_KEEP_RATIO)
    ranks = len(machines)
    return (
        f"First word after {DEFAULT_KEEP_RATIO:.0%} of {formatting.count(TOKENS)} tokens: about"
        f" {seconds(few, 1)} on this machine alone, {seconds(few, ranks)} across them; after all:"
        f" {seconds(TOKENS, 1)} and {seconds(TOKENS, ranks)}."
    )
