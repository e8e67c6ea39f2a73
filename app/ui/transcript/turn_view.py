"""A question and its answer in the transcript."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from app.chat import reading_words, wording
from app.chat.citations import Footnote, marked, with_footnotes
from app.chat.conversation import Conversation, Question, Turn, TurnPart, TurnState
from app.models.first_model import first_model
from app.protocol.stats import FinishReason
from app.ui.attach.attachment import Attachment, group_documents
from app.ui.files.overview import FilesLine, files_for
from app.ui.text import HangingLines, hanging_indent
from app.ui.transcript.answer import AnswerText, Quotation
from app.ui.transcript.citations import CitationsView
from app.ui.transcript.lazy_container import estimate_rows
from app.ui.transcript.message import MessageView, Speaker
from app.ui.transcript.panel import PrefillPanel
from app.util import formatting
from app.util.sanitize import sanitize, sanitize_line

RULE = Content.styled("│ ", "$ink-dim")
YOU = Content.styled("❯ You", "bold $accent")
ANSWER = Content.styled("◆ Answer", "bold")
DEMO = Content.styled("◆ Demo model", "bold")
ONLY_QUOTES = (
    f"This demo model can only quote. F6 downloads {first_model().name_and_size},"
    f" {first_model().promise}."
)
RETRY_HINT = " ^A asks again.", " ^A tries anyway."
"""For a turn that failed, and for one that was refused because of a prediction."""


class ThinkingView(HangingLines):
    """The model's thinking; hidden if there is none."""

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


class QueuedView(Vertical):
    """A question that is queued or being stored."""

    def __init__(self, question: Question, committing: bool) -> None:
        super().__init__(classes="question")
        self._question = question
        self._note = "" if committing else "  queued · Esc takes it back"

    def compose(self) -> ComposeResult:
        yield Speaker(YOU, None, self._note)
        yield from _sent(self._question)


class QuestionView(MessageView):
    """The attachments and the text that the user sent."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn, TurnPart.QUESTION, classes="question")

    def content(self) -> Sequence[Widget]:
        return [Speaker(YOU, self), *_sent(self.turn.question)]

    def estimate_height(self, width: int) -> int:
        question = self.turn.question
        return 1 + len(group_documents(question.documents)) + estimate_rows(question.text, width)


def _sent(question: Question) -> list[Widget]:
    attached = [
        Static(_attached_line(each), classes="attached")
        for each in group_documents(question.documents)
    ]
    return [*attached, Static(sanitize(question.text), markup=False, classes="asked")]


def _attached_line(each: Attachment) -> Content:
    name = sanitize_line(each.documents[0].name)
    return Content.assemble("▣ ", name, (f"  {each.facts}", "$ink-dim"))


class AnswerView(MessageView):
    """How the question is read, the answer, and how it ended."""

    def __init__(self, turn: Turn, clock: Callable[[], float], conversation: Conversation) -> None:
        super().__init__(turn, TurnPart.ANSWER, classes="answered")
        self._clock, self._conversation = clock, conversation
        self._is_last, self._has_documents = True, False
        self._files: FilesLine
        self._thinking: ThinkingView
        self._panel: PrefillPanel
        self._answer: AnswerText | Quotation
        self._citations: CitationsView
        self._note: Static

    @property
    def can_unmount(self) -> bool:
        return self.turn.state is not TurnState.RUNNING

    def content(self) -> Sequence[Widget]:
        self._files = FilesLine(self.turn, files_for(self._conversation, self.turn))
        self._thinking = ThinkingView(self.turn, self._clock)
        self._panel = PrefillPanel(self.turn.progress, self._clock)
        self._panel.hints = self._keys()
        self._answer = (Quotation if self.turn.quotes else AnswerText)(self.turn.text, self._marked)
        self._citations = CitationsView(self.turn, self._conversation)
        self._note = Static(markup=False, classes="note")
        self._show_note()
        speaker = Speaker(DEMO if self.turn.quotes else ANSWER, self)
        above = [speaker, self._files, self._thinking, self._panel]
        return [*above, self._answer, self._citations, self._note]

    @property
    def text(self) -> str:
        return with_footnotes(self.turn.text, self.turn.citations, self.citations)

    @property
    def citations(self) -> list[Footnote]:
        return self._conversation.footnotes(self.turn)

    @property
    def _marked(self) -> str:
        """The answer with the numbers of its citations, once they are known."""
        running = self.turn.state is TurnState.RUNNING
        return self.turn.text if running else marked(self.turn.text, self.turn.citations)

    def estimate_height(self, width: int) -> int:
        return 5 + estimate_rows(self.turn.text, width)

    def tick(self) -> None:
        """Update what changes with time."""
        if self.has_content:
            self._files.show()
            self._panel.hints = self._keys()
            self._panel.update_progress()
            self._thinking.show()

    async def mount_content(self) -> None:
        await super().mount_content()
        await self.update_turn()

    async def update_turn(self) -> None:
        """Show what has changed. Text is appended while it streams and rendered as a whole at the
        end."""
        async with self._mount_lock:
            if not self.has_content:
                return
            self.tick()
            await self._answer.show(self.turn.text)
            if self.can_unmount:
                await self._answer.finish(self._marked)
                self._citations.show()
            self._show_note()

    def action_details(self) -> None:
        if self.has_content:
            self._panel.toggle()

    def action_unfold(self) -> None:
        if self.turn.thinking and self.has_content:
            self._thinking.toggle()
        else:
            self.action_details()

    def show_last(self, is_last: bool, has_documents: bool) -> None:
        """Only the last answer can be continued, only its line names keys, and only below it a
        note explains the demo model. `has_documents`: whether the conversation has documents to
        show."""
        if (is_last, has_documents) != (self._is_last, self._has_documents):
            self._is_last, self._has_documents = is_last, has_documents
            self.tick()
            if self.has_content:
                self._show_note()

    def _keys(self) -> list[str]:
        """Keys that show or change how much was read."""
        statistics = self.turn.progress.statistics
        sparse = statistics is not None and not statistics.read_everything
        keys = []
        if self._is_last and self._has_documents:
            keys.append("^S what was read")
        if self._is_last and sparse:
            keys.append("^R read in full")
        return keys

    def _show_note(self) -> None:
        ending = _ending_text(self.turn, self._is_last)
        if ending is not None and self.turn.can_continue and self._is_last:
            ending += Content.styled(" · F4 continues", "$ink-dim")
        if self.turn.quotes and self._is_last and self.turn.state is TurnState.DONE:
            hint = Content.styled(ONLY_QUOTES, "$ink-dim")
            ending = hint if ending is None else Content("\n").join([ending, hint])
        self._note.update(ending or "")
        self._note.display = ending is not None


class TurnView(Vertical):
    """A turn: the question, how it is read, the answer, and how it ended."""

    def __init__(self, turn: Turn, clock: Callable[[], float], conversation: Conversation) -> None:
        """`turn` changes with the engine's events; `answer.update_turn` shows that."""
        super().__init__(classes="turn")
        self.turn = turn
        self.question = QuestionView(turn)
        self.answer = AnswerView(turn, clock, conversation)

    def compose(self) -> ComposeResult:
        yield self.question
        yield self.answer

    @property
    def messages(self) -> tuple[MessageView, MessageView]:
        return self.question, self.answer

    def message(self, part: TurnPart) -> MessageView:
        return self.question if part is TurnPart.QUESTION else self.answer


