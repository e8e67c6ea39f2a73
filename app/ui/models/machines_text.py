"""The machines of `--hosts`, and what a model takes across them, as text. No widgets."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from app.models.across import FitAcross, fit_across
from app.models.check import read_json
from app.models.errors import ModelError
from app.models.pairs import DraftCandidate, ModelOverview
from app.protocol.hosts import HostMachine
from app.ui.models.rows import DIM, WARN
from app.util import formatting
from app.util.sanitize import sanitize_line


def machines_text(
    overview: ModelOverview,
    draft: DraftCandidate | None,
    machines: Sequence[HostMachine],
) -> Content:
    """A line for each machine, and what fits across all of them."""
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
