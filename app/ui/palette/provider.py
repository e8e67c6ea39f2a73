"""What the palette finds: what can be done on this screen, settings, and conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.fuzzy import FuzzySearch

from app.errors import UserError
from app.settings.schema import all_settings
from app.ui.chat.screen import ChatScreen
from app.ui.conversations.list_rows import MAX_MATCHED, distinct_labels
from app.ui.help.screen import key_name
from app.ui.settings.row import display_value
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.ui.app import SpecchatApp

MOVING = frozenset({"up", "down", "left", "right", "pageup", "pagedown", "backspace"})
"""Keys of which nobody looks for the name."""
WIDTH, NAME_CELLS = 68, 13


@dataclass(frozen=True, slots=True)
class Entry:
    """`name` and `text` are sanitised and stand in two columns; `aside` says what it is, or its
    key."""

    name: str
    text: str
    aside: str
    run: Callable[[], Awaitable[object] | object]

    @property
    def words(self) -> str:
        """What is matched with what is typed."""
        return f"{self.name:<{NAME_CELLS}} {self.text}" if self.text else self.name

    def drawn(self, matched: tuple[int, ...] = ()) -> Content:
        text = Content(self.words)
        if self.text:
            text = text.stylize("$ink-dim", NAME_CELLS)
        for place in matched:
            text = text.stylize("bold underline", place, place + 1)
        text = text.truncate(WIDTH - len(self.aside) - 2, ellipsis=True)
        gap = " " * (WIDTH - text.cell_length - len(self.aside))
        return Content.assemble(text, gap, (self.aside, "$ink-dim"))


class PaletteProvider(Provider):
    """Built from the bindings, the settings and the store, so that nothing can be missing."""

    async def startup(self) -> None:
        self._matcher = FuzzySearch()
        self._entries = [*self._doings(), *self._settings(), *await self._conversations()]

    async def discover(self) -> Hits:
        for entry in self._entries:
            yield DiscoveryHit(entry.drawn(), entry.run, entry.words)

    async def search(self, query: str) -> Hits:
        for entry in self._entries:
            score, matched = self._matcher.match(query, entry.words)
            if score > 0:
                yield Hit(score, entry.drawn(tuple(matched)), entry.run, entry.words)

    @property
    def _specchat(self) -> SpecchatApp:
        return cast("SpecchatApp", self.app)

    def _doings(self) -> Iterator[Entry]:
        """Those of the screen first, then what holds everywhere and what the focus adds."""
        seen = set()
        found = self.screen.active_bindings.values()
        for active in sorted(found, key=lambda each: each.node is not self.screen):
            binding, where = active.binding, (active.node, active.binding.action)
            named = binding.tooltip and binding.id not in (None, "app.palette")
            if not named or where in seen or not active.enabled or binding.key in MOVING:
                continue
            seen.add(where)
            run = partial(self.app.run_action, binding.action, default_namespace=active.node)
            text = binding.tooltip if binding.tooltip != binding.description else ""
            yield Entry(binding.description, text, key_name(binding.key), run)

    def _settings(self) -> Iterator[Entry]:
        live = self._specchat.settings
        for setting in all_settings():
            value = setting.value_in(live.values)
            go = partial(self._specchat.show_setting, setting)
            yield Entry(f"{setting.label}: {display_value(value)}", "", "setting", go)
            for choice in setting.choices:
                if choice != value:
                    change = partial(live.change, setting, choice)
                    name = f"{setting.label}: set to {display_value(choice)}"
                    yield Entry(name, "", "setting", change)

    async def _conversations(self) -> list[Entry]:
        """They are opened from the chat."""
        chat = self.screen
        if not isinstance(chat, ChatScreen) or not chat.open_chats.repository.readable:
            return []
        try:
            found = await chat.open_chats.repository.read(lambda store: store.conversations())
        except UserError:  # said where it matters
            return []
        titled = [each for each in found if each.title.strip()]
        now = datetime.now().astimezone()
        labels = distinct_labels(((each.title, each) for each in titled), now)
        return [
            Entry(
                sanitize_line(each.title[:MAX_MATCHED]),
                "",
                " · ".join(filter(None, ("conversation", labels.get(each.id)))),
                partial(chat.open_conversation, each.id),
            )
            for each in titled
        ]
