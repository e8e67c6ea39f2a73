"""The panel's lines as functions of state and width: no app, no clock."""

from __future__ import annotations

import itertools
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import heatmap, wording
from app.chat.conversation import TurnState
from app.chat.turn_progress import TurnProgress
from app.protocol.commands import Ask
from app.protocol.events import Finished, Planned, Selected, Token
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Message, Role, Span, SpanReason
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import DocumentsRead, FinishReason, Phase, PhaseTime, Reading, Statistics
from app.ui.transcript.panel import LABEL_WIDTH, Viewport, panel_lines, would_read
from app.util import formatting
from tests.fakes import ANSWER, FakeEngine, Story, fell_back
from tests.tables import slow, table

STATISTICS = Statistics(
    reading=Reading.SPARSE,
    mode=Mode.SPARSE,
    keep_ratio=0.2,
    reasons=(Reason(ReasonCode.SPARSE_REQUESTED, {"keep": 0.2}),),
    prompt_tokens=8_651,
    eligible_tokens=8_600,
    read_tokens=1_730,
    reused_tokens=0,
    recalled_tokens=0,
    generated_tokens=63,
    seed=0,
    ttft=1.9,
    phases=(PhaseTime(Phase.SCORE, 0.8), PhaseTime(Phase.PREFILL, 0.9)),
    decode_seconds=2.0,
    peak_bytes=10**9,
)
POLICY = DocumentsRead("policy.pdf", 1, 126_317, 32_215, 2_192, 2_192)


def asked(
    story: Story, keep: float = 0.2, mode: Mode = Mode.AUTO, stepping: bool = True
) -> tuple[TurnProgress, FakeEngine]:
    progress, engine = TurnProgress(keep), FakeEngine(story, stepping=stepping)
    message = Message(Role.USER, "What? " * 5000)
    engine.ask(Ask((message,), mode, keep), lambda event: progress.apply(event, 1.0))
    return progress, engine


def drawn(progress: TurnProgress, width: int = 120, details: bool = True) -> str:
    lines = panel_lines(progress, Viewport(width, 1.0), details)
    return "\n".join(line.plain for line in lines)


def answered(**changes: Any) -> TurnProgress:
    progress = TurnProgress(0.2)
    statistics = replace(STATISTICS, **changes)
    progress.apply(Finished(1, FinishReason.STOP, "Yes.", (1,), statistics), 5.0)
    return progress


def test_after_the_answer_one_line_says_how_much_was_read_and_names_keys_where_they_fit() -> None:
    keys = ("^S what was read", "^R read in full")

    def line(width: int) -> str:
        (only,) = panel_lines(answered(documents=POLICY), Viewport(width, 1.0), False, keys)
        return only.plain

    assert (
        line(120).split("  ")[0]
        == "▸ Read 2% of policy.pdf (2,192 of about 126,000 tokens) in 1.9 s"
    )
    assert line(120).endswith("  ^S what was read · ^R read in full")
    assert line(80).split("  ")[0] == "▸ Read 2% of policy.pdf (2.2K of about 126K tokens) in 1.9 s"
    assert line(80).endswith("  ^R read in full")
    assert line(52).split("  ")[0] == "▸ Read 2% of policy.pdf in 1.9 s"
    assert line(52).endswith("  ^R read in full")
    assert line(34) == "▸ Read 2% of policy.pdf in 1.9 s"
    assert line(24) == "▸ Read 2% in 1.9 s"


def test_how_sure_the_model_was_is_among_the_details() -> None:
    assert "Certainty   mean token probability 93%" in drawn(answered(confidence=0.926))
    assert "Certainty" not in drawn(answered(confidence=None))
    assert "Certainty" not in drawn(answered(confidence=0.926), details=False)


@given(st.integers(30, 120))
def test_a_reason_is_wrapped_beside_its_label(width: int) -> None:
    little = Reason(ReasonCode.LITTLE_SAVED, {"sparse": 3.2, "full": 3.4})
    _, after = drawn(answered(reasons=(little,)), width).split("Why")
    first, *others = after.splitlines()
    assert all(line.startswith(" " * (2 + LABEL_WIDTH)) for line in others)
    assert " ".join(" ".join([first, *others]).split()) == wording.reason(little)


