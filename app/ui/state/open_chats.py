"""Which conversations are open, and which of them the engine answers. No widgets.

The engine answers one question at a time. One conversation is on the screen; another may
be answered in the background, and each may have a queued question.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

from app.chat import wording
from app.chat.conversation import Question, Turn, TurnState
from app.chat.stored_conversation import StoredTurn
from app.protocol.commands import Load
from app.protocol.events import BackgroundProgress, Event, SnapshotFailed, SnapshotProgress
from app.protocol.stats import Statistics
from app.settings.definitions import Settings
from app.ui.state.repository import ChatRepository, OpenChat

RETRY_SECONDS = 2.0


class OpenChats:
    def __init__(
        self, repository: ChatRepository, shown: OpenChat, clock: Callable[[], float]
    ) -> None:
        self.repository, self.shown = repository, shown
        self.committing: OpenChat | None = None
        """The conversation whose question is being stored."""
        self.answering: OpenChat | None = None
        self.last_sent: StoredTurn | None = None
        """The turn sent to the engine last, finished or not."""
        self.draw_lock = asyncio.Lock()
        """Locked while another conversation or turn is put on the screen."""
        self._cancelled = False
        """Whether the turn that is being stored or answered is to be stopped."""
        self._clock = clock
        self._started_at = clock()
        self._fully_cached: set[str] = set()
        """Engine names of conversations whose background prefill is complete."""
        self._queued: deque[OpenChat] = deque()
        self._finishing: list[tuple[OpenChat, StoredTurn]] = []
        self._stashed: list[OpenChat] = []
        self._unsaved: list[OpenChat] = []
        """Conversations that exist only here."""
        self._draft_save: Future[None] | None = None
        self._saving_stashed = False
        self._save_error: BaseException | None = None
        self._last_attempt = clock()
        self._snapshot_error = ""

    # -------------------------------------------------------------------------- turns

    @property
    def running(self) -> Turn | None:
        """The turn being answered in the conversation on the screen."""
        answering = self.answering is self.shown and self.last_sent is not None
        return self.last_sent.turn if answering and self.last_sent else None

    @property
    def busy(self) -> bool:
        return self.committing is not None or self.answering is not None

    def begin_turn(self, chat: OpenChat) -> None:
        """A turn of this conversation is being stored."""
        self.committing, self._cancelled = chat, False

    def start_turn(self, chat: OpenChat, pending: StoredTurn) -> None:
        """This turn is sent to the engine now."""
        self.committing, self.answering, self.last_sent = None, chat, pending
        chat.asked = None  # events of the turn before it are not this one's
        self._fully_cached.discard(chat.chat.name)
        self._started_at = self._clock()
        pending.turn.start(self._started_at)

    def on_asked(self) -> None:
        """The engine was asked: stop the turn if that was requested before."""
        if self._cancelled:
            self.cancel()

    def apply(self, event: Event) -> Turn | None:
        """Apply an event to the running turn, and return that; None if it is of another one."""
        chat, pending = self.answering, self.last_sent
        if chat is None or pending is None or not chat.is_of_last_turn(event):
            return None
        turn = pending.turn
        if turn.state is not TurnState.RUNNING:
            return None
        pending.apply(event, self._clock())
        return turn

    def cancel(self) -> None:
        """Stop the turn that is being stored or answered."""
        self._cancelled = True
        if self.answering is not None and self.answering.asked is not None:
            self.answering.asked.cancel()

    def pop_finished(self) -> OpenChat | None:
        """The conversation whose turn has finished since the last call, if any."""
        chat, pending = self.answering, self.last_sent
        if chat is None or pending is None or pending.turn.state is TurnState.RUNNING:
            return None
        self.answering = None
        self._finishing.append((chat, pending))
        return chat

    @property
    def elapsed_and_remaining(self) -> tuple[float, float]:
        """Seconds since the turn was sent, and the predicted seconds to its first token. Both are 0
        if nothing is being answered."""
        if self.answering is None or self.last_sent is None:
            return 0.0, 0.0
        progress = self.last_sent.turn.progress
        running = progress.phases.get(progress.running_phase) if progress.running_phase else None
        return self._clock() - self._started_at, (running.eta if running else None) or 0.0

    def can_preview(self, turn: Turn) -> bool:
        """Whether the engine still has the scores of this turn."""
        last = self.last_sent is not None and self.last_sent.turn is turn
        return last and not self.busy and turn.progress.has_scores

    def on_background_prefill(self, event: BackgroundProgress) -> None:
        """Progress of a background prefill."""
        if event.done == event.total:
            self._fully_cached.add(event.conversation)

    def cached_stats(self, turn: Turn) -> Statistics | None:
        """The stats of a turn of the conversation on the screen, with what was prefilled in the
        background since; None if the engine may not have it cached any more."""
        progress = turn.progress
        if progress.restored or progress.statistics is None:
            return None
        statistics = progress.statistics
        if self.shown.chat.name in self._fully_cached:
            return replace(statistics, read_tokens=statistics.prompt_tokens)
        return statistics

    def is_fully_cached(self, turn: Turn) -> bool:
        """Whether everything up to the end of this turn is cached, so that skipping saves
        nothing."""
        cached = self.cached_stats(turn)
        return cached is not None and cached.eligible_tokens > 0 and cached.prompt_fraction == 1.0

    # -------------------------------------------------------------------------- the queue

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

    # -------------------------------------------------------------------------- open chats

    def all_open(self) -> Iterator[OpenChat]:
        """Conversations with state that is not (yet) in the store."""
        yield self.shown
        ending = (chat for chat, _ in self._finishing)
        busy = (self.answering, self.committing, *self._queued)
        for chat in (*busy, *ending, *self._stashed, *self._unsaved):
            if chat is not None:
                yield chat

    def get(self, id: int) -> OpenChat | None:
        return next((chat for chat in self.all_open() if chat.id == id), None)

    def statuses(self) -> dict[int, str]:
        """A word for each conversation that is being answered or queued, by id."""
        found = dict.fromkeys(self._queued, "waiting")
        if self.committing is not None:
            found[self.committing] = "waiting"
        if self.answering is not None and self.last_sent is not None:
            progress = self.last_sent.turn.progress
            found[self.answering] = "answering" if progress.generated_tokens else "reading"
        return {chat.id: status for chat, status in found.items() if chat.id is not None}

    def apply_settings(self, settings: Settings) -> None:
        """Apply settings to every question asked from now on."""
        self.repository.apply_settings(settings)
        for chat in self.all_open():
            chat.conversation.sampling = settings.sampling()

    async def set_models(self, load: Load) -> None:
        """Use another model pair, for which earlier scores and token ids are useless. Call it while
        nothing is being answered."""
        self.last_sent = None
        await self.repository.set_models(load, self.all_open())

    # -------------------------------------------------------------------------- saving

    @property
    def problem(self) -> str:
        """A sentence while an answer, a draft or a snapshot cannot be saved; else empty."""
        problem = self._save_error
        if self.last_sent is not None and self.answering is not None:
            problem = self.last_sent.problem or problem
        return self._snapshot_error if problem is None else str(problem)

    def on_snapshot_event(self, event: SnapshotFailed | SnapshotProgress) -> None:
        """A snapshot was saved, or could not be."""
        if isinstance(event, SnapshotFailed):
            self._snapshot_error = wording.reason(event.reason)
        elif event.done == event.total:
            self._snapshot_error = ""

    def stash(self, chat: OpenChat) -> None:
        """Keep a conversation that leaves the screen until its draft is saved."""
        (self._stashed if self.repository.writable else self._unsaved).append(chat)

    def save_pending(self) -> None:
        """Save drafts, and the ends of answers whose saving failed. Never waits; call it often."""
        started = [self._draft_save, *(pending.saved for _, pending in self._finishing)]
        futures = [future for future in started if future is not None]
        if not all(future.done() for future in futures):
            return
        self._save_error = next(filter(None, (future.exception() for future in futures)), None)
        self._finishing = [(c, a) for c, a in self._finishing if a.saved and a.saved.exception()]
        now = self._clock()
        if self._save_error is not None and now - self._last_attempt < RETRY_SECONDS:
            return
        self._last_attempt = now
        for _, pending in self._finishing:
            pending.save()
        self._save_drafts()

    def _save_drafts(self) -> None:
        """Stashed ones first: the draft saved last is the one to return to at the next start."""
        saved = self._draft_save is None or self._draft_save.exception() is None
        self._stashed = self._stashed[1:] if saved and self._saving_stashed else self._stashed
        self._saving_stashed = bool(self._stashed)
        self._draft_save = self.repository.save_draft(
            self._stashed[0] if self._stashed else self.shown
        )

    def close(self) -> None:
        """Save all drafts, at exit. Waits for the disk."""
        if not self.repository.opening:
            for chat in (*self._stashed, self.shown):
                if self._draft_save is not None:
                    self._draft_save.exception()  # wait: the next draft is compared with it
                self._draft_save = self.repository.save_draft(chat)
        self.repository.close()
