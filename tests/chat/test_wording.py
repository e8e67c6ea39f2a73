"""How a turn is described: two facts first, everything else on request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.conversation import Question, Turn, TurnState
from app.chat.reading_words import (
    activity,
    advice_after,
    reading_details,
    reading_line,
    unsure_note,
)
from app.chat.turn_progress import TurnProgress
from app.chat.wording import FAILURES, failure, reason, reasons
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.options import Mode
from app.protocol.reasons import Failure, FailureKind, Reason, ReasonCode
from app.protocol.stats import DocumentsRead, Phase, PhaseTime, Reading, Statistics
from tests.tables import table

NAMES = st.sampled_from(
    ["error", "failure", "kind", "data", "names", "keep", "needed", "free", "lost", "reading"]
)
STATISTICS = Statistics(
    reading=Reading.SPARSE,
    mode=Mode.AUTO,
    keep_ratio=0.12,
    reasons=(Reason(ReasonCode.FASTER, {"sparse": 3.2, "full": 41.0}),),
    prompt_tokens=25_000,
    eligible_tokens=24_900,
    read_tokens=1_000,
    reused_tokens=0,
    recalled_tokens=0,
    generated_tokens=61,
    seed=0,
    ttft=3.2,
    phases=(PhaseTime(Phase.TOKENISE, 0.01), PhaseTime(Phase.SCORE, 2.0)),
    decode_seconds=2.0,
    peak_bytes=1 << 30,
)
FULL: dict[str, Any] = {"reading": Reading.DENSE, "read_tokens": 25_000, "ttft": 41.0}
PROPOSED: dict[str, Any] = {"proposed_tokens": 60, "accepted_tokens": 45, "verified_steps": 10}


def documents(**changes: Any) -> dict[str, Any]:
    lease = DocumentsRead("lease.docx", 1, 24_000, 24_000, 960, 960)
    return {"documents": replace(lease, **changes)}


UNSURE = replace(STATISTICS, unsure=True, **documents())
OF_THREE = replace(STATISTICS, **documents(name="", files=3))


@table(
    "changes, line",
    [
        ({}, "Read 4% of the conversation in 3.2 s"),
        ({"read_tokens": 24_999}, "Read 99% of the conversation in 3.2 s"),
        (FULL, "Read everything in 41 s"),
        (documents(), "Read 4% of lease.docx (960 of 24,000 tokens) in 3.2 s"),
        (documents(new=90), "Read 4% of lease.docx (960 of 24,000 tokens, 90 new) in 3.2 s"),
        (documents(new=0), "Read 4% of lease.docx (960 of 24,000 tokens, nothing new) in 3.2 s"),
        (documents(read=24_000, new=24_000), "Read all of lease.docx (24,000 tokens) in 3.2 s"),
        (
            documents(read=23_999),
            "Read 99% of lease.docx (23,999 of 24,000 tokens, 960 new) in 3.2 s",
        ),
        (
            documents(tokens=1_234_567),
            "Read <1% of lease.docx (960 of about 1,230,000 tokens) in 3.2 s",
        ),
        (
            FULL | documents(tokens=96_480, read=24_000, new=24_000),
            "Read 25% of lease.docx (24,000 of about 96,500 tokens) in 41 s",
        ),
        (documents(name="", files=3), "Read 4% of 3 documents (960 of 24,000 tokens) in 3.2 s"),
        (
            documents(name="src/", files=1_337),
            "Read 4% of 1,337 files in src/ (960 of 24,000 tokens) in 3.2 s",
        ),
        ({"ttft": 0.0, "read_tokens": 300}, "Stopped before the first word"),
    ],
)
def test_the_line_says_how_much_was_read_and_how_soon_the_first_word_came(
    changes: dict[str, Any], line: str
) -> None:
    assert reading_line(replace(STATISTICS, **changes)) == line


def test_only_an_unsure_answer_has_a_note() -> None:
    assert unsure_note(None) == unsure_note(STATISTICS) == ""
    unsure = replace(STATISTICS, unsure=True)
    assert unsure_note(unsure) == "The model was unsure after reading 4% of the conversation"
    unsure = replace(unsure, **documents())
    assert unsure_note(unsure) == "The model was unsure after reading 4% of lease.docx"


CITED = Citations((Citation(CitationKind.QUOTATION, 0, 5, 0, 0, 0, 5),))


@table(
    "changes, advice",
    [
        ({"citations": Citations((), 1)}, "ask in the document's words"),
        ({"citations": CITED}, ""),
        ({"citations": None}, ""),  # not looked for
        ({"citations": None, "quotes": True}, "ask in the document's words"),  # nothing to quote
        ({"citations": Citations(), "text": ""}, ""),
        ({"citations": Citations(), "state": TurnState.STOPPED}, ""),
        ({"citations": Citations(), "question": Question("How many clauses are there?")}, ""),
        ({"citations": CITED, "statistics": UNSURE}, "ask in the document's words"),
        ({"citations": Citations(), "statistics": STATISTICS}, ""),  # no document
        ({"citations": Citations(), "statistics": OF_THREE}, "ask in the documents' words"),
    ],
)
def test_a_poor_answer_has_advice(changes: dict[str, Any], advice: str) -> None:
    answered = Turn(1, Question("Who pays?"), TurnState.DONE, "The tenant.")
    answered.statistics = replace(STATISTICS, **documents())
    for name, value in changes.items():
        setattr(answered, name, value)
    assert advice_after(answered) == advice


def test_the_details_have_a_label_and_a_text_for_each_fact() -> None:
    known = replace(STATISTICS, reused_tokens=750, recalled_tokens=40, confidence=0.926, **PROPOSED)
    assert reading_details(known, read_on=2) == [
        ("Read", "1,000 of 25,000 tokens, sparse"),
        ("Reused", "750 tokens from the cache"),
        ("Read now", "40 tokens that earlier questions skipped"),
        ("Also read", "2 passages while answering"),
        ("Mode", "auto, keep 12%"),
        ("First word", "after 3.2 s"),
        ("Phases", "prepare text, score 2.0 s"),
        ("Answer", "61 tokens in 2.0 s, 30 a second"),
        ("Speculated", "60 tokens, 75% correct (4.5 per step)"),
        ("Certainty", "mean token probability 93%"),
        ("Memory", "peak 1 GB"),
        ("Why", "A sparse read is expected to take 3.2 s, a full read 41 s."),
    ]


def test_unknown_facts_have_no_line() -> None:
    labels = {label for label, _ in reading_details(replace(STATISTICS, ttft=0.0))}
    assert labels == {"Read", "Mode", "Phases", "Answer", "Memory", "Why"}


def test_a_failure_of_sparse_reading_is_the_reason() -> None:
    failed = Reason(ReasonCode.SPARSE_FAILED, {"error": "no draft"})
    why = dict(reading_details(replace(STATISTICS, **FULL, fallback=failed)))["Why"]
    assert why == (
        "Sparse reading failed (no draft), so everything is read. If this happens again, choose"
        " other models (in the app: Ctrl+L)."
    )


@pytest.mark.parametrize(
    ("plain_rate", "faster"),
    [
        (12.0, "; 30 tokens a second instead of 12"),
        (29.0, ""),  # as fast, up to noise
        (0.0, ""),  # hardly any were written one at a time
    ],
)
def test_a_speed_gain_is_shown_only_if_there_was_one(plain_rate: float, faster: str) -> None:
    rows = dict(reading_details(replace(STATISTICS, plain_rate=plain_rate, **PROPOSED)))
    assert rows["Speculated"] == f"60 tokens, 75% correct (4.5 per step){faster}"


def test_activities_are_named_in_plain_words() -> None:
    state = TurnProgress(0.2)
    assert activity(None, state) == "Preparing"
    assert activity(Phase.SCORE, state) == "Scoring the text"
    assert activity(Phase.PREFILL, state) == "Reading"
    state.statistics = replace(STATISTICS, **FULL)
    assert activity(Phase.PREFILL, state) == "Reading everything"
    state.statistics = replace(STATISTICS, **documents())
    assert activity(Phase.PREFILL, state) == "Reading 4% of lease.docx"
    for phase in Phase:
        assert activity(phase, state)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@given(data=st.dictionaries(NAMES, plain, max_size=4))
def test_damaged_data_still_give_a_sentence(data: dict[str, Any]) -> None:
    for kind in FailureKind:
        assert isinstance(failure(Failure(kind, data)).text, str)
    for code in ReasonCode:
        assert reason(Reason(code, data))


DATA: dict[str, Any] = {
    "error": "no route",
    "system": "Impacting Interactivity",
    "lost": Failure(FailureKind.MACHINE_LOST, {"machine": "studio", "error": "gone"}).to_plain(),
    "rule": "no system",
    "names": ["top_k"],
    "estimated": True,
    "timed": False,
    "all": True,
    "saved": True,
    **dict.fromkeys(("model", "machine", "folder", "package", "own", "other", "words"), "name"),
    **dict.fromkeys(("problem", "advice", "instead", "keys"), "name"),
    **dict.fromkeys(("keep", "wanted", "share", "change", "sparse", "full", "seconds"), 0.5),
    **dict.fromkeys(("tokens", "context", "highest", "letters", "bits", "layers", "machines"), 5),
    **dict.fromkeys(("cached", "reading", "needed", "free", "freed", "used", "ceiling"), 5),
    "rate": 5,
}


def test_every_code_has_its_words() -> None:
    """With all of its data none falls back to its name."""
    assert failure(Failure(FailureKind.NO_WORKER, {})).problem == "No worker"
    for kind in FailureKind:
        words = failure(Failure(kind, DATA))
        for text, known in zip(words, FAILURES[kind], strict=True):
            assert text == known or text not in ("", kind.replace("_", " ").capitalize()), kind
    for code in ReasonCode:
        said = reason(Reason(code, DATA))
        assert said != code.replace("_", " ").capitalize(), code
        if code not in (ReasonCode.MEMORY_SHARE, ReasonCode.SWAPPING, ReasonCode.OTHER_PROGRAMS):
            assert said.endswith((".", "!")), said


def test_a_shortage_of_memory_says_what_would_fit() -> None:
    data = {"reading": 12_000, "needed": 8 << 30, "free": 5 << 30}
    options = {"sparse": True, "keep": 12, "full_tokens": 4_000}
    assert failure(Failure(FailureKind.NOT_ENOUGH_MEMORY, data | options)).sentence == (
        "Reading 12,000 tokens needs about 8 GB, but only 5 GB is free: read less"
        " (keep 12% or less), or attach less (up to 4,000 tokens can be read in full), or"
        " close other programs, or choose a smaller model."
    )
    only_sparse = reason(Reason(ReasonCode.ONLY_SPARSE_FITS, data))
    assert only_sparse.endswith("but only 5 GB is free, so only a part is read.")


def test_the_chosen_keep_is_shown_with_its_limit() -> None:
    chosen = Reason(ReasonCode.KEEP_CHOSEN, {"keep": 0.12})
    limited = Reason(ReasonCode.KEEP_LIMITED, {"wanted": 0.12, "keep": 0.05, "timed": True})
    assert reasons((chosen, limited)) == (
        "Keep 12% was chosen from the scores. The scores call for keep 12%, but the time limit you"
        " set allows only 5%."
    )
