"""Texts about models and memory for the command line and the screen."""

from __future__ import annotations

from app.chat.wording import ignored_values
from app.models.fit import MIN_TOKENS, Fit, Machine, format_tokens
from app.models.library import ModelDetails
from app.protocol.generation_config import describe_sampling
from app.protocol.memory import format_bytes
from app.protocol.options import DEFAULT_KEEP_RATIO


def facts(model: ModelDetails) -> list[str]:
    """Model type, parameters, quantisation, context and licence, as far as known."""
    shape = model.size.architecture
    billions = f"{shape.parameters / 1e9:,.1f} billion parameters"
    if shape.parameters < 50_000_000:
        billions = f"{shape.parameters / 1e6:,.1f} million parameters"
    active = shape.active_parameters + shape.vocab_size * shape.hidden_size
    if active < 0.7 * shape.parameters:
        billions += f", {active / 1e9:,.1f} active"
    parts = [shape.model_type, billions]
    if model.quantised:
        parts.append(model.quantised)
    if shape.context:
        parts.append(f"{format_tokens(shape.context)} context")
    if model.entry is not None and model.entry.licence:
        parts.append(model.entry.licence)
    return parts


def sampling_lines(model: ModelDetails) -> list[str]:
    """Sentences about an installed model's recommended sampling, and about ignored values."""
    if model.sampling is None:
        return []
    lines = [f"Sampling by default: {describe_sampling(model.sampling)}."]
    if model.sampling.ignored:
        lines.append(ignored_values(model.sampling.ignored))
    return lines


def breakdown_rows(estimate: Fit) -> list[tuple[str, str, str]]:
    """The memory estimate as rows: amount, label, explanation."""
    rows = [(format_bytes(line.bytes), line.label, line.explanation) for line in estimate.items]
    rows.append((format_bytes(estimate.total), "total", f"at {estimate.tokens:,} tokens"))
    most = f"{memory_heading(estimate.machine)}, a tenth of it stays free"
    rows.append((format_bytes(estimate.machine.budget), "limit", most))
    return rows


def verdict_sentences(estimate: Fit) -> list[str]:
    """The conclusion of a memory estimate."""
    if not estimate.max_tokens:
        verdicts = [f"Too big: not even {MIN_TOKENS:,} tokens fit."]
    else:
        verdicts = [f"Fits {format_tokens(estimate.max_tokens)} tokens when read in full."]
    if estimate.max_sparse_tokens > estimate.max_tokens:
        verdicts.append(
            f"When read sparsely at keep {DEFAULT_KEEP_RATIO:.0%} or less,"
            f" {format_tokens(estimate.max_sparse_tokens)} tokens fit."
        )
    return verdicts


def memory_heading(machine: Machine) -> str:
    """A clause about the memory that models may use; see `docs/memory.md`."""
    return f"models may use {format_bytes(machine.ceiling)} of {machine.total >> 30} GB"
