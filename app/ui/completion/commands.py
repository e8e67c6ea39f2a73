"""The commands of the chat, read from the bindings: what can be typed after `/`, and what Ctrl+P
finds there."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Protocol, runtime_checkable

from textual.binding import Binding
from textual.dom import DOMNode

from app.ui.help.screen import key_name

_TYPED = re.compile(r"/([\w-]*)")
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z-]*)")
_MOVES = frozenset({"up", "down", "pageup", "pagedown", "home", "end", "backspace"})
_OF_A_LIST = frozenset({"enter", "escape", "tab", "shift+tab"})
_NOT_COMMANDS = frozenset(
    {
        "app.copy",
        "compose.commands",
        "compose.newline",
        "compose.send",
        "list.new",
        "message.again",
        "message.full",
        "message.leave",
        "message.spans",
    }
)
"""Of no use to somebody who is typing a command, or the same as a command of the chat."""


@dataclass(frozen=True, slots=True)
class Command:
    """`label` is one or two words, `description` a line."""

    name: str
    label: str
    description: str
    key: str
    run: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Owner:
    """A class whose bindings are commands; `run` gets the action of one. `prefix` tells its
    commands from others of the same name. `opened_by` is the key of what has to be opened for it,
    and `title` says what that is about."""

    prefix: str
    kind: type[DOMNode]
    run: Callable[[str], Awaitable[object]]
    opened_by: str = ""
    title: str = ""


@runtime_checkable
class HasCommands(Protocol):
    def command_owners(self) -> Iterable[Owner]:
        """Those whose short names are to be had first come first."""
        ...


@runtime_checkable
class ActsAtOnce(Protocol):
    """A screen on which a command of the chat acts as soon as it is open."""

    async def has_chosen(self) -> bool:
        """Once it has drawn: whether what is highlighted is what the chat shows."""
        ...


def commands(owners: Iterable[Owner]) -> list[Command]:
    """Every binding of `owners` that has a tooltip, except keys that move a cursor."""
    found: dict[str, Command] = {}
    for owner in owners:
        for binding in own_bindings(owner.kind):
            keys = set(binding.key.split(","))
            moves = keys & (_MOVES | (_OF_A_LIST if owner.opened_by else set()))
            if not binding.id or not binding.tooltip or moves or binding.id in _NOT_COMMANDS:
                continue
            name = binding.id.rpartition(".")[2].replace("_", "-")
            if name in found:
                name = f"{owner.prefix}-{name}"
            found.setdefault(name, _command(name, owner, binding))
    return [*found.values()]


def own_bindings(kind: type[DOMNode]) -> Iterator[Binding]:
    """Of the class and of those of ours that it inherits from."""
    for each in kind.__mro__:
        if each.__module__.startswith("app."):
            yield from (b for b in vars(each).get("BINDINGS", ()) if isinstance(b, Binding))


def _command(name: str, owner: Owner, binding: Binding) -> Command:
    key = " ".join(filter(None, (owner.opened_by, key_name(binding.key))))
    what = binding.tooltip
    if owner.title:
        what = f"{owner.title}: {what[0].lower()}{what[1:]}"
    return Command(name, binding.description, what, key, partial(owner.run, binding.action))


def typed_word(text: str) -> str | None:
    """The word of a text like `/word`, as far as it is typed, else None."""
    found = _TYPED.fullmatch(text)
    return None if found is None else found[1]


def command_word(text: str) -> str | None:
    """The word of a message that can only be meant as a command: a slash and letters, and nothing
    else. None for `/`, `/etc/hosts` and all that has more words."""
    found = _COMMAND.fullmatch(text.strip())
    return None if found is None else found[1].lower()


def unknown_command(word: str, all_commands: Sequence[Command]) -> str:
    """What to tell somebody who typed a command that does not exist."""
    names = [each.name for each in matching(word, all_commands)[:1]]
    names += get_close_matches(word, [each.name for each in all_commands], 1)
    nearest = f" Did you mean /{names[0]}?" if names else ""
    return (
        f"There is no command /{word}.{nearest} Type / for all; with more words it is a question."
    )


def matching(word: str, all_commands: Sequence[Command]) -> list[Command]:
    """Names that start with `word`, then names that contain it."""
    word = word.lower()
    first = [each for each in all_commands if each.name.startswith(word)]
    return first + [each for each in all_commands if word in each.name and each not in first]