def _ending_text(turn: Turn, is_last: bool) -> Content | None:
    """Why a turn ended, unless it is simply complete; and what helps if the last answer is poor."""
    if turn.failure is not None and turn.state is not TurnState.FAILED:
        message = wording.failure(turn.failure.failure).text
        return Content.assemble(
            ("✗ ", "$error"), ("not continued: ", "bold"), (sanitize_line(message), "$ink-dim")
        )
    if turn.failure is not None:
        problem, advice = wording.failure(turn.failure.failure).sentences
        return Content.assemble(
            ("✗ ", "$error"),
            (sanitize_line(problem), "bold"),
            "\n  ",
            (sanitize_line(advice), "$ink-dim"),
            ("\n  Later questions are sent without this one.", "$ink-dim"),
            (RETRY_HINT[turn.failure.predicted], "$ink-dim"),
        )
    if turn.ended is FinishReason.MEMORY:
        return Content.styled("■ stopped: memory nearly used up · the text is kept", "$ink-dim")
    if turn.state is TurnState.STOPPED and (turn.text or turn.thinking):
        return Content.styled("■ stopped · the text is kept", "$ink-dim")
    if turn.ended is FinishReason.REPEATED:
        return Content.styled("■ stopped: the answer repeated itself", "$ink-dim")
    if turn.ended is FinishReason.LENGTH:
        tokens = 0 if turn.statistics is None else turn.statistics.generated_tokens
        at = f" at {formatting.plural(tokens, 'token')}" if tokens else ""
        return Content.styled(f"■ cut off{at} (limit: Max tokens in F2)", "$ink-dim")
    if turn.ended is FinishReason.STOP and not turn.text:
        return Content.styled("■ empty answer", "$ink-dim")
    unsure = reading_words.unsure_note(turn.statistics)
    if not unsure and turn.guard is not None and turn.state is TurnState.DONE:
        return Content.styled(sanitize_line(wording.reason(turn.guard)), "$ink-dim")
    said = _what_helps(turn, unsure) if is_last else [f"≈ {unsure}" if unsure else ""]
    line = sanitize_line(" · ".join(filter(None, said)))
    return Content.styled(line, "$ink-dim") if line else None


def _what_helps(turn: Turn, unsure: str) -> list[str]:
    """After a poor answer. `unsure`: that the model was unsure, if it was."""
    advice = reading_words.advice_after(turn)
    elsewhere = "^F looks into other parts" if advice and turn.retrieved is not None else ""
    if unsure:
        return [f"≈ {unsure}", elsewhere or "^R reads in full", advice]
    return [advice.capitalize(), elsewhere]
