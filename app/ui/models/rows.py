"""What the models screen lists, as lines of text. No widgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from textual.content import Content

from app.models.cache import Installed, is_repository
from app.models.draft_selection import DraftCandidate
from app.models.fit import Fit
from app.models.overview import ModelOverview
from app.models.speedup import MAX_RATIO
from app.models.trash import TrashedModel
from app.models.unfinished import UnfinishedDownload
from app.ui.models.inventory import Inventory
from app.ui.models.jobs import Job, JobKind, JobState
from app.util import formatting
from app.util.sanitize import sanitize_line

LEAST_NAME = 36
"""Cells that a longer name has at least; facts that leave it fewer are left out."""
DIM, WARN = "$ink-dim", "$accent"


class Tab(StrEnum):
    INSTALLED = "installed"
    CATALOGUE = "catalogue"
    DOWNLOADS = "downloads"


class RowKind(StrEnum):
    """What a row stands for."""

    MODEL = "model"
    FOUND = "found"
    """At the hub, by its name alone."""
    DOWNLOAD = "download"
    TRASH = "trash"
    SEARCH = "search"
    ADD = "add"
    """A name or a folder that was typed."""


@dataclass(frozen=True, slots=True)
class Row:
    """`facts` stand to the right of the name, the one that is needed most first; `below` are pieces
    of the second line with their styles."""

    kind: RowKind
    name: str
    facts: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    mark: str = " "
    label: str = ""
    """Instead of the name."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.name}"


def installed_rows(
    stock: Inventory, words: str, answering: Callable[[ModelOverview], bool]
) -> list[Row]:
    """The embedded pair, what is in the cache, folders of the user's, and the trash."""
    here = [known for known in stock.models if known.model.installed]
    names = {known.model.name for known in here}
    rows = [model_row(known, stock, answering(known)) for known in here]
    rows += [_faulty(each) for each in stock.installed if each.repository not in names]
    rows.sort(key=lambda row: (row.name != "embedded", row.name.casefold()))
    rows += [_trashed(each) for each in stock.trash]
    return matching(rows, words)


def catalogue_rows(stock: Inventory, words: str, found: Sequence[str]) -> list[Row]:
    """What could be fetched: what fits first, then what the hub found, then where else to look."""
    away = [known for known in stock.models if not known.model.installed]
    away.sort(key=lambda known: known.fit.max_tokens == 0)
    rows = matching([model_row(known, stock, False) for known in away], words)
    names = {row.name for row in rows}
    rows += matching(
        (_at_hub(name) for name in stock.undescribed if not stock.installed_model(name)), words
    )
    names |= set(stock.undescribed)
    rows += [
        _at_hub(name) for name in found if name not in names and stock.installed_model(name) is None
    ]
    return rows + _elsewhere(stock, words.strip(), {row.name for row in rows})


def _at_hub(name: str) -> Row:
    return Row(RowKind.FOUND, name, ("at the hub",), (("⏎ asks what it takes", DIM),))


def download_rows(stock: Inventory, jobs: Sequence[Job], words: str) -> list[Row]:
    """What was begun here, the last one first, then what an earlier run, or another program,
    began."""
    rows = [job_row(job) for job in reversed(jobs)]
    begun = {job.repository for job in jobs}
    rows += [_unfinished(each) for each in stock.unfinished if each.repository not in begun]
    return matching(rows, words)


def matching(rows: Iterable[Row], words: str) -> list[Row]:
    """Those with all words in their names and facts."""

    def text(row: Row) -> str:
        return f"{row.name} {' '.join(row.facts)}".casefold()

    wanted = words.casefold().split()
    return [row for row in rows if all(word in text(row) for word in wanted)]


def render_row(row: Row, width: int) -> Content:
    """Two lines of at most `width` cells."""
    facts, least = list(row.facts), min(LEAST_NAME, len(row.label or row.name))
    while len(facts) > 1 and width - 4 - len(" · ".join(facts)) < least:
        facts.pop()
    right = sanitize_line(" · ".join(facts))
    room = max(1, width - 4 - len(right))
    name = Content(row.label or sanitize_line(row.name)).truncate(room, ellipsis=True)
    gap = " " * max(1, width - 2 - name.cell_length - len(right))
    first = Content.assemble((f"{row.mark} ", WARN), name, gap, (right, DIM))
    pieces = ((sanitize_line(text), style) for text, style in row.details)
    second = Content.assemble("    ", *pieces).truncate(width, ellipsis=True)
    return first.truncate(width, ellipsis=True) + "\n" + second


def model_row(known: ModelOverview, stock: Inventory, answers: bool) -> Row:
    model = known.model
    installed = stock.installed_model(model.name)
    size = installed.size if installed is not None else model.size.weight_bytes
    parameters = f"{formatting.short_count(model.size.architecture.parameters)}"
    facts = [formatting.size(size), parameters, model.quantised, model.size.architecture.model_type]
    below: list[tuple[str, str]] = [(known.fit.verdict, _verdict_style(known.fit))]
    below += _pair(known)
    if answers:
        below.insert(0, ("answers now · ", WARN))
    if installed is not None and installed.fault:
        below = [(f"! {_why(installed)}", WARN)]
    return Row(
        RowKind.MODEL,
        model.name,
        tuple(filter(None, facts)),
        tuple(below),
        "◆" if answers else "✓" if model.installed else " ",
    )


