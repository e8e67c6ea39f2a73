"""Loads the model pair at the start, and other pairs later: any, or a small model at F6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.message import Message

from app.chat import wording
from app.chat.conversation import Turn
from app.chat.model_pairs import check_pair, resolve_pair
from app.chat.wording import Words
from app.errors import UserError
from app.models.first_model import first_model
from app.protocol.commands import Load
from app.protocol.engine import Engine
from app.protocol.events import CommandFailed, HostsLost, Loaded, LoadingAlone, PairLost
from app.protocol.hosts import Hosts
from app.ui.background import in_background, start_task
from app.ui.chat.chrome import Notice
from app.ui.chat.widgets import ChatWidgets
from app.ui.state.asking import STILL_ANSWERING, STILL_LOADING
from app.ui.state.open_chats import OpenChats
from app.ui.state.repository import OpenChat
from app.util import formatting

if TYPE_CHECKING:
    from app.models.cache import ModelCache
    from app.ui.models.details import PairStatus
    from app.ui.models.jobs import Job, Jobs


class PairChanged(Message):
    """Which pair is loaded, or being loaded, has changed."""


class PairReady(Message):
    """Questions can be asked."""


class PairFailed(Message):
    """No pair is loaded."""


class PairLoader:
    """The engine answers every `Load` with one `Loaded` or `CommandFailed`, in order. If a pair
    cannot be loaded, or loading is cancelled, the previous one is loaded again."""

    def __init__(
        self,
        engine: Engine,
        open_chats: OpenChats,
        widgets: ChatWidgets,
        load: Load,
        clock: Callable[[], float],
    ) -> None:
        self.load = load
        """The pair that is loaded, or at the start is being loaded."""
        self.failed = False
        """Whether no pair is loaded or being loaded."""
        self.pair: Loaded | None = None
        """The pair that was loaded last."""
        self._engine, self._open_chats, self._clock = engine, open_chats, clock
        self._header, self._banner = widgets.header, widgets.banner
        self._notice = widgets.notice
        self._requested = load
        self._previous: Load | None = None
        self._pending = 0
        self._resolving = self._ready = False
        self._started = clock()
        self._bytes_per_second: float | None = None
        self._revert_reason = ""
        self._lost = ""
        """Why the target is being loaded on this machine alone, after a machine was lost; else
        empty."""

    @property
    def busy(self) -> bool:
        return not self.failed and (not self._ready or self._resolving)

    @property
    def changing(self) -> bool:
        """Whether a pair is being loaded that is not the first one."""
        return self._resolving or (self.busy and self._previous is not None)

    @property
    def status_text(self) -> str:
        """The notice while another pair is being loaded, or the target on this machine alone."""
        if self._resolving:
            return "Checking the models…"
        waited = formatting.seconds(self._clock() - self._started)
        if self._lost:
            return f"{self._lost}. Loading {self.load.names[0]} on this machine… · {waited}."
        if not self.changing:
            return ""
        if self._revert_reason:
            return f"{self._revert_reason} Loading {pair_names(self._requested)} again · {waited}."
        back = f"Esc goes back to {pair_names(self.load)}."
        return f"Loading {pair_names(self._requested)} · {waited}. {back}"

    def start(self) -> None:
        """Load the first pair, and check its files before."""
        if self.load.checked:
            self._send(self.load)
        else:
            start_task(self._header, lambda: self._check_and_send(self.load))

    async def _check_and_send(self, load: Load) -> None:
        try:
            self.load = await in_background(lambda: check_pair(load))
        except UserError as error:
            self._fail(Words(error.problem, f"{error.advice} (Ctrl+L)"))
        else:
            self._send(self.load)

    def tick(self) -> None:
        if self.busy and not self.changing and not self._lost:
            self._banner.show_loading(self._clock() - self._started)

    def pair_status(self) -> PairStatus:
        """What the models screen shows of the loaded pair."""
        from app.ui.models.details import PairStatus

        chat = self._open_chats.shown
        last = chat.conversation.last_finished
        progress = last.progress if last is not None else None
        read = progress.statistics.prompt_tokens if progress and progress.statistics else 0
        return PairStatus(self.load, read, self._bytes_per_second, self._load_blocked())

    def blocked_reason(self) -> str:
        """Why nothing can be asked and no pair loaded now; empty if it can."""
        if self.busy:
            return STILL_LOADING
        if self._open_chats.busy:
            return STILL_ANSWERING
        return ""

    def _load_blocked(self) -> str:
        """Why no pair can be loaded now; empty if one can. While a target is being loaded because a
        machine was lost, another pair can be loaded instead."""
        instead = self._lost and not self._open_chats.busy
        return "" if instead else self.blocked_reason()

    # -------------------------------------------------------------------------- another pair

    async def load_pair(
        self,
        target: str,
        draft: str | None,
        cache: Callable[[], ModelCache],
        hosts: Hosts | None = None,
    ) -> None:
        """Load a pair by its names, the target spread over `hosts` if there are any, or show why it
        cannot be loaded."""
        if reason := self._load_blocked():
            self._notice.show(reason)
            return
        self._resolving = True
        self._header.post_message(PairChanged())
        try:
            load = await in_background(
                lambda: resolve_pair(target, draft, cache(), self.load.kv_bits, hosts)
            )
        except UserError as error:
            if self._resolving:
                self._notice.show(str(error))
            return
        finally:
            proceed, self._resolving = self._resolving, False
            self._header.post_message(PairChanged())
        if proceed and self._ready and load == self.load:
            self._notice.show(f"{pair_names(load)} is already loaded.")
        elif proceed:
            self._previous = self.load if self._ready or self._lost else None
            self._revert_reason = ""
            self._send(load)

    def cancel(self) -> bool:
        """Go back to the previous pair; returns whether another one was being loaded."""
        if not self.changing:
            return False
        if not self._resolving:
            self._revert(f"{pair_names(self._requested)} was not loaded.")
        self._resolving = False
        self._header.post_message(PairChanged())
        return True

    def _revert(self, reason: str) -> None:
        if self._previous is None or self._revert_reason:
            return
        self._revert_reason = reason
        self._send(self._previous)

    def _send(self, load: Load) -> None:
        self._requested, self._started = load, self._clock()
        self._ready = self.failed = False
        self._lost = ""
        self._pending += 1
        self._engine.send(load)
        self._header.post_message(PairChanged())

    # -------------------------------------------------------------------------- results

    def on_load_result(self, event: Loaded | CommandFailed) -> bool:
        """The engine's answer to a `Load`; False if none is pending."""
        if not self._pending:
            return False
        self._pending -= 1
        if self._pending:  # a later one has been sent
            return True
        if isinstance(event, Loaded):
            start_task(self._header, lambda: self._loaded(event))
            return True
        failed = wording.failure(event.failure)
        if self._previous is not None and not self._revert_reason:
            self._revert(f"{pair_names(self._requested)} was not loaded. {failed.text}")
        else:
            self._fail(failed)
        return True

    async def _loaded(self, loaded: Loaded) -> None:
        changed = self._requested != self.load
        weights = loaded.target.weight_bytes + (loaded.draft.weight_bytes if loaded.draft else 0)
        if loaded.seconds > 0:
            self._bytes_per_second = weights / loaded.seconds
        self.load = self._requested
        if changed:
            await self._open_chats.set_models(self.load)
        self._previous, self._ready, self.pair = None, True, loaded
        self._show_pair()
        self._banner.show_loaded(loaded)
        if self._revert_reason:
            self._notice.show(f"{self._revert_reason} {pair_names(self.load)} is loaded again.")
        elif changed:
            self._notice.show(f"{pair_names(self.load)} is loaded.")
        self._revert_reason = ""
        self._header.post_message(PairReady())

    def on_machine_lost(self, event: LoadingAlone | HostsLost | PairLost) -> None:
        """The engine loads the target on this machine alone, has loaded it, or could not."""
        if isinstance(event, PairLost):
            self._on_pair_lost(event)
            return
        self.load = replace(self.load, hosts=None)
        if self._previous is not None:
            self._previous = replace(self._previous, hosts=None)
        if not self._pending:  # otherwise another pair follows
            self._requested, self._started = self.load, self._clock()
            self._ready = isinstance(event, HostsLost)
            is_loading = isinstance(event, LoadingAlone)
            self._lost = wording.problem(event.failure) if is_loading else ""
            self._notice.show("")  # it would hide the status
        if isinstance(event, HostsLost):
            self._notice.show(wording.notice(event))
            self._show_pair()
        self._header.post_message(PairReady() if self._ready else PairChanged())

    def _on_pair_lost(self, lost: PairLost) -> None:
        self._previous, self._lost = None, ""
        if not self._pending:
            self._ready = False
            problem, advice = wording.failure(lost.failure)
            failed = Words(problem, f"{advice} (Ctrl+L)")
            self._notice.show(failed.text)
            self._fail(failed)

    def _show_pair(self) -> None:
        if self.pair is not None:
            machines = self.load.hosts.size if self.load.hosts is not None else 1
            self._header.show_pair(self.pair, machines)

    def _fail(self, failed: Words) -> None:
        self.failed, self._previous, self._revert_reason = True, None, ""
        self._banner.show_failed(failed)
        self._header.post_message(PairFailed())


