"""Completion in the compose box: files after `@`, commands after `/`.

Commands are read from the bindings; Ctrl+P finds them, too. The list is up to date as soon as a key
is handled, since the next one, typed ahead, may choose its first row. Only the names in a folder
come later: a key for the list waits for them a moment.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.dom import DOMNode
from textual.message import Message
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from app.errors import UserError
from app.ingest.records import ReadCancelled
from app.ui.background import in_background, start_task
from app.ui.help import key_name
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.ingest.excerpt import Outline
    from app.ingest.walk import DirListing, FolderEntry

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
"""Bindings that are not listed: they are useless as a command, or the same as another one."""
MAX_ENTRIES = 2_000
"""Names that are read in a folder."""
MAX_SECONDS = 2.0
MAX_SHOWN = 200
_AT_THE_CURSOR = re.compile(r"(?:^|(?<=\s))@((?:\\.|[^\s\\])*)$")
_WORDS = re.compile(r"(?:^|(?<=\s))@((?:\\.|[^\s\\])+)")
_LIKE_A_PATH = re.compile(r"~|.*/|.*\.\w{1,8}(?:#.*)?$", re.DOTALL)
_WORD = re.compile(r"(?:\\.|[^\s\\])+")
_ESCAPED = re.compile(r"\\(.)")
_AFTER_A_PATH = ".,;:!?)"
_TO_ESCAPE = re.compile(r"([\s\\])")
KEY_WAIT_SECONDS = 0.5
"""How long a key waits for the names in a folder."""
NAME_CELLS, KEY_CELLS = 16, 8
MARGIN = 7
"""Cells beside an option: padding and scrollbar."""


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
    """A class whose bindings are commands; `run` runs the action of one. If another command has the
    same name, `prefix` is put before it. `opened_by` is the key that opens the screen of the
    command, and `title` is the subject of that screen."""

    prefix: str
    kind: type[DOMNode]
    run: Callable[[str], Awaitable[object]]
    opened_by: str = ""
    title: str = ""


@runtime_checkable
class HasCommands(Protocol):
    def command_owners(self) -> Iterable[Owner]:
        """The owners. If two commands have the same name, the first owner's keeps it."""
        ...


