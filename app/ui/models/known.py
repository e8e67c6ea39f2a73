"""What the models screen knows: what is installed, found and downloaded, and the loaded pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.content import Content

from app.models.fit import Machine
from app.models.found import FoundModel
from app.models.library import Library
from app.models.machines import Machines
from app.models.pairs import DraftCandidate, ModelOverview
from app.protocol.hosts import HostMachine
from app.ui.models import details, rows
from app.ui.models.details import PairStatus, machines_text
from app.ui.models.inventory import Inventory
from app.ui.models.jobs import Jobs
from app.ui.models.rows import ModelRow, RowKind, Tab
from app.ui.models.tasks import ModelTasks


class KnownModels:
    def __init__(
        self,
        library: Callable[[], Library],
        jobs: Jobs,
        machine: Machine,
        machines: Machines | None,
        pair_status: Callable[[], PairStatus],
    ) -> None:
        """`machines` are those of `--hosts`."""
        self.jobs, self.machine, self.machines = jobs, machine, machines
        self.pair_status = pair_status
        self.tasks = ModelTasks(library)
        self.inventory = Inventory(machine)
        self.seen_machines: Sequence[HostMachine] = ()
        """The machines, once they were measured."""

    def rows_of(self, tab: Tab, text: str) -> list[ModelRow]:
        match tab:
            case Tab.INSTALLED:
                return rows.installed_rows(self.inventory, text, self.is_target)
            case Tab.CATALOGUE:
                return rows.catalogue_rows(self.inventory, text, self.tasks.found(text))
            case Tab.DOWNLOADS:
                return rows.download_rows(self.inventory, self.jobs.all(), text)

    def is_target(self, overview: ModelOverview) -> bool:
        """Whether a model is the target that is loaded."""
        return str(overview.model.folder) == self.pair_status().load.target

    def unread(self, row: ModelRow) -> FoundModel | None:
        """The GGUF file of a row whose header was not read."""
        found = self.inventory.found_model(row.name) if row.kind is RowKind.GGUF else None
        unread = found is not None and not found.fault and found.path not in self.tasks.summaries
        return found if unread else None

    def details_of(self, row: ModelRow) -> Content:
        overview = self.inventory.find(row.name)
        if row.kind is RowKind.MODEL and overview is not None:
            text = details.model_text(overview, self.inventory)
            return Content("\n").join([text, *self.across(overview, overview.default_draft)])
        found = self.inventory.found_model(row.name)
        if row.kind in (RowKind.MODEL, RowKind.GGUF) and found is not None:
            return details.found_text(found, self.tasks.summaries.get(found.path))
        second_line = "".join(text for text, _ in row.details).strip()
        if row.kind is RowKind.MODEL:
            return details.fault_text(row.name, second_line.removeprefix("! "))
        return details.download_text(row.name, self.jobs.find(row.name), second_line)

    def across(self, overview: ModelOverview, draft: DraftCandidate | None) -> list[Content]:
        """What fits across the machines of `--hosts`, if there are any."""
        if self.machines is None:
            return []
        if not self.seen_machines:
            return [Content("Looking at the other machines…")]
        return [machines_text(overview, draft, self.machines, self.seen_machines)]
