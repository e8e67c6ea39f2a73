"""F1: all keys, read from the bindings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Static

from app.ui.hanging_indent import HangingLines, hanging_indent

Section = tuple[str, type[DOMNode]]
"""A heading, and the class whose bindings are listed below it."""
KEY_WIDTH = 18
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
    "at": "@",
    "slash": "/",
}


@runtime_checkable
class HasHelp(Protocol):
    """A screen that lists its keys in the help."""

    def help_sections(self) -> tuple[Section, ...]: ...


def key_name(keys: str) -> str:
    """`ctrl+t` as ^T."""
    names = []
    for key in keys.split(","):
        *modifiers, last = key.strip().split("+")
        name = NAMES.get(last, last.upper() if len(last) > 1 or modifiers else last)
        prefix = "".join("^" if modifier == "ctrl" else "⇧" for modifier in modifiers)
        names.append(prefix + name)
    return " ".join(names)


def binding_rows(owner: type[DOMNode]) -> list[tuple[str, str]]:
    """Keys and what they do, of the bindings of `owner` that have a tooltip."""
    bindings = (entry for entry in owner.BINDINGS if isinstance(entry, Binding))
    return [(key_name(entry.key), entry.tooltip) for entry in bindings if entry.tooltip]


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,enter,q", "dismiss", "Close", id="help.close")
    ]

    def __init__(self, sections: Iterable[Section]) -> None:
        super().__init__()
        self._sections = tuple(sections)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            for title, owner in self._sections:
                yield KeyList(title, binding_rows(owner))
            yield Static(Content.styled("Esc close", "$ink-dim"))


class KeyList(HangingLines):
    """A heading, and below it keys with what they do."""

    def __init__(self, title: str, keys: list[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._keys = title, keys

    def lines(self, width: int) -> list[Content]:
        keys = (
            hanging_indent(Content(f"{key:<{KEY_WIDTH}}"), Content.styled(what, "$ink-dim"), width)
            for key, what in self._keys
        )
        return [Content.styled(self._title, "bold $accent"), *keys]