def pair_names(load: Load) -> str:
    target, draft = load.names
    where = f" on {load.hosts.size} machines" if load.hosts is not None else ""
    return f"{target}{where} + {draft}" if draft else f"{target}{where}"


class RealModel:
    """F6: downloads `first_model`, which answers in its own words, and loads it instead of the demo
    model, which can only quote. If that fails or is cancelled, the demo model stays loaded."""

    def __init__(self, loader: PairLoader, open_chats: OpenChats, notice: Notice) -> None:
        self._loader, self._open_chats, self._notice = loader, open_chats, notice
        self._chat: OpenChat | None = None
        """The conversation whose last question is asked again."""
        self._jobs: Jobs | None = None
        """Set while the model is downloaded."""
        self._cache: Callable[[], ModelCache]
        self._model = first_model()

    @property
    def status_text(self) -> str:
        """The notice while the model is downloaded."""
        job = None if self._jobs is None else self._jobs.find(self._model.repository)
        if job is None or job.state.ended:
            return ""
        if job.progress.note:
            return f"Converting {self._model.name}… Esc cancels."
        done, total = formatting.size(job.progress.done), formatting.size(self._model.download)
        return f"Downloading {self._model.name}: {done} of {total}. Esc cancels."

    async def fetch(self, jobs: Jobs, cache: Callable[[], ModelCache]) -> None:
        loader = self._loader
        if not loader.failed and not loader.load.only_quotes:
            self._notice.show(
                f"{pair_names(loader.load)} is loaded. F6 replaces only the demo model."
            )
            return
        if self._chat is not None:
            return
        if reason := loader.blocked_reason():
            self._notice.show(reason)
            return
        self._chat, self._cache = self._open_chats.shown, cache
        found = await in_background(lambda: cache().find(self._model.repository))
        if found is not None:
            await self._load()
        else:
            self._jobs = jobs
            jobs.start(self._model.repository)

    def cancel(self) -> bool:
        """Stop the download; returns whether there was one."""
        if self._jobs is None:
            return False
        self._jobs.pause(self._model.repository)
        return True

    def on_job_ended(self, job: Job) -> None:
        if self._jobs is None or job.repository != self._model.repository:
            return
        self._jobs = None
        if job.succeeded:
            start_task(self._notice, self._load)
        else:
            self._chat = None
            self._notice.show(f"{job.message} The demo model stays loaded.")

    async def _load(self) -> None:
        await self._loader.load_pair(self._model.repository, None, self._cache)
        if not self._loader.changing:  # it was refused, and a notice says why
            self._chat = None

    def pop_question(self) -> Turn | None:
        """A pair was loaded, this model or again the one before it: the turn to ask again."""
        chat, self._chat = self._chat, None
        if chat is None or chat is not self._open_chats.shown or self._loader.load.only_quotes:
            return None
        last = chat.conversation.last_finished
        return last if last is not None and last.quotes else None
