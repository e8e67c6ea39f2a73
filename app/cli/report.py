"""A turn on a plain terminal: progress and statistics on standard error, the answer on output."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

from app.chat.heatmap import heat_row, span_row
from app.protocol import wording
from app.protocol.commands import Ask
from app.protocol.events import (
    EngineWarning,
    Event,
    FellBackToDense,
    Finished,
    HostsLost,
    ImportanceMap,
    Loaded,
    LoadingAlone,
    MemoryFreed,
    PhaseProgress,
    Planned,
    PressureChanged,
    Retrieved,
    Selected,
    SnapshotRestored,
    Token,
    Unloaded,
)
from app.protocol.prompt import Role
from app.protocol.stats import FinishReason, Phase, Reading, Statistics
from app.util.formatting import progress, seconds
from app.util.sanitize import sanitize

QUOTE = "Quote:"
CUT_OFF = "Cut off at the maximum length: --max-tokens allows more."


class Report:
    """Shows the events of one turn. Progress appears only where standard error is a terminal."""

    def __init__(
        self,
        command: Ask,
        with_map: bool = False,
        cut_off: str = CUT_OFF,
        verbose: bool = False,
        hint: str = "",
        quotes: bool = False,
    ) -> None:
        """`verbose` adds everything known about how it was read, a line each. `hint` follows what
        was read, on a terminal. `quotes`: the target can only quote, so the answer gets that
        heading."""
        self._heading = QUOTE if quotes else ""
        self._messages, self._cut_off = command.messages, cut_off
        self._with_map, self._verbose, self._hint = with_map, verbose, hint
        self._live = sys.stderr.isatty()
        self._progress_shown = False
        self._importance: ImportanceMap | None = None
        self._planned: Planned | None = None
        self._selected: Selected | None = None
        self.answer = ""
        # Control sequences in an answer must not reach a terminal; a file may have them.
        self._sanitized = sanitize if sys.stdout.isatty() else str
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]

    def show(self, event: Event) -> None:
        match event:
            case Loaded() if event.dense_only and event.draft:
                self._note(event.dense_only)
            case SnapshotRestored(reason=str(reason)):
                self._note(reason)
            case Planned():
                self._planned = event
            case PhaseProgress():
                self._show_progress(event)
            case ImportanceMap():
                self._importance = event
            case Selected():
                self._selected = event
            case Retrieved():
                self._show_retrieved(event)
            case FellBackToDense():
                self._selected = None
                self._note(event.reason)
            case LoadingAlone():
                self._note(f"{event.problem}. Loading the target on this machine…")
            case HostsLost():
                self._selected = None
                self._note(event.message)
            case Token(text=text) if text:
                self._clear()
                if self._heading:
                    self._note(self._heading)
                    self._heading = ""
                sys.stdout.write(self._sanitized(text))
                sys.stdout.flush()
            case PressureChanged() | MemoryFreed() | Unloaded() | EngineWarning():
                self._note(event.message)
            case Finished():
                self._finish(event)

    def _finish(self, event: Finished) -> None:
        self._clear()
        self.answer = event.text
        if event.text:
            sys.stdout.write("\n")
        if self._with_map:
            sys.stdout.write(self._map(event.statistics))
        sys.stdout.flush()
        if event.finish_reason is FinishReason.CANCELLED:
            self._note("Stopped.")
        if event.finish_reason is FinishReason.MEMORY:
            self._note("Stopped: memory was nearly used up. A lower --keep needs less.")
        if event.finish_reason is FinishReason.LENGTH:
            self._note(self._cut_off)
        if event.finish_reason is FinishReason.REPEATED:
            self._note("Stopped: it was repeating itself.")
        if event.statistics is not None:
            self._tell_reading(event.statistics)

    def _tell_reading(self, statistics: Statistics) -> None:
        """How much was read and how soon the first word came; what was unusual; the rest."""
        if unsure := wording.unsure_note(statistics):
            self._note(f"{unsure}: --full reads everything.")
        guard = None if self._planned is None else self._planned.guard
        if guard is not None:
            self._note(guard)
        hint = f" · {self._hint}" if self._hint and self._live and not self._verbose else ""
        self._note(wording.reading_line(statistics) + hint)
        if self._verbose:
            read_on = 0 if self._selected is None else len(self._selected.read_on)
            for label, text in wording.reading_details(statistics, read_on):
                self._note(f"  {label:<12}{text}")

    def _show_retrieved(self, event: Retrieved) -> None:
        """Which files the model gets. Spans count the documents that are in the prompt."""
        parts = tuple(part.document for part in event.parts)
        question = max(i for i, each in enumerate(self._messages) if each.role is Role.USER)
        self._messages = tuple(
            replace(each, retrieved=parts) if i == question else each
            for i, each in enumerate(self._messages)
        )
        names = dict.fromkeys(document.name for document in parts)
        listed = "".join(f"\n  {name}" for name in names)
        if event.total_files == 1:
            tokens = sum(part.tokens for part in event.parts)
            self._note(f"{tokens:,} tokens of the document fit this question:{listed}")
        else:
            self._note(f"{len(names):,} of {event.total_files:,} files fit this question:{listed}")

    def _show_progress(self, event: PhaseProgress) -> None:
        if not self._live or event.phase is Phase.DECODE:
            return
        reading = None if self._planned is None else self._planned.reading
        unit = wording.COUNTED.get(event.phase) if event.total else None
        parts = [
            wording.activity(event.phase, reading),
            f"{progress(event.done, event.total)} {unit}" if unit else "",
            seconds(event.elapsed),
            "" if event.eta is None else f"first word in {seconds(event.eta)}",
        ]
        line = " · ".join(filter(None, parts))
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
        self._progress_shown = True

    def _clear(self) -> None:
        if self._progress_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._progress_shown = False

    def _note(self, text: str) -> None:
        self._clear()
        sys.stderr.write(sanitize(text) + "\n")

    def _map(self, statistics: Statistics | None) -> str:
        width = max(24, min(shutil.get_terminal_size().columns, 100))
        if self._selected is None:
            return "\nEverything was read.\n"
        head = ""
        if statistics is not None and statistics.reading is Reading.DENSE:
            head = (
                f"Everything was read. What keep {self._selected.keep_ratio:.0%} would select:\n\n"
            )
        strips = self.strips(width - len(" importance"))
        return f"\n{head}{strips}\n\n" + "".join(self._span_lines(self._selected))

    def strips(self, width: int) -> str:
        """Two lines over the whole prompt: importance, and the selected spans."""
        if self._selected is None or self._importance is None:
            return ""
        importance = heat_row(self._importance.buckets, width, complete=True)
        selected = span_row(self._selected.spans, self._selected.prompt_tokens, width)
        return f"{importance} importance\n{selected} selected"

    def _span_lines(self, selected: Selected) -> list[str]:
        """One line per selected span: tokens, reason and, in a document, the text."""
        texts = {text.span: text for text in selected.texts}
        lines = []
        for number, span in enumerate(selected.spans):
            text = ""
            if found := texts.get(number):
                document = self._messages[found.message].in_prompt[found.document]
                text = f"{document.name}: {_excerpt(document.text[found.start : found.end])}"
            score = "" if span.score is None else f" {span.score:.1f}x"
            lines.append(
                f"{span.start:>7,}-{span.end:<7,} {span.reason}{score:<6} {self._sanitized(text)}\n"
            )
        return lines


def _excerpt(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:40]} … {flat[-17:]}"
