"""F3: settings of one conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from app.chat.conversation import Conversation
from app.settings.definitions import Range, Setting, Settings, Value, find
from app.store.records import Overrides
from app.ui.click_line import ClickLine, Piece
from app.ui.files.overview import choice_text
from app.ui.help.screen import Section
from app.ui.settings.form import SettingsForm, group_heading
from app.ui.settings.prompt import PromptBox
from app.ui.settings.row import LABEL_WIDTH, SettingRow

KEYS = {
    "mode": "reading.mode",
    "keep": "reading.keep",
    "temperature": "answers.temperature",
    "top_p": "answers.top_p",
    "max_tokens": "answers.max_tokens",
}
"""The settings that a conversation can override, by the names of `Overrides`."""
SEED = Setting(
    "answers",
    "seed",
    int,
    Range(0, 999_999),
    0,
    "With the same seed, the same question gets the same answer. 0: a new seed each time.",
)


def conversation_settings(settings: Settings) -> dict[str, Setting]:
    """By the names of `Overrides`. The default of each is its value in `settings`."""
    found = {name: find(key) for name, key in KEYS.items()}
    rows = {name: replace(each, default=each.value_in(settings)) for name, each in found.items()}
    return rows | {"seed": SEED}


class FilesRow(ClickLine, can_focus=True):
    """How many files are always or never put before the model, which can be cleared."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+d", "clear", "Default", id="conversation.files",
            tooltip="Choose all files automatically",
        ),
        Binding("backspace,delete", "clear", show=False),
    ]  # fmt: skip

    def __init__(self, overrides: Overrides) -> None:
        super().__init__()
        self.always, self.never = overrides.always_read, overrides.never_read

    def pieces(self) -> Iterator[Piece]:
        text = choice_text(len(self.always or ()), len(self.never or ()))
        yield Piece(("❯" if self.has_focus else " ") + ("• " if text else "  "), "$accent")
        yield Piece(f"{'Files':<{LABEL_WIDTH}}")
        yield Piece(text or "all automatic", "bold")
        if text:
            yield Piece("  ^D clears it · ^F in the chat shows them", "$ink-dim", self.action_clear)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def action_clear(self) -> None:
        self.always = self.never = None
        self.refresh()


class ConversationSettingsScreen(SettingsForm[Overrides]):
    """Returns the overrides. What is left at its default follows the settings."""

    HINTS = ("↑↓ move", "←→ change", "⏎ set", "^D default", "Esc done")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "go(-1)", "Up", id="conversation.up", tooltip="Row above or below"),
        Binding("down", "go(1)", "Down", id="conversation.down", tooltip="Row above or below"),
        Binding(
            "escape,f3",
            "close",
            "Done",
            id="conversation.close",
            tooltip="Close; changes apply from the next question on",
            priority=True,
        ),
    ]

    def __init__(self, title: str, conversation: Conversation, settings: Settings) -> None:
        super().__init__()
        self._title, self._conversation = title, conversation
        self.prompt = PromptBox(conversation.system_prompt)
        self.rows: dict[str, SettingRow] = {}
        for name, setting in conversation_settings(settings).items():
            value: Any = getattr(conversation.overrides, name)
            self.rows[name] = SettingRow(setting, setting.default if value is None else value)
        self.files = FilesRow(conversation.overrides)
        self.files.display = bool(self.files.always or self.files.never)

    def compose(self) -> ComposeResult:
        yield self.heading
        with VerticalScroll(classes="settings", can_focus=False):
            yield group_heading("System prompt", "comes before everything else")
            yield self.prompt
            yield group_heading("Reading and answers", "overrides the settings")
            yield from self.rows.values()
            yield self.files
        yield self.message
        yield self.description
        yield self.foot

    def help_sections(self) -> tuple[Section, ...]:
        return (
            ("This conversation", ConversationSettingsScreen),
            ("Its system prompt", PromptBox),
            ("A setting", SettingRow),
        )

    def on_mount(self) -> None:
        self.show_heading("This conversation", self._title or "a new conversation")
        self.prompt.move_cursor(self.prompt.document.end)
        self.prompt.focus()

    # -------------------------------------------------------------------------- fields

    def fields(self) -> list[Widget]:
        files = [self.files] if self.files.display else []
        return [self.prompt, *self.rows.values(), *files]

    def describe_other(self) -> None:
        if self.files.has_focus:
            self.describe(
                "Files that the model gets with each question, or never, where not all fit.",
                "Default: those that fit the question are chosen.",
            )
            return
        self.describe(
            "Instructions that the model gets before everything else.",
            "After a change, the whole conversation is read again.",
        )

    @on(PromptBox.MovedPast)
    def _prompt_left(self) -> None:
        self.action_go(1)

    def on_descendant_focus(self) -> None:
        self.show_message("")

    # -------------------------------------------------------------------------- changing

    def action_close(self) -> None:
        typing = next((row for row in self.rows.values() if row.typed), None)
        if typing is not None:
            typing.clear_typed()
        else:
            self.dismiss(self.overrides)

    @property
    def overrides(self) -> Overrides:
        """Values that differ from the settings. What is not on this screen stays."""
        changed = {
            name: None if row.value == row.setting.default else _plain(row.value)
            for name, row in self.rows.items()
        }
        always, never = self.files.always, self.files.never
        before = replace(self._conversation.overrides, always_read=always, never_read=never)
        prompt = self.prompt.prompt
        if prompt == self._conversation.system_prompt:
            return replace(before, **changed)
        system = None if prompt == self._conversation.system else prompt
        return replace(before, system=system, **changed)

    def on_setting_row_value_changed(self) -> None:
        self.show_message("")

    @on(PromptBox.TooLong)
    def _too_long(self) -> None:
        self.show_message("Too long for a system prompt. Attach it to a question instead.")


def _plain(value: Value) -> Any:
    """As it is stored: the text of an enumeration's value."""
    return str(value) if isinstance(value, str) else value