def test_another_keep_is_shown_with_what_auto_selects() -> None:
    progress, engine = asked(Story(), AUTO_KEEP, Mode.SPARSE)
    engine.advance_to(lambda event: isinstance(event, Planned))
    assert "sparse, keep auto" in drawn(progress)
    engine.finish()
    assert "keep 20%" in drawn(progress)
    assert progress.selected is not None
    assert would_read(replace(progress.selected, auto_keep=0.0312)).endswith("; auto 3%")


def test_almost_all_is_not_all() -> None:
    assert formatting.percent(0.9999) == "99%"
    assert formatting.percent(1.0) == "100%"
    assert formatting.percent(0.0001) == "<1%"


@table(
    "number, text",
    [(999, "999"), (8_700, "8.7K"), (118_204, "118K"), (596_000_000, "596M"), (8.19e9, "8.2B")],
)
def test_short_counts(number: int, text: str) -> None:
    assert formatting.short_count(number) == text


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 200))
def test_resampling_keeps_the_highest_and_the_width(buckets: list[float], width: int) -> None:
    cells = heatmap.resample(buckets, width)
    assert len(cells) == width
    assert max(cells) == max(buckets)


def test_a_bucket_that_was_not_scored_is_not_a_low_one() -> None:
    assert heatmap.heat_row([1.0, 0.0], 2, complete=False) == "█·"
    assert heatmap.heat_row([1.0, 0.0], 2, complete=True) == "█▁"


def test_the_span_row_shows_selected_partly_selected_pinned_and_skipped() -> None:
    spans = (
        Span(0, 10, SpanReason.PINNED),
        Span(20, 30, SpanReason.IMPORTANT, 2.0),
        Span(32, 34, SpanReason.IMPORTANT, 2.0),
        Span(44, 45, SpanReason.NEEDED_LATER, 2.0),
    )
    assert heatmap.span_row(spans, 60, 6) == "═ ▄▂◆ "


@given(
    st.lists(st.tuples(st.integers(0, 999), st.integers(1, 200)), max_size=12),
    st.integers(1, 150),
)
def test_the_span_row_marks_exactly_the_cells_that_hold_something_kept(
    pieces: list[tuple[int, int]], width: int
) -> None:
    spans = [
        Span(start, min(1000, start + length), SpanReason.IMPORTANT) for start, length in pieces
    ]
    row = heatmap.span_row(spans, 1000, width)
    assert len(row) == width
    for cell, mark in enumerate(row):
        left, right = cell * 1000 / width, (cell + 1) * 1000 / width
        overlap = max((min(s.end, right) - max(s.start, left) for s in spans), default=0.0)
        if abs(overlap) > 1e-6:
            assert (mark != heatmap.SKIPPED) == (overlap > 0)


@pytest.mark.parametrize(
    ("answer", "widths"), [("It is so.", (30, 56, 116)), slow(ANSWER, (30, 52, 56, 73, 116, 200))]
)
def test_no_line_is_ever_wider_than_the_panel(answer: str, widths: tuple[int, ...]) -> None:
    """At every event of a turn, with and without details."""
    for changes in (
        {},
        {"falls_back": "The draft ran out of memory after 50,000 tokens, and said no more."},
        {"fails_in": Phase.SCORE},
        {"prompt_tokens": 118_204, "reused_tokens": 2_048},
        {"read_on": 4},
    ):
        progress, engine = asked(Story(answer=answer, **changes))  # type: ignore[arg-type]
        while engine.advance() is not None:
            for width, details in itertools.product(widths, (False, True)):
                view = Viewport(width, 1.0)
                lines = panel_lines(progress, view, details, ("^S what was read",))
                assert all(line.cell_length <= width for line in lines), (changes, width)


def test_a_hypothetical_selection_is_not_shown_as_what_was_read() -> None:
    progress, _ = asked(Story(cached=True), 0.1, Mode.SPARSE, stepping=False)
    text = drawn(progress)
    for words in (
        "Read everything",
        "importance",
        "10% · ",
        "what keep 10% would select; everything",
    ):
        assert words in text
    assert "partly selected" not in text


