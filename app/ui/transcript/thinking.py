"""The model's thinking before its answer: one dim line that can be expanded."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.events import Click

from app.chat.conversation import Turn, TurnState
from app.ui.text import HangingLines, hanging_indent
from app.util import formatting
from app.util.sanitize import sanitize

RULE = Content.styled("│ ", "$ink-dim")


class ThinkingView(HangingLines):
    """Hidden if there is no thinking."""

    def __init__(self, turn: Turn, clock: Callable[[], float]) -> None:
        super().__init__(classes="thinking")
        self._turn, self._clock = turn, clock
        self._open = False

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        """Show new text and the time so far."""
        self.display = bool(self._turn.thinking)
        if self.display:
            self.refresh(layout=True)

    def toggle(self) -> None:
        self._open = not self._open
        self.show()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.toggle()

    def lines(self, width: int) -> list[Content]:
        mark = "▾" if self._open else "▸"
        line = Content.styled(f"{mark} {self._summary()}", "$ink-dim")
        if not self._open:
            return [line]
        lines = sanitize(self._turn.thinking.strip("\n")).split("\n")
        return [
            line,
            *(
                hanging_indent(RULE, Content.styled(each, "$ink-dim"), width, RULE)
                for each in lines
            ),
        ]

    def _summary(self) -> str:
        progress, turn = self._turn.progress, self._turn
        if progress.thinking_started_at is None:  # of a stored turn only the text is known
            return f"thought · {formatting.plural(len(turn.thinking.split()), 'word')}"
        runs = turn.state is TurnState.RUNNING and not turn.text
        ended = self._clock() if runs else progress.thinking_ended_at
        spent = formatting.seconds(max(0.0, ended - progress.thinking_started_at))
        tokens = formatting.plural(progress.thinking_tokens, "token")
        return f"thinking… {spent} · {tokens}" if runs else f"thought for {spent} · {tokens}"