@runtime_checkable
class ActsAtOnce(Protocol):
    """A screen on which a command of the chat acts as soon as it is open."""

    async def has_chosen(self) -> bool:
        """Wait until the screen is drawn; returns whether the highlighted row is what the chat
        shows."""
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
    """The bindings of a class and of its base classes in this program."""
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
    else. None for `/`, `/etc/hosts` and texts of several words."""
    found = _COMMAND.fullmatch(text.strip())
    return None if found is None else found[1].lower()


def unknown_command(word: str, all_commands: Sequence[Command]) -> str:
    """The message for a command that does not exist."""
    names = [each.name for each in matching(word, all_commands)[:1]]
    names += get_close_matches(word, [each.name for each in all_commands], 1)
    nearest = f" Did you mean /{names[0]}?" if names else ""
    return (
        f"There is no command /{word}.{nearest} Type / to list all. If you add words, it is sent as"
        " a question."
    )


def matching(word: str, all_commands: Sequence[Command]) -> list[Command]:
    """Names that start with `word`, then names that contain it."""
    word = word.lower()
    first = [each for each in all_commands if each.name.startswith(word)]
    return first + [each for each in all_commands if word in each.name and each not in first]


@dataclass(frozen=True, slots=True)
class PathCompletion:
    """`typed` is what stands for it in the box, after the `@`; `note` is a short remark."""

    path: str
    typed: str
    name: str
    is_folder: bool
    note: str = ""


def word_before(line: str) -> str | None:
    """What follows an `@` at the start of a word, up to the end of `line`; spaces in it are escaped
    with a backslash. None if there is no such word."""
    found = _AT_THE_CURSOR.search(line)
    return None if found is None else found[1]


def typed_paths(text: str) -> tuple[str, ...]:
    """Words that may be paths, without those after an `@`."""
    if typed_word(text) is not None:  # a command
        return ()
    words = (word[0].rstrip(_AFTER_A_PATH) for word in _WORD.finditer(text))
    return tuple(dict.fromkeys(word for word in words if _may_be_path(word) and word[0] != "@"))


def without_paths(text: str) -> str:
    """A question without the words that are or may be paths."""
    return _WORD.sub(lambda word: "" if _may_be_path(word[0]) else word[0], text).strip()


def ends_in_path(text: str) -> bool:
    """Whether the last word may be a path that is still being typed."""
    *_, last = ["", *_WORD.findall(text)]
    return text.endswith(last) and last[-1:] not in _AFTER_A_PATH and _may_be_path(last)


def _may_be_path(word: str) -> bool:
    has_name, word = any(map(str.isalnum, word)), word.rstrip(_AFTER_A_PATH)
    return word.startswith("@") or (has_name and _LIKE_A_PATH.match(word) is not None)


def start_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return str(Path.home())


class PathCompleter:
    """Completes names in the folder that is being typed."""

    def __init__(self, start: str) -> None:
        self._start = start

    def folder(self, word: str) -> str:
        return self._absolute(_split(word)[0])

    def first_existing(self, words: Iterable[str], known: Container[str]) -> str:
        """The first word that is the path of a file or folder whose name is not `known`, or empty.
        Waits for the disk."""
        from app.ingest.excerpt import split_path  # slow to import

        for word in words:
            path, _ = split_path(self._absolute(_ESCAPED.sub(r"\1", word)))
            if os.path.basename(path) not in known and os.path.exists(path):
                return word
        return ""

    def take_named(self, text: str, strict: bool) -> tuple[str, dict[str, str]]:
        """A question without the files, parts of files and folders that stand after an `@`, and for
        the path of each what stays of it: within a sentence its name. Waits for the disk. If
        `strict`,
        raises IngestError for what does not exist and can hardly be anything but a path: it has a
        slash or an ending."""
        from app.ingest.excerpt import split_path  # slow to import
        from app.ingest.reader import file_mode

        found: dict[str, str] = {}
        rest, at = "", 0
        for match in _WORDS.finditer(text):
            word = match[1].rstrip(_AFTER_A_PATH)
            path = _ESCAPED.sub(r"\1", word)
            absolute = self._absolute(path)
            file, part = split_path(absolute)
            if not os.path.lexists(file):
                if strict and _LIKE_A_PATH.match(path):
                    file_mode(path)
                continue
            found[absolute] = ""
            rest += text[at : match.start()]
            at = match.start() + 1 + len(word)
            is_last = not text[at:].strip(_AFTER_A_PATH).strip()
            if rest.strip() and not (is_last and rest.rstrip().endswith((".", "?", "!", ":"))):
                found[absolute] = os.path.basename(file) + (f"#{part}" if part else "")
                rest += found[absolute]
        return (rest + text[at:]).strip(), found

    def completions(self, word: str, listing: DirListing) -> list[PathCompletion]:
        """Best first: names that start with the typed text, contain it, or have its letters in this
        order. Names that attaching the folder would skip come last."""
        if _ESCAPED.sub(r"\1", word) == "~":
            return [self._choice("", "~", True, "home")]
        before, needle = _split(word)
        found = [
            self._choice(before, name, True, note) for name, note in _folders_nearby(before, needle)
        ]
        ranked = sorted(_ranked(listing.entries, needle), key=lambda each: each[0])
        found += [
            self._choice(before, entry.name, entry.is_folder, entry.skip_reason)
            for _, entry in ranked[:MAX_SHOWN]
        ]
        return found

    def document(self, word: str, listing: DirListing) -> tuple[str, str, str] | None:
        """The file whose part is being typed, what stands for it in the box, and what of the part
        is typed; None if none is."""
        before, name = _split(word)
        files = {each.name for each in listing.entries if not each.is_folder}
        at = len(name)
        while (at := name.rfind("#", 0, at)) > 0:
            if any(each.startswith(name[: at + 1]) for each in files):
                return None
            if name[:at] in files:
                path = before + name[:at]
                return self._absolute(path), _escaped(path), name[at + 1 :]
        return None

    @staticmethod
    def parts(path: str, typed: str, needle: str, outline: Outline) -> list[PathCompletion]:
        """The parts of the file `path` that begin with, then those that contain, what is typed."""
        low = needle.casefold()
        named = [*outline.named()]
        found = [each for each in named if each[0].casefold().startswith(low)]
        found += [each for each in named if low in each[0].casefold() and each not in found]
        if outline.can_find(needle) and needle not in dict(named):
            found.insert(0, (needle, ""))
        return [
            PathCompletion(f"{path}#{name}", f"{typed}#{_escaped(name)}", f"#{name}", False, note)
            for name, note in found[:MAX_SHOWN]
        ]

    def _choice(self, before: str, name: str, is_folder: bool, note: str) -> PathCompletion:
        typed = _escaped(before + name) + "/" * (is_folder and bool(name))
        return PathCompletion(self._absolute(before + name), typed, name or ".", is_folder, note)

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._start, os.path.expanduser(path)))


def _split(word: str) -> tuple[str, str]:
    """The folder, which ends with '/' or is empty, and the start of a name in it."""
    folder, slash, name = _ESCAPED.sub(r"\1", word).rpartition("/")
    return folder + slash, name


def typed_path(path: str) -> str:
    """What stands for a path in the compose box, with the `@`."""
    return "@" + _escaped(path)


def _escaped(path: str) -> str:
    return _TO_ESCAPE.sub(r"\\\1", path)


def _folders_nearby(before: str, needle: str) -> Iterator[tuple[str, str]]:
    if before and not needle:
        yield "", "this folder"
    if needle == ".":
        yield ".", "this folder"
    if needle in (".", ".."):
        yield "..", "parent folder"


def _ranked(
    entries: Iterable[FolderEntry], needle: str
) -> Iterator[tuple[tuple[bool, int, int, str], FolderEntry]]:
    low = needle.lower()
    for entry in entries:
        if entry.name.startswith(".") is not needle.startswith("."):
            continue
        name = entry.name.lower()
        index = name.find(low)
        letters = iter(name)
        if index < 0 and not all(letter in letters for letter in low):
            continue
        kind = 2 if index < 0 else min(index, 1)
        yield (bool(entry.skip_reason), kind, len(name) if needle else 0, name), entry


Completion = PathCompletion | Command


class CompletionList(OptionList, can_focus=False, inherit_bindings=False):
    """Hidden until there is something to choose. The compose box forwards its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "choose", "Choose", id="completion.choose",
            tooltip="Attach the file or folder, or run the command",
        ),
        Binding(
            "tab", "complete", "Complete", id="completion.complete",
            tooltip="Open the folder, or do the same as Enter",
        ),
        Binding(
            "number_sign", "parts", "Parts", id="completion.parts",
            tooltip="Choose pages, a sheet or a heading of the file",
        ),
        Binding("up", "move(-1)", "Up", id="completion.up", tooltip="Move up or down"),
        Binding("down", "move(1)", "Down", id="completion.down", tooltip="Move up or down"),
        Binding("escape", "dismiss", "Close", id="completion.close"),
    ]  # fmt: skip

    @dataclass
    class FileChosen(Message):
        """A file or a folder to attach; `typed` is what stood for it in the box."""

        path: str
        typed: str

    def __init__(self, box: TextArea) -> None:
        super().__init__(id="completions", compact=True, markup=False)
        self.paths = PathCompleter(start_folder())
        self._box = box
        self._completions: list[Completion] = []
        self._word = ""
        self.is_open = False
        self._dismissed: tuple[int, int] | None = None
        self._listings: dict[str, DirListing | UserError] = {}
        self._listing: set[str] = set()
        self._listed = asyncio.Event()
        self._outlines: dict[str, Outline | UserError] = {}
        self._outlining: set[str] = set()
        self._known_commands: list[Command] | None = None

    # -------------------------------------------------------------------------- which completions

    async def handles(self, key: str) -> bool:
        """Whether the list uses this key now. Waits a moment while a folder is being read."""
        if not self.is_open or key not in self._bindings.key_to_bindings:
            return False
        if not self._listed.is_set() and key != "escape":
            try:
                await asyncio.wait_for(self._listed.wait(), KEY_WAIT_SECONDS)
            except TimeoutError:
                return key != "number_sign"  # that is typed text
        if key == "number_sign":
            return self._offers_parts()
        return self.is_open and (bool(self._completions) or (key == "escape" and self.display))

    def update_for_cursor(self, typing: bool) -> None:
        """Called when the text or the cursor has changed. Only `typing` opens the list."""
        command, path, start = self._word_at_cursor()
        if command is None and path is None:
            self.close()
            self._dismissed = None
            return
        if not self.is_open and (not typing or start == self._dismissed):
            return
        self._dismissed = None
        if command is not None:
            self._word = "/" + command
            self._listed.set()
            self._offer(matching(command, self._commands()))
        else:
            self._word = "@" + (path or "")
            self._complete_path(path or "")

    def command(self, text: str) -> Command | str | None:
        """The command that this text names, or a message if there is none; None for other texts."""
        word = command_word(text)
        if word is None:
            return None
        every = self._commands()
        known = (each for each in every if each.name == word)
        return next(known, None) or unknown_command(word, every)

    def close(self) -> None:
        self.is_open, self._completions = False, []
        self._listings.clear()
        self._outlines.clear()
        self._listed.set()
        self.display = False

    def dismiss(self) -> None:
        """Close, and do not open again for this word."""
        *_, self._dismissed = self._word_at_cursor()
        self.close()

    def _word_at_cursor(self) -> tuple[str | None, str | None, tuple[int, int]]:
        """The command or the path that is being typed, and where it starts."""
        row, column = self._box.cursor_location
        line = self._box.document.get_line(row)
        path, command = word_before(line[:column]), None
        if self._box.document.line_count == 1 and column == len(line):
            command = typed_word(line)
        return command, path, (row, 0 if command is not None else column - len(path or ""))

    def _commands(self) -> list[Command]:
        if self._known_commands is None and isinstance(self.screen, HasCommands):
            self._known_commands = commands(self.screen.command_owners())
        return self._known_commands or []

    # -------------------------------------------------------------------------- folders

    def _complete_path(self, word: str) -> None:
        folder = self.paths.folder(word)
        listing = self._listings.get(folder)
        if listing is None:
            self._listed.clear()
            self._offer([], "reading the folder…")
            if folder not in self._listing:
                self._listing.add(folder)
                start_task(self, lambda: self._list(folder))
            return
        self._listed.set()
        if isinstance(listing, UserError):
            self._offer([], str(listing))
        elif document := self.paths.document(word, listing):
            self._complete_part(*document)
        else:
            more = f"Only the first {MAX_ENTRIES:,} names." if listing.truncated else ""
            self._offer(self.paths.completions(word, listing), more)

    def _complete_part(self, path: str, typed: str, needle: str) -> None:
        outline = self._outlines.get(path)
        if isinstance(outline, UserError):
            self._offer([], str(outline))
        elif outline is not None:
            example = "" if outline.sheets else ", such as #2 or #3,5-7"
            self._offer(self.paths.parts(path, typed, needle, outline), f"{outline.units}{example}")
        else:
            self._offer([], "reading the file…")
            if path not in self._outlining:
                self._outlining.add(path)
                start_task(self, lambda: self._outline(path))

    async def _outline(self, path: str) -> None:
        """Find out which parts a file has."""

        def find() -> Outline:
            from app.ingest.limits import ReadLimits  # late: the first drawing would wait
            from app.ingest.reader import read_outline

            return read_outline(path, ReadLimits(), lambda: not self.is_open)

        try:
            outline: Outline | UserError = await in_background(find)
        except UserError as error:
            outline = error
        except ReadCancelled:
            return
        finally:
            self._outlining.discard(path)
        if self.is_open:
            self._outlines[path] = outline
            self.update_for_cursor(typing=True)

    async def _list(self, folder: str) -> None:
        def names() -> DirListing:
            from app.ingest.walk import list_folder  # late: the first drawing would wait

            return list_folder(folder, MAX_ENTRIES, MAX_SECONDS)

        listing: DirListing | UserError
        try:
            listing = await in_background(names)
        except UserError as error:
            listing = error
        finally:
            self._listing.discard(folder)
        if self.is_open:
            self._listings[folder] = listing
            self.update_for_cursor(typing=True)

    # -------------------------------------------------------------------------- what is shown

    def _offer(self, completions: Sequence[Completion], message: str = "") -> None:
        """Without completions and message the list stays open, but is not shown."""
        self.is_open, self._completions = True, [*completions]
        width = max(20, self.screen.size.width - MARGIN)
        options = [Option(_render(each).truncate(width, ellipsis=True)) for each in completions]
        if message:
            line = Content.styled(sanitize_line(message), "$ink-dim")
            options.append(Option(line.truncate(width, ellipsis=True), disabled=True))
        self.set_options(options)
        self.highlighted = 0 if completions else None
        self.display = bool(options)

    # -------------------------------------------------------------------------- choosing

    def action_move(self, step: int) -> None:
        if self._completions:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._completions)

    def action_dismiss(self) -> None:
        self.dismiss()

    def _offers_parts(self) -> bool:
        """Whether `#` chooses a part of the highlighted file: not if a listed name goes on with
        it."""
        chosen = self._highlighted
        typed = _split(self._word.removeprefix("@"))[1].lower() + "#"
        return (
            isinstance(chosen, PathCompletion)
            and not (chosen.is_folder or chosen.name.startswith("#"))
            and chosen.typed.isprintable()
            and not any(
                typed in each.name.lower()
                for each in self._completions
                if isinstance(each, PathCompletion)
            )
        )

    def action_parts(self) -> None:
        chosen = self._highlighted
        if isinstance(chosen, PathCompletion):
            self._write(f"@{chosen.typed}#")
            self.update_for_cursor(typing=True)

    async def action_choose(self) -> None:
        await self._choose(self._highlighted)

    async def action_complete(self) -> None:
        chosen = self._highlighted
        if isinstance(chosen, PathCompletion) and chosen.is_folder and chosen.typed.isprintable():
            self._write("@" + chosen.typed)
            self.update_for_cursor(typing=True)
        else:
            await self._choose(chosen)

    @on(OptionList.OptionSelected)
    async def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._completions):
            await self._choose(self._completions[event.option_index])

    @property
    def _highlighted(self) -> Completion | None:
        index = self.highlighted
        if index is None or index >= len(self._completions):
            return None
        return self._completions[index]

    async def _choose(self, chosen: Completion | None) -> None:
        if chosen is None:
            return
        with self._box.prevent(TextArea.Changed):  # which would clear what a command says
            self._write("")
        self.close()
        if isinstance(chosen, Command):
            await chosen.run()
        else:
            # Posted by the box, so that it arrives before what is sent after it.
            typed = sanitize_line("@" + chosen.typed)
            self._box.post_message(self.FileChosen(chosen.path, typed))

    def _write(self, text: str) -> None:
        row, column = self._box.cursor_location
        self._box._replace_via_keyboard(text, (row, column - len(self._word)), (row, column))


def _render(choice: Completion) -> Content:
    if isinstance(choice, Command):
        name, key = f"/{choice.name}", f"{choice.key:<{KEY_CELLS}}"
        return Content.assemble(f"{name:<{NAME_CELLS}}", key, (choice.description, "$ink-dim"))
    name = sanitize_line(choice.name) + "/" * choice.is_folder
    return Content.assemble(name, (f"  {choice.note}" if choice.note else "", "$ink-dim"))
