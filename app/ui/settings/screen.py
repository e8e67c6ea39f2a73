"""F2: all settings, found by words, changed at once."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import Screen
from textual.widgets import Input, Static

from app.paths import display_path
from app.settings.schema import Setting, Value, groups, search
from app.ui.help import Section
from app.ui.keys import forward_key
from app.ui.safe_input import SafeInput
from app.ui.settings.choices import ChoiceScreen
from app.ui.settings.live import LiveSettings
from app.ui.settings.row import SettingRow, display_value
from app.util.sanitize import sanitize_line

HINTS = ("↑↓ go", "←→ change", "⏎ set", "^D default", "type to find", "Esc")


class SettingsScreen(Screen[None]):
    """Built from the settings' own types and docstrings, so that none can be missing here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "go(-1)", "Up", id="settings.up", tooltip="The one above", priority=True),
        Binding(
            "down", "go(1)", "Down", id="settings.down", tooltip="The one below", priority=True
        ),
        Binding("escape", "close", "Close", id="settings.close", tooltip="Back", priority=True),
    ]

    def __init__(self, live: LiveSettings, at: Setting | None = None) -> None:
        super().__init__()
        self._live, self._at = live, at
        self._said = Static(id="settings-said", markup=False)
        self._doc = Static(id="settings-doc", markup=False)
        self._head = Static(id="settings-head", markup=False)
        self._foot = Static(id="settings-foot", markup=False)
        self.filter = SafeInput(placeholder="Type to find", id="settings-filter", compact=True)
        self._headings = {group: Static(markup=False, classes="group") for group in groups()}
        self.rows = {
            setting: SettingRow(setting, setting.value_in(live.values))
            for group in groups()
            for setting in group.settings
        }

    def help_sections(self) -> tuple[Section, ...]:
        return (("Settings", SettingsScreen), ("One of them", SettingRow))

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.filter
        with VerticalScroll(id="settings-list", can_focus=False):
            for group, heading in self._headings.items():
                yield heading
                yield from (self.rows[setting] for setting in group.settings)
        yield self._said
        yield self._doc
        yield self._foot

    def on_mount(self) -> None:
        for group, heading in self._headings.items():
            name = (group.name.capitalize(), "bold $accent")
            heading.update(Content.assemble(name, (f"  {group.doc}", "$ink-dim")))
        self._live.on_change = self._show
        problems = self._live.file.problems
        self._say("\n".join(problems) if problems else self._live.problem)
        self.go_to(self._at)

    def on_unmount(self) -> None:
        self._live.on_change = lambda: None

    def on_resize(self) -> None:
        width = self.size.width - 4
        path = self._live.file.path
        where = "kept nowhere" if path is None else sanitize_line(display_path(path))
        room = max(10, width - 12)
        where = where if len(where) <= room else "…" + where[1 - room :]
        head = Content.assemble(("Settings  ", "bold $accent"), (where, "$ink-dim"))
        self._head.update(head)
        hints = list(HINTS)
        while len("   ".join(hints)) > width and len(hints) > 1:
            del hints[-2]
        self._foot.update(Content.styled("   ".join(hints), "$ink-dim"))

    def go_to(self, setting: Setting | None) -> None:
        """Show one, or all."""
        self.filter.value = ""
        self._filter("")
        self.set_focus(self.filter if setting is None else self.rows[setting])

    def _show(self) -> None:
        for setting, row in self.rows.items():
            row.show(setting.value_in(self._live.values))
        self._say(self._live.problem)

    def _say(self, words: str) -> None:
        lines = (sanitize_line(line) for line in words.splitlines())
        self._said.update(Content.styled("\n".join(lines), "$accent"))
        self._said.display = bool(words)

    # -------------------------------------------------------------------------- finding

    @on(Input.Changed, "#settings-filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self._filter(event.value)

    def _filter(self, words: str) -> None:
        found = set(search(words))
        for setting, row in self.rows.items():
            row.display = setting in found
        for group, heading in self._headings.items():
            heading.display = not found.isdisjoint(group.settings)
        self._doc.update("" if found else "No setting has these words.")

    @on(Input.Submitted, "#settings-filter")
    def _filter_submitted(self) -> None:
        self.action_go(1)

    def on_setting_row_letter_typed(self, event: SettingRow.LetterTyped) -> None:
        self.set_focus(self.filter)
        forward_key(event.key, self.filter)

    # -------------------------------------------------------------------------- moving

    def action_go(self, step: int) -> None:
        """From the search into the rows, and back above the first one."""
        places = [self.filter, *(row for row in self.rows.values() if row.display)]
        at = next((i for i, place in enumerate(places) if place.has_focus), 0)
        self.set_focus(places[min(len(places) - 1, max(0, at + step))])

    @on(DescendantFocus)
    def _describe(self, event: DescendantFocus) -> None:
        if not isinstance(event.widget, SettingRow):
            self._doc.update(Content.styled("↓ goes to the settings.", "$ink-dim"))
            return
        setting = event.widget.setting
        allowed = f"{setting.allowed} · " if setting.range is not None else ""
        facts = f"{setting.key} · {allowed}default {display_value(setting.default)}"
        self._doc.update(Content.assemble(setting.doc, "\n", (facts, "$ink-dim")))
        # What is said of it may take a row from the list.
        self.call_after_refresh(event.widget.scroll_visible, animate=False)

    def action_close(self) -> None:
        focused = self.focused
        if isinstance(focused, SettingRow) and focused.typed:
            focused.clear_typed()
        elif self.filter.value:
            self.filter.value = ""
        else:
            self.dismiss()

    # -------------------------------------------------------------------------- changing

    def on_setting_row_value_changed(self, event: SettingRow.ValueChanged) -> None:
        self._live.change(event.setting, event.value)

    def on_setting_row_value_rejected(self, event: SettingRow.ValueRejected) -> None:
        self._say(event.sentence)

    def on_setting_row_choices_requested(self, event: SettingRow.ChoicesRequested) -> None:
        value = event.setting.value_in(self._live.values)
        chosen = partial(self._chosen, event.setting)
        self.app.push_screen(ChoiceScreen(event.setting, value), chosen)

    def _chosen(self, setting: Setting, value: Value | None) -> None:
        if value is not None:
            self._live.change(setting, value)
