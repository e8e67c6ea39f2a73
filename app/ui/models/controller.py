"""Downloads, checks and measurements, which continue while the models screen is closed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import cache, partial
from typing import Any

from textual.app import App

from app.errors import UserError
from app.estimate.preview import describe
from app.models.cache import ModelCache
from app.models.fit import Machine, mac_with
from app.models.library import Library, default_library
from app.models.pairs import TokenizerCache
from app.protocol.commands import CalibrateCosts
from app.protocol.cost_model import UNKNOWN_COSTS, Costs
from app.protocol.hosts import Hosts, Machines
from app.protocol.memory import MemoryStats
from app.settings.definitions import find
from app.store.records import AnswerStats
from app.ui.background import start_task
from app.ui.models.choice import PairChoice, PairStatus
from app.ui.models.jobs import Jobs
from app.ui.models.screen import ModelsScreen
from app.ui.settings.live import LiveSettings
from app.ui.state.repository import ChatRepository

LoadPair = Callable[
    [str, str | None, Callable[[], ModelCache], Hosts | None], Coroutine[Any, Any, None]
]
"""Loads a target and a draft by their names, on this machine or spread over several."""


class ModelsController:
    """Opens the models screen, and reports in the chat when a job ends."""

    def __init__(
        self,
        app: App[Any],
        *,
        repository: ChatRepository,
        settings: LiveSettings,
        pair_status: Callable[[], PairStatus],
        load_pair: LoadPair,
        memory: Callable[[], MemoryStats | None],
        measure: Callable[[CalibrateCosts], None],
        keep: Callable[[], float],
        show_message: Callable[[str], None],
        library: Callable[[], Library] | None = None,
        machines: Machines | None = None,
        costs: Callable[[], Costs] = lambda: UNKNOWN_COSTS,
    ) -> None:
        """`library`, the user's by default, is called when it is first needed. `machines` are those
        of `--hosts`, `costs` those of the loaded pair."""
        self._app = app
        self._repository, self._settings = repository, settings
        self._pair_status, self._load_pair = pair_status, load_pair
        self._memory, self._send_measure, self._keep = memory, measure, keep
        self._show_message = show_message
        self._library = cache(library or default_library)
        self._tokenizers = TokenizerCache()
        self._machines, self._costs = machines, costs
        self.jobs = Jobs(app, self._library)

    @property
    def cache(self) -> Callable[[], ModelCache]:
        """Waits for the disk when it is first called."""
        return lambda: self._library().cache

    @property
    def _screen(self) -> ModelsScreen | None:
        screens = self._app.screen_stack
        return next((each for each in screens if isinstance(each, ModelsScreen)), None)

    def show(self) -> None:
        screen = ModelsScreen(
            self._library,
            self.jobs,
            self._machine(),
            self._answer_stats,
            self._pair_status,
            self._tokenizers,
            self._measure,
            lambda: self._settings.values.models.folders,
            self._machines,
            self._costs,
        )
        self._app.push_screen(screen, self._on_choice)

    def on_jobs_changed(self) -> None:
        self.jobs.mark_drawn()
        if (screen := self._screen) is not None:
            screen.update_jobs()

    def on_job_ended(self, message: str) -> None:
        self._show_message(message)
        if (screen := self._screen) is not None:
            screen.show_job_result(message)

    def on_costs_measured(self, costs: Costs) -> None:
        self.on_job_ended(describe(costs, self._keep()))

    def _on_choice(self, choice: PairChoice | None) -> None:
        if choice is None:
            return
        if choice.as_default:
            try:
                self._settings.change(find("models.target"), choice.target)
                self._settings.change(find("models.draft"), choice.draft or "")
            except ValueError:
                self._show_message(f"'{choice.target}' cannot be saved in the settings.")
                return
        hosts = self._machines.hosts if self._machines is not None and choice.across else None
        load = partial(self._load_pair, choice.target, choice.draft, self.cache, hosts)
        start_task(self._app, load)

    def _measure(self) -> str:
        """Have the engine measure the loaded pair. Returns a message."""
        if reason := self._pair_status().blocked_reason:
            return reason
        self._send_measure(CalibrateCosts())
        return "Measuring the pair on a few thousand random tokens. A question stops it."

    def _machine(self) -> Machine:
        memory = self._memory()
        if memory is not None and memory.ceiling:
            return Machine(memory.total, memory.ceiling)
        import psutil

        return mac_with(psutil.virtual_memory().total)

    async def _answer_stats(self) -> Sequence[AnswerStats]:
        """The stats of stored answers."""
        if not self._repository.readable:
            return ()
        try:
            return await self._repository.read(lambda store: store.answer_stats())
        except UserError:  # shown by what needs the store
            return ()
