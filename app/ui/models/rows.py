"""The rows of the models screen, as lines of text. No widgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from textual.content import Content

from app.models.cache import Installed, is_repository
from app.models.found import FoundModel, Kind
from app.models.pairs import DraftCandidate, ModelOverview
from app.models.speedup import built_in_speedup
from app.models.unfinished import UnfinishedDownload
from app.ui.models.inventory import Inventory
from app.ui.models.jobs import Job, JobKind, JobState
from app.ui.text import spread
from app.util import formatting
from app.util.sanitize import sanitize_line

MIN_NAME = 36
"""Cells for a long name; facts are dropped if they leave it less."""
DIM, WARN = "$ink-dim", "$accent"


class Tab(StrEnum):
    INSTALLED = "installed"
    CATALOGUE = "catalogue"
    DOWNLOADS = "downloads"


class RowKind(StrEnum):
    MODEL = "model"
    FOUND = "found"
    """A model on the hub, of which only the name is known."""
    GGUF = "gguf"
    """A GGUF file that belongs to another program or to the user."""
    DOWNLOAD = "download"
    SEARCH = "search"
    """Search the hub for the filter's text."""
    ADD = "add"
    """Add the folder that the filter names."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """`facts` are shown to the right of the name, the most important one first. `details` are the
    parts of the second line, each with its style. `label`, if given, is shown instead of `name`."""

    kind: RowKind
    name: str
    facts: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    mark: str = " "
    label: str = ""

    @property
    def key(self) -> str:
        return row_key(self.kind, self.name)


def row_key(kind: RowKind, name: str) -> str:
    return f"{kind}:{name}"


# ------------------------------------------------------------------------------ the three lists


def installed_rows(
    inventory: Inventory, text: str, is_target: Callable[[ModelOverview], bool]
) -> list[ModelRow]:
    """The demo model, installed models, and models of other programs."""
    elsewhere = {str(each.path) for each in inventory.found}
    installed = [
        each
        for each in inventory.models
        if each.model.installed and each.model.name not in elsewhere
    ]
    names = {each.model.name for each in installed}
    rows = [_model(each, inventory, is_target(each)) for each in installed]
    rows += [_unusable(each) for each in inventory.installed if each.repository not in names]
    rows.sort(key=lambda row: (row.name != "embedded", row.name.casefold()))
    rows += [_found(each, inventory, is_target) for each in inventory.found]
    return _matching(rows, text)


def catalogue_rows(inventory: Inventory, text: str, found: Iterable[str]) -> list[ModelRow]:
    """Models of the catalogue that can be downloaded, those that fit first; then models that were
    `found` on the hub; then actions for the typed `text`."""
    away = [each for each in inventory.models if not each.model.installed]
    away.sort(key=lambda each: each.fit.max_tokens == 0)
    rows = _matching((_model(each, inventory, False) for each in away), text)
    names = {row.name for row in rows}
    new = [name for name in inventory.undescribed if not inventory.installed_model(name)]
    rows += _matching(map(_on_hub, new), text)
    names |= set(inventory.undescribed)
    rows += [
        _on_hub(name) for name in found if name not in names and not inventory.installed_model(name)
    ]
    return rows + _suggestions(inventory, text, {row.name for row in rows})


def download_rows(inventory: Inventory, jobs: Sequence[Job], text: str) -> list[ModelRow]:
    """Jobs of this process, the newest first, then unfinished downloads of other processes."""
    rows = [_job(job) for job in reversed(jobs)]
    started = {job.repository for job in jobs}
    rows += [_unfinished(each) for each in inventory.unfinished if each.repository not in started]
    return _matching(rows, text)


def _matching(rows: Iterable[ModelRow], text: str) -> list[ModelRow]:
    """Rows with all words of `text` in their names and facts."""
    words = text.casefold().split()

    def matches(row: ModelRow) -> bool:
        searched = f"{row.name} {row.label} {' '.join(row.facts)}".casefold()
        return all(word in searched for word in words)

    return list(filter(matches, rows))


def _suggestions(inventory: Inventory, text: str, names: set[str]) -> list[ModelRow]:
    if text.startswith(("/", "~", "./", "../")):
        return [
            ModelRow(RowKind.ADD, text, (), (("⏎ adds this folder to your catalogue", DIM),), "+")
        ]
    rows = []
    if is_repository(text) and text not in names and inventory.installed_model(text) is None:
        rows.append(_on_hub(text, "+"))
    if text:
        label = f"Search Hugging Face for '{sanitize_line(text)}'"
        rows.append(ModelRow(RowKind.SEARCH, text, (), (("MLX models", DIM),), "?", label))
    return rows


# ------------------------------------------------------------------------------ one row


def render_row(row: ModelRow, width: int) -> Content:
    """Two lines of at most `width` cells."""
    facts, min_name = list(row.facts), min(MIN_NAME, len(row.label or row.name))
    while len(facts) > 1 and width - 4 - len(" · ".join(facts)) < min_name:
        facts.pop()
    name = Content.assemble((f"{row.mark} ", WARN), row.label or sanitize_line(row.name))
    first = spread(name, Content.styled(sanitize_line(" · ".join(facts)), DIM), width)
    pieces = ((sanitize_line(text), style) for text, style in row.details)
    second = Content.assemble("    ", *pieces).truncate(width, ellipsis=True)
    return first + "\n" + second


def short(name: str) -> str:
    """A repository without its owner, a folder without its path."""
    return sanitize_line(name.rstrip("/").rpartition("/")[2] or name)


def draft_name(overview: ModelOverview, candidate: DraftCandidate) -> str:
    """The name of a draft. Both models of the demo pair have the same name."""
    same = candidate.draft.name == overview.model.name
    return "demo draft" if same else short(candidate.draft.name)


def _model(overview: ModelOverview, inventory: Inventory, is_target: bool) -> ModelRow:
    model, own = overview.model, overview.default_draft
    installed = inventory.installed_model(model.name)
    size = installed.size if installed is not None else model.download
    facts = (
        formatting.size(size),
        formatting.short_count(model.size.architecture.parameters),
        model.quantised,
        model.size.architecture.model_type,
    )
    details = [(overview.fit.verdict, DIM if overview.fit.max_tokens else WARN)]
    if is_target:
        details.insert(0, ("loaded · ", WARN))
    if overview.fit.max_tokens:
        faster, draft = built_in_speedup(), "the built-in scorer"
        if own is not None:
            faster, draft = own.speedup(), draft_name(overview, own)
        details.append((f" · {faster:.1f}x faster · with {draft}", DIM))
    if installed is not None and installed.fault:
        details = [(f"! {_fault(installed)}", WARN)]
    mark = "◆" if is_target else "✓" if model.installed else " "
    return ModelRow(RowKind.MODEL, model.name, tuple(filter(None, facts)), tuple(details), mark)


def _found(
    found: FoundModel, inventory: Inventory, is_target: Callable[[ModelOverview], bool]
) -> ModelRow:
    """A model of another program. The row's name is the path, by which the model is loaded."""
    name, label, program = str(found.path), sanitize_line(found.name), f"{found.program} · "
    overview = inventory.find(name)
    if overview is not None and found.fault is None:
        row = _model(overview, inventory, is_target(overview))
        return replace(row, label=label, details=((program, DIM), *row.details))
    facts, is_gguf = (formatting.size(found.size),), found.kind is Kind.GGUF
    state = (f"! {found.fault}", WARN) if found.fault else ("⏎ details and conversion", DIM)
    kind = RowKind.GGUF if is_gguf else RowKind.MODEL
    details = ((program, DIM), state)
    return ModelRow(kind, name, (*facts, "GGUF") if is_gguf else facts, details, label=label)


