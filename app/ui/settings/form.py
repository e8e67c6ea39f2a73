"""What the two screens of settings share."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.content import Content
from textual.events import DescendantFocus
from textual.widget import Widget
from textual.widgets import Static

from app.settings.definitions import Setting
from app.ui.framed_screen import FramedScreen, Result
from app.ui.settings.row import SettingRow


class SettingsForm(FramedScreen[Result]):
    """The `fields` in their order, and a `description` of the focused one."""

    def __init__(self) -> None:
        super().__init__()
        self.description = Static(classes="description", markup=False)

    def fields(self) -> Sequence[Widget]:
        raise NotImplementedError

    def describe(self, text: str, details: str) -> None:
        parts = (text, "\n" if text else "", (details, "$ink-dim"))
        self.description.update(Content.assemble(*parts))

    def details_of(self, setting: Setting) -> str:
        allowed = f"{setting.allowed} · " if setting.range is not None else ""
        return f"{allowed}default {setting.display(setting.default)}"

    def describe_other(self) -> None:
        """The focused field is not a setting."""

    @on(DescendantFocus)
    def _describe(self, event: DescendantFocus) -> None:
        row = event.widget
        if not isinstance(row, SettingRow):
            self.describe_other()
            return
        self.describe(row.setting.doc, self.details_of(row.setting))
        # A longer description leaves fewer rows for the list.
        self.call_after_refresh(row.scroll_visible, animate=False)

    def action_go(self, step: int) -> None:
        fields = self.fields()
        index = next((i for i, field in enumerate(fields) if field.has_focus), 0)
        self.set_focus(fields[min(len(fields) - 1, max(0, index + step))])

    def on_setting_row_value_rejected(self, event: SettingRow.ValueRejected) -> None:
        self.show_message(event.reason)


def group_heading(name: str, details: str) -> Static:
    text = Content.assemble((name, "bold $accent"), (f"  {details}", "$ink-dim"))
    return Static(text, classes="group")
