"""Ctrl+L: installed models, models that could be downloaded, and downloads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.errors import UserError
from app.estimate.preview import describe
from app.models.cache import ModelCache
from app.models.fit import Machine, mac_with
from app.models.found import FoundModel
from app.models.library import Library, default_library
from app.models.pairs import DraftCandidate, ModelOverview, TokenizerCache
from app.models.text import memory_heading
from app.protocol.commands import CalibrateCosts
from app.protocol.cost_model import UNKNOWN_COSTS, Costs
from app.protocol.hosts import HostMachine, Hosts, Machines
from app.protocol.memory import MemoryStats
from app.settings.introspection import find
from app.store.records import AnswerStats
from app.ui.background import in_background, start_task
from app.ui.filter_list import FilterList, FilterListScreen
from app.ui.help import Section
from app.ui.models import actions, details, rows
from app.ui.models.actions import Action, Do, ModelTasks, Result
from app.ui.models.details import PairChoice, PairStatus, cost_text, machines_text
from app.ui.models.inventory import Inventory, scan
from app.ui.models.jobs import JobKind, Jobs
from app.ui.models.rows import Row, RowKind, Tab, render_row
from app.ui.settings.live import LiveSettings
from app.ui.state.repository import ChatRepository
from app.ui.text import ClickLine, Piece
from app.util import formatting
from app.util.sanitize import sanitize_line

Value = TypeVar("Value")


class ActionDialog(ModalScreen[Value | None]):
    """Returns the value of the chosen label."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Do", id="dialog.do", tooltip="Do the highlighted action"),
        Binding(
            "pageup", "scroll(-1)", "Up", id="dialog.up", tooltip="Scroll up", priority=True
        ),
        Binding(
            "pagedown", "scroll(1)", "Down", id="dialog.down", tooltip="Scroll down", priority=True
        ),
        Binding("escape", "dismiss", "Cancel", id="dialog.close", tooltip="Cancel"),
    ]  # fmt: skip

    def __init__(self, text: Content, choices: Sequence[tuple[str, Value]]) -> None:
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


WIDE = 110
"""Cells from which on the highlighted model's details are shown beside the list."""


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

    def pieces(self) -> Iterator[Piece]:
        for tab in Tab:
            current = tab is self._current
            text = f"{'●' if current else '○'} {tab} {self._counts.get(tab, 0)}"
            yield Piece(text, "bold $accent" if current else "$ink-dim", partial(self._go_to, tab))
            yield Piece("   ")


