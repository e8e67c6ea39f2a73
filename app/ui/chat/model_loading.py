"""Which pair answers: loading it at the start, and another one later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.chat.model_pairs import pair
from app.errors import UserError
from app.protocol.commands import Load
from app.protocol.events import Failed, Loaded
from app.ui.background import in_background
from app.ui.chat.engine_events import in_words
from app.ui.chat.submission import Asking
from app.ui.clock import Clock
from app.util import formatting

if TYPE_CHECKING:
    from app.models.cache import Cache
    from app.ui.chat.screen import ChatScreen
    from app.ui.models.choice import Standing


class Loading:
    """The engine answers every `Load` with one `Loaded` or `Failed`, in order. When a pair cannot
    be loaded, or no longer should, the one before is loaded again."""

    def __init__(self, screen: ChatScreen, asking: Asking, load: Load, clock: Clock) -> None:
        self.load = load
        """What is loaded, or is to be at the start."""
        self.failed = False
        """Whether no pair is loaded, and none is on its way."""
        self._screen, self._asking, self._clock = screen, asking, clock
        self._wanted = load
        self._before: Load | None = None
        self._due = 0
        self._looking = self._settling = self._ready = False
        self._started = clock()
        self._pace: float | None = None
        self._why = ""

    @property
    def busy(self) -> bool:
        return not self.failed and (not self._ready or self._looking)

    @property
    def changing(self) -> bool:
        """Whether another pair than the first one is on its way, or the one before again."""
        return self._looking or (self.busy and self._before is not None)

    @property
    def words(self) -> str:
        """What is said as long as another pair is on its way."""
        if self._looking:
            return "Looking at the models…"
        if not self.changing:
            return ""
        waited = formatting.seconds(self._clock() - self._started)
        if self._why:
            return f"{self._why} Going back to {names(self._wanted)} · {waited}."
        return f"Loading {names(self._wanted)} · {waited}. Esc goes back to {names(self.load)}."

    def start(self) -> None:
        self._send(self.load)

    def tick(self) -> None:
        if self.busy and not self.changing:
            self._screen.transcript.opening.show_loading(self._clock() - self._started)

    def standing(self) -> Standing:
        """For those who choose."""
        from app.ui.models.choice import Standing

        chat = self._screen.desk.shown
        last = chat.conversation.last_over
        progress = chat.progress.get(last.number) if last is not None else None
        read = progress.statistics.prompt_tokens if progress and progress.statistics else 0
        return Standing(self.load, read, self._pace, self.hindrance())

    def hindrance(self) -> str:
        """Why nothing can be asked and no pair loaded just now, if so."""
        if self.busy:
            return "The models are being loaded. Try again when they are ready."
        if self._screen.desk.busy:
            return "An answer is under way. Esc stops it."
        return ""

    # -------------------------------------------------------------------------- another pair

    async def choose(self, target: str, draft: str | None, cache: Callable[[], Cache]) -> None:
        """Load a pair by its names, unless something is wrong with it: then why is said."""
        screen = self._screen
        if hindrance := self.hindrance():
            screen.notice.say(hindrance)
            return
        self._looking = True
        screen.show_hints()
        try:
            load = await in_background(lambda: pair(target, draft, cache(), self.load.kv_bits))
        except UserError as error:
            if self._looking:
                screen.notice.say(str(error))
            return
        finally:
            wanted, self._looking = self._looking, False
            screen.show_hints()
        if wanted and self._ready and load == self.load:
            screen.notice.say(f"{names(load)} answers already.")
        elif wanted:
            self._before = self.load if self._ready else None
            self._why = ""
            self._send(load)

    def stop(self) -> bool:
        """Go back to the pair that was there before; whether another one was on its way."""
        if not self.changing:
            return False
        if not self._looking:
            self._go_back(f"{names(self._wanted)} was not loaded.")
        self._looking = False
        self._screen.show_hints()
        return True

    def _go_back(self, why: str) -> None:
        if self._before is None or self._why:
            return
        self._why = why
        self._send(self._before)

    def _send(self, load: Load) -> None:
        self._wanted, self._started = load, self._clock()
        self._ready = self.failed = False
        self._due += 1
        self._screen.engine.send(load)
        self._screen.show_hints()

    # -------------------------------------------------------------------------- what came of it

    def take(self, event: Loaded | Failed) -> bool:
        """The engine's word on a `Load`; False when none was asked for."""
        if not self._due:
            return False
        self._due -= 1
        if self._due:  # another one was sent since
            return True
        if isinstance(event, Loaded):
            self._screen.run_worker(self._loaded(event))
        elif self._before is not None and not self._why:
            self._go_back(f"{names(self._wanted)} was not loaded. {in_words(event)}")
        else:
            self._fail(event)
        return True

    async def _loaded(self, loaded: Loaded) -> None:
        screen, changed = self._screen, self._wanted != self.load
        weights = loaded.target.bytes + (loaded.draft.bytes if loaded.draft else 0)
        if loaded.seconds > 0:
            self._pace = weights / loaded.seconds
        self.load = self._wanted
        if changed:
            await screen.desk.use(self.load)
            screen.attaching.count_for(self.load.target)
        self._before, self._ready = None, True
        screen.header.show_pair(loaded)
        screen.forecast.loaded(loaded)
        screen.transcript.opening.show_loaded(loaded)
        if self._why:
            screen.notice.say(f"{self._why} {names(self.load)} answers as before.")
        elif changed:
            screen.notice.say(f"{names(self.load)} answers from now on.")
        self._why = ""
        screen.show_hints()
        screen.call_later(self._asking.ask_waiting)

    def _fail(self, failed: Failed) -> None:
        self.failed, self._before, self._why = True, None, ""
        self._screen.transcript.opening.show_failed(failed)
        self._screen.show_hints()
        self._screen.call_later(self._asking.take_back, self._screen.desk.shown)


def names(load: Load) -> str:
    target, draft = load.names
    return f"{target} + {draft}" if draft else target
