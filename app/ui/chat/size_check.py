"""A question that is too long is not asked: it stays, or comes back, with all that was attached."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from app.chat.conversation import Part, Question, Turn
from app.protocol.events import Failed
from app.ui.attach.attachment import Attached
from app.ui.attach.excess import too_many
from app.ui.attach.leave_out_screen import LeaveOutScreen
from app.ui.chat.engine_events import in_words
from app.ui.state.repository import OpenChat
from app.util import formatting
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen

INSIST = "Enter again tries it all the same."


class Fitting:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._refused: Question | None = None
        """What memory was foreseen not to suffice for."""

    def refuses(self) -> bool:
        """Whether what is written and attached cannot fit the model, as far as it is counted; then
        why is said."""
        excess, things = self._screen.forecast.excess, self._screen.entry.chips.attached
        if excess:
            self._screen.notice.say(self._words(excess, things))
            self._offer(excess)
        return excess > 0

    def insisting(self, question: Question) -> Question:
        """The same, to be tried all the same where it was refused just now."""
        refused, self._refused = self._refused, None
        return replace(question, despite_memory=True) if question == refused else question

    @staticmethod
    def comes_back(failure: Failed | None) -> bool:
        """Whether nothing was read at all, since it does not fit."""
        return failure is not None and (failure.foreseen or failure.excess > 0)

    async def came_back(self, chat: OpenChat, turn: Turn, edits: Turn | None) -> None:
        """What was asked in `turn` is where it was written again, so that the turn is not needed.
        It was to edit the question of `edits`. Raises UserError."""
        screen, failure = self._screen, turn.failure
        assert failure is not None
        if failure.foreseen:
            self._refused = replace(turn.question, despite_memory=False)
        await screen.desk.shelf.rebranch(chat, lambda kept: kept.remove(turn, Part.QUESTION))
        if chat is not screen.desk.shown:
            return
        async with screen.drawing:
            await screen.transcript.follow_branch()
        if edits is not None:
            screen.acting.resume(edits)
        screen.notice.say(" ".join(filter(None, (in_words(failure), INSIST * failure.foreseen))))
        if failure.excess and screen.is_current:
            self._offer(failure.excess)

    def _words(self, excess: int, things: tuple[Attached, ...]) -> str:
        pair = self._screen.forecast.pair
        assert pair is not None
        name = f"{sanitize_line(pair.target.name)} takes {formatting.count(pair.target.context)}"
        if excess <= sum(each.tokens or 0 for each in things):
            return f"{too_many(excess, things)}. {name}."
        return f"The conversation is too long for what is asked: {name} tokens. ^N begins another."

    def _offer(self, excess: int) -> None:
        """To choose among documents, where there are some."""
        things = self._screen.entry.chips.attached
        if sum(len(each.texts) for each in things) > 1:
            chosen = partial(self._chosen, things)
            self._screen.app.push_screen(LeaveOutScreen(things, excess), chosen)

    def _chosen(self, offered: tuple[Attached, ...], things: tuple[Attached, ...] | None) -> None:
        """`things` of what was `offered` stay, and whatever was attached meanwhile."""
        entry, attaching = self._screen.entry, self._screen.attaching
        if things is not None:
            things += tuple(each for each in entry.chips.attached if each not in offered)
        if things is not None and things != entry.chips.attached:
            entry.chips.show((*things, *attaching.readings(self._screen.desk.shown)))
            self._screen.notice.say("")
        entry.box.focus()
