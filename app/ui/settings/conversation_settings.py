"""F3: what holds for one conversation alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import Screen
from textual.widgets import Static

from app.chat.conversation import Conversation
from app.sessions.records import Overrides
from app.settings.schema import Setting, Value, find
from app.settings.values import Range, Settings
from app.ui.help import Section
from app.ui.settings.choices import ChoiceScreen
from app.ui.settings.prompt import PromptBox
from app.ui.settings.row import SettingRow, display_value
from app.util.sanitize import sanitize_line

HINTS = ("↑↓ go", "←→ change", "⏎ set", "^D as the settings", "Esc done")
KEYS = {
    "mode": "reading.mode",
    "keep": "reading.keep",
    "temperature": "answers.temperature",
    "top_p": "answers.top_p",
    "max_tokens": "answers.max_tokens",
}
"""Of the settings that can be chosen for one conversation, by the names of `Choices`."""
SEED = Setting(
    "answers",
    "seed",
    int,
    Range(0, 999_999),
    0,
    "The same seed draws the same answer to the same question. 0: another one each time.",
)
NEW = "a new conversation"


def conversation_settings(settings: Settings) -> dict[str, Setting]:
    """By the names of `Choices`. The default of each is what the settings say."""
    found = {name: find(key) for name, key in KEYS.items()}
    own = {name: replace(each, default=each.value_in(settings)) for name, each in found.items()}
    return own | {"seed": SEED}


class ConversationSettingsScreen(Screen[Overrides]):
    """Gives back what was chosen. What is as the settings say follows them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "go(-1)", "Up", id="own.up", tooltip="The one above"),
        Binding("down", "go(1)", "Down", id="own.down", tooltip="The one below"),
        Binding(
            "escape,f3",
            "close",
            "Done",
            id="own.close",
            tooltip="Back; it holds from the next question on",
            priority=True,
        ),
    ]

    def __init__(self, title: str, conversation: Conversation, settings: Settings) -> None:
        super().__init__()
        self._title, self._conversation = title, conversation
        choices = conversation.overrides
        self.prompt = PromptBox(conversation.system_prompt)
        self.rows: dict[str, SettingRow] = {}
        for name, setting in conversation_settings(settings).items():
            chosen: Any = getattr(choices, name)
            self.rows[name] = SettingRow(setting, setting.default if chosen is None else chosen)
        self._said = Static(id="own-said", markup=False)
        self._doc = Static(id="own-doc", markup=False)

    def compose(self) -> ComposeResult:
        yield Static(self._head(), id="own-head")
        with VerticalScroll(id="own-list", can_focus=False):
            yield Static(_heading("System prompt", "said before everything else"), classes="group")
            yield self.prompt
            yield Static(_heading("Reading and answers", "else as the settings"), classes="group")
            yield from self.rows.values()
        yield self._said
        yield self._doc
        yield Static(id="own-foot", markup=False)

    def help_sections(self) -> tuple[Section, ...]:
        return (
            ("This conversation", ConversationSettingsScreen),
            ("Its system prompt", PromptBox),
            ("What is set", SettingRow),
        )

    def _head(self) -> Content:
        title = sanitize_line(self._title) or NEW
        return Content.assemble(("This conversation  ", "bold $accent"), (title, "$ink-dim"))

    def on_mount(self) -> None:
        self._said.display = False
        self.prompt.move_cursor(self.prompt.document.end)
        self.prompt.focus()

    def on_resize(self) -> None:
        hints = list(HINTS)
        while len("   ".join(hints)) > self.size.width - 4 and len(hints) > 1:
            del hints[-2]
        foot = Content.styled("   ".join(hints), "$ink-dim")
        self.query_one("#own-foot", Static).update(foot)

    # -------------------------------------------------------------------------- moving

    def action_go(self, step: int) -> None:
        places = [self.prompt, *self.rows.values()]
        at = next((i for i, place in enumerate(places) if place.has_focus), 0)
        self.set_focus(places[min(len(places) - 1, max(0, at + step))])

    @on(PromptBox.Left)
    def _prompt_left(self) -> None:
        self.action_go(1)

    @on(DescendantFocus)
    def _describe(self, event: DescendantFocus) -> None:
        self._say("")
        if not isinstance(event.widget, SettingRow):
            words = "What the model is told before everything else. Empty: nothing."
            again = "Changed, it has everything that was read here read again."
            self._doc.update(Content.assemble(words, "\n", (again, "$ink-dim")))
            return
        setting = event.widget.setting
        allowed = f"{setting.allowed} · " if setting.range is not None else ""
        facts = f"{allowed}else {display_value(setting.default)}"
        self._doc.update(Content.assemble(setting.doc, "\n", (facts, "$ink-dim")))

    # -------------------------------------------------------------------------- changing

    def action_close(self) -> None:
        typing = next((row for row in self.rows.values() if row.typed), None)
        if typing is not None:
            typing.clear_typed()
        else:
            self.dismiss(self.overrides)

    @property
    def overrides(self) -> Overrides:
        """What differs from the settings, and other things that were chosen as they were."""
        made = {
            name: None if row.value == row.setting.default else _plain(row.value)
            for name, row in self.rows.items()
        }
        before, prompt = self._conversation.overrides, self.prompt.prompt
        if prompt == self._conversation.system_prompt:
            return replace(before, **made)
        system = None if prompt == self._conversation.system else prompt
        return replace(before, system=system, **made)

    def on_setting_row_value_rejected(self, event: SettingRow.ValueRejected) -> None:
        self._say(event.sentence)

    def on_setting_row_value_changed(self) -> None:
        self._say("")

    def on_setting_row_choices_requested(self, event: SettingRow.ChoicesRequested) -> None:
        row = next(row for row in self.rows.values() if row.setting is event.setting)
        choices = ChoiceScreen(row.setting, row.value)
        self.app.push_screen(choices, partial(self._chosen, row))

    def _chosen(self, row: SettingRow, value: Value | None) -> None:
        if value is not None:
            row.show(value)

    @on(PromptBox.TooLong)
    def _too_long(self) -> None:
        self._say("That is too long for a system prompt. Attach it to a question.")

    def _say(self, words: str) -> None:
        self._said.update(Content.styled(sanitize_line(words), "$accent"))
        self._said.display = bool(words)


def _heading(name: str, aside: str) -> Content:
    return Content.assemble((name, "bold $accent"), (f"  {aside}", "$ink-dim"))


def _plain(value: Value) -> Any:
    """As it is kept: an enumeration's value is a text."""
    return str(value) if isinstance(value, str) else value
