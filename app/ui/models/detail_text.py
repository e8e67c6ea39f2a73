"""All that is known of one model, as text. No widgets."""

from __future__ import annotations

from textual.content import Content

from app.models.cache import Installed
from app.models.draft_selection import DraftCandidate
from app.models.fit import DEFAULT_KEEP
from app.models.overview import ModelOverview
from app.models.speedup import OVERHEAD
from app.models.text import breakdown_rows, facts, verdict_sentences
from app.ui.models.inventory import Inventory
from app.ui.models.jobs import Job, JobState
from app.ui.models.rows import DIM, WARN, draft_name
from app.util import formatting
from app.util.sanitize import sanitize, sanitize_line

AMOUNT = 9
_EMPTY = Content("")


def model_text(known: ModelOverview, stock: Inventory) -> Content:
    """What it is, the pair it would take, and the sum line by line."""
    model, taken = known.model, known.best_draft
    installed = stock.installed_model(model.name)
    lines = [_bold(model.name), _dim(", ".join(facts(model)))]
    if installed is not None:
        older = (
            f", of which older commits {formatting.size(installed.older)}"
            if installed.older
            else ""
        )
        lines.append(_dim(f"{formatting.size(installed.size)} on the disk{older}"))
        if installed.fault:
            lines.append(_warn(installed.fault))
    elif not model.installed:
        left = f"{formatting.size(stock.free_bytes)} of the disk are free"
        lines.append(_dim(f"{formatting.size(model.size.weight_bytes)} to download; {left}"))
    if model.entry is not None and model.entry.measured:
        lines.append(_dim(f"Measured elsewhere: read sparsely {model.entry.measured}."))
    lines += [_EMPTY, *_drafts(known), _EMPTY]
    lines += [_dim(_title(taken)), *(_sum_line(*row) for row in breakdown_rows(known.fit)), _EMPTY]
    lines += [Content(sentence) for sentence in verdict_sentences(known.fit)]
    return Content("\n").join(lines)


def memory_lines(known: ModelOverview, chosen: DraftCandidate | None) -> list[Content]:
    """The sum of a model with one draft, or alone."""
    found = chosen.fit if chosen else known.alone_fit
    lines = [
        *(_sum_line(*row) for row in breakdown_rows(found)),
        *map(Content, verdict_sentences(found)),
    ]
    if chosen is not None:
        lines += [_warn(note) for note in chosen.notes]
    return lines


def fault_text(name: str, why: str) -> Content:
    return Content("\n").join([_bold(name), _warn(why)])


def download_text(name: str, job: Job | None, told: str) -> Content:
    lines = [_bold(name), Content(sanitize(told))]
    if job is not None and job.state is JobState.FAILED:
        lines = [_bold(name), _warn(job.message)]
    return Content("\n").join(lines)


def _drafts(known: ModelOverview) -> list[Content]:
    if not known.drafts:
        return [_dim("No draft with its tokenizer is known: it reads everything.")]
    lines = []
    for each in known.drafts[:4]:
        where = (
            ""
            if each.draft.installed
            else f", {formatting.size(each.draft.size.weight_bytes)} to download"
        )
        clock = " by the clock" if each.measured else ""
        taken = each is known.best_draft
        line = (
            f"{draft_name(known, each)}: {each.speedup():.1f} times sooner,"
            f" r {each.cost_ratio:.2f}{clock}, together {each.fit.verdict}{where}"
        )
        lines.append(Content.assemble(("▸ " if taken else "  ", WARN), line))
        lines += [_warn(f"  {note}") for note in each.notes]
    lines.append(
        _dim(f"Sooner: the first word at keep {DEFAULT_KEEP:.0%}, 1 / (r + keep + {OVERHEAD:.2f}).")
    )
    return lines


def _older(installed: Installed) -> str:
    return f", of which older commits {formatting.size(installed.older)}" if installed.older else ""


def _title(taken: DraftCandidate | None) -> str:
    return "The memory that the pair takes" if taken else "The memory that it takes alone"


def _sum_line(amount: str, what: str, why: str) -> Content:
    return Content.assemble(f"{amount:>{AMOUNT}}  {what}", (f"  {sanitize_line(why)}", DIM))


def _bold(text: str) -> Content:
    return Content.styled(sanitize_line(text), "bold")


def _dim(text: str) -> Content:
    return Content.styled(sanitize_line(text), DIM)


def _warn(text: str) -> Content:
    return Content.assemble(("! ", WARN), sanitize_line(text.strip()))
