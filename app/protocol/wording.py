"""How a prompt was read, in words: for the screen, the command line and exported conversations."""

from __future__ import annotations

from app.protocol.memory import format_bytes
from app.protocol.prompt import TemplateRule
from app.protocol.stats import Phase, Reading, Statistics
from app.util import formatting

MIN_REUSED_FRACTION = 0.005
"""A smaller share of the prompt, such as the chat template, is not worth a word."""
MIN_PHASE_SECONDS = 0.05
"""Shorter phases are shown without their time."""
PHASES = "Phases"
"""The label of the phases, which the screen shows with marks instead."""

ACTIVITIES = {
    Phase.WAIT: "Waiting for other work to finish",
    Phase.RESTORE: "Loading what was read before",
    Phase.RETRIEVE: "Choosing files",
    Phase.TOKENISE: "Preparing the text",
    Phase.LOAD: "Loading the model",
    Phase.SCORE: "Looking for what matters",
    Phase.LOOKAHEAD: "Looking for what matters",
    Phase.SELECT: "Choosing what to read",
    Phase.DECODE: "Answering",
}
"""What happens in a phase; what PREFILL does depends on how the prompt is read."""
TEMPLATE_RULES = {
    TemplateRule.ALTERNATING: "This model's chat template wants questions and answers to alternate,"
    " so messages of the same role in a row are joined.",
    TemplateRule.SYSTEM_FIRST: "This model's chat template takes a system prompt only at the start,"
    " so a later one is put at the beginning of the question after it.",
    TemplateRule.NO_SYSTEM: "This model's chat template takes no system prompt, so it is put at the"
    " beginning of the question after it.",
    TemplateRule.QUESTION_FIRST: "This model's chat template wants a question first, so an empty"
    " one is put before the answer that begins the conversation.",
}
"""What is said of messages that were rearranged."""
COUNTED = {Phase.RETRIEVE: "files", Phase.SCORE: "tokens", Phase.PREFILL: "tokens"}
"""What is counted while a phase runs."""


def too_long(total: int, model: str, context: int, about: str = "") -> tuple[str, str]:
    """What is wrong with a prompt of `total` tokens that fills the context, and what to do."""
    return (
        f"Question and conversation are {about}{total:,} tokens long, and {model} takes at most"
        f" {context:,}",
        "start a new conversation, or choose a model with a longer context",
    )


def reading_line(statistics: Statistics) -> str:
    """How much was read and how soon the first word came: `Read 4% in 3.2 s`, or `Read 4% (1% new)
    in 0.8 s` where the rest was in the cache before."""
    if statistics.ttft <= 0:
        return "Stopped before the first word"
    amount = read_amount(statistics)
    if statistics.reused_tokens >= MIN_REUSED_FRACTION * statistics.prompt_tokens:
        new = max(0, statistics.read_tokens - statistics.reused_tokens) / statistics.prompt_tokens
        amount += f" ({formatting.percent(new)} new)" if new else " (nothing new)"
    return f"Read {amount} in {formatting.seconds(statistics.ttft)}"


def read_amount(statistics: Statistics) -> str:
    """`4%` or `everything`: how much of the prompt the target knows, read now or before."""
    fraction = formatting.percent(statistics.read_fraction)
    return "everything" if statistics.read_everything else fraction


def unsure_note(statistics: Statistics | None) -> str:
    """What is said of an answer that the model was far less sure of than usual, else nothing."""
    if statistics is None or not statistics.unsure:
        return ""
    return f"Less sure than usual, having read {read_amount(statistics)}"


def activity(phase: Phase | None, reading: Reading | None, share: float | None = None) -> str:
    """What a turn does now. `share` is the part of the prompt that is read, if it is known."""
    if phase is None:
        return "Getting ready"
    if phase is not Phase.PREFILL:
        return ACTIVITIES[phase]
    if reading is Reading.DENSE:
        return "Reading everything"
    return "Reading" if share is None else f"Reading {formatting.percent(share)} of the text"


def reading_details(statistics: Statistics, read_on: int = 0) -> list[tuple[str, str]]:
    """Everything else that is known of a turn: a label and a text for each fact. `read_on` is how
    many passages were read while the answer was written."""
    sparse = statistics.reading is Reading.SPARSE
    read = f"{statistics.read_tokens:,} of {statistics.prompt_tokens:,} tokens"
    rows = [("Read", f"{read}, {'sparse' if sparse else 'in full'}")]
    if statistics.reused_tokens:
        rows.append(reused(statistics.reused_tokens))
    if statistics.recalled_tokens:
        rows.append(("Recalled", f"{statistics.recalled_tokens:,} tokens skipped in earlier turns"))
    if read_on:
        rows.append(("Read on", f"{formatting.plural(read_on, 'passage')} while it wrote"))
    keep = f", keep {formatting.keep(statistics.keep_ratio)}" if sparse else ""
    rows.append(("Mode", f"{statistics.mode}{keep}"))
    if statistics.ttft > 0:
        rows.append(("First word", f"after {formatting.seconds(statistics.ttft)}"))
    rows.append((PHASES, _phase_times(statistics)))
    rows += _answer_details(statistics)
    rows.append(("Memory", f"peak {format_bytes(statistics.peak_bytes)}"))
    rows.append(("Why", statistics.fallback or statistics.reason))
    return [(label, text) for label, text in rows if text or label == PHASES]


def reused(tokens: int) -> tuple[str, str]:
    return "Reused", f"{formatting.plural(tokens, 'token')} that were cached before"


def _answer_details(statistics: Statistics) -> list[tuple[str, str]]:
    wrote = formatting.plural(statistics.generated_tokens, "token")
    if statistics.decode_rate:
        spent = formatting.seconds(statistics.decode_seconds)
        wrote += f" in {spent}, {statistics.decode_rate:.0f} a second"
    rows = [("Answer", wrote)]
    if statistics.proposed_tokens:
        rows.append(("Proposed", _proposals(statistics)))
    if statistics.confidence is not None:
        unsure = ", less than usual for these models" if statistics.unsure else ""
        sure = formatting.percent(statistics.confidence)
        rows.append(("Certainty", f"mean token probability {sure}{unsure}"))
    return rows


def _phase_times(statistics: Statistics) -> str:
    """`tokenise, score 0.8 s, prefill 0.9 s`."""
    return ", ".join(
        f"{part.phase} {formatting.seconds(part.seconds)}"
        if part.seconds >= MIN_PHASE_SECONDS
        else part.phase
        for part in statistics.phases
    )


def _proposals(statistics: Statistics) -> str:
    """How many tokens were proposed, how many were right, and what that made faster."""
    steps = statistics.verified_steps
    text = (
        f"{formatting.plural(statistics.proposed_tokens, 'token')}"
        f" in {formatting.plural(steps, 'step')}:"
        f" {formatting.percent(statistics.accepted_tokens / statistics.proposed_tokens)} right,"
        f" {statistics.accepted_tokens / max(steps, 1):.1f} a step"
    )
    if statistics.is_sped_up:
        text += f"; {statistics.decode_rate:.0f} a second instead of {statistics.plain_rate:.0f}"
    return text
