"""What a model thought before it answered: one dim line, which opens."""

from __future__ import annotations

from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from app.chat.conversation import Turn, TurnState
from app.ui import figures
from app.ui.clock import Clock
from app.ui.prefill.progress import ReadingProgress
from app.ui.sanitize import sanitize


class ThinkingView(Static):
    """Hidden while nothing was thought."""

    def __init__(self, turn: Turn, progress: ReadingProgress, clock: Clock) -> None:
        super().__init__(markup=False, classes="thinking")
        self._turn, self._progress, self._clock = turn, progress, clock
        self._open = False

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        """What came since, and how long it takes."""
        self.display = bool(self._turn.thinking)
        if self.display:
            self.update(self._drawn())

    def toggle(self) -> None:
        self._open = not self._open
        self.show()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.toggle()

    def _drawn(self) -> Content:
        mark = "▾" if self._open else "▸"
        line = Content.styled(f"{mark} {self._words()}", "$ink-dim")
        if not self._open:
            return line
        text = sanitize(self._turn.thinking.strip("\n"))
        indented = "\n".join(f"│ {each}" for each in text.split("\n"))
        return line + "\n" + Content.styled(indented, "$ink-dim")

    def _words(self) -> str:
        progress, turn = self._progress, self._turn
        if progress.thinking_began is None:  # of a stored one only the text is known
            return f"thought · {figures.plural(len(turn.thinking.split()), 'word')}"
        runs = turn.state is TurnState.RUNNING and not turn.text
        ended = self._clock() if runs else progress.thinking_ended
        spent = figures.seconds(max(0.0, ended - progress.thinking_began))
        tokens = figures.plural(progress.thinking_tokens, "token")
        return f"thinking… {spent} · {tokens}" if runs else f"thought for {spent} · {tokens}"
