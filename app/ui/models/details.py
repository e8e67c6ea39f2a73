"""Texts of the models screen: the details of a row, the cost of loading a pair, and what fits
across the machines of `--hosts`. No widgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from app.models.cache import Installed
from app.models.check import read_json
from app.models.errors import ModelError
from app.models.fit import Fit
from app.models.formats import Summary
from app.models.found import FoundModel, Kind, Program
from app.models.machines import FitAcross, Machines
from app.models.pairs import DraftCandidate, ModelOverview, RatioSource
from app.models.speedup import OVERHEAD, built_in_speedup
from app.models.text import breakdown_rows, facts, sampling_lines, verdict_sentences
from app.paths import display_path
from app.protocol.commands import Load
from app.protocol.hosts import HostMachine
from app.protocol.options import DEFAULT_KEEP_RATIO
from app.ui.models.inventory import Inventory
from app.ui.models.jobs import Job, JobState
from app.ui.models.rows import DIM, WARN, draft_name, short
from app.util import formatting
from app.util.sanitize import sanitize, sanitize_line

MAX_DRAFTS = 4
AMOUNT_WIDTH = 9
_EMPTY = Content("")


def model_text(overview: ModelOverview, inventory: Inventory) -> Content:
    """The model, its drafts, and the memory it needs with the default one."""
    model, installed = overview.model, inventory.installed_model(overview.model.name)
    found = inventory.found_model(model.name)
    lines = [_bold(found.name if found else model.name), _dim(", ".join(facts(model)))]
    if found is not None:
        lines += _whereabouts(found)
    elif installed is not None:
        older = f", {formatting.size(installed.older)} in older commits" if installed.older else ""
        lines.append(_dim(f"{formatting.size(installed.size)} on disk{older}"))
        if installed.fault:
            lines.append(_warn(installed.fault))
    elif not model.installed:
        size, free = formatting.size(model.download), formatting.size(inventory.free_bytes)
        lines.append(_dim(f"{size} to download, {free} free on disk"))
    lines += [_dim(text) for text in sampling_lines(model)]
    if model.entry is not None and model.entry.measured:
        lines.append(_dim(f"Measured on another machine: {model.entry.measured}."))
    memory = "its draft" if overview.default_draft else "the built-in scorer"
    lines += [
        _EMPTY,
        *_drafts(overview),
        _EMPTY,
        _dim(f"Memory with {memory}"),
        *_memory_table(overview.fit),
    ]
    lines += [_EMPTY, *map(Content, verdict_sentences(overview.fit))]
    return Content("\n").join(lines)


def memory_lines(overview: ModelOverview, draft: DraftCandidate | None) -> list[Content]:
    """The memory of a model with this draft, or alone."""
    fit, notes = (draft.fit, draft.notes) if draft is not None else (overview.alone_fit, ())
    return [*_memory_table(fit), *map(Content, verdict_sentences(fit)), *map(_warn, notes)]


def found_text(found: FoundModel, summary: Summary | str | None) -> Content:
    """Details of another program's model that cannot be loaded as it is. `summary` is from its
    header, or says why that cannot be read; it is None if the header was not read."""
    lines = [_bold(found.name)]
    if isinstance(summary, Summary):
        lines += [_dim(text) for text in (summary.title, ", ".join(summary.facts())) if text]
    lines += _whereabouts(found)
    fault = found.fault or (summary if isinstance(summary, str) else None)
    if fault:
        lines.append(_warn(fault))
    elif found.kind is Kind.GGUF:
        lines += [_EMPTY, Content("It must be converted before it can be loaded.")]
    return Content("\n").join(lines)


def _whereabouts(found: FoundModel) -> list[Content]:
    """The size, folder and program of a model."""
    own = found.program is Program.USER
    keeper = found.program if own else f"the folder of {found.program}"
    lines = [
        _dim(f"{formatting.size(found.size)} in {keeper}: {display_path(found.path)}"),
        _dim("specchat never changes or deletes it."),
    ]
    if found.aliases:
        lines.insert(0, _dim(f"Also called {', '.join(found.aliases)}."))
    return lines


def fault_text(name: str, fault: str) -> Content:
    return Content("\n").join([_bold(name), _warn(fault)])


def removal_text(installed: Installed, older: bool) -> Content:
    """What deleting a model, or only its older commits, frees, and that it is final."""
    size = formatting.size(installed.older if older else installed.size)
    what = f"the older commits of {installed.repository}" if older else installed.repository
    later = "To use it again, you must download or convert it again."
    return Content("\n").join(
        [
            _bold(f"Delete {what}?"),
            Content(f"This frees {size} and cannot be undone."),
            _dim("The current commit stays." if older else later),
        ]
    )


def download_text(name: str, job: Job | None, details: str) -> Content:
    if job is not None and job.state is JobState.FAILED:
        return fault_text(name, job.message)
    return Content("\n").join([_bold(name), Content(sanitize(details))])


def _drafts(overview: ModelOverview) -> list[Content]:
    mark = "  " if overview.default_draft else "▸ "
    built_in = f"built-in scorer: {built_in_speedup():.1f}x faster, r 0, nothing to download"
    lines = [Content.assemble((mark, WARN), built_in)]
    for each in overview.shown_drafts(MAX_DRAFTS):
        size = formatting.size(each.draft.download)
        download = "" if each.draft.installed else f", {size} to download"
        source = "" if each.source is RatioSource.PREDICTED else f" ({each.source})"
        line = (
            f"{draft_name(overview, each)}: {each.speedup():.1f}x faster,"
            f" r {each.cost_ratio:.2f}{source}, target and draft: {each.fit.verdict}{download}"
        )
        mark = "▸ " if each is overview.default_draft else "  "
        lines.append(Content.assemble((mark, WARN), line))
        lines.append(_dim(f"  {each.benefit}"))
        lines += [_warn(f"  {note}") for note in each.notes]
    faster = f"faster: first word at keep {DEFAULT_KEEP_RATIO:.0%} compared with a full read"
    lines.append(_dim(f"{faster}, 1 / (r + keep + {OVERHEAD:.2f})."))
    lines.append(_dim("r: the draft's cost per token, divided by the target's."))
    return lines


def _memory_table(fit: Fit) -> list[Content]:
    return [
        Content.assemble(f"{amount:>{AMOUNT_WIDTH}}  {item}", (f"  {sanitize_line(why)}", DIM))
        for amount, item, why in breakdown_rows(fit)
    ]


def _bold(text: str) -> Content:
    return Content.styled(sanitize_line(text), "bold")


def _dim(text: str) -> Content:
    return Content.styled(sanitize_line(text), DIM)


def _warn(text: str) -> Content:
    return Content.assemble(("! ", WARN), sanitize_line(text.strip()))


def machines_text(
    overview: ModelOverview,
    draft: DraftCandidate | None,
    machines: Machines,
    seen: Sequence[HostMachine],
) -> Content:
    """A line for each machine that was measured, and what fits across all of them."""
    lines = [Content(""), Content.styled("Machines", DIM), *map(_machine_line, seen)]
    if (folder := overview.model.folder) is None:
        return Content("\n").join(lines)
    try:
        config = read_json(folder / "config.json")
    except ModelError:
        return Content("\n").join(lines)
    size = overview.model.size
    across = machines.fit(config, size, draft.draft.size if draft else None, seen)
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


@dataclass(frozen=True, slots=True)
class PairStatus:
    """The loaded pair. `cached_tokens` are those of the conversation on the screen;
    `load_bytes_per_second` is how fast the pair was loaded, if known; `blocked_reason` says why no
    other pair can be loaded now."""

    load: Load
    cached_tokens: int = 0
    load_bytes_per_second: float | None = None
    blocked_reason: str = ""

    def uses(self, installed: Installed, older: bool) -> bool:
        """Whether a commit of this model is one of the pair: any, or any but the current one."""
        loaded = (Path(each) for each in (self.load.target, self.load.draft) if each)
        commits = [each for each in loaded if each.parent == installed.folder.parent]
        return any(not older or each != installed.folder for each in commits)


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
        lines.append(Content("The built-in scorer chooses what is read."))
    if status.blocked_reason:
        lines.append(Content.assemble(("! ", WARN), sanitize_line(status.blocked_reason)))
    lines += [Content(""), Content.styled("Memory", DIM), *memory_lines(overview, candidate)]
    return Content("\n").join(lines)
