"""Which conversations are open, and which of them the engine answers. No widgets.

The engine answers one question at a time. One is on the screen; another may be answered behind it,
and in each a question may wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

from app.chat.conversation import Question, Turn, TurnState
from app.chat.unkept import AskedTurn
from app.protocol.commands import Load
from app.protocol.events import Event, Healed, NotSaved, Saved
from app.protocol.stats import Statistics
from app.settings.values import Settings
from app.ui.clock import Clock
from app.ui.prefill.progress import ReadingProgress
from app.ui.state.repository import OpenChat, Shelf

RETRY_SECONDS = 2.0


class Desk:
    def __init__(self, shelf: Shelf, shown: OpenChat, clock: Clock) -> None:
        self.shelf, self.shown = shelf, shown
        self.committing: OpenChat | None = None
        """Whose question is on its way to the disk."""
        self.answering: OpenChat | None = None
        self.asked: AskedTurn | None = None
        """The turn that the engine was given last, over or not."""
        self._clock = clock
        self._begun_at = clock()
        self._whole: set[str] = set()
        """Conversations, by the engine's names, that background reading has completed."""
        self._waiting: deque[OpenChat] = deque()
        self._ending: list[tuple[OpenChat, AskedTurn]] = []
        self._left: list[OpenChat] = []
        self._unkept: list[OpenChat] = []
        """What was said in them is nowhere else."""
        self._drafting: Future[None] | None = None
        self._drafting_left = False
        self._problem: BaseException | None = None
        self._tried_at = clock()
        self._not_saved = ""

    # -------------------------------------------------------------------------- turns

    @property
    def running(self) -> Turn | None:
        """The turn that is under way in the conversation on the screen."""
        return None if self.answering is not self.shown or not self.asked else self.asked.turn

    @property
    def busy(self) -> bool:
        return self.committing is not None or self.answering is not None

    def begin(self, chat: OpenChat, asked: AskedTurn) -> ReadingProgress:
        """The engine is given this turn now."""
        self.committing, self.answering, self.asked = None, chat, asked
        self._whole.discard(chat.chat.name)
        now, number = self._clock(), asked.turn.number
        self._begun_at = now
        if asked.turn.before is not None:
            chat.progress[number].resume(now)
        else:
            chat.progress[number] = ReadingProgress(asked.turn.question.keep, started=now)
        return chat.progress[number]

    def apply(self, event: Event, turn: int) -> bool:
        """Take in an event; False when its turn is not under way."""
        chat, asked = self.answering, self.asked
        if chat is None or asked is None or asked.turn.number != turn:
            return False
        if asked.turn.state is not TurnState.RUNNING:
            return False
        asked.apply(event)
        chat.progress[turn].apply(asked.turn.whole(event), self._clock())
        return True

    def take_over(self) -> OpenChat | None:
        """The conversation whose turn is over since the last call, if there is one."""
        chat, asked = self.answering, self.asked
        if chat is None or asked is None or asked.turn.state is TurnState.RUNNING:
            return None
        self.answering = None
        self._ending.append((chat, asked))
        return chat

    @property
    def spent_and_left(self) -> tuple[float, float]:
        """Seconds: since the engine was given what it is answering, and until the first word, as
        far as that is predicted. Both 0 where nothing is answered."""
        if self.answering is None or self.asked is None:
            return 0.0, 0.0
        progress = self.answering.progress[self.asked.turn.number]
        running = progress.phases.get(progress.running) if progress.running else None
        return self._clock() - self._begun_at, (running.eta if running else None) or 0.0

    def can_try(self, turn: Turn) -> bool:
        """Whether the engine still has the scores of this turn."""
        last = self.asked is not None and self.asked.turn is turn
        return last and not self.busy and self.shown.progress[turn.number].scored

    def note_healed(self, event: Healed) -> None:
        """How far background reading has come."""
        if event.done == event.total:
            self._whole.add(event.conversation)

    def cached(self, turn: Turn) -> Statistics | None:
        """The figures of a turn of the conversation on the screen, with what the engine has read
        since; None where it may not have it any more."""
        progress = self.shown.progress.get(turn.number)
        if progress is None or progress.retold or progress.statistics is None:
            return None
        statistics = progress.statistics
        if self.shown.chat.name in self._whole:
            return replace(statistics, kept_tokens=statistics.prompt_tokens)
        return statistics

    def is_cached_whole(self, turn: Turn) -> bool:
        """Whether no keep can save anything on what was read up to the end of this turn."""
        cached = self.cached(turn)
        return cached is not None and cached.eligible_tokens > 0 and cached.read_fraction == 1.0

    # -------------------------------------------------------------------------- what waits

    def queue(self, chat: OpenChat, question: Question) -> None:
        chat.conversation.queued = question
        self._waiting.append(chat)

    def take_back(self, chat: OpenChat) -> Question | None:
        if chat in self._waiting:
            self._waiting.remove(chat)
        return chat.conversation.take_queued()

    def next_waiting(self) -> tuple[OpenChat, Question] | None:
        while self._waiting:
            chat = self._waiting.popleft()
            question = chat.conversation.take_queued()
            if question is not None:
                return chat, question
        return None

    # -------------------------------------------------------------------------- what is open

    def open_chats(self) -> Iterator[OpenChat]:
        """What is not only in the store, or not all of it as yet."""
        yield self.shown
        ending = (chat for chat, _ in self._ending)
        busy = (self.answering, self.committing, *self._waiting)
        for chat in (*busy, *ending, *self._left, *self._unkept):
            if chat is not None:
                yield chat

    def find(self, id: int) -> OpenChat | None:
        return next((chat for chat in self.open_chats() if chat.id == id), None)

    def statuses(self) -> dict[int, str]:
        """What is done in conversations at present, in a word each, by their ids."""
        found = dict.fromkeys(self._waiting, "waiting")
        if self.committing is not None:
            found[self.committing] = "waiting"
        if self.answering is not None and self.asked is not None:
            progress = self.answering.progress[self.asked.turn.number]
            found[self.answering] = "answering" if progress.written else "reading"
        return {chat.id: status for chat, status in found.items() if chat.id is not None}

    def apply_settings(self, settings: Settings) -> None:
        """To every question that is asked from now on."""
        self.shelf.apply(settings)
        for chat in self.open_chats():
            chat.conversation.sampling = settings.sampling()

    async def use(self, load: Load) -> None:
        """Another pair answers from now on: scores and token ids of the one before are of no use
        to it. To be called while nothing is answered."""
        self.asked = None
        await self.shelf.use(load, self.open_chats())

    # -------------------------------------------------------------------------- keeping it

    @property
    def problem(self) -> str:
        """Why something of what is said or read is not kept, as long as that is so: a sentence."""
        problem = self._problem
        if self.asked is not None and self.answering is not None:
            problem = self.asked.problem or problem
        return self._not_saved if problem is None else str(problem)

    def note(self, event: NotSaved | Saved) -> None:
        """What became of a snapshot."""
        if isinstance(event, NotSaved):
            self._not_saved = event.reason
        elif event.done == event.total:
            self._not_saved = ""

    def leave(self, chat: OpenChat) -> None:
        """It goes from the screen: what is written there is still to be kept."""
        (self._left if self.shelf.keeps else self._unkept).append(chat)

    def keep(self) -> None:
        """Keep what is not kept yet: drafts, and ends of answers that did not get to the disk.
        Never waits; to be called now and then."""
        begun = [self._drafting, *(asked.saved for _, asked in self._ending)]
        futures = [future for future in begun if future is not None]
        if not all(future.done() for future in futures):
            return
        self._problem = next(filter(None, (future.exception() for future in futures)), None)
        self._ending = [(c, a) for c, a in self._ending if a.saved and a.saved.exception()]
        now = self._clock()
        if self._problem is not None and now - self._tried_at < RETRY_SECONDS:
            return
        self._tried_at = now
        for _, asked in self._ending:
            asked.save()
        self._keep_drafts()

    def _keep_drafts(self) -> None:
        """What was left first: the draft that is kept last tells where the user was."""
        kept = self._drafting is None or self._drafting.exception() is None
        self._left = self._left[1:] if kept and self._drafting_left else self._left
        self._drafting_left = bool(self._left)
        self._drafting = self.shelf.keep_draft(self._left[0] if self._left else self.shown)

    def close(self) -> None:
        """At the end of the program. Waits for the disk."""
        if not self.shelf.opening:
            for chat in (*self._left, self.shown):
                if self._drafting is not None:
                    self._drafting.exception()  # what is kept next is compared with it
                self._drafting = self.shelf.keep_draft(chat)
        self.shelf.close()
