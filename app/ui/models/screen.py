"""Ctrl+L: the models that are here, those that could be, and what is being downloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.errors import UserError
from app.models.draft_selection import DraftCandidate, TokenizerCache
from app.models.fit import Machine
from app.models.library import Library
from app.models.overview import ModelOverview
from app.models.text import memory_heading
from app.sessions.records import Run
from app.ui.background import in_background
from app.ui.help import Section
from app.ui.models import actions, detail_text, rows
from app.ui.models.action_dialog import Action, ActionDialog
from app.ui.models.choice import PairChoice, PairStatus, cost_text
from app.ui.models.inventory import Inventory, scan
from app.ui.models.jobs import Jobs
from app.ui.models.rows import Row, RowKind, Tab, render_row
from app.ui.models.tabs import Tabs
from app.ui.models.tasks import Doing
from app.ui.safe_input import SafeInput
from app.util import formatting
from app.util.sanitize import sanitize_line

HINTS = ("⏎ what it takes, and do", "⇥ next list", "^D delete", "^Z undo", "Esc")
WIDE = 110
"""Cells from which on the model that is marked is shown in full beside the list."""


class ModelsScreen(Screen[PairChoice | None]):
    """Gives back the pair that is to answer, if one was chosen."""

    # Before the focused line, which would take some of them for its own.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "open", "Open", id="models.open",
            tooltip="What it takes, line by line, and what can be done with it",
        ),
        Binding("up", "move('up')", "Up", id="models.up", tooltip="The one above", priority=True),
        Binding(
            "down", "move('down')", "Down", id="models.down", tooltip="The one below",
            priority=True,
        ),
        Binding(
            "pageup", "move('page_up')", "Page up", id="models.page_up", tooltip="A page up",
            priority=True,
        ),
        Binding(
            "pagedown", "move('page_down')", "Page down", id="models.page_down",
            tooltip="A page down", priority=True,
        ),
        Binding(
            "tab", "part(1)", "Next list", id="models.next",
            tooltip="The next list: installed, catalogue, downloads", priority=True,
        ),
        Binding(
            "shift+tab", "part(-1)", "List before", id="models.before",
            tooltip="The list before", priority=True,
        ),
        Binding(
            "ctrl+d", "delete", "Delete", id="models.delete",
            tooltip="Move the model to the trash, or give the download up", priority=True,
        ),
        Binding(
            "ctrl+z", "undo", "Undo", id="models.undo",
            tooltip="Bring back what was moved to the trash last", priority=True,
        ),
        Binding("escape", "close", "Close", id="models.close", tooltip="Back", priority=True),
    ]  # fmt: skip

    def __init__(
        self,
        library: Callable[[], Library],
        jobs: Jobs,
        machine: Machine,
        runs: Callable[[], Coroutine[Any, Any, Sequence[Run]]],
        standing: Callable[[], PairStatus],
        tokenizers: TokenizerCache,
        measure: Callable[[], str],
    ) -> None:
        """`library` is asked for beside the screen; `runs` are the figures of answers so far.
        `measure` lets the pair that answers be timed, and says so."""
        super().__init__()
        self.jobs = jobs
        self.library, self._machine = library, machine
        self._runs, self.standing = runs, standing
        self._tokenizers, self.measure = tokenizers, measure
        self.stock = Inventory(machine)
        self._part = Tab.INSTALLED
        self._rows: list[Row] = []
        self._loading = True
        self.doing = Doing(self)
        self._in_turn = asyncio.Lock()
        self._head = Static(id="models-head", markup=False)
        self._parts = Tabs(self.go)
        self.filter = SafeInput(placeholder="Type to find", id="models-filter", compact=True)
        self.list = OptionList(id="models-list", compact=True, markup=False)
        self._sheet = Static(markup=False)
        self._said = Static(id="models-said", markup=False)
        self._foot = Static(id="models-foot", markup=False)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Models", ModelsScreen), ("One of them", ActionDialog))

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._parts
        yield self.filter
        with Horizontal(id="models-middle"):
            yield self.list
            yield VerticalScroll(self._sheet, id="models-sheet", can_focus=False)
        yield self._said
        yield self._foot

    def on_mount(self) -> None:
        self.list.can_focus = False
        self.filter.focus()
        self.do(self.look)

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE, "-wide")
        self.call_after_refresh(self.draw)

    # -------------------------------------------------------------------------- what is shown

    async def look(self, go_to: str = "") -> None:
        """Look at everything anew."""
        runs = await self._runs()
        asked = list(self.doing.asked.values())
        self.stock = await in_background(
            lambda: scan(self.library(), self._machine, runs, self._tokenizers, asked)
        )
        self._loading = False
        if self.stock.problem:
            self.say(self.stock.problem)
        self.draw(go_to)

    def show_jobs(self) -> None:
        """Their progress has changed."""
        if self.is_attached and not self._loading:
            self.draw()

    def job_ended(self, said: str) -> None:
        self.say(said)
        self.do(self.look)

    def _rows_of(self, part: Tab) -> list[Row]:
        stock, words = self.stock, self.filter.value
        match part:
            case Tab.INSTALLED:
                return rows.installed_rows(stock, words, self.answers)
            case Tab.CATALOGUE:
                return rows.catalogue_rows(stock, words, self.doing.found)
            case Tab.DOWNLOADS:
                return rows.download_rows(stock, self.jobs.all(), words)

    def answers(self, known: ModelOverview) -> bool:
        """Whether a model is the target that is loaded."""
        return str(known.model.folder) == self.standing().load.target

    def draw(self, go_to: str = "") -> None:
        before = self.chosen
        wanted = go_to or (before.key if before else "")
        every = {part: self._rows_of(part) for part in Tab}
        self._rows = every[self._part]
        self._parts.show(self._part, {part: len(found) for part, found in every.items()})
        width = max(20, self.list.size.width - 4)
        keys = [row.key for row in self._rows]
        if keys == [option.id for option in self.list.options]:
            for row in self._rows:  # what is marked and scrolled to stays
                self.list.replace_option_prompt(row.key, render_row(row, width))
        else:
            self.list.set_options(Option(render_row(row, width), id=row.key) for row in self._rows)
            at = keys.index(wanted) if wanted in keys else 0
            self.list.highlighted = at if keys else None
        self._draw_frame()

    def _draw_frame(self) -> None:
        room = memory_heading(self._machine)
        free = (
            f" · {formatting.size(self.stock.free_bytes)} free on the disk"
            if self.stock.free_bytes
            else ""
        )
        what = "  looking…" if self._loading else f"  {room}{free}"
        self._head.update(Content.assemble(("Models", "bold $accent"), (what, "$ink-dim")))
        foot = "   ".join(HINTS)
        for count in range(len(HINTS), 0, -1):
            foot = "   ".join((*HINTS[: count - 1], HINTS[-1]))
            if len(foot) <= self.size.width - 4:
                break
        self._foot.update(Content.styled(foot, "$ink-dim"))
        self._draw_sheet()

    @on(OptionList.OptionHighlighted)
    def _draw_sheet(self) -> None:
        chosen = self.chosen
        if self.has_class("-wide"):
            self._sheet.update(self._told(chosen) if chosen else "")

    @property
    def chosen(self) -> Row | None:
        place = self.list.highlighted
        return self._rows[place] if place is not None and place < len(self._rows) else None

    def say(self, words: str) -> None:
        self._said.update(Content.styled(sanitize_line(words), "$accent"))

    def do(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What waits for the disk or the hub, one after the other; why it does not work is said."""

        async def in_turn() -> None:
            async with self._in_turn:
                try:
                    await task()
                except UserError as error:
                    self.say(str(error))

        self.run_worker(in_turn())

    # -------------------------------------------------------------------------- finding

    @on(Input.Changed, "#models-filter")
    def _filter_changed(self) -> None:
        self.say("")
        self.doing.found = ()
        self.draw()
        self.list.highlighted = 0 if self._rows else None

    def action_move(self, where: str) -> None:
        buttons: dict[str, Callable[[], None]] = {
            "up": self.list.action_cursor_up,
            "down": self.list.action_cursor_down,
            "page_up": self.list.action_page_up,
            "page_down": self.list.action_page_down,
        }
        buttons[where]()

    def action_part(self, step: int) -> None:
        every = list(Tab)
        self.go(every[(every.index(self._part) + step) % len(every)])

    def go(self, part: Tab, key: str = "") -> None:
        """To another list, and there to a row."""
        self._part = part
        self.draw(key)

    def action_close(self) -> None:
        if self.filter.value:
            self.filter.value = ""
        else:
            self.dismiss(None)

    # -------------------------------------------------------------------------- opening a row

    @on(Input.Submitted, "#models-filter")
    def action_open(self) -> None:
        if self.chosen is not None:
            self.open(self.chosen)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.open(self._rows[event.option_index])

    def open(self, row: Row) -> None:
        match row.kind:
            case RowKind.SEARCH:
                self.doing.search(row.name)
            case RowKind.FOUND:
                self.doing.ask_hub(row.name)
            case RowKind.ADD:
                self.doing.add(row.name)
            case _:
                self.app.push_screen(ActionDialog(self._told(row), self._deeds(row)), self._done)

    def _done(self, deed: Action | None) -> None:
        if deed is not None:
            deed.run()
            self.draw()

    def _told(self, row: Row) -> Content:
        known = self.stock.find(row.name)
        if row.kind is RowKind.MODEL and known is not None:
            return detail_text.model_text(known, self.stock)
        told = "".join(text for text, _ in row.details).strip()
        if row.kind is RowKind.MODEL:
            return detail_text.fault_text(row.name, told.removeprefix("! "))
        return detail_text.download_text(row.name, self.jobs.find(row.name), told)

    def _deeds(self, row: Row) -> list[Action]:
        known = self.stock.find(row.name)
        match row.kind:
            case RowKind.MODEL if known is not None:
                return actions.of_model(self, known, self.stock)
            case RowKind.DOWNLOAD:
                return actions.of_download(self, row.name, self.jobs.find(row.name), self.stock)
            case RowKind.TRASH:
                return actions.of_trash(self, row.name, self.stock)
            case _:
                return actions.of_fault(self, row.name, self.stock)

    # -------------------------------------------------------------------------- doing

    def ask_cost(self, known: ModelOverview, candidate: DraftCandidate | None) -> None:
        """Say what a pair costs, and take it if that is wanted all the same."""
        draft = candidate.draft.name if candidate else None
        pair = PairChoice(known.model.name, draft)
        by_default = PairChoice(known.model.name, draft, as_default=True)
        choices = [
            Action("Load it now", lambda: self.dismiss(pair)),
            Action("Load it now, and by default from now on", lambda: self.dismiss(by_default)),
        ]
        text = cost_text(known, candidate, self.standing())
        self.app.push_screen(ActionDialog(text, choices), self._done)

    def action_delete(self) -> None:
        row = self.chosen
        if row is None:
            return
        if row.kind is RowKind.DOWNLOAD:
            self.jobs.cancel(row.name)
        elif row.kind is RowKind.MODEL and self.stock.installed_model(row.name) is not None:
            self.doing.remove(row.name)
        else:
            self.say("There is nothing here that could be moved to the trash.")

    def action_undo(self) -> None:
        self.doing.undo()