def _unusable(installed: Installed) -> ModelRow:
    details = ((f"! {_fault(installed)}", WARN),)
    size = formatting.size(installed.size)
    return ModelRow(RowKind.MODEL, installed.repository, (size,), details, "✓")


def _fault(installed: Installed) -> str:
    """What is wrong with a model, without the path, which would not fit on the line."""
    fault = installed.fault or "Its memory need is unknown."
    folder = str(installed.folder)
    return fault.replace(f"{folder}/", "").replace(f"'{folder}'", "Its folder")


def _on_hub(name: str, mark: str = " ") -> ModelRow:
    return ModelRow(
        RowKind.FOUND, name, ("on Hugging Face",), (("⏎ details from Hugging Face", DIM),), mark
    )


def _job(job: Job) -> ModelRow:
    progress = job.progress
    marks = {JobState.FAILED: "!", JobState.DONE: "✓", JobState.RUNNING: "◆"}
    facts = (_done(progress.done, progress.total),) if progress.total else ()
    ended = job.state in (JobState.FAILED, JobState.DONE)
    details = (
        job.message if ended else _progress(job),
        WARN if job.state is JobState.FAILED else DIM,
    )
    return ModelRow(RowKind.DOWNLOAD, job.repository, facts, (details,), marks.get(job.state, " "))


def _unfinished(each: UnfinishedDownload) -> ModelRow:
    state = "another specchat is downloading it" if each.running else "not finished: ⏎ to resume"
    details = ((f"{_progress_bar(each.done, each.total)} · {state}", DIM),)
    return ModelRow(RowKind.DOWNLOAD, each.repository, (_done(each.done, each.total),), details)


def _progress(job: Job) -> str:
    progress = job.progress
    parts = [_progress_bar(progress.done, progress.total)]
    if job.state is not JobState.RUNNING:
        return f"{parts[0]} · {job.state}"
    if job.kind is JobKind.CHECK:
        parts.append("checking its files")
    elif job.kind is JobKind.CONVERSION:
        parts.append("converting")
    if progress.speed:
        parts.append(f"{formatting.size(int(progress.speed))}/s")
    if progress.seconds_left is not None and progress.done < progress.total:
        parts.append(f"{formatting.clock(progress.seconds_left)} left")
    if progress.note:
        parts.append(progress.note)
    return " · ".join(parts)


def _done(done: int, total: int) -> str:
    return f"{formatting.size(done)} of {formatting.size(total)}"


def _progress_bar(done: int, total: int, cells: int = 12) -> str:
    share = done / total if total else 0.0
    filled = int(cells * min(max(share, 0.0), 1.0))
    return f"{'▓' * filled}{'░' * (cells - filled)} {formatting.percent(share)}"
