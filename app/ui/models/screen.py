"""Ctrl+L: installed models, models that could be downloaded, and downloads, which continue while
the screen is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.errors import UserError
from app.models.cache import Installed, ModelCache
from app.models.fit import Machine, mac_with
from app.models.library import default_library
from app.models.machines import Machines
from app.models.pairs import DraftCandidate
from app.models.text import memory_heading
from app.protocol.memory import MemoryStats
from app.store.records import AnswerStats
from app.ui.background import in_background, start_task
from app.ui.filter_list import FilterList, FilterListScreen
from app.ui.help import Section
from app.ui.models import details
from app.ui.models.actions import RowActions, Run
from app.ui.models.details import PairChoice, PairStatus, cost_text
from app.ui.models.inventory import scan
from app.ui.models.jobs import JobKind, Jobs
from app.ui.models.known import KnownModels
from app.ui.models.rows import ModelRow, RowKind, Tab, render_row
from app.ui.models.tasks import Result
from app.ui.start import Start
from app.ui.state.repository import ChatRepository
from app.ui.text import ClickLine, LinePart
from app.util import formatting
from app.util.sanitize import sanitize_line

WIDE = 110
"""Cells from which on the highlighted model's details are shown beside the list."""


class ActionDialog(ModalScreen[Run | None]):
    """A text, and below it actions to choose from. Returns what the chosen label runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Do", id="dialog.do", tooltip="Run the highlighted action"),
        Binding(
            "pageup", "scroll(-1)", "Up", id="dialog.up", tooltip="Scroll up", priority=True
        ),
        Binding(
            "pagedown", "scroll(1)", "Down", id="dialog.down", tooltip="Scroll down", priority=True
        ),
        Binding("escape", "dismiss", "Cancel", id="dialog.close", tooltip="Cancel"),
    ]  # fmt: skip

    def __init__(self, text: Content, choices: Sequence[tuple[str, Run]]) -> None:
        super().__init__()
        self.choices = choices
        self._text = VerticalScroll(Static(text, markup=False), id="dialog-text", can_focus=False)
        labels = (Option(sanitize_line(label)) for label, _ in choices)
        self.list = OptionList(*labels, id="dialog-choices", compact=True, markup=False)

    def help_sections(self) -> tuple[Section, ...]:
        return (("Details", ActionDialog),)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield self._text
            yield self.list
            hints = "⏎ choose   PgUp PgDn scroll   Esc cancel"
            yield Static(Content.styled(hints, "$ink-dim"), id="dialog-foot")

    def on_mount(self) -> None:
        self.list.highlighted = 0 if self.choices else None
        self.list.focus()

    def action_choose(self) -> None:
        self.list.action_select()

    def action_scroll(self, pages: int) -> None:
        self._text.scroll_relative(y=pages * max(1, self._text.size.height - 1), animate=False)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[event.option_index][1])


class Tabs(ClickLine):
    """The names of the three lists; a click goes to one."""

    def __init__(self, go_to: Callable[[Tab], None]) -> None:
        super().__init__(id="models-tabs")
        self._go_to = go_to
        self._current = Tab.INSTALLED
        self._counts: dict[Tab, int] = {}

    def show(self, current: Tab, counts: dict[Tab, int]) -> None:
        self._current, self._counts = current, counts
        self.refresh()

    def pieces(self) -> Iterator[LinePart]:
        for tab in Tab:
            current = tab is self._current
            text = f"{'●' if current else '○'} {tab} {self._counts.get(tab, 0)}"
            style = "bold $accent" if current else "$ink-dim"
            yield LinePart(text, style, partial(self._go_to, tab))
            yield LinePart("   ")


class ModelsScreen(FilterListScreen[PairChoice | None]):
    """Returns the pair to load, if one was chosen."""

    HINTS = ("⏎ details and actions", "⇥ next list", "^D delete", "Esc")

    # With priority: the focused input would use some of these keys itself.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="models.open", tooltip="Details and actions"),
        Binding(
            "tab", "tab(1)", "Next list", id="models.next",
            tooltip="Next list: installed, catalogue, downloads", priority=True,
        ),
        Binding(
            "shift+tab", "tab(-1)", "Previous list", id="models.previous",
            tooltip="Previous list", priority=True,
        ),
        Binding(
            "ctrl+d", "delete", "Delete", id="models.delete",
            tooltip="Delete the model, or cancel the download", priority=True,
        ),
        Binding("escape", "close", "Close", id="models.close", tooltip="Close", priority=True),
    ]  # fmt: skip

    def __init__(self, controller: ModelsController) -> None:
        self._details = Static(markup=False)
        super().__init__(VerticalScroll(self._details, id="models-details", can_focus=False))
        self._controller, self._jobs = controller, controller.jobs
        self._machines, self._pair_status = controller.machines, controller.pair_status
        self._known = KnownModels(
            controller.library,
            controller.jobs,
            controller.machine(),
            controller.machines,
            controller.pair_status,
        )
        self._tasks, self._actions = self._known.tasks, RowActions(self._known, self)
        self._loading = True
        self._tab = Tab.INSTALLED
        self._tabs = Tabs(self._go_to_tab)
        self._rows: dict[str, ModelRow] = {}

    def help_sections(self) -> tuple[Section, ...]:
        return (("Models", ModelsScreen), ("The list", FilterList), ("Details", ActionDialog))

    def compose(self) -> ComposeResult:
        yield self.heading
        yield self._tabs
        yield self.list
        yield self.message
        yield self.foot

    def on_mount(self) -> None:
        self.run_in_turn(self._rescan)
        if self._machines is not None:
            start_task(self, partial(self._look_at_machines, self._machines))

    async def _look_at_machines(self, machines: Machines) -> None:
        """Check the machines in the background, because it takes seconds."""
        self._known.seen_machines = await in_background(machines.look)
        self._draw_details()

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE, "-wide")

    # -------------------------------------------------------------------------- the list

    async def _rescan(self, go_to: str = "") -> None:
        stats = await self._controller.answer_stats()
        described, folders = list(self._tasks.described.values()), self._controller.folders
        self._known.inventory = await in_background(
            lambda: scan(self._controller.library(), self._known.machine, stats, described, folders)
        )
        self._loading = False
        if self._known.inventory.problem:
            self.show_message(self._known.inventory.problem)
        self.draw(go_to)

    def update_jobs(self) -> None:
        """Draw the progress of jobs again."""
        if self.is_attached and not self._loading:
            self.draw()

    def show_job_result(self, message: str) -> None:
        self.show_message(message)
        self.run_in_turn(self._rescan)

    def list_rows(self, text: str, width: int) -> list[tuple[str, Content]]:
        self._rows = {row.key: row for row in self._known.rows_of(self._tab, text)}
        return [(key, render_row(row, width)) for key, row in self._rows.items()]

    def draw_frame(self) -> None:
        text = self.list.text
        self._tabs.show(self._tab, {tab: len(self._known.rows_of(tab, text)) for tab in Tab})
        free = self._known.inventory.free_bytes
        disk = f" · {formatting.size(free)} free on disk" if free else ""
        memory = memory_heading(self._known.machine).removeprefix("models ")
        self.show_heading("Models", "loading…" if self._loading else memory + disk)
        self._draw_details()

    @on(OptionList.OptionHighlighted)
    def _draw_details(self) -> None:
        if self.has_class("-wide"):
            row = self._highlighted
            self._details.update(self._known.details_of(row) if row else "")
            if row is not None and self._known.unread(row) is not None:
                self.run_in_turn(partial(self._read_header, row))

    async def _read_header(self, row: ModelRow) -> None:
        """Read the header of the file, if its row is still highlighted."""
        highlighted = self._highlighted
        if highlighted is None or highlighted.key != row.key:
            return
        if (found := self._known.unread(row)) is not None:
            await in_background(partial(self._tasks.summarise, found.path))
            self._draw_details()

    @property
    def _highlighted(self) -> ModelRow | None:
        return self._rows.get(self.list.highlighted)

    def action_tab(self, step: int) -> None:
        tabs = list(Tab)
        self._go_to_tab(tabs[(tabs.index(self._tab) + step) % len(tabs)])

    def _go_to_tab(self, tab: Tab, row: str = "") -> None:
        self._tab = tab
        self.draw(row)

    # -------------------------------------------------------------------------- a row

    @on(FilterList.RowChosen)
    def _open(self, event: FilterList.RowChosen) -> None:
        row = self._rows[event.key]
        tasks, name = self._tasks, row.name
        match row.kind:
            case RowKind.SEARCH:
                self.start(partial(tasks.search, name), "Searching Hugging Face…")
            case RowKind.FOUND:
                self.run_in_turn(partial(self._describe, name))
            case RowKind.ADD:
                self.add(name)
            case RowKind.GGUF:
                self.run_in_turn(partial(self._open_gguf, row))
            case _:
                self._show_actions(row)

    async def _open_gguf(self, row: ModelRow) -> None:
        if (found := self._known.unread(row)) is not None:
            await in_background(partial(self._tasks.summarise, found.path))
        self._show_actions(row)

    def _show_actions(self, row: ModelRow) -> None:
        dialog = ActionDialog(self._known.details_of(row), list(self._actions.of(row)))
        self.app.push_screen(dialog, self._carry_out)

    # -------------------------------------------------------------------------- actions

    def measure(self) -> None:
        self.show_message(self._controller.measure())

    def _carry_out(self, action: Run | None) -> None:
        if action is not None:
            action()
            self.draw()

    def download(self, *names: str) -> None:
        for each in names:
            self._jobs.start(each)
        self._show_downloads()

    def check(self, name: str) -> None:
        self._jobs.start(name, JobKind.CHECK)
        self._show_downloads()

    def convert(self, path: str) -> None:
        if (found := self._known.inventory.found_model(path)) is not None:
            self._jobs.convert(found.path, found.name)
            self._show_downloads()

    def _show_downloads(self) -> None:
        self.list.filter.value = ""
        self._go_to_tab(Tab.DOWNLOADS)

    def start(self, task: Callable[[], Result], progress: str = "") -> None:
        """Run a task in the background, then show what changed and its message."""

        async def run() -> None:
            if progress:
                self.show_message(progress)
            result = await in_background(task)
            await self._rescan(result.row)
            self.show_message(result.message)

        self.run_in_turn(run)

    async def _describe(self, name: str) -> None:
        """Ask the hub about a model, then open its details."""
        self.show_message(f"Looking up {name}…")
        result = await in_background(partial(self._tasks.describe, name))
        await self._rescan(result.row)
        self.show_message("")
        if (row := self._highlighted) is not None and row.name == name:
            self._show_actions(row)

    def add(self, name: str) -> None:
        self.run_in_turn(partial(self._add, name))

    async def _add(self, name: str) -> None:
        result = await in_background(partial(self._tasks.add_to_catalogue, name))
        self.list.filter.value = ""
        await self._rescan()
        installed = result.row in (row.key for row in self._known.rows_of(Tab.INSTALLED, ""))
        self._go_to_tab(Tab.INSTALLED if installed else Tab.CATALOGUE, result.row)
        self.show_message(result.message)

    def confirm_removal(self, installed: Installed, older: bool = False) -> None:
        """Delete a model, or only its older commits, if the user confirms."""
        name = installed.repository
        if self._pair_status().uses(installed, older):
            self.show_message(f"{name} is loaded. Load other models before you delete it.")
            return
        remove = partial(self.start, partial(self._tasks.remove, name, older))
        size = formatting.size(installed.older if older else installed.size)
        choices: list[tuple[str, Run]] = [
            ("Keep", lambda: None),
            (f"Delete permanently · {size}", remove),
        ]
        dialog = ActionDialog(details.removal_text(installed, older), choices)
        self.app.push_screen(dialog, self._carry_out)

    def confirm_pair(self, target: str, candidate: DraftCandidate | None) -> None:
        """Show the cost of loading a pair, and load it if the user confirms."""
        overview, draft = (
            self._known.inventory.find(target),
            candidate.draft.name if candidate else None,
        )
        assert overview is not None  # the action was made from it
        pairs = [
            ("Load now", PairChoice(target, draft)),
            ("Load now and make it the default", PairChoice(target, draft, as_default=True)),
        ]
        text = cost_text(overview, candidate, self._pair_status())
        if self._machines is not None:
            label = f"Load across {self._machines.hosts.size} machines"
            pairs.append((label, PairChoice(target, draft, across=True)))
            text = Content("\n").join([text, *self._known.across(overview, candidate)])
        choices = [(label, partial(self.dismiss, pair)) for label, pair in pairs]
        self.app.push_screen(ActionDialog(text, choices), self._load)

    def _load(self, load: Run | None) -> None:
        if load is not None:
            load()

    def action_delete(self) -> None:
        row = self._highlighted
        if row is None:
            return
        if row.kind is RowKind.DOWNLOAD:
            self._jobs.cancel(row.name)
            return
        installed = self._known.inventory.installed_model(row.name)
        if row.kind is RowKind.MODEL and installed is not None:
            self.confirm_removal(installed)
        elif (found := self._known.inventory.found_model(row.name)) is not None:
            self.show_message(f"{found.name} belongs to another program. Delete it there.")
        else:
            self.show_message("Nothing here can be deleted.")


class ModelsController:
    """Opens the models screen, and shows there what jobs and measurements have found."""

    @dataclass
    class Chosen(Message):
        """Load this pair."""

        choice: PairChoice

    class Measure(Message):
        """Measure the speed of the loaded pair."""

    def __init__(
        self,
        app: App[Any],
        start: Start,
        repository: ChatRepository,
        pair_status: Callable[[], PairStatus],
        memory: Callable[[], MemoryStats | None],
    ) -> None:
        """The app gets the messages."""
        self._app, self._repository, self._settings_file = app, repository, start.settings
        self.pair_status, self._memory = pair_status, memory
        self.library = cache(start.library or default_library)
        """Waits for the disk when it is first called."""
        self.machines = start.machines
        self.jobs = Jobs(app, self.library)

    @property
    def folders(self) -> str:
        """The folders from the settings."""
        return self._settings_file.settings.models.folders

    @property
    def _screen(self) -> ModelsScreen | None:
        screens = self._app.screen_stack
        return next((each for each in screens if isinstance(each, ModelsScreen)), None)

    def show(self) -> None:
        def chosen(choice: PairChoice | None) -> None:
            if choice is not None:
                self._app.post_message(self.Chosen(choice))

        self._app.push_screen(ModelsScreen(self), chosen)

    def on_jobs_progressed(self) -> None:
        self.jobs.mark_drawn()
        if (screen := self._screen) is not None:
            screen.update_jobs()

    def show_result(self, message: str) -> None:
        """Show the result of a job or of a measurement if the screen is open."""
        if (screen := self._screen) is not None:
            screen.show_job_result(message)

    def cache(self) -> ModelCache:
        return self.library().cache

    def measure(self) -> str:
        """Have the engine measure the loaded pair. Returns a message."""
        if reason := self.pair_status().blocked_reason:
            return reason
        self._app.post_message(self.Measure())
        return "Measuring the models on a few thousand random tokens. Asking a question stops this."

    def machine(self) -> Machine:
        memory = self._memory()
        if memory is not None and memory.ceiling:
            return Machine(memory.total, memory.ceiling)
        import psutil

        return mac_with(psutil.virtual_memory().total)

    async def answer_stats(self) -> Sequence[AnswerStats]:
        if not self._repository.readable:
            return ()
        try:
            return await self._repository.read(lambda store: store.answer_stats())
        except UserError:  # reported where the store is needed
            return ()
