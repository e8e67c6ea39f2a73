"""Editing an earlier question, which is then asked on a new branch."""

from __future__ import annotations

from dataclasses import replace

from app.chat.conversation import Question, Turn
from app.ui.chat.context import ChatContext
from app.ui.state.draft import Draft

EDITING = "Editing an earlier question: ⏎ asks it on a new branch, Esc cancels."


class QuestionEdit:
    """While a question is edited, it is in the composer instead of the draft."""

    def __init__(self, context: ChatContext) -> None:
        self._context = context
        self.turn: Turn | None = None
        """The turn whose question is edited."""
        self._draft: Draft | None = None
        """What was in the composer before."""

    @property
    def active(self) -> bool:
        return self.turn is not None

    def start(self, turn: Turn) -> None:
        context = self._context
        draft = self.cancel() or context.composer.draft
        self.turn, self._draft = turn, draft
        context.composer.show(Draft(draft.next_mode).prepend(turn.question, ()))
        context.set_next_mode(context.next_mode)
        context.composer.box.focus()
        context.notice.show(EDITING)

    def resume(self, turn: Turn) -> None:
        """The edited question is back in the composer because it could not be asked."""
        self.turn, self._draft = turn, Draft(self._context.next_mode)
        self._context.notice.show(EDITING)

    def cancel(self) -> Draft | None:
        """Put the draft back; returns it if a question was being edited."""
        draft, self.turn, self._draft = self._draft, None, None
        if draft is not None:
            self._context.composer.show(draft)
            self._context.set_next_mode(draft.next_mode)
            self._context.notice.show("")
        return draft

    def take(self, question: Question) -> tuple[Question, Turn] | None:
        """The submitted question and the turn it replaces, if one is edited; the draft is restored.
        Documents that it still has stay the very same, with what is known about them."""
        turn = self.turn
        if turn is None:
            return None
        known = {document.text: document for document in turn.question.documents}
        documents = tuple(known.get(each.text, each) for each in question.documents)
        self.cancel()
        return replace(question, documents=documents), turn
