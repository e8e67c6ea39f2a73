"""Loads the model pair at the start, and other pairs later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.chat import wording
from app.chat.model_pairs import check_pair, resolve_pair
from app.chat.wording import Words
from app.errors import UserError
from app.protocol.commands import Load
from app.protocol.events import Failed, HostsLost, Loaded, LoadingAlone, PairLost
from app.protocol.hosts import Hosts
from app.ui.background import in_background, start_task
from app.ui.chat.attachments import Attachments
from app.ui.chat.context import ChatContext
from app.ui.chat.cost_estimate import CostEstimate
from app.util import formatting

if TYPE_CHECKING:
    from app.models.cache import ModelCache
    from app.ui.models.details import PairStatus


class PairLoader:
    """The engine answers every `Load` with one `Loaded` or `Failed`, in order. If a pair cannot be
    loaded, or loading is cancelled, the previous one is loaded again."""

    def __init__(
        self,
        context: ChatContext,
        attachments: Attachments,
        cost_estimate: CostEstimate,
        load: Load,
        clock: Callable[[], float],
        on_loaded: Callable[[], object],
        on_failed: Callable[[], object],
    ) -> None:
        self.load = load
        """The pair that is loaded, or at the start is being loaded."""
        self.failed = False
        """Whether no pair is loaded or being loaded."""
        self._context, self._clock = context, clock
        self._attachments, self._cost_estimate = attachments, cost_estimate
        self._on_loaded, self._on_failed = on_loaded, on_failed
        self._requested = load
        self._previous: Load | None = None
        self._pending = 0
        self._resolving = self._ready = False
        self._started = clock()
        self._bytes_per_second: float | None = None
        self._revert_reason = ""
        self._lost = ""
        """Why the target is being loaded on this machine alone, if it is: another one is gone."""
        self._loaded_event: Loaded | None = None

    @property
    def busy(self) -> bool:
        return not self.failed and (not self._ready or self._resolving)

    @property
    def changing(self) -> bool:
        """Whether a pair is being loaded that is not the first one."""
        return self._resolving or (self.busy and self._previous is not None)

    @property
    def status_text(self) -> str:
        """Shown while another pair is being loaded, or the target on this machine alone."""
        if self._resolving:
            return "Looking at the models…"
        waited = formatting.seconds(self._clock() - self._started)
        if self._lost:
            return f"{self._lost}. Loading {self.load.names[0]} on this machine… · {waited}."
        if not self.changing:
            return ""
        if self._revert_reason:
            return f"{self._revert_reason} Going back to {pair_names(self._requested)} · {waited}."
        back = f"Esc goes back to {pair_names(self.load)}."
        return f"Loading {pair_names(self._requested)} · {waited}. {back}"

    def start(self) -> None:
        """Load the first pair, and check its files before."""
        if self.load.checked:
            self._send(self.load)
        else:
            start_task(self._context.screen, lambda: self._check_and_send(self.load))

    async def _check_and_send(self, load: Load) -> None:
        try:
            self.load = await in_background(lambda: check_pair(load))
        except UserError as error:
            self._fail(Words(error.problem, f"{error.advice} (Ctrl+L)"))
        else:
            self._send(self.load)

    def tick(self) -> None:
        if self.busy and not self.changing and not self._lost:
            self._context.transcript.banner.show_loading(self._clock() - self._started)

    def pair_status(self) -> PairStatus:
        """For the models screen."""
        from app.ui.models.details import PairStatus

        chat = self._context.open_chats.shown
        last = chat.conversation.last_finished
        progress = last.progress if last is not None else None
        read = progress.statistics.prompt_tokens if progress and progress.statistics else 0
        return PairStatus(self.load, read, self._bytes_per_second, self._load_blocked())

    def blocked_reason(self) -> str:
        """Why nothing can be asked and no pair loaded now; empty if it can."""
        if self.busy:
            return "The models are still loading. Try again when they are ready."
        if self._context.open_chats.busy:
            return "Still answering. Esc stops it."
        return ""

    def _load_blocked(self) -> str:
        """Why no pair can be loaded now: another one can instead of what a lost machine leaves."""
        instead = self._lost and not self._context.open_chats.busy
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
        context = self._context
        if reason := self._load_blocked():
            context.notice.show(reason)
            return
        self._resolving = True
        context.refresh()
        try:
            load = await in_background(
                lambda: resolve_pair(target, draft, cache(), self.load.kv_bits, hosts)
            )
        except UserError as error:
            if self._resolving:
                context.notice.show(str(error))
            return
        finally:
            proceed, self._resolving = self._resolving, False
            context.refresh()
        if proceed and self._ready and load == self.load:
            context.notice.show(f"{pair_names(load)} is already loaded.")
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
        self._context.refresh()
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
        self._context.engine.send(load)
        self._context.refresh()

    # -------------------------------------------------------------------------- results

    def on_load_result(self, event: Loaded | Failed) -> bool:
        """The engine's answer to a `Load`; False if none is pending."""
        if not self._pending:
            return False
        self._pending -= 1
        if self._pending:  # a later one has been sent
            return True
        if isinstance(event, Loaded):
            start_task(self._context.screen, lambda: self._loaded(event))
            return True
        failed = wording.failure(event.failure)
        if self._previous is not None and not self._revert_reason:
            self._revert(f"{pair_names(self._requested)} was not loaded. {failed.text}")
        else:
            self._fail(failed)
        return True

    async def _loaded(self, loaded: Loaded) -> None:
        context, changed = self._context, self._requested != self.load
        weights = loaded.target.weight_bytes + (loaded.draft.weight_bytes if loaded.draft else 0)
        if loaded.seconds > 0:
            self._bytes_per_second = weights / loaded.seconds
        self.load = self._requested
        if changed:
            await context.open_chats.set_models(self.load)
            self._attachments.recount_for(self.load.target)
        self._previous, self._ready, self._loaded_event = None, True, loaded
        self._show_pair()
        self._cost_estimate.set_pair(loaded)
        context.transcript.banner.show_loaded(loaded)
        if self._revert_reason:
            context.notice.show(f"{self._revert_reason} {pair_names(self.load)} is loaded again.")
        elif changed:
            context.notice.show(f"{pair_names(self.load)} is loaded.")
        self._revert_reason = ""
        context.refresh()
        context.screen.call_later(self._on_loaded)

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
            self._context.notice.show("")  # it would hide the status
        if isinstance(event, HostsLost):
            self._context.notice.show(wording.notice(event))
            self._show_pair()
        self._context.refresh()
        if self._ready:
            self._context.screen.call_later(self._on_loaded)

    def _on_pair_lost(self, lost: PairLost) -> None:
        self._previous, self._lost = None, ""
        if not self._pending:
            self._ready = False
            problem, advice = wording.failure(lost.failure)
            failed = Words(problem, f"{advice} (Ctrl+L)")
            self._context.notice.show(failed.text)
            self._fail(failed)

    def _show_pair(self) -> None:
        if self._loaded_event is not None:
            machines = self.load.hosts.size if self.load.hosts is not None else 1
            self._context.header.show_pair(self._loaded_event, machines)

    def _fail(self, failed: Words) -> None:
        self.failed, self._previous, self._revert_reason = True, None, ""
        self._context.transcript.banner.show_failed(failed)
        self._context.refresh()
        self._context.screen.call_later(self._on_failed)


def pair_names(load: Load) -> str:
    target, draft = load.names
    where = f" on {load.hosts.size} machines" if load.hosts is not None else ""
    return f"{target}{where} + {draft}" if draft else f"{target}{where}"
