"""F1: all keys, read from the bindings: the ten that matter first, then by where they work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.dom import DOMNode
from textual.keys import format_key
from textual.screen import ModalScreen
from textual.widgets import Static

from app.ui.filter_list import FilterList
from app.ui.text import hanging_indent


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Bindings of a screen that have a section of their own in the help."""

    BINDINGS: Sequence[BindingType]


Section = tuple[str, type[DOMNode] | KeyGroup]
"""A heading, and what has the bindings that are listed below it."""
Row = tuple[str, str]
"""Keys, and what they do."""
KEY_WIDTH, NARROW = 18, 44
"""Width of the key column in cells; in a list narrower than NARROW it is a third less."""
TEN_KEYS = (
    "compose.send",
    "compose.attach",
    "chat.stop",
    "chat.spans",
    "chat.again_full",
    "chat.messages",
    "chat.new",
    "chat.conversations",
    "app.models",
    "app.quit",
)
"""Bindings that a first conversation needs."""
NAMES = {
    "enter": "Enter",
    "escape": "Esc",
    "tab": "Tab",
    "space": "Space",
    "backspace": "Backspace",
    "delete": "Delete",
    "left": "←",
    "right": "→",
    "up": "↑",
    "down": "↓",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
}
MODIFIERS = {"ctrl": "^", "shift": "⇧", "alt": "Alt+"}


@runtime_checkable
class HasHelp(Protocol):
    """A screen that lists its keys in the help."""

    def help_sections(self) -> tuple[Section, ...]: ...


def key_name(keys: str) -> str:
    """`ctrl+t` as ^T."""
    names = []
    for key in keys.split(","):
        *modifiers, last = key.strip().split("+")
        written = format_key(last)  # `number_sign` as #
        name = written if len(written) == 1 else last.upper()
        name = NAMES.get(last, name.upper() if modifiers else name)
        names.append("".join(map(MODIFIERS.__getitem__, modifiers)) + name)
    return " ".join(names)


def binding_rows(bindings: Iterable[BindingType]) -> list[Row]:
    """Rows for the bindings that have a tooltip. Those with the same tooltip share a row."""
    keys: dict[str, list[str]] = {}
    for each in bindings:
        if isinstance(each, Binding) and each.tooltip:
            keys.setdefault(each.tooltip, []).append(key_name(each.key))
    return [(" ".join(names), what) for what, names in keys.items()]


def help_rows(sections: Iterable[Section]) -> list[tuple[str, list[Row]]]:
    """Headings with their rows. Where all of TEN_KEYS work they come first; what was listed before
    is not listed again."""
    owners = [(title, [*owner.BINDINGS]) for title, owner in sections]
    by_id = {each.id: each for _, own in owners for each in own if isinstance(each, Binding)}
    groups = [(title, binding_rows(own)) for title, own in owners]
    if by_id.keys() >= set(TEN_KEYS):
        groups.insert(0, ("Ten keys to start with", binding_rows(by_id[each] for each in TEN_KEYS)))
    listed: set[Row] = set()
    result = []
    for title, rows in groups:
        fresh = [row for row in rows if row not in listed]
        listed.update(fresh)
        if fresh:
            result.append((title, fresh))
    return result


class HelpScreen(ModalScreen[None]):
    # With priority: the focused filter would use some of these keys itself.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,enter", "dismiss", "Close", id="help.close", priority=True),
        Binding("escape", "close", "Close", id="help.escape", priority=True),
    ]

    def __init__(self, sections: Sequence[Section]) -> None:
        super().__init__()
        self._groups = help_rows(sections)
        self.list = FilterList(self._rows)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self.list
            yield Static(Content.styled("↑↓ PgUp PgDn scroll   Esc close", "$ink-dim"))

    def on_resize(self) -> None:
        self.call_after_refresh(self.list.draw)

    def action_close(self) -> None:
        """Clear the filter; close where it is empty."""
        if self.list.filter.value:
            self.list.filter.value = ""
        else:
            self.dismiss()

    def _rows(self, text: str, width: int) -> Iterator[tuple[str, Content]]:
        cells = KEY_WIDTH if width >= NARROW else KEY_WIDTH * 2 // 3
        wanted = text.casefold().replace("ctrl+", "^")
        gap = ""
        for title, rows in self._groups:
            found = [row for row in rows if wanted in f"{title} {' '.join(row)}".casefold()]
            if found:
                yield title, Content.assemble(gap, (title, "bold $accent"))
                gap = "\n"
            for keys, what in found:
                key, does = Content(f"{keys:<{cells}}"), Content.styled(what, "$ink-dim")
                yield f"{title} {keys} {what}", hanging_indent(key, does, width)
