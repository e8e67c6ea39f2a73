"""What the models screen does to the disk, and asks of the hub. All of it waits beside the screen,
one thing after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.models import catalogue, trash
from app.models.model_details import ModelDetails, find_model
from app.models.unfinished import pause
from app.ui.background import in_background
from app.ui.models.jobs import JobKind
from app.ui.models.rows import RowKind, Tab
from app.util import formatting

if TYPE_CHECKING:
    from app.ui.models.screen import ModelsScreen


class Doing:
    def __init__(self, screen: ModelsScreen) -> None:
        self._screen = screen
        self.asked: dict[str, ModelDetails] = {}
        """Models that the hub was asked about, by their names."""
        self.found: tuple[str, ...] = ()
        """What the hub was searched for last has these."""
        self._removed: list[str] = []

    # -------------------------------------------------------------------------- downloads

    def fetch(self, *names: str) -> None:
        for name in names:
            self._screen.jobs.start(name)
        self._show_jobs()

    def check(self, name: str) -> None:
        self._screen.jobs.start(name, JobKind.CHECK)
        self._show_jobs()

    def _show_jobs(self) -> None:
        self._screen.filter.value = ""
        self._screen.go(Tab.DOWNLOADS)

    def pause_elsewhere(self, name: str) -> None:
        screen = self._screen

        async def ask() -> None:
            await in_background(lambda: pause(screen.library().cache, name))
            screen.say(f"The download of {name} stops and keeps what it has.")
            await screen.look()

        screen.do(ask)

    # -------------------------------------------------------------------------- the trash

    def remove(self, name: str, older: bool = False) -> None:
        screen = self._screen
        here = screen.stock.installed_model(name)
        if not older and here is not None and screen.standing().uses(here.folder):
            screen.say(f"{name} answers now: load another pair first.")
            return

        async def remove() -> None:
            gone = await in_background(lambda: trash.remove(screen.library().cache, name, older))
            self._removed.append(name)
            await screen.look()
            screen.say(f"{name} is in the trash, {formatting.size(gone.size)}. ^Z undoes that.")

        screen.do(remove)

    def undo(self) -> None:
        if self._removed:
            self.restore(self._removed.pop())
        else:
            self._screen.say("Nothing was removed since this list was opened.")

    def restore(self, name: str) -> None:
        screen = self._screen

        async def restore() -> None:
            await in_background(lambda: trash.restore(screen.library().cache, name))
            await screen.look(f"{RowKind.MODEL}:{name}")
            screen.say(f"{name} is back.")

        screen.do(restore)

    def empty_trash(self) -> None:
        screen = self._screen

        async def empty() -> None:
            freed = await in_background(lambda: trash.empty(screen.library().cache))
            self._removed.clear()
            await screen.look()
            screen.say(f"{formatting.size(freed)} freed.")

        screen.do(empty)

    # -------------------------------------------------------------------------- more models

    def search(self, words: str) -> None:
        screen = self._screen

        async def search() -> None:
            screen.say("Searching the hub…")
            self.found = await in_background(lambda: screen.library().search(words))
            some = f"{formatting.plural(len(self.found), 'model')} found at the hub."
            none = f"The hub has no model made for MLX like '{words}'."
            screen.say(some if self.found else none)
            screen.draw(f"{RowKind.FOUND}:{self.found[0]}" if self.found else "")

        screen.do(search)

    def ask_hub(self, name: str) -> None:
        """What a model there takes; then it is shown in full."""
        screen = self._screen

        def ask() -> ModelDetails:
            library = screen.library()
            return find_model(name, library.cache, library.entries(), library.fetch_hub_model)

        async def show() -> None:
            screen.say(f"Asking the hub about {name}…")
            self.asked[name] = await in_background(ask)
            await screen.look(f"{RowKind.MODEL}:{name}")
            screen.say("")
            if (chosen := screen.chosen) is not None and chosen.name == name:
                screen.open(chosen)

        screen.do(show)

    def add(self, name: str) -> None:
        """To the user's own catalogue."""
        screen = self._screen

        async def add() -> None:
            kept = await in_background(lambda: catalogue.add(screen.library().config_folder, name))
            screen.filter.value = ""
            await screen.look()
            known = screen.stock.find(kept)
            here = known is not None and known.model.installed
            screen.go(Tab.INSTALLED if here else Tab.CATALOGUE, f"{RowKind.MODEL}:{kept}")
            screen.say(f"{kept} is in your catalogue.")

        screen.do(add)