def short(name: str) -> str:
    """A repository without its owner, a folder without its path."""
    return sanitize_line(name.rstrip("/").rpartition("/")[2] or name)


def draft_name(known: ModelOverview, candidate: DraftCandidate) -> str:
    """The embedded pair's two models go by one name."""
    own = candidate.draft.name == known.model.name
    return "its draft" if own else short(candidate.draft.name)


def job_row(job: Job) -> Row:
    progress = job.progress
    marks = {JobState.FAILED: "!", JobState.DONE: "✓", JobState.RUNNING: "◆"}
    facts = [f"{formatting.size(progress.done)} of {formatting.size(progress.total)}"]
    below = job.message if job.state in (JobState.FAILED, JobState.DONE) else _going(job)
    style = WARN if job.state is JobState.FAILED else DIM
    return Row(
        RowKind.DOWNLOAD,
        job.repository,
        tuple(facts if progress.total else ()),
        ((below, style),),
        marks.get(job.state, " "),
    )


def duration(seconds: float) -> str:
    """`1:23`, or with hours."""
    minutes, rest = divmod(min(round(seconds), 359_999), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bar(share: float, cells: int = 12) -> str:
    filled = int(cells * min(max(share, 0.0), 1.0))
    return "▓" * filled + "░" * (cells - filled)


# ------------------------------------------------------------------------------------------ inside


def _verdict_style(fit: Fit) -> str:
    return DIM if fit.max_tokens else WARN


def _pair(known: ModelOverview) -> list[tuple[str, str]]:
    taken = known.best_draft
    if taken is None:
        return [(" · alone: no draft makes it faster", DIM)] if known.fit.max_tokens else []
    pieces = [(f" · {taken.speedup():.1f} times sooner", DIM)]
    if taken.cost_ratio > MAX_RATIO:
        pieces.append((f" · ! draft costs {taken.cost_ratio:.0%}", WARN))
    return [*pieces, (f" · with {draft_name(known, taken)}", DIM)]


def _faulty(installed: Installed) -> Row:
    below = ((f"! {_why(installed)}", WARN),)
    return Row(RowKind.MODEL, installed.repository, (formatting.size(installed.size),), below, "✓")


def _why(installed: Installed) -> str:
    """Without the path, which would be all that one sees of it."""
    fault = installed.fault or "What memory it takes cannot be told."
    folder = str(installed.folder)
    return fault.replace(f"{folder}/", "").replace(f"'{folder}'", "Its folder")


def _trashed(each: TrashedModel) -> Row:
    what = "" if each.whole else "older commits, "
    when = f"{each.when.astimezone():%d %b %H:%M}"
    below = ((f"in the trash: {what}since {when}", DIM),)
    return Row(RowKind.TRASH, each.repository, (formatting.size(each.size),), below)


def _unfinished(each: UnfinishedDownload) -> Row:
    share = each.done / each.total if each.total else 0.0
    how = "another specchat fetches it" if each.running else "not finished: ⏎ goes on"
    facts = (f"{formatting.size(each.done)} of {formatting.size(each.total)}",)
    below = ((f"{bar(share)} {formatting.percent(share)} · {how}", DIM),)
    return Row(RowKind.DOWNLOAD, each.repository, facts, below)


def _going(job: Job) -> str:
    progress = job.progress
    share = progress.done / progress.total if progress.total else 0.0
    parts = [f"{bar(share)} {formatting.percent(share)}"]
    if job.state is not JobState.RUNNING:
        return f"{parts[0]} · {job.state}"
    if job.kind is JobKind.CHECK:
        parts.append("checking its files")
    if progress.speed:
        parts.append(f"{formatting.size(int(progress.speed))}/s")
    if progress.seconds_left is not None and progress.done < progress.total:
        parts.append(f"{duration(progress.seconds_left)} left")
    if progress.note:
        parts.append(progress.note)
    return " · ".join(parts)


def _elsewhere(stock: Inventory, words: str, names: set[str]) -> list[Row]:
    """What else can be done with what was typed."""
    rows = []
    if words.startswith(("/", "~", "./", "../")):
        below = (("⏎ adds this folder to your catalogue", DIM),)
        return [Row(RowKind.ADD, words, (), below, "+")]
    if is_repository(words) and words not in names and stock.installed_model(words) is None:
        rows.append(Row(RowKind.FOUND, words, (), (("⏎ asks the hub what it takes", DIM),), "+"))
    if words:
        said = f"Search the hub for '{sanitize_line(words)}'"
        rows.append(Row(RowKind.SEARCH, words, (), (("models made for MLX", DIM),), "?", said))
    return rows
