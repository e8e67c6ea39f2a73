"""A question and its answer in the transcript."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static

from app.chat.conversation import Question, Turn, TurnState
from app.engine.messages import Ended
from app.ui.attach.attached import Attached, grouped
from app.ui.clock import Clock
from app.ui.prefill.panel import PrefillPanel
from app.ui.prefill.progress import ReadingProgress
from app.ui.sanitize import sanitize, sanitize_line
from app.ui.words import ended, sentence


def answer_parser() -> MarkdownIt:
    """Markdown without HTML, which Textual would swallow. Sanitised again after parsing: an entity
    such as `&#x202E;` becomes the character it names only there."""
    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("sanitize", _sanitize_tokens)
    return parser


def _sanitize_tokens(state: StateCore) -> None:
    for token in state.tokens:
        for part in (token, *(token.children or ())):
            part.content = sanitize(part.content)


class QuestionView(Vertical):
    """What the user sent: its chips and its text."""

    def __init__(self, question: Question, waiting: bool = False) -> None:
        super().__init__(classes="question")
        self._question = question
        self._waiting = waiting

    def compose(self) -> ComposeResult:
        waiting = ("  waiting for its turn · Esc takes it back", "not bold $ink-dim")
        head = Content.assemble(("❯ You", "bold $accent"), waiting if self._waiting else "")
        yield Static(head, classes="speaker")
        for each in grouped(self._question.documents):
            yield Static(_attached_line(each), classes="attached")
        yield Static(sanitize(self._question.text), markup=False, classes="asked")


def _attached_line(each: Attached) -> Content:
    name = sanitize_line(each.documents[0].name)
    return Content.assemble("▣ ", name, (f"  {each.facts}", "$ink-dim"))


class TurnView(Vertical):
    """A turn: the question, how it is read, the answer, and how it ended."""

    def __init__(self, turn: Turn, progress: ReadingProgress, clock: Clock) -> None:
        """Both change as events of the turn come; `update_turn` shows them."""
        super().__init__(classes="turn")
        self.turn = turn
        self.panel = PrefillPanel(progress, clock)
        self._complete = turn.state is not TurnState.RUNNING
        self._answer = Markdown(
            sanitize(turn.text) if self._complete else None,
            parser_factory=answer_parser,
            open_links=False,
        )
        self._note = Static("", markup=False, classes="note")
        self._written = 0

    def compose(self) -> ComposeResult:
        yield QuestionView(self.turn.question)
        yield Static("◆ Answer", markup=False, classes="speaker")
        yield self.panel
        yield self._answer
        yield self._note

    def on_mount(self) -> None:
        self._answer.display = bool(self.turn.text)
        self._show_note()

    def tick(self) -> None:
        """Time has passed."""
        self.panel.update_progress()

    async def update_turn(self) -> None:
        """Show what came since the last call. Text is appended while it streams and set as a whole
        at the end, because a streamed document can be laid out otherwise than a whole one."""
        self.panel.update_progress()
        turn = self.turn
        self._answer.display = bool(turn.text)
        if turn.state is not TurnState.RUNNING:
            if not self._complete:
                self._complete = True
                await self._answer.update(sanitize(turn.text))
        elif len(turn.text) > self._written:
            fresh, self._written = turn.text[self._written :], len(turn.text)
            await self._answer.append(sanitize(fresh))
        self._show_note()

    def _show_note(self) -> None:
        note = _ending(self.turn)
        self._note.display = note is not None
        if note is not None:
            self._note.update(note)


def _ending(turn: Turn) -> Content | None:
    """How a turn ended, in words, when it did not simply end."""
    if turn.failure is not None:
        return Content.assemble(
            ("✗ ", "$error"),
            (sanitize_line(ended(turn.failure.problem)), "bold"),
            "\n  ",
            (sanitize_line(sentence(turn.failure.advice)), "$ink-dim"),
            ("\n  Not part of the conversation. ^R asks it again, in full.", "$ink-dim"),
        )
    if turn.state is TurnState.STOPPED and turn.text:
        return Content.styled("■ stopped · what was written stays", "$ink-dim")
    if turn.ended is Ended.LENGTH:
        return Content.styled("■ cut: the answer reached its longest length", "$ink-dim")
    if turn.ended is Ended.STOP and not turn.text:
        return Content.styled("■ the model answered with nothing", "$ink-dim")
    return None
