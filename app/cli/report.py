"""Prints a turn: progress and statistics to standard error, the answer to standard output."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence

from app.chat import reading_words, wording
from app.chat.citations import summary
from app.chat.conversation import Conversation, Turn
from app.chat.heatmap import heat_row, span_row
from app.cli.terminal import ProgressLine
from app.protocol.events import (
    Event,
    FellBackToDense,
    Finished,
    Loaded,
    PhaseProgress,
    Retrieved,
    Selected,
    SnapshotRestored,
    Token,
)
from app.protocol.reasons import Reason
from app.protocol.stats import FinishReason, Phase, Reading, Statistics
from app.util.formatting import seconds
from app.util.sanitize import sanitize
from app.util.search_words import query, terms

MAX_LISTED = 10
"""Maximum number of files to list one by one."""
MAX_EXCERPT = 60
"""Characters of a passage that are shown."""
MAX_WORD = 20
"""A longer word may be cut at the ends of what is shown. In characters."""
_WORD = re.compile(r"\w+")
DEMO = "Demo model:"
CUT_OFF = "Cut off at the maximum length. --max-tokens sets another maximum."


class Report:
    """Shows the events of one turn. Progress appears only where standard error is a terminal."""

    def __init__(
        self,
        turn: Turn,
        conversation: Conversation,
        with_map: bool = False,
        cut_off: str = CUT_OFF,
        verbose: bool = False,
        hint: str = "",
        quotes: bool = False,
        cites: bool = True,
    ) -> None:
        """`verbose` prints all details of how the prompt was read. `hint` is printed after how
        much was read, on a terminal only. `quotes`: the target can only quote, so the answer gets
        a heading that says so. `cites`: whether passages are looked for that support the
        answer."""
        self._heading = DEMO if quotes else ""
        self._turn, self._conversation, self._cut_off = turn, conversation, cut_off
        self._cites = cites
        self._with_map, self._verbose, self._hint = with_map, verbose, hint
        self._line = ProgressLine()
        self._held: dict[str, None] | None = None
        """Notes that came while the answer was written: they would stand in the middle of it."""
        # Control sequences in an answer must not reach a terminal; in a file they are harmless.
        self._sanitized = sanitize if sys.stdout.isatty() else str
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]

    @property
    def _selected(self) -> Selected | None:
        progress = self._turn.progress
        return None if progress.fallback is not None else progress.selected

    def show(self, event: Event) -> None:
        """Show an event that was applied to the turn."""
        event = self._turn.of_whole_files(event)
        match event:
            case Loaded() if event.dense_only and event.draft:
                self._note(wording.reason(event.dense_only))
            case SnapshotRestored(reason=Reason() as reason):
                self._note(wording.reason(reason))
            case PhaseProgress():
                self._show_progress(event)
            case Retrieved():
                self._show_retrieved(event)
            case FellBackToDense():
                self._note(wording.reason(event.reason))
            case Token(text=text) if text:
                self._line.clear()
                if self._heading:
                    self._note(self._heading)
                    self._heading = ""
                sys.stdout.write(self._sanitized(text))
                sys.stdout.flush()
                self._held = self._held or {}
            case Finished():
                self._finish(event)
            case _ if isinstance(event, wording.Notice):
                self._note(wording.notice(event))

    def _finish(self, event: Finished) -> None:
        self._line.clear()
        if event.text:
            sys.stdout.write("\n")
        if self._with_map:
            sys.stdout.write(self._map(event.statistics))
        sys.stdout.flush()
        held, self._held = self._held or {}, None
        for note in held:
            self._note(note)
        if event.finish_reason is FinishReason.CANCELLED:
            self._note("Stopped.")
        if event.finish_reason is FinishReason.MEMORY:
            self._note("Stopped: memory was nearly used up. A lower --keep needs less memory.")
        if event.finish_reason is FinishReason.LENGTH:
            self._note(self._cut_off)
        if event.finish_reason is FinishReason.REPEATED:
            self._note("Stopped: the answer repeated itself.")
        self._tell_citations()
        if event.statistics is not None:
            self._tell_reading(event.statistics)

    def _tell_citations(self) -> None:
        """Print the passages that the answer is from."""
        missing = self._conversation.missing(self._turn)
        if said := summary(self._turn.citations, missing):
            self._note(said)
        for note in self._conversation.footnotes(self._turn):
            self._note(f"  {note.line}")

    def _tell_reading(self, statistics: Statistics) -> None:
        """Print how much was read, when the first word came, warnings, and details if verbose."""
        advice = reading_words.advice_after(self._turn) if self._cites else ""
        if unsure := reading_words.unsure_note(statistics):
            self._note(f"{unsure}: --full reads in full{advice and f', or {advice}'}.")
        elif advice and self._turn.guard is None:
            part = " or attach a part (-f NAME#PART)" if self._turn.retrieved else ""
            self._note(f"To find more, {advice}{part}.")
        if (guard := self._turn.guard) is not None:
            self._note(wording.reason(guard))
        hint = f" · {self._hint}" if self._hint and self._line.live and not self._verbose else ""
        self._note(reading_words.reading_line(statistics) + hint)
        if self._verbose:
            read_on = 0 if (selected := self._selected) is None else len(selected.read_on)
            for label, text in reading_words.reading_details(statistics, read_on):
                self._note(f"  {label:<12}{text}")

    def _show_retrieved(self, event: Retrieved) -> None:
        """Print which files were chosen for the model."""
        names = list(dict.fromkeys(part.document.name for part in event.parts))
        shown = names if self._verbose else names[:MAX_LISTED]
        listed = "".join(f"\n  {name}" for name in shown)
        if others := len(names) - len(shown):
            listed += f"\n  and {others:,} more (-v lists them)"
        tokens = sum(part.tokens for part in event.parts)
        line = reading_words.chosen(event.documents, tokens, len(names), event.stands_out)
        self._note(f"{line}." if event.documents.files == 1 else f"{line}:{listed}")

    def _show_progress(self, event: PhaseProgress) -> None:
        if event.phase is Phase.DECODE:
            return
        parts = [
            reading_words.activity(event.phase, self._turn.progress),
            reading_words.amount_done(event),
            seconds(event.elapsed),
            "" if event.eta is None else f"first word in {seconds(event.eta)}",
        ]
        self._line.show(" · ".join(filter(None, parts)))

    def _note(self, text: str) -> None:
        if self._held is not None:
            self._held[text] = None
            return
        self._line.clear()
        sys.stderr.write(sanitize(text) + "\n")

    def _map(self, statistics: Statistics | None) -> str:
        width = max(24, min(shutil.get_terminal_size().columns, 100))
        if (selected := self._selected) is None:
            return "\nEverything was read.\n"
        head = ""
        if statistics is not None and statistics.reading is Reading.DENSE:
            head = f"Everything was read. What keep {selected.keep_ratio:.0%} would select:\n\n"
        strips = self.strips(width - len(" importance"))
        return f"\n{head}{strips}\n\n" + "".join(self._span_lines(selected))

    def strips(self, width: int) -> str:
        """Two lines over the whole prompt: importance, and the selected spans."""
        selected, importance = self._selected, self._turn.progress.importance
        if selected is None or importance is None:
            return ""
        heat = heat_row(importance.buckets, width, complete=True)
        spans = span_row(selected.spans, selected.prompt_tokens, width)
        return f"{heat} importance\n{spans} selected"

    def _span_lines(self, selected: Selected) -> list[str]:
        """One line per selected span: tokens, reason and, in a document, the words nearest to the
        question."""
        documents = self._conversation.documents_by_message(self._turn)
        passages: dict[int, tuple[str, str]] = {}
        for found in selected.texts:
            document = documents[found.message][found.document]
            passages[found.span] = document.name, document.text[found.start : found.end]
        texts = [text for _, text in passages.values()]
        excerpts = dict(zip(passages, nearest_words(texts, self._turn.question.text), strict=True))
        lines = []
        for number, span in enumerate(selected.spans):
            text = f"{passages[number][0]}: {excerpts[number]}" if number in passages else ""
            score = "" if span.score is None else f" {span.score:.1f}x"
            lines.append(
                f"{span.start:>7,}-{span.end:<7,} {span.reason}{score:<6} {self._sanitized(text)}\n"
            )
        return lines


def nearest_words(passages: Sequence[str], question: str) -> list[str]:
    """An excerpt of each passage, on one line: the part with most of the question's words, or the
    beginning if it has none of them. Words that few of the passages have count more."""
    asked = query(question)
    flat = [" ".join(text.split()) for text in passages]
    places = [
        [
            (*_part_of(word, term), term)
            for word in _WORD.finditer(text)
            for term in terms(word[0])
            if term in asked
        ]
        for text in flat
    ]
    common = Counter(term for found in places for term in {term for *_, term in found})
    return [
        _excerpt(text, *_best_range(found, common))
        for text, found in zip(flat, places, strict=True)
    ]


def _part_of(word: re.Match[str], term: str) -> tuple[int, int]:
    """Where a term is in a word; text without spaces between its words is a single one."""
    at = word[0].lower().find(term)
    return (word.start() + at, word.start() + at + len(term)) if at >= 0 else word.span()


def _best_range(found: Sequence[tuple[int, int, str]], common: Counter[str]) -> tuple[int, int]:
    """The characters from one of the words `found` to another, at most MAX_EXCERPT, that have the
    most of them. `common`: in how many passages each is."""
    best, best_score, first = (0, 0), 0.0, 0
    inside: Counter[str] = Counter()
    for start, end, term in found:
        inside[term] += 1
        while end - found[first][0] > MAX_EXCERPT and found[first][0] < start:
            inside[found[first][2]] -= 1
            first += 1
        score = sum(1 / common[each] for each, count in inside.items() if count)
        if score > best_score:
            best, best_score = (found[first][0], end), score
    return best


def _excerpt(text: str, start: int, end: int) -> str:
    """About MAX_EXCERPT characters of a line around `start:end`, cut between words."""
    room = max(0, MAX_EXCERPT - (end - start))
    start = max(0, min(start - room // 2, len(text) - MAX_EXCERPT))
    end = start + MAX_EXCERPT
    if start:
        start = max(start, text.find(" ", start, start + MAX_WORD) + 1)
    if end < len(text):
        end = max(text.rfind(" ", end - MAX_WORD, end), 0) or end
    before, after = "… " if start else "", " …" if end < len(text) else ""
    return f"{before}{text[start:end]}{after}"
