"""`specchat conversations`: lists, shows, exports and deletes saved conversations.

Their text is untrusted: on a terminal, control characters are made visible. Files and pipes get it
unchanged.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from app.chat import export
from app.cli.options import add_action
from app.cli.settings import user_settings
from app.cli.terminal import ProgressLine
from app.engine.cache.snapshot_folder import remove_snapshot
from app.errors import UserError
from app.ingest.reader import STDIN
from app.paths import data_path, snapshots_path
from app.settings.definitions import Settings
from app.store import importing
from app.store.records import ConversationRecord, DocumentHit, SearchHit, without_origins
from app.store.store import Store
from app.util import formatting
from app.util.regular_files import NotRegular, open_descriptor
from app.util.sanitize import sanitize, sanitize_line

LAST = "last"
LOCK_SECONDS = 2.0
"""Seconds that a command that writes waits for another process to finish."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Manages saved conversations. ID is a number from the list, or `last`. The default action"
        " is `list`."
    )
    command.set_defaults(action=_list, trash=False, json=False)
    action = partial(add_action, command.add_subparsers(metavar="ACTION", title="actions"))
    listing = action("list", _list, "list conversations: pinned ones first, then the most recent")
    listing.add_argument("--trash", action="store_true", help="list the trash instead")
    show = action("show", _show, "print a conversation", "ID")
    for parser in (listing, show):
        parser.add_argument("--json", action="store_true", help="print as JSON")
    search = action("search", _search, "find messages and documents that contain all these words")
    search.add_argument("words", nargs="+", metavar="WORD")
    export = action("export", _export, "write a conversation to a file or to standard output", "ID")
    export.add_argument("-o", "--output", metavar="FILE")
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    export.add_argument(
        "--format",
        choices=("md", "json"),
        help="md for reading, json for importing; by default FILE's ending, or md",
    )
    action("import", _import, "import a JSON export as a new conversation").add_argument(
        "file", metavar="FILE", help="a file, or - for standard input"
    )
    action("delete", _delete, "move a conversation to the trash", "ID")
    action("restore", _restore, "restore a conversation from the trash", "ID")
    rename = action("rename", _rename, "change the title of a conversation", "ID")
    rename.add_argument("title", metavar="TITLE")
    pin = action("pin", _pin, "pin a conversation to the top of the list", "ID")
    pin.add_argument("--unpin", action="store_true", help="unpin it")


