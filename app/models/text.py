"""What is known of a model and of a sum, in the words that the shell and the screen share."""

from __future__ import annotations

from app.models.fit import KEEP, LEAST, Fit, Machine, tokens_text
from app.models.model_info import Described
from app.protocol.memory import format_bytes


def facts(model: Described) -> list[str]:
    """Architecture, parameters, quantisation, context and licence, as far as they are known."""
    shape = model.sized.shape
    billions = f"{shape.parameters / 1e9:,.1f} billion parameters"
    if shape.parameters < 50_000_000:
        billions = f"{shape.parameters / 1e6:,.1f} million parameters"
    active = shape.active + shape.vocabulary * shape.hidden
    if active < 0.7 * shape.parameters:
        billions += f", {active / 1e9:,.1f} active"
    found = [shape.architecture, billions]
    if model.quantised:
        found.append(model.quantised)
    if shape.context:
        found.append(f"{tokens_text(shape.context)} context")
    if model.entry is not None and model.entry.licence:
        found.append(model.entry.licence)
    return found


def sum_rows(found: Fit) -> list[tuple[str, str, str]]:
    """The sum line by line: an amount, of what, and why."""
    rows = [(format_bytes(line.bytes), line.what, line.why) for line in found.lines]
    rows.append((format_bytes(found.total), "together", f"at {found.tokens:,} tokens"))
    most = f"of {heading(found.machine)}, a tenth stays free"
    rows.append((format_bytes(found.machine.room), "at most", most))
    return rows


def sum_verdict(found: Fit) -> list[str]:
    """What the sum comes to, in sentences."""
    if not found.longest:
        verdicts = [f"Too big: not even {LEAST:,} tokens fit."]
    else:
        verdicts = [f"Fits {tokens_text(found.longest)} tokens, read in full."]
    if found.sparse > found.longest:
        verdicts.append(
            f"As long as at most {KEEP:.0%} are read, {tokens_text(found.sparse)} tokens fit; one"
            " that is read in full then does not."
        )
    return verdicts


def heading(machine: Machine) -> str:
    """What models may take of it; `docs/memory.md` says how that is known."""
    return f"{format_bytes(machine.ceiling)} for models on a machine with {machine.total >> 30} GB"


def gigabytes(count: int) -> str:
    """Of files and downloads, as systems show them: decimal. Memory is `memory_size`."""
    return f"{count / 1e9:.1f} GB"
