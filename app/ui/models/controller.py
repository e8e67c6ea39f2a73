"""What of models goes on whether or not their screen is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from app.chat.cost_preview import describe
from app.errors import UserError
from app.models.draft_selection import TokenizerCache
from app.models.fit import Machine, mac_with
from app.models.library import Library, default_library
from app.protocol.commands import CalibrateCosts
from app.protocol.cost_model import Costs
from app.sessions.records import Run
from app.settings.schema import find
from app.ui.models.choice import PairChoice
from app.ui.models.jobs import Jobs
from app.ui.models.screen import ModelsScreen

if TYPE_CHECKING:
    from app.ui.app import SpecchatApp


class ModelsController:
    """Downloads and checks go on when their screen closes, and what becomes of them is said in the
    chat."""

    def __init__(self, app: SpecchatApp, library: Callable[[], Library] | None = None) -> None:
        """`library`, or the user's own, is only asked for once models are looked at."""
        self._app = app
        self._library = cache(library or default_library)
        self._tokenizers = TokenizerCache()
        self.jobs = Jobs(app, self._library)

    @property
    def _screen(self) -> ModelsScreen | None:
        screens = self._app.screen_stack
        return next((each for each in screens if isinstance(each, ModelsScreen)), None)

    def show(self) -> None:
        chat = self._app.chat
        screen = ModelsScreen(
            self._library,
            self.jobs,
            self._machine(),
            self._runs,
            chat.loader.pair_status,
            self._tokenizers,
            self._measure,
        )
        self._app.push_screen(screen, self._left)

    def on_jobs_changed(self) -> None:
        self.jobs.mark_drawn()
        if (screen := self._screen) is not None:
            screen.show_jobs()

    def on_job_ended(self, said: str) -> None:
        self._app.chat.notice.show(said)
        if (screen := self._screen) is not None:
            screen.job_ended(said)

    def _left(self, choice: PairChoice | None) -> None:
        if choice is None:
            return
        if choice.as_default:
            settings = self._app.settings
            try:
                settings.change(find("models.target"), choice.target)
                settings.change(find("models.draft"), choice.draft or "")
            except ValueError:
                self._app.chat.notice.show(
                    f"'{choice.target}' cannot be written into the settings."
                )
                return
        chat, cache = self._app.chat, lambda: self._library().cache
        chat.run_worker(chat.loader.load_pair(choice.target, choice.draft, cache))

    def _measure(self) -> str:
        """Let the pair be timed; returns what is to be said of it at once."""
        chat = self._app.chat
        if (hindrance := chat.loader.pair_status().blocked_reason) or chat.open_chats.busy:
            return hindrance or "An answer is being written: time the pair when it is done."
        chat.engine.send(CalibrateCosts())
        return "Timing the pair: it reads a few thousand tokens drawn by lot. A question stops it."

    def on_costs_measured(self, costs: Costs) -> None:
        """The engine has timed the pair, as it was asked to."""
        self.on_job_ended(describe(costs, self._app.chat.next_mode.keep))

    def _machine(self) -> Machine:
        memory = self._app.chat.header.memory
        if memory is not None and memory.ceiling:
            return Machine(memory.total, memory.ceiling)
        import psutil

        return mac_with(psutil.virtual_memory().total)

    async def _runs(self) -> Sequence[Run]:
        """The figures of the answers that are kept."""
        shelf = self._app.chat.open_chats.repository
        if not shelf.readable:
            return ()
        try:
            return await shelf.read(lambda store: store.runs())
        except UserError:  # said where it matters
            return ()