def run(options: argparse.Namespace) -> int:
    """Run the action; returns the exit status. Raises UserError."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    with open_store() as store:
        options.action(store, options)
    return 0


@contextmanager
def open_store(timeout: float = 0.0, settings: Settings | None = None) -> Iterator[Store]:
    """Open the user's conversations, and print notices about it to standard error. Waits `timeout`
    seconds for another process to release them. Raises StoreError."""
    settings = settings or user_settings()
    limit, days = settings.attachment_bytes, settings.storage.trash_days
    with Store(data_path(), attachment_limit=limit, trash_days=days, lock_timeout=timeout) as store:
        for notice in store.notices:
            # Read-only does not matter for reading; a command that writes gets an error.
            if notice != str(store.read_only):
                sys.stderr.write(f"{sanitize(notice)}\n")
        yield store


def find_conversation(store: Store, name: str) -> ConversationRecord:
    """Find a conversation by its number, also in the trash, or the `last` one outside the trash.
    Raises UserError."""
    if name == LAST:
        last = store.last_used()
        if last is None:
            raise no_conversations()
        return last
    every = (*store.conversations(), *store.conversations(trashed=True))
    found = next((each for each in every if str(each.id) == name), None)
    if found is None:
        raise UserError(
            f"There is no conversation {name!r}", "`specchat conversations` lists their numbers"
        )
    return found


def no_conversations() -> UserError:
    return UserError(
        "There are no conversations yet", "start one with `specchat ask --conversation new`"
    )


# --------------------------------------------------------------------------- actions


def _list(store: Store, options: argparse.Namespace) -> None:
    found = store.conversations(options.trash)
    if options.json:
        return _print_lines(_json([dataclasses.asdict(each) for each in found]))
    if not found and options.trash:
        sys.stderr.write("The trash is empty: `specchat conversations` lists the conversations.\n")
    elif not found:
        sys.stderr.write(f"{no_conversations()}\n")
    _print_lines(*map(_line, found))


def _line(conversation: ConversationRecord) -> str:
    pinned = "★" if conversation.pinned else " "
    used = conversation.updated_at.astimezone()
    return f"{conversation.id:>5} {pinned} {used:%Y-%m-%d %H:%M}  {_one_line(conversation.title)}"


def _show(store: Store, options: argparse.Namespace) -> None:
    found = find_conversation(store, options.id)
    if options.json:
        branch = [dataclasses.asdict(without_origins(each)) for each in store.branch(found.id)]
        return _print_lines(_json(dataclasses.asdict(found) | {"messages": branch}))
    _write(store, found.id, "md")


def _search(store: Store, options: argparse.Namespace) -> None:
    """Index new documents, then print matching messages and documents."""
    words = " ".join(options.words)
    _finish_index(store)
    hits, found = store.search(words), store.search_documents(words)
    if found.unindexed:
        documents = formatting.plural(found.unindexed, "document")
        sys.stderr.write(f"{documents} not searched, because not indexed yet.\n")
    if not hits and not found.hits:
        raise UserError(f"Nothing matches {words!r}", "try fewer or shorter words")
    _print_lines(*map(_hit_line, hits), *map(_document_line, found.hits))
    if found.total > len(found.hits):
        shown, total = len(found.hits), formatting.plural(found.total, "document")
        sys.stderr.write(f"The best {shown} of {total}. Add a word to narrow the search.\n")


def _finish_index(store: Store) -> None:
    with ProgressLine() as line:
        while not store.wait_for_index(0.2):
            line.show(f"Indexing {formatting.plural(store.unindexed_documents(), 'document')}…")


def _hit_line(hit: SearchHit) -> str:
    snippet = _one_line(" ".join(hit.snippet.split()))
    return f"{hit.conversation:>5}  {_one_line(hit.title)} · {export.NAMES[hit.role]}: {snippet}"


def _document_line(hit: DocumentHit) -> str:
    place = f"{_one_line(hit.name)}, line {hit.line}" if hit.line else _one_line(hit.name)
    snippet = _one_line(" ".join(hit.snippet.split()))
    return f"{hit.conversation:>5}  {_one_line(hit.title)} · {place}: {snippet}"


def _export(store: Store, options: argparse.Namespace) -> None:
    found = find_conversation(store, options.id)
    if options.output in (None, STDIN):
        return _write(store, found.id, options.format or "md")
    path = Path(options.output)
    if not options.force and path.is_file():
        raise UserError(
            f"{options.output!r} already exists", "choose another name, or replace it with --force"
        )
    export.to_file(store, found.id, path, options.format)


def _write(store: Store, conversation: int, form: str) -> None:
    """Write an export to standard output."""
    if not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # like exported files
        return export.FORMATS[form](store, conversation, sys.stdout)
    text = io.StringIO()
    export.FORMATS[form](store, conversation, text)
    sys.stdout.write(sanitize(text.getvalue()))


def _import(store: Store, options: argparse.Namespace) -> None:
    try:
        with _opened(options.file) as source:
            added = importing.from_json(store, source)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{options.file!r} cannot be read ({getattr(error, 'strerror', error)})",
            "check its name and permissions",
        ) from error
    _print_lines(f"Conversation {added.id} · {_one_line(added.title)}")


def _opened(name: str) -> TextIO:
    """Open a file, or standard input. Raises OSError or UserError."""
    if name == STDIN:
        return open(0, encoding="utf-8-sig", closefd=False)
    try:
        return open(open_descriptor(name), encoding="utf-8-sig")
    except NotRegular:
        advice = "redirect it to standard input and use `-`"
        raise UserError(f"{name!r} is not a regular file", advice) from None


def _delete(store: Store, options: argparse.Namespace) -> None:
    found = find_conversation(store, options.id)
    if found.trashed_at is not None:
        raise UserError(
            f"Conversation {found.id} is already in the trash",
            f"`specchat conversations restore {found.id}` restores it",
        )
    store.trash(found.id)
    remove_snapshot(snapshots_path(), str(found.id))
    _print_lines(
        f"Conversation {found.id} is in the trash, which keeps it for {store.trash_days:.0f} days."
        f" `specchat conversations restore {found.id}` restores it."
    )


def _restore(store: Store, options: argparse.Namespace) -> None:
    found = find_conversation(store, options.id)
    if found.trashed_at is None:
        raise UserError(
            f"Conversation {found.id} is not in the trash", "there is nothing to restore"
        )
    store.restore(found.id)
    _print_lines(f"Conversation {found.id} is restored.")


def _rename(store: Store, options: argparse.Namespace) -> None:
    if not options.title.strip():
        raise UserError("The title is empty", "enter a title")
    store.rename(find_conversation(store, options.id).id, options.title)


def _pin(store: Store, options: argparse.Namespace) -> None:
    store.pin(find_conversation(store, options.id).id, not options.unpin)


def _print_lines(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _one_line(text: str) -> str:
    return sanitize_line(text) if sys.stdout.isatty() else " ".join(text.split())


def _json(value: Any) -> str:
    """JSON in ASCII, so that control characters are escaped."""
    return json.dumps(value, default=_plain, indent=1)


def _plain(value: datetime) -> str:
    return value.isoformat()