def test_what_is_read_while_the_answer_is_written_is_shown_at_once() -> None:
    progress, engine = asked(Story(read_on=2), 0.1, Mode.SPARSE)
    engine.advance_to(lambda event: isinstance(event, Token))
    assert "more passage" not in drawn(progress, details=False)
    for read in ("1 passage", "2 passages"):
        engine.advance_to(lambda event: isinstance(event, Selected))
        assert f"% of the conversation read and {read.replace(' ', ' more ')}" in drawn(
            progress, details=False
        )
        assert heatmap.READ_ON in drawn(progress, details=False)
    engine.finish()
    assert "Also read   2 passages while answering" in drawn(progress)
    assert "◆ read while answering" in drawn(progress)


def test_the_phases_in_words() -> None:
    progress, engine = asked(Story())
    engine.advance_to(lambda event: isinstance(event, Token))
    assert "prepare text" not in drawn(progress, details=False)
    for width in (40, 80, 120):
        text = drawn(progress, width)
        for words in (
            "✓ prepare text",
            "✓ score 7.5K tokens 0.8 s",
            "✓ read",
            "▶ answer",
            "selected · ",
        ):
            assert words in text
    engine.advance_to(lambda event: isinstance(event, Finished))
    assert len(panel_lines(progress, Viewport(120, 1.0))) == 1


@table("width", [38, 58, 78, 98])
def test_while_it_reads_one_line_says_what_it_does_and_when_the_first_word_comes(
    width: int,
) -> None:
    progress, engine = asked(Story())
    seen = {}
    while not progress.finished:
        head, *strips = panel_lines(progress, Viewport(width, 1.0))
        if progress.running_phase in (Phase.SCORE, Phase.PREFILL):
            seen[progress.running_phase] = head.plain
        assert not any(mark in "".join(s.plain for s in strips) for mark in "✓▶")
        engine.advance()
    assert seen[Phase.SCORE].startswith("▶ Scoring the text")
    assert seen[Phase.PREFILL].startswith("▶ Reading 2")
    for line in seen.values():
        assert re.search(r" in [\d.]+ s$" if width > 40 else r"[\d.]+ s$", line)


def stored(state: TurnState, text: str, *phases: Phase, **changes: Any) -> str:
    """The phases of an answer of an earlier start, as its opened panel shows them."""
    known = {field.name: getattr(STATISTICS, field.name) for field in fields(Statistics)}
    known |= {"phases": tuple(PhaseTime(phase, 0.5) for phase in phases), **changes}
    ended = FinishReason.CANCELLED if state is TurnState.STOPPED else FinishReason.STOP
    progress = TurnProgress.stored(0.2, ended, bool(text), Statistics(**known), None, {})
    (line,) = (line for line in drawn(progress, 200).splitlines() if "prepare text" in line)
    return " ".join(line.split()).removeprefix("Phases ")


@table(
    "state, text, phases, changes, shown",
    [
        (
            TurnState.DONE, "Yes.",
            (Phase.WAIT, Phase.TOKENISE, Phase.SCORE, Phase.SELECT, Phase.PREFILL), {},
            "✓ prepare text 0.5 s ✓ score 0.5 s ✓ look ahead ✓ select 0.5 s ✓ read 0.5 s"
            " ✓ answer 2.0 s",
        ),
        (
            TurnState.STOPPED, "Ye", (Phase.TOKENISE, Phase.PREFILL), {"reading": Reading.DENSE},
            "✓ prepare text 0.5 s ✓ read 0.5 s ■ answer",
        ),
        (
            TurnState.STOPPED, "", (Phase.TOKENISE, Phase.RESTORE, Phase.SCORE), {},
            "✓ load cache 0.5 s ✓ prepare text 0.5 s ■ score · look ahead · select · read · answer",
        ),
        (
            TurnState.DONE, "Yes.", (Phase.TOKENISE, Phase.SCORE, Phase.PREFILL),
            {"reading": Reading.DENSE, "fallback": fell_back("no draft")},
            "✓ prepare text 0.5 s ✗ score ✓ read 0.5 s ✓ answer 2.0 s",
        ),
    ],
)  # fmt: skip
def test_a_stored_answer_shows_the_phases_it_went_through(
    state: TurnState, text: str, phases: tuple[Phase, ...], changes: dict[str, Any], shown: str
) -> None:
    assert stored(state, text, *phases, **changes) == shown


def test_a_stored_answer_without_statistics_shows_no_phases() -> None:
    progress = TurnProgress.stored(0.2, None, False, None, None, {})
    (line,) = panel_lines(progress, Viewport(80, 0.0), details=True)
    assert "failed" in line.plain
