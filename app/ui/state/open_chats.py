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
from app.protocol.events import BackgroundProgress, Event, SnapshotFailed, SnapshotProgress
from app.protocol.stats import Statistics
from app.settings.values import Settings
from app.ui.clock import Clock
from app.ui.prefill.progress import TurnProgress
from app.ui.state.repository import ChatRepository, OpenChat

RETRY_SECONDS = 2.0


class OpenChats:
    def __init__(self, shelf: ChatRepository, shown: OpenChat, clock: Clock) -> None:
        self.repository, self.shown = shelf, shown
        self.committing: OpenChat | None = None
        """Whose question is on its way to the disk."""
        self.answering: OpenChat | None = None
        self.last_sent: AskedTurn | None = None
        """The turn that the engine was given last, over or not."""
        self._clock = clock
        self._started_at = clock()
        self._fully_cached: set[str] = set()
        """Conversations, by the engine's names, that background reading has completed."""
        self._queued: deque[OpenChat] = deque()
        self._finishing: list[tuple[OpenChat, AskedTurn]] = []
        self._stashed: list[OpenChat] = []
        self._unsaved: list[OpenChat] = []
        """What was said in them is nowhere else."""
        self._draft_save: Future[None] | None = None
        self._saving_stashed = False
        self._save_error: BaseException | None = None
        self._last_attempt = clock()
        self._snapshot_error = ""

    # -------------------------------------------------------------------------- turns

    @property
    def running(self) -> Turn | None:
        """The turn that is under way in the conversation on the screen."""
        return (
            None if self.answering is not self.shown or not self.last_sent else self.last_sent.turn
        )

    @property
    def busy(self) -> bool:
        return self.committing is not None or self.answering is not None

    def start_turn(self, chat: OpenChat, asked: AskedTurn) -> TurnProgress:
        """The engine is given this turn now."""
        self.committing, self.answering, self.last_sent = None, chat, asked
        self._fully_cached.discard(chat.chat.name)
        now, number = self._clock(), asked.turn.number
        self._started_at = now
        if asked.turn.previous_end is not None:
            chat.progress[number].resume(now)
        else:
            chat.progress[number] = TurnProgress(asked.turn.question.keep, started_at=now)
        return chat.progress[number]

    def apply(self, event: Event, turn: int) -> bool:
        """Take in an event; False when its turn is not under way."""
        chat, asked = self.answering, self.last_sent
        if chat is None or asked is None or asked.turn.number != turn:
            return False
        if asked.turn.state is not TurnState.RUNNING:
            return False
        asked.apply(event)
        chat.progress[turn].apply(asked.turn.for_whole_answer(event), self._clock())
        return True

    def pop_finished(self) -> OpenChat | None:
        """The conversation whose turn is over since the last call, if there is one."""
        chat, asked = self.answering, self.last_sent
        if chat is None or asked is None or asked.turn.state is TurnState.RUNNING:
            return None
        self.answering = None
        self._finishing.append((chat, asked))
        return chat

    @property
    def elapsed_and_remaining(self) -> tuple[float, float]:
        """Seconds: since the engine was given what it is answering, and until the first word, as
        far as that is predicted. Both 0 where nothing is answered."""
        if self.answering is None or self.last_sent is None:
            return 0.0, 0.0
        progress = self.answering.progress[self.last_sent.turn.number]
        running = progress.phases.get(progress.running_phase) if progress.running_phase else None
        return self._clock() - self._started_at, (running.eta if running else None) or 0.0

    def can_preview(self, turn: Turn) -> bool:
        """Whether the engine still has the scores of this turn."""
        last = self.last_sent is not None and self.last_sent.turn is turn
        return last and not self.busy and self.shown.progress[turn.number].has_scores

    def on_background_prefill(self, event: BackgroundProgress) -> None:
        """How far background reading has come."""
        if event.done == event.total:
            self._fully_cached.add(event.conversation)

    def cached_stats(self, turn: Turn) -> Statistics | None:
        """The figures of a turn of the conversation on the screen, with what the engine has read
        since; None where it may not have it any more."""
        progress = self.shown.progress.get(turn.number)
        if progress is None or progress.restored or progress.statistics is None:
            return None
        statistics = progress.statistics
        if self.shown.chat.name in self._fully_cached:
            return replace(statistics, read_tokens=statistics.prompt_tokens)
        return statistics

    def is_fully_cached(self, turn: Turn) -> bool:
        """Whether no keep can save anything on what was read up to the end of this turn."""
        cached = self.cached_stats(turn)
        return cached is not None and cached.eligible_tokens > 0 and cached.read_fraction == 1.0

    # -------------------------------------------------------------------------- what waits

    def enqueue(self, chat: OpenChat, question: Question) -> None:
        chat.conversation.queued = question
        self._queued.append(chat)

    def unqueue(self, chat: OpenChat) -> Question | None:
        if chat in self._queued:
            self._queued.remove(chat)
        return chat.conversation.pop_queued()

    def pop_queued(self) -> tuple[OpenChat, Question] | None:
        while self._queued:
            chat = self._queued.popleft()
            question = chat.conversation.pop_queued()
            if question is not None:
                return chat, question
        return None

    # -------------------------------------------------------------------------- what is open

    def all_open(self) -> Iterator[OpenChat]:
        """What is not only in the store, or not all of it as yet."""
        yield self.shown
        ending = (chat for chat, _ in self._finishing)
        busy = (self.answering, self.committing, *self._queued)
        for chat in (*busy, *ending, *self._stashed, *self._unsaved):
            if chat is not None:
                yield chat

    def get(self, id: int) -> OpenChat | None:
        return next((chat for chat in self.all_open() if chat.id == id), None)

    def statuses(self) -> dict[int, str]:
        """What is done in conversations at present, in a word each, by their ids."""
        found = dict.fromkeys(self._queued, "waiting")
        if self.committing is not None:
            found[self.committing] = "waiting"
        if self.answering is not None and self.last_sent is not None:
            progress = self.answering.progress[self.last_sent.turn.number]
            found[self.answering] = "answering" if progress.generated_tokens else "reading"
        return {chat.id: status for chat, status in found.items() if chat.id is not None}

    def apply_settings(self, settings: Settings) -> None:
        """To every question that is asked from now on."""
        self.repository.apply_settings(settings)
        for chat in self.all_open():
            chat.conversation.sampling = settings.sampling()

    async def set_models(self, load: Load) -> None:
        """Another pair answers from now on: scores and token ids of the one before are of no use
        to it. To be called while nothing is answered."""
        self.last_sent = None
        await self.repository.set_models(load, self.all_open())

    # -------------------------------------------------------------------------- keeping it

    @property
    def problem(self) -> str:
        """Why something of what is said or read is not kept, as long as that is so: a sentence."""
        problem = self._save_error
        if self.last_sent is not None and self.answering is not None:
            problem = self.last_sent.problem or problem
        return self._snapshot_error if problem is None else str(problem)

    def on_snapshot_event(self, event: SnapshotFailed | SnapshotProgress) -> None:
        """What became of a snapshot."""
        if isinstance(event, SnapshotFailed):
            self._snapshot_error = event.reason
        elif event.done == event.total:
            self._snapshot_error = ""

    def stash(self, chat: OpenChat) -> None:
        """It goes from the screen: what is written there is still to be kept."""
        (self._stashed if self.repository.writable else self._unsaved).append(chat)

    def save_pending(self) -> None:
        """Keep what is not kept yet: drafts, and ends of answers that did not get to the disk.
        Never waits; to be called now and then."""
        begun = [self._draft_save, *(asked.saved for _, asked in self._finishing)]
        futures = [future for future in begun if future is not None]
        if not all(future.done() for future in futures):
            return
        self._save_error = next(filter(None, (future.exception() for future in futures)), None)
        self._finishing = [(c, a) for c, a in self._finishing if a.saved and a.saved.exception()]
        now = self._clock()
        if self._save_error is not None and now - self._last_attempt < RETRY_SECONDS:
            return
        self._last_attempt = now
        for _, asked in self._finishing:
            asked.save()
        self._save_drafts()

    def _save_drafts(self) -> None:
        """What was left first: the draft that is kept last tells where the user was."""
        kept = self._draft_save is None or self._draft_save.exception() is None
        self._stashed = self._stashed[1:] if kept and self._saving_stashed else self._stashed
        self._saving_stashed = bool(self._stashed)
        self._draft_save = self.repository.save_draft(
            self._stashed[0] if self._stashed else self.shown
        )

    def close(self) -> None:
        """At the end of the program. Waits for the disk."""
        if not self.repository.opening:
            for chat in (*self._stashed, self.shown):
                if self._draft_save is not None:
                    self._draft_save.exception()  # what is kept next is compared with it
                self._draft_save = self.repository.save_draft(chat)
        self.repository.close()
