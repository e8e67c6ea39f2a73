"""The commands that can be typed after `/`, read from the bindings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual.binding import Binding
from textual.dom import DOMNode

from app.ui.help.screen import key_name

_WORD = re.compile(r"/([\w-]*)")
_ATTACH = "compose.attach"
_COPY = "app.copy"
"""Not a command: nothing is selected while one is typed."""


@dataclass(frozen=True, slots=True)
class Command:
    """`action` is one of `owner`."""

    name: str
    description: str
    key: str
    owner: DOMNode
    action: str

    async def run(self) -> None:
        await self.owner.app.run_action(self.action, self.owner)


def commands(box: DOMNode, owners: Iterable[DOMNode]) -> list[Command]:
    """The bindings of `owners` that have a tooltip, and that of the `box` which attaches a file."""
    found = [each for each in _of(box) if each[0] == _ATTACH]
    found += [each for owner in owners for each in _of(owner) if each[0] != _COPY]
    return [command for _, command in found]


def _of(owner: DOMNode) -> list[tuple[str, Command]]:
    bindings = (each for each in owner.BINDINGS if isinstance(each, Binding))
    return [
        (each.id, Command(_name(each.id), each.tooltip, key_name(each.key), owner, each.action))
        for each in bindings
        if each.id and each.tooltip
    ]


def _name(id: str) -> str:
    return id.rpartition(".")[2].replace("_", "-")


def command_word(text: str) -> str | None:
    """The word of a text like `/word`, else None."""
    found = _WORD.fullmatch(text)
    return None if found is None else found[1]


def matching(word: str, all_commands: Sequence[Command]) -> list[Command]:
    """Names that start with `word`, then names that contain it."""
    word = word.lower()
    first = [each for each in all_commands if each.name.startswith(word)]
    return first + [each for each in all_commands if word in each.name and each not in first]
