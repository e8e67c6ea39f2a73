"""How a turn is read, in words: what it does, how much of the documents it read, and details."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.chat import wording
from app.chat.conversation import Turn, TurnState
from app.chat.turn_progress import TurnProgress
from app.estimate.guard import asks_for_every_token
from app.protocol.events import PhaseProgress
from app.protocol.memory import format_bytes
from app.protocol.stats import DocumentsRead, FinishReason, Phase, Reading, Statistics
from app.util import formatting

MAX_NAME = 40
"""Longer names of documents are shortened in sentences."""
MIN_PHASE_SECONDS = 0.05
"""Shorter phases are shown without their time."""
PHASES = "Phases"
"""Label of the row of phases. On the screen, marks show which phases are finished."""

ACTIVITIES = {
    Phase.WAIT: "Waiting for other work to finish",
    Phase.RESTORE: "Loading what was read before",
    Phase.RETRIEVE: "Choosing parts",
    Phase.TOKENISE: "Preparing the text",
    Phase.LOAD: "Loading the model",
    Phase.SCORE: "Scoring the text",
    Phase.LOOKAHEAD: "Scoring the text",
    Phase.SELECT: "Selecting passages",
    Phase.DECODE: "Answering",
}
"""What a turn is doing in each phase. PREFILL is missing: its text depends on how the prompt is
read (see `activity`)."""
PHASE_NAMES = {
    Phase.WAIT: "wait",
    Phase.RESTORE: "load cache",
    Phase.RETRIEVE: "choose parts",
    Phase.TOKENISE: "prepare text",
    Phase.LOAD: "load model",
    Phase.SCORE: "score",
    Phase.LOOKAHEAD: "look ahead",
    Phase.SELECT: "select",
    Phase.PREFILL: "read",
    Phase.DECODE: "answer",
}
"""Names of the phases in the details."""
COUNTED = {Phase.SCORE: "tokens", Phase.PREFILL: "tokens"}
"""The unit of the progress of a phase. That of RETRIEVE is a percentage; other phases have none."""


def reading_line(statistics: Statistics) -> str:
    """How much was read and how soon the first word came: `Read 4% of lease.docx (500 of 12,500
    tokens, 120 new) in 3.2 s`."""
    return reading_lines(statistics)[0]


def reading_lines(statistics: Statistics) -> list[str]:
    """`reading_line`, and shorter forms of it."""
    if statistics.ttft <= 0:
        return ["Stopped before the first word"]
    amount, after = read_amount(statistics), f" in {formatting.seconds(statistics.ttft)}"
    if (found := statistics.documents) is None:
        return [f"Read {amount}{after}"]
    forms = [amount, formatting.percent(found.fraction)]
    for number in (formatting.short_count, formatting.count):
        new = f", {number(found.new) if found.new else 'nothing'} new"
        some = new if found.new < found.read else ""
        forms.insert(0, f"{amount} ({counts(found, number)}{some})")
    return [f"Read {each}{after}" for each in forms]


def read_amount(statistics: Statistics) -> str:
    """How much of the documents, or without documents of the conversation, this turn or earlier
    ones read: `4% of lease.docx`, `all of 3 documents`, `everything`."""
    if statistics.documents is not None:
        return share_of(statistics.documents)
    if statistics.read_everything:
        return "everything"
    return f"{formatting.percent(statistics.prompt_fraction)} of the conversation"


def share_of(documents: DocumentsRead) -> str:
    share = "all" if documents.read >= documents.tokens else formatting.percent(documents.fraction)
    return f"{share} of {_whole(documents)}"


def _whole(documents: DocumentsRead) -> str:
    """`policy.pdf`, `1,337 files in django/` or `3 documents`."""
    if documents.files == 1:
        return formatting.shortened(documents.name, MAX_NAME)
    if not documents.name:
        return formatting.plural(documents.files, "document")
    return f"{formatting.plural(documents.files, 'file')} in {documents.name}"


def counts(documents: DocumentsRead, number: Callable[[int], str] = formatting.count) -> str:
    """`2,192 of about 126,000 tokens`."""
    tokens, about = documents.tokens, ""
    if documents.chosen < tokens:  # an estimate
        tokens, about = round(tokens, 3 - len(str(tokens))), "about "
    read = "" if documents.read >= documents.tokens else f"{number(documents.read)} of {about}"
    return f"{read}{number(tokens)} token{'' if tokens == 1 else 's'}"


def chosen(documents: DocumentsRead, tokens: int, files: int, stands_out: bool = True) -> str:
    """What was chosen for a question, because not all fits in the context."""
    what = counts(replace(documents, read=tokens))
    if documents.files == 1:
        return f"{documents.name} is longer than the context: {what} were chosen"
    if not stands_out:
        return f"No file stands out: {files:,} of {documents.files:,} files were chosen ({what})"
    return f"{files:,} of {documents.files:,} files fit this question ({what})"


def unsure_note(statistics: Statistics | None) -> str:
    """A note for an answer that the model was far less sure of than usual; otherwise empty."""
    if statistics is None or not statistics.unsure:
        return ""
    return f"The model was unsure after reading {read_amount(statistics)}"


def advice_after(turn: Turn) -> str:
    """How to ask again after an answer that may be wrong: the model was unsure, or nothing that was
    read says the same. Empty for other answers, and for questions that need the whole text, which
    other words do not help."""
    statistics, found = turn.statistics, turn.citations
    complete = turn.state is TurnState.DONE and turn.ended in (None, FinishReason.STOP)
    if not complete or statistics is None or statistics.documents is None:
        return ""
    looked_for = turn.quotes if found is None else not found.found
    uncited = looked_for and bool(turn.text) and not asks_for_every_token(turn.question.text)
    if not uncited and not statistics.unsure:
        return ""
    whose = "document's" if statistics.documents.files == 1 else "documents'"
    return f"ask in the {whose} words"


def activity(phase: Phase | None, state: TurnProgress) -> str:
    """What a turn is doing."""
    if phase is None:
        return "Preparing"
    if phase is Phase.RETRIEVE and state.retrieving is not None:
        return f"Choosing parts of {_whole(state.retrieving)}"
    return f"Reading {share_read(state)}".rstrip() if phase is Phase.PREFILL else ACTIVITIES[phase]


def amount_done(progress: PhaseProgress) -> str:
    """`1.2K/8K tokens`, or `40%` of choosing parts; empty for phases that are not counted."""
    if not progress.total:
        return ""
    if progress.phase is Phase.RETRIEVE:
        return formatting.percent(progress.done / progress.total)
    done = formatting.progress(progress.done, progress.total)
    return f"{done} {COUNTED[progress.phase]}" if progress.phase in COUNTED else ""


def share_read(state: TurnProgress) -> str:
    """`2% of policy.pdf`: how much a turn reads; empty until it is known."""
    if state.documents is not None:
        return share_of(state.documents)
    if state.reading is Reading.DENSE:
        return "everything"
    if (selected := state.selected) is None:
        return ""
    if selected.selected_tokens >= selected.prompt_tokens:
        return "everything"
    share = formatting.percent(selected.selected_tokens / selected.prompt_tokens)
    return f"{share} of the conversation"


def reading_details(statistics: Statistics, read_on: int = 0) -> list[tuple[str, str]]:
    """All other facts about a turn, each a label and a text. `read_on` is the number of passages
    that were read while the answer was written."""
    sparse = statistics.reading is Reading.SPARSE
    rows = [("Read", f"{_read(statistics)}, {'sparse' if sparse else 'in full'}")]
    if statistics.reused_tokens:
        rows.append(reused(statistics.reused_tokens))
    if statistics.recalled_tokens:
        skipped = formatting.plural(statistics.recalled_tokens, "token")
        rows.append(("Read now", f"{skipped} that earlier questions skipped"))
    if read_on:
        rows.append(("Also read", f"{formatting.plural(read_on, 'passage')} while answering"))
    keep = f", keep {formatting.keep(statistics.keep_ratio)}" if sparse else ""
    rows.append(("Mode", f"{statistics.mode}{keep}"))
    if statistics.ttft > 0:
        rows.append(("First word", f"after {formatting.seconds(statistics.ttft)}"))
    rows.append((PHASES, _phase_times(statistics)))
    rows += _answer_details(statistics)
    rows.append(("Memory", f"peak {format_bytes(statistics.peak_bytes)}"))
    fallback = statistics.fallback
    why = statistics.reasons if fallback is None else [fallback]
    rows.append(("Why", wording.reasons(why)))
    return [(label, text) for label, text in rows if text or label == PHASES]


def _read(statistics: Statistics) -> str:
    """`2,192 of about 126,000 tokens (32,215 were chosen for this question)`."""
    documents = statistics.documents
    if documents is None:
        return f"{statistics.read_tokens:,} of {statistics.prompt_tokens:,} tokens"
    if documents.chosen == documents.tokens:
        return counts(documents)
    return f"{counts(documents)} ({documents.chosen:,} were chosen for this question)"


def reused(tokens: int) -> tuple[str, str]:
    return "Reused", f"{formatting.plural(tokens, 'token')} from the cache"


def _answer_details(statistics: Statistics) -> list[tuple[str, str]]:
    wrote = formatting.plural(statistics.generated_tokens, "token")
    if statistics.decode_rate:
        spent = formatting.seconds(statistics.decode_seconds)
        wrote += f" in {spent}, {statistics.decode_rate:.0f} a second"
    rows = [("Answer", wrote)]
    if statistics.proposed_tokens:
        rows.append(("Speculated", _speculated(statistics)))
    if statistics.confidence is not None:
        unsure = ", less than usual for these models" if statistics.unsure else ""
        sure = formatting.percent(statistics.confidence)
        rows.append(("Certainty", f"mean token probability {sure}{unsure}"))
    return rows


def _phase_times(statistics: Statistics) -> str:
    """`prepare text, score 0.8 s, read 0.9 s`."""
    return ", ".join(
        f"{PHASE_NAMES[part.phase]} {formatting.seconds(part.seconds)}"
        if part.seconds >= MIN_PHASE_SECONDS
        else PHASE_NAMES[part.phase]
        for part in statistics.phases
    )


def _speculated(statistics: Statistics) -> str:
    """How many tokens were proposed and accepted, and the speed gained: `120 tokens, 75% correct
    (2.3 per step); 31 tokens a second instead of 20`."""
    text = (
        f"{formatting.plural(statistics.proposed_tokens, 'token')},"
        f" {formatting.percent(statistics.accepted_tokens / statistics.proposed_tokens)} correct"
        f" ({statistics.accepted_tokens / max(statistics.verified_steps, 1):.1f} per step)"
    )
    if statistics.is_sped_up:
        rate, plain = statistics.decode_rate, statistics.plain_rate
        text += f"; {rate:.0f} tokens a second instead of {plain:.0f}"
    return text
