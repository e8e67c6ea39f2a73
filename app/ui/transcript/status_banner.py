"""The top of the transcript: whether the models are loaded, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from app.chat import wording
from app.protocol.events import Loaded, ModelInfo
from app.ui.text import HangingLines, hanging_indent, wrap_evenly
from app.ui.transcript.panel import ACCENT, BAD, DIM
from app.util import formatting
from app.util.sanitize import sanitize_line

MARK_CELLS = 2
"""Cells before the text of each line."""
GUIDE = (
    Content("  Paste a long document, or type @ for a file. Then ask."),
    Content.styled("  ^T read in full   ^G set keep   F1 all keys", DIM),
)


class StatusBanner(HangingLines):
    """Shows loading, the loaded models or why loading failed, and a guide."""

    def __init__(self) -> None:
        super().__init__()
        self._status = self._loading(0.0)
        self._guide: tuple[Content, ...] = GUIDE
        self._failed = False

    def show_guide(self, guide: Sequence[Content] = ()) -> None:
        """Show these lines below the status, or the default guide."""
        self._guide = tuple(guide) or GUIDE
        self.refresh(layout=True)

    def show_loading(self, elapsed: float) -> None:
        self._status = self._loading(elapsed)
        self.refresh()

    def show_loaded(self, loaded: Loaded) -> None:
        lines = [
            Content.assemble(
                ("✓ ", ACCENT),
                ("ready", "bold"),
                (f" in {formatting.seconds(loaded.seconds)}", DIM),
            ),
            Content.styled("  " + _model_line("target", loaded.target), DIM),
        ]
        if loaded.draft is not None:
            lines.append(Content.styled("  " + _model_line("draft", loaded.draft), DIM))
        elif loaded.dense_only is None:
            lines.append(
                Content.styled("  scorer built in · finds what matters for your question", DIM)
            )
        if loaded.dense_only is not None:
            reason = sanitize_line(wording.reason(loaded.dense_only))
            lines.append(Content.assemble(("! ", ACCENT), reason))
        if loaded.speed_hint is not None:
            hint = sanitize_line(wording.reason(loaded.speed_hint))
            lines.append(Content.assemble(("! ", ACCENT), hint))
        self._set(lines)

    def show_failed(self, failed: wording.Words) -> None:
        problem, advice = map(sanitize_line, failed.sentences)
        self._failed = True
        self._set(
            [
                Content.assemble(("✗ ", BAD), (problem, "bold")),
                Content.styled("  " + advice, DIM),
            ]
        )

    def lines(self, width: int) -> Sequence[Content]:
        guide = [] if self._failed else [Content(""), *self._guide]
        lines = [*self._status, *guide]
        return [
            hanging_indent(line[:MARK_CELLS], line[MARK_CELLS:], width, wrap=wrap_evenly)
            if line
            else line
            for line in lines
        ]

    @staticmethod
    def _loading(elapsed: float) -> list[Content]:
        waited = f" · {formatting.seconds(elapsed)}" if elapsed >= 1 else ""
        return [Content.assemble(("▶ ", ACCENT), ("loading the models", "bold"), (waited, DIM))]

    def _set(self, status: list[Content]) -> None:
        self._status = status
        self.refresh(layout=True)


def _model_line(part: str, model: ModelInfo) -> str:
    facts = [sanitize_line(model.name), formatting.short_count(model.parameters)]
    if model.context_length:
        facts.append(f"context {formatting.count(model.context_length)}")
    return f"{part:<6} {' · '.join(facts)}"