class ModelsScreen(FilterListScreen[PairChoice | None]):
    """Returns the pair to load, if one was chosen."""

    HINTS = ("⏎ details and actions", "⇥ next list", "^D delete", "^Z undo", "Esc")

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
            tooltip="Move the model to the trash, or cancel the download", priority=True,
        ),
        Binding(
            "ctrl+z", "undo", "Undo", id="models.undo",
            tooltip="Restore the model deleted last", priority=True,
        ),
        Binding("escape", "close", "Close", id="models.close", tooltip="Close", priority=True),
    ]  # fmt: skip

    def __init__(
        self,
        library: Callable[[], Library],
        jobs: Jobs,
        machine: Machine,
        answer_stats: Callable[[], Awaitable[Sequence[AnswerStats]]],
        pair_status: Callable[[], PairStatus],
        tokenizers: TokenizerCache,
        measure: Callable[[], str],
        folders: Callable[[], str],
        machines: Machines | None = None,
        costs: Callable[[], Costs] = lambda: UNKNOWN_COSTS,
    ) -> None:
        """`answer_stats` returns those of stored answers; `measure` times the loaded pair and
        returns a message; `folders` are those of the setting; `machines` those of `--hosts`."""
        self._details = Static(markup=False)
        super().__init__(VerticalScroll(self._details, id="models-details", can_focus=False))
        self._library, self._jobs, self._machine = library, jobs, machine
        self._answer_stats, self._pair_status = answer_stats, pair_status
        self._tokenizers, self._measure = tokenizers, measure
        self._folders = folders
        self._machines, self._costs = machines, costs
        self._seen_machines: Sequence[HostMachine] = ()
        self._tasks = ModelTasks(library)
        self._inventory = Inventory(machine)
        self._loading = True
        self._tab = Tab.INSTALLED
        self._tabs = Tabs(self._go_to_tab)
        self._rows: dict[str, Row] = {}

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
        """Takes seconds, so beside everything else."""
        self._seen_machines = await in_background(machines.look)
        self._draw_details()

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE, "-wide")

    # -------------------------------------------------------------------------- the list

    async def _rescan(self, go_to: str = "") -> None:
        """Read the disk and the catalogues again."""
        stats = await self._answer_stats()
        described, folders = list(self._tasks.described.values()), self._folders()
        self._inventory = await in_background(
            lambda: scan(
                self._library(), self._machine, stats, self._tokenizers, described, folders
            )
        )
        self._loading = False
        if self._inventory.problem:
            self.show_message(self._inventory.problem)
        self.draw(go_to)

    def update_jobs(self) -> None:
        """Called after the progress of a job has changed."""
        if self.is_attached and not self._loading:
            self.draw()

    def show_job_result(self, message: str) -> None:
        self.show_message(message)
        self.run_in_turn(self._rescan)

    def list_rows(self, text: str, width: int) -> list[tuple[str, Content]]:
        self._rows = {row.key: row for row in self._rows_of(self._tab, text)}
        return [(key, render_row(row, width)) for key, row in self._rows.items()]

    def _rows_of(self, tab: Tab, text: str) -> list[Row]:
        match tab:
            case Tab.INSTALLED:
                return rows.installed_rows(self._inventory, text, self._is_target)
            case Tab.CATALOGUE:
                return rows.catalogue_rows(self._inventory, text, self._tasks.found(text))
            case Tab.DOWNLOADS:
                return rows.download_rows(self._inventory, self._jobs.all(), text)

    def _is_target(self, overview: ModelOverview) -> bool:
        """Whether a model is the target that is loaded."""
        return str(overview.model.folder) == self._pair_status().load.target

    def draw_frame(self) -> None:
        text = self.list.text
        self._tabs.show(self._tab, {tab: len(self._rows_of(tab, text)) for tab in Tab})
        free = self._inventory.free_bytes
        disk = f" · {formatting.size(free)} free on disk" if free else ""
        memory = memory_heading(self._machine).removeprefix("models ")
        self.show_heading("Models", "loading…" if self._loading else memory + disk)
        self._draw_details()

    @on(OptionList.OptionHighlighted)
    def _draw_details(self) -> None:
        if self.has_class("-wide"):
            row = self._highlighted
            self._details.update(self._details_of(row) if row else "")
            if row is not None and self._unread(row) is not None:
                self.run_in_turn(partial(self._read_header, row))

    def _unread(self, row: Row) -> FoundModel | None:
        """The GGUF file of a row whose header was not read."""
        found = self._inventory.found_model(row.name) if row.kind is RowKind.GGUF else None
        unread = found is not None and not found.fault and found.path not in self._tasks.summaries
        return found if unread else None

    async def _read_header(self, row: Row) -> None:
        """For the row that is highlighted: others were only passed."""
        highlighted = self._highlighted
        if highlighted is None or highlighted.key != row.key:
            return
        if (found := self._unread(row)) is not None:
            await in_background(partial(self._tasks.summarise, found.path))
            self._draw_details()

    @property
    def _highlighted(self) -> Row | None:
        return self._rows.get(self.list.highlighted)

    def action_tab(self, step: int) -> None:
        tabs = list(Tab)
        self._go_to_tab(tabs[(tabs.index(self._tab) + step) % len(tabs)])

    def _go_to_tab(self, tab: Tab, row: str = "") -> None:
        self._tab = tab
        self.draw(row)

    # -------------------------------------------------------------------------- a row

    @on(FilterList.Chosen)
    def _open(self, event: FilterList.Chosen) -> None:
        row = self._rows[event.key]
        tasks, name = self._tasks, row.name
        match row.kind:
            case RowKind.SEARCH:
                self._start(partial(tasks.search, name), "Searching the hub…")
            case RowKind.FOUND:
                self.run_in_turn(partial(self._describe, name))
            case RowKind.ADD:
                self.run_in_turn(partial(self._add, name))
            case RowKind.GGUF:
                self.run_in_turn(partial(self._open_gguf, row))
            case _:
                self._show_actions(row)

    async def _open_gguf(self, row: Row) -> None:
        if (found := self._unread(row)) is not None:
            await in_background(partial(self._tasks.summarise, found.path))
        self._show_actions(row)

    def _show_actions(self, row: Row) -> None:
        choices = [(action.label, action) for action in self._actions_of(row)]
        self.app.push_screen(ActionDialog(self._details_of(row), choices), self._carry_out)

    def _details_of(self, row: Row) -> Content:
        overview = self._inventory.find(row.name)
        if row.kind is RowKind.MODEL and overview is not None:
            text = details.model_text(overview, self._inventory)
            return Content("\n").join([text, *self._across(overview, overview.default_draft)])
        found = self._inventory.found_model(row.name)
        if row.kind in (RowKind.MODEL, RowKind.GGUF) and found is not None:
            return details.found_text(found, self._tasks.summaries.get(found.path))
        second_line = "".join(text for text, _ in row.details).strip()
        if row.kind is RowKind.MODEL:
            return details.fault_text(row.name, second_line.removeprefix("! "))
        return details.download_text(row.name, self._jobs.find(row.name), second_line)

    def _across(self, overview: ModelOverview, draft: DraftCandidate | None) -> list[Content]:
        """What it takes across the machines of `--hosts`, if there are any."""
        if self._machines is None:
            return []
        if not self._seen_machines:
            return [Content("Looking at the other machines…")]
        speed = self._seconds_per_parameter()
        return [machines_text(overview, draft, self._seen_machines, speed)]

    def _seconds_per_parameter(self) -> float | None:
        """What one parameter of the loaded target takes for one token, if it was timed here."""
        cost, load = self._costs().target, self._pair_status().load
        loaded = next(
            (o for o in self._inventory.models if str(o.model.folder) == load.target), None
        )
        if cost is None or loaded is None or load.hosts is not None:
            return None
        return cost.per_token / max(loaded.model.size.architecture.active_parameters, 1)

    def _actions_of(self, row: Row) -> list[Action]:
        overview = self._inventory.find(row.name)
        match row.kind:
            case RowKind.MODEL if overview is not None:
                is_target = self._is_target(overview)
                return actions.model_actions(overview, self._inventory, is_target)
            case RowKind.DOWNLOAD:
                job = self._jobs.find(row.name)
                return actions.job_actions(row.name, job, self._inventory)
            case RowKind.GGUF:
                return actions.gguf_actions(self._inventory.found_model(row.name))
            case RowKind.TRASH:
                return actions.trash_actions(row.name, self._inventory)
            case _:
                return [*actions.maintenance_actions(row.name, self._inventory)]

    # -------------------------------------------------------------------------- actions

    def _carry_out(self, action: Action | None) -> None:
        if action is None:
            return
        tasks, jobs, name = self._tasks, self._jobs, action.names[0] if action.names else ""
        match action.do:
            case Do.ANSWER:
                self._confirm_pair(name, action.draft)
            case Do.MEASURE:
                self.show_message(self._measure())
            case Do.DOWNLOAD | Do.CHECK:
                kind = JobKind.CHECK if action.do is Do.CHECK else JobKind.DOWNLOAD
                for each in action.names:
                    jobs.start(each, kind)
                self.list.filter.value = ""
                self._go_to_tab(Tab.DOWNLOADS)
            case Do.PAUSE:
                jobs.pause(name)
            case Do.CANCEL:
                jobs.cancel(name)
            case Do.DISMISS:
                jobs.dismiss(name)
            case Do.PAUSE_ELSEWHERE:
                self._start(partial(tasks.pause_elsewhere, name))
            case Do.ADD:
                self.run_in_turn(partial(self._add, name))
            case Do.CONVERT:
                if (found := self._inventory.found_model(name)) is not None:
                    jobs.convert(found.path, found.name)
                    self.list.filter.value = ""
                    self._go_to_tab(Tab.DOWNLOADS)
            case Do.REMOVE:
                self._remove(name)
            case Do.REMOVE_OLDER:
                self._start(partial(tasks.remove, name, older=True))
            case Do.RESTORE:
                self._start(partial(tasks.restore, name))
            case Do.EMPTY_TRASH:
                self._start(tasks.empty_trash)
        self.draw()

    def _start(self, task: Callable[[], Result], progress: str = "") -> None:
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
        self.show_message(f"Asking the hub about {name}…")
        result = await in_background(partial(self._tasks.describe, name))
        await self._rescan(result.row)
        self.show_message("")
        if (row := self._highlighted) is not None and row.name == name:
            self._show_actions(row)

    async def _add(self, name: str) -> None:
        """Add a model to the catalogue, and show it in its list."""
        result = await in_background(partial(self._tasks.add_to_catalogue, name))
        self.list.filter.value = ""
        await self._rescan()
        installed = result.row in (row.key for row in self._rows_of(Tab.INSTALLED, ""))
        self._go_to_tab(Tab.INSTALLED if installed else Tab.CATALOGUE, result.row)
        self.show_message(result.message)

    def _remove(self, name: str) -> None:
        installed = self._inventory.installed_model(name)
        if installed is not None and self._pair_status().uses(installed.folder):
            self.show_message(f"{name} is loaded. Load another pair first.")
        else:
            self._start(partial(self._tasks.remove, name))

    def _confirm_pair(self, target: str, candidate: DraftCandidate | None) -> None:
        """Show what loading a pair takes, and load it if that is confirmed."""
        overview, draft = self._inventory.find(target), candidate.draft.name if candidate else None
        assert overview is not None  # the action was made from it
        choices = [
            ("Load now", PairChoice(target, draft)),
            ("Load now and make it the default", PairChoice(target, draft, as_default=True)),
        ]
        text = cost_text(overview, candidate, self._pair_status())
        if self._machines is not None:
            label = f"Load across {self._machines.hosts.size} machines"
            choices.append((label, PairChoice(target, draft, across=True)))
            text = Content("\n").join([text, *self._across(overview, candidate)])
        dialog = ActionDialog(text, choices)
        self.app.push_screen(dialog, self._load)

    def _load(self, choice: PairChoice | None) -> None:
        if choice is not None:
            self.dismiss(choice)

    def action_delete(self) -> None:
        row = self._highlighted
        if row is None:
            return
        if row.kind is RowKind.DOWNLOAD:
            self._jobs.cancel(row.name)
        elif row.kind is RowKind.MODEL and self._inventory.installed_model(row.name) is not None:
            self._remove(row.name)
        elif (found := self._inventory.found_model(row.name)) is not None:
            self.show_message(f"{found.name} is not specchat's: delete it where it comes from.")
        else:
            self.show_message("Nothing here can be deleted.")

    def action_undo(self) -> None:
        self._start(self._tasks.undo)


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
