"""Ctrl+P: finds what can be done on this screen, settings, and conversations, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from textual.app import ComposeResult
from textual.command import (
    CommandInput,
    CommandList,
    CommandPalette,
    DiscoveryHit,
    Hit,
    Hits,
    Provider,
)
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.fuzzy import FuzzySearch
from textual.widgets import LoadingIndicator, Static

from app.settings.definitions import Setting, all_settings
from app.store.records import ConversationRecord
from app.ui.completion import HasCommands, commands
from app.ui.conversations.list_rows import MAX_MATCHED, distinct_labels
from app.ui.help import key_name
from app.ui.keys import SafeInput
from app.ui.settings.live import LiveSettings
from app.ui.text import spread
from app.util.sanitize import sanitize_line

MOVE_KEYS = frozenset({"up", "down", "left", "right", "pageup", "pagedown", "backspace"})
"""Keys that only move a cursor; they are not listed."""
WIDTH, NAME_CELLS = 68, 13


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """`name` and `text`, both sanitised, are two columns; `hint` is the key, or says what it is."""

    name: str
    text: str
    hint: str
    run: Callable[[], Awaitable[object] | object]

    @property
    def searched(self) -> str:
        return f"{self.name:<{NAME_CELLS}} {self.text}" if self.text else self.name

    def render(self, matched: Sequence[int] = ()) -> Content:
        text = Content(self.searched)
        if self.text:
            text = text.stylize("$ink-dim", NAME_CELLS)
        for index in matched:
            text = text.stylize("bold underline", index, index + 1)
        return spread(text, Content.styled(self.hint, "$ink-dim"), WIDTH)


@dataclass(frozen=True, slots=True)
class PaletteSources:
    """Where the entries come from that are not keys of the screen."""

    settings: LiveSettings
    show_setting: Callable[[Setting], object]
    conversations: Callable[[], Awaitable[Sequence[ConversationRecord]]]
    open_conversation: Callable[[int], object]


class PaletteProvider(Provider):
    """Built from the bindings, the settings and the store, so that nothing can be missing."""

    sources: PaletteSources

    async def startup(self) -> None:
        self._matcher = FuzzySearch()
        self._entries = [*self._actions(), *self._settings(), *await self._conversations()]

    async def discover(self) -> Hits:
        for entry in self._entries:
            yield DiscoveryHit(entry.render(), entry.run, entry.searched)

    async def search(self, query: str) -> Hits:
        for entry in self._entries:
            score, matched = self._matcher.match(query, entry.searched)
            if score > 0:
                yield Hit(score, entry.render(matched), entry.run, entry.searched)

    def _actions(self) -> Iterator[PaletteEntry]:
        """All commands in the chat; on other screens, those of the screen, the app and the focused
        widget."""
        if isinstance(self.screen, HasCommands):
            for each in commands(self.screen.command_owners()):
                text = each.description if each.description != each.label else ""
                yield PaletteEntry(each.label, text, each.key, each.run)
            return
        seen = set()
        found = self.screen.active_bindings.values()
        for active in sorted(found, key=lambda each: each.node is not self.screen):
            binding, action = active.binding, (active.node, active.binding.action)
            named = binding.tooltip and binding.id not in (None, "app.palette")
            if not named or action in seen or not active.enabled or binding.key in MOVE_KEYS:
                continue
            seen.add(action)
            run = partial(self.app.run_action, binding.action, default_namespace=active.node)
            text = binding.tooltip if binding.tooltip != binding.description else ""
            yield PaletteEntry(binding.description, text, key_name(binding.key), run)

    def _settings(self) -> Iterator[PaletteEntry]:
        live = self.sources.settings
        for setting in all_settings():
            value = setting.value_in(live.values)
            show = partial(self.sources.show_setting, setting)
            yield PaletteEntry(f"{setting.label}: {setting.display(value)}", "", "setting", show)
            for choice in setting.choices:
                if choice != value:
                    name = f"{setting.label}: set to {setting.display(choice)}"
                    yield PaletteEntry(name, "", "setting", partial(live.change, setting, choice))

    async def _conversations(self) -> Iterator[PaletteEntry]:
        conversations = await self.sources.conversations()
        titled = [each for each in conversations if each.title.strip()]
        now = datetime.now().astimezone()
        labels = distinct_labels(((each.title, each) for each in titled), now)
        return (
            PaletteEntry(
                sanitize_line(each.title[:MAX_MATCHED]),
                "",
                " · ".join(filter(None, ("conversation", labels.get(each.id)))),
                partial(self.sources.open_conversation, each.id),
            )
            for each in titled
        )


class PaletteInput(CommandInput, SafeInput):
    """Shows control characters in pasted text as symbols."""


class PaletteScreen(CommandPalette):
    def __init__(self, from_sources: PaletteSources) -> None:
        class BoundProvider(PaletteProvider):
            sources = from_sources

        super().__init__([BoundProvider])

    def compose(self) -> ComposeResult:
        """Compose Textual's palette with a safe input, and without the emoji that terminals draw in
        different widths."""
        with Vertical(id="--container"):
            with Horizontal(id="--input"):
                yield Static("❯", id="palette-prompt", markup=False)
                yield PaletteInput(placeholder="Search for commands", select_on_focus=False)
            with Vertical(id="--results"):
                yield CommandList()
                yield LoadingIndicator()
