"""What is known of a model and of a sum, in the words that the shell and the screen share."""

from __future__ import annotations

from app.models.fit import DEFAULT_KEEP, MIN_TOKENS, Fit, Machine, format_tokens
from app.models.model_details import ModelDetails
from app.protocol.memory import format_bytes


def facts(model: ModelDetails) -> list[str]:
    """Architecture, parameters, quantisation, context and licence, as far as they are known."""
    shape = model.size.architecture
    billions = f"{shape.parameters / 1e9:,.1f} billion parameters"
    if shape.parameters < 50_000_000:
        billions = f"{shape.parameters / 1e6:,.1f} million parameters"
    active = shape.active_parameters + shape.vocab_size * shape.hidden_size
    if active < 0.7 * shape.parameters:
        billions += f", {active / 1e9:,.1f} active"
    found = [shape.model_type, billions]
    if model.quantised:
        found.append(model.quantised)
    if shape.context:
        found.append(f"{format_tokens(shape.context)} context")
    if model.entry is not None and model.entry.licence:
        found.append(model.entry.licence)
    return found


def breakdown_rows(found: Fit) -> list[tuple[str, str, str]]:
    """The sum line by line: an amount, of what, and why."""
    rows = [(format_bytes(line.bytes), line.label, line.explanation) for line in found.items]
    rows.append((format_bytes(found.total), "together", f"at {found.tokens:,} tokens"))
    most = f"{memory_heading(found.machine)}, a tenth of it stays free"
    rows.append((format_bytes(found.machine.budget), "at most", most))
    return rows


def verdict_sentences(found: Fit) -> list[str]:
    """What the sum comes to, in sentences."""
    if not found.max_tokens:
        verdicts = [f"Too big: not even {MIN_TOKENS:,} tokens fit."]
    else:
        verdicts = [f"Fits {format_tokens(found.max_tokens)} tokens, read in full."]
    if found.max_sparse_tokens > found.max_tokens:
        verdicts.append(
            f"As long as at most {DEFAULT_KEEP:.0%} are read,"
            f" {format_tokens(found.max_sparse_tokens)} tokens fit; one that is read in full then"
            " does not."
        )
    return verdicts


def memory_heading(machine: Machine) -> str:
    """What models may take of it; `docs/memory.md` says how that is known."""
    return f"models may use {format_bytes(machine.ceiling)} of {machine.total >> 30} GB"


def gigabytes(count: int) -> str:
    """Of files and downloads, as systems show them: decimal. Memory is `memory_size`."""
    return f"{count / 1e9:.1f} GB"
