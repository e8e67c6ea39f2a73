"""F3: settings of one conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Key, Paste
from textual.message import Message
from textual.widget import Widget
from textual.widgets import TextArea

from app.chat.conversation import Conversation
from app.settings.definitions import Range, Setting, Settings, Value, find
from app.store.records import Overrides
from app.ui.files.overview import choice_text
from app.ui.help import Section
from app.ui.keys import WORD_BINDINGS, odd_character, run_own_binding
from app.ui.settings.form import LABEL_WIDTH, SettingRow, SettingsForm, group_heading
from app.ui.text import ClickLine, LinePart
from app.util.sanitize import sanitize

MAX_LENGTH = 32_768
"""Characters: a longer text is a document, and slow to draw here."""
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


class PromptBox(TextArea):
    """Shows control characters as symbols."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up", "Up", id="prompt.up", tooltip="Move a line up"),
        Binding(
            "down", "down", "Down", id="prompt.down",
            tooltip="Move a line down, or to the settings",
        ),
        *WORD_BINDINGS,
    ]  # fmt: skip

    @dataclass
    class MovedPast(Message):
        """Down was pressed on the last line."""

    @dataclass
    class TooLong(Message):
        """The pasted text does not fit into a system prompt."""

    def __init__(self, prompt: str) -> None:
        super().__init__(
            sanitize(prompt),
            id="system-prompt",
            soft_wrap=True,
            compact=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="None. Say who the model should be, or how it should answer",
        )
        self._prompt, self._shown = prompt, self.text

    @property
    def prompt(self) -> str:
        """Byte for byte as given, unless it was changed."""
        return self._prompt if self.text == self._shown else self.text.strip()

    async def _on_key(self, event: Key) -> None:
        if character := odd_character(event):
            self._replace_via_keyboard(character, *self.selection)
        elif not await run_own_binding(self, event):
            await super()._on_key(event)

    async def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        if len(self.text) + len(event.text) > MAX_LENGTH:
            self.post_message(self.TooLong())
            return
        text = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self._replace_via_keyboard(text, *self.selection)

    def action_down(self) -> None:
        if self.navigator.is_last_wrapped_line(self.cursor_location):
            self.post_message(self.MovedPast())
        else:
            self.action_cursor_down()


def conversation_settings(settings: Settings) -> dict[str, Setting]:
    """The settings of a conversation by the names of `Overrides`. The default of each is its value
    in `settings`."""
    found = {name: find(key) for name, key in KEYS.items()}
    rows = {name: replace(each, default=each.value_in(settings)) for name, each in found.items()}
    return rows | {"seed": SEED}


class FilesRow(ClickLine, can_focus=True):
    """How many files are always or never read, with a key that clears this choice."""

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

    def pieces(self) -> Iterator[LinePart]:
        text = choice_text(len(self.always or ()), len(self.never or ()))
        yield LinePart(("❯" if self.has_focus else " ") + ("• " if text else "  "), "$accent")
        yield LinePart(f"{'Files':<{LABEL_WIDTH}}")
        yield LinePart(text or "all automatic", "bold")
        if text:
            hint = "  ^D clears it · ^F in the chat shows them"
            yield LinePart(hint, "$ink-dim", self.action_clear)

    def action_clear(self) -> None:
        self.always = self.never = None
        self.refresh()


class ConversationSettingsScreen(SettingsForm[Overrides]):
    """The settings of one conversation. Returns the overrides; a default value follows the
    settings."""

    HINTS = ("↑↓ move", "←→ change", "⏎ set", "^D default", "Esc done")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "go(-1)", "Up", id="conversation.up", tooltip="Move up or down"),
        Binding("down", "go(1)", "Down", id="conversation.down", tooltip="Move up or down"),
        Binding(
            "escape,f3", "close", "Done", id="conversation.close",
            tooltip="Close; changes apply from the next question on", priority=True,
        ),
    ]  # fmt: skip

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
                "Files that are always or never read when not all files fit the context.",
                "Default: the files that fit the question best are read.",
            )
            return
        self.describe(
            "Instructions that the model reads before everything else.",
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
    """The value as it is stored: for an enumeration, its text."""
    return str(value) if isinstance(value, str) else value
