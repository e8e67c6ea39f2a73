"""F2: all settings. They can be searched, and a change is applied at once."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Input

from app.paths import display_path
from app.settings.definitions import Setting, groups, search
from app.ui.help import Section
from app.ui.keys import SafeInput, forward_key
from app.ui.settings.form import SettingRow, SettingsForm, group_heading
from app.ui.settings.live import LiveSettings


class SettingsScreen(SettingsForm[None]):
    """Built from the settings' own types and texts, so that none can be missing here."""

    HINTS = ("↑↓ move", "←→ change", "⏎ set", "^D default", "type to find", "Esc")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "go(-1)", "Up", id="settings.up", tooltip="Move up or down", priority=True),
        Binding(
            "down", "go(1)", "Down", id="settings.down", tooltip="Move up or down", priority=True
        ),
        Binding("escape", "close", "Close", id="settings.close", tooltip="Close", priority=True),
    ]

    def __init__(self, live: LiveSettings, go_to: Setting | None = None) -> None:
        super().__init__()
        self._live, self._go_to = live, go_to
        self.filter = SafeInput(placeholder="Type to find", id="settings-filter", compact=True)
        self._headings = {
            group: group_heading(group.name.capitalize(), group.doc) for group in groups()
        }
        self.rows = {
            setting: SettingRow(setting, setting.value_in(live.values))
            for group in groups()
            for setting in group.settings
        }

    def help_sections(self) -> tuple[Section, ...]:
        return (("Settings", SettingsScreen), ("A setting", SettingRow))

    def compose(self) -> ComposeResult:
        yield self.heading
        yield self.filter
        with VerticalScroll(classes="settings", can_focus=False):
            for group, heading in self._headings.items():
                yield heading
                yield from (self.rows[setting] for setting in group.settings)
        yield self.message
        yield self.description
        yield self.foot

    def on_mount(self) -> None:
        self._live.on_change = self._refresh
        problems = self._live.file.problems
        self.show_message("\n".join(problems) if problems else self._live.problem)
        self.go_to(self._go_to)

    def on_unmount(self) -> None:
        self._live.on_change = lambda: None

    def on_resize(self) -> None:
        path = self._live.file.path
        location = "not saved" if path is None else display_path(path)
        room = max(10, self.inner_width - 12)
        self.show_heading(
            "Settings", location if len(location) <= room else "…" + location[1 - room :]
        )

    def go_to(self, setting: Setting | None) -> None:
        self.filter.value = ""
        self._filter("")
        self.set_focus(self.filter if setting is None else self.rows[setting])

    def _refresh(self) -> None:
        for setting, row in self.rows.items():
            row.show(setting.value_in(self._live.values))
        self.show_message(self._live.problem)

    # -------------------------------------------------------------------------- finding

    @on(Input.Changed, "#settings-filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self._filter(event.value)

    def _filter(self, text: str) -> None:
        found = set(search(text))
        for setting, row in self.rows.items():
            row.display = setting in found
        for group, heading in self._headings.items():
            heading.display = not found.isdisjoint(group.settings)
        self.describe("" if found else "No setting matches.", "")

    @on(Input.Submitted, "#settings-filter")
    def _filter_submitted(self) -> None:
        self.action_go(1)

    def on_setting_row_letter_typed(self, event: SettingRow.LetterTyped) -> None:
        self.set_focus(self.filter)
        forward_key(event.key, self.filter)

    # -------------------------------------------------------------------------- fields

    def fields(self) -> list[Widget]:
        return [self.filter, *(row for row in self.rows.values() if row.display)]

    def details_of(self, setting: Setting) -> str:
        return f"{setting.key} · {super().details_of(setting)}"

    def describe_other(self) -> None:
        self.describe("", "↓ goes to the settings.")

    def action_close(self) -> None:
        focused = self.focused
        if isinstance(focused, SettingRow) and focused.typed:
            focused.clear_typed()
        elif self.filter.value:
            self.filter.value = ""
        else:
            self.dismiss()

    def on_setting_row_value_changed(self, event: SettingRow.ValueChanged) -> None:
        self._live.change(event.setting, event.value)
