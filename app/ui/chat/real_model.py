"""F6: fetches a small model that answers in its own words, loads it, and asks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.models.packaged import SMOLLM2
from app.ui.background import in_background, start_task
from app.ui.chat.context import ChatContext
from app.ui.chat.model_loading import PairLoader, pair_names
from app.ui.chat.submission import Submission
from app.ui.state.repository import OpenChat
from app.util import formatting

if TYPE_CHECKING:
    from app.models.cache import ModelCache
    from app.ui.models.jobs import Job, Jobs


class RealModel:
    """Replaces the embedded pair, which only quotes. If that fails or is cancelled, the embedded
    pair stays loaded."""

    def __init__(self, context: ChatContext, loader: PairLoader, submission: Submission) -> None:
        self._context, self._loader, self._submission = context, loader, submission
        self._chat: OpenChat | None = None
        """Whose last question is asked again."""
        self._jobs: Jobs | None = None
        """Set while the model is downloaded."""
        self._cache: Callable[[], ModelCache]

    @property
    def status_text(self) -> str:
        """Shown while the model is downloaded."""
        job = None if self._jobs is None else self._jobs.find(SMOLLM2.repository)
        if job is None or job.state.ended:
            return ""
        if job.progress.note:
            return f"Converting {SMOLLM2.name}… Esc cancels."
        done, total = formatting.size(job.progress.done), formatting.size(SMOLLM2.download)
        return f"Downloading {SMOLLM2.name}: {done} of {total}. Esc cancels."

    async def fetch(self, jobs: Jobs, cache: Callable[[], ModelCache]) -> None:
        context, loader = self._context, self._loader
        if not loader.failed and not loader.load.only_quotes:
            context.notice.show(f"{pair_names(loader.load)} answers in its own words already.")
            return
        if self._chat is not None:
            return
        if reason := loader.blocked_reason():
            context.notice.show(reason)
            return
        self._chat, self._cache = context.open_chats.shown, cache
        found = await in_background(lambda: cache().find(SMOLLM2.repository))
        if found is not None:
            await self._load()
        else:
            self._jobs = jobs
            jobs.start(SMOLLM2.repository)

    def cancel(self) -> bool:
        """Stop the download; returns whether there was one."""
        if self._jobs is None:
            return False
        self._jobs.pause(SMOLLM2.repository)
        return True

    def on_job_ended(self, job: Job) -> None:
        if self._jobs is None or job.repository != SMOLLM2.repository:
            return
        self._jobs = None
        if job.succeeded:
            start_task(self._context.screen, self._load)
        else:
            self._chat = None
            self._context.notice.show(f"{job.message} The demo model stays loaded.")

    async def _load(self) -> None:
        await self._loader.load_pair(SMOLLM2.repository, None, self._cache)
        if not self._loader.changing:  # it was refused, and a notice says why
            self._chat = None

    def on_loaded(self) -> None:
        """A pair was loaded: this model, or again the one before it."""
        chat, self._chat = self._chat, None
        if chat is None or self._loader.load.only_quotes or self._submission.busy:
            return
        last = chat.conversation.last_finished
        if chat is self._context.open_chats.shown and last is not None and last.quotes:
            self._submission.ask_again(last.question.mode, last.question.keep, last)
