"""Writes a conversation as Markdown for reading, or as JSON for `importing`.

All raise StoreError, also when a document is missing.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from app.chat import reading_words, wording
from app.chat.citations import Footnote, footnotes, with_footnotes
from app.chat.versions import place_attachments
from app.protocol.citations import Citations
from app.protocol.prompt import Document, Role
from app.store.importing import FORMAT, VERSION
from app.store.records import (
    AttachmentRecord,
    MessageRecord,
    Overrides,
    ReadMap,
    State,
    StoreError,
    Tree,
    without_origins,
)
from app.store.serialization import overrides_to_dict, stats_to_dict
from app.store.store import Store
from app.util import formatting
from app.util.prose import as_markdown

NAMES = {Role.SYSTEM: "System", Role.USER: "You", Role.ASSISTANT: "Answer"}
DEMO = "Demo model"


def to_markdown(store: Store, conversation: int, out: TextIO) -> None:
    """The current branch, with the names and sizes of documents."""
    found = store.conversation(conversation)
    out.write(f"# {found.title}\n")
    out.write(f"\n*{described}*\n" if (described := describe_overrides(found.overrides)) else "")
    out.write(f"\n## System\n\n{found.overrides.system}\n" if found.overrides.system else "")
    branch = store.branch(conversation)
    for message in branch:
        out.write(f"\n## {heading(message)} · {message.created_at:%Y-%m-%d %H:%M} UTC\n\n")
        out.writelines(f"- {line}\n" for line in _attached(message))
        out.write("\n" if message.attachments and message.text else "")
        citations, notes = footnotes_of(store, message, branch)
        text = with_footnotes(message.text, citations, notes)
        text = as_markdown(text) if is_quote(message) else text
        out.write(f"{text}\n" if text else "")
        if remark := remarks(message):
            out.write(f"\n*{remark}*\n")


def _attached(message: MessageRecord) -> Iterator[str]:
    """A line for each document of a message: `contract.md#13,40 (210 bytes)`, or where it is not
    known how the parts were named, `contract.md (2 parts, from lines 13 and 40, 210 bytes)`."""
    documents: dict[tuple[str, str], list[AttachmentRecord]] = {}
    for each in message.attachments:
        part = "" if each.origin is None else each.origin.part
        documents.setdefault((each.name, part), []).append(each)
    for (name, part), parts in documents.items():
        *lines, last = (f"{each.line:,}" for each in parts)
        from_lines = f"{', '.join(lines)} and {last}"
        where = f"{len(parts):,} parts, from lines {from_lines}, " if lines and not part else ""
        size = sum(each.size for each in parts)
        yield f"{name}{f'#{part}' if part else ''} ({where}{size:,} bytes)"


def footnotes_of(
    store: Store, answer: MessageRecord, branch: tuple[MessageRecord, ...]
) -> tuple[Citations | None, list[Footnote]]:
    """The citations and footnotes of an answer in this branch."""
    if answer.citations is None:
        return None, []
    citations = answer.citations.renumbered({each.id: at for at, each in enumerate(branch)})
    cited = {(each.message, each.document) for each in citations.found}
    up_to = branch[: branch.index(answer) + 1]
    documents = [
        [
            Document(each.name, store.text(each), line=each.line)
            if (message, number) in cited
            else Document(each.name, "")
            for number, each in enumerate(attachments)
        ]
        for message, attachments in enumerate(_attachments_in_prompt(up_to))
    ]
    return citations, footnotes(citations, documents)


def _attachments_in_prompt(
    branch: tuple[MessageRecord, ...],
) -> Iterator[tuple[AttachmentRecord, ...]]:
    """The documents that the model gets with each message for the last answer of `branch`: what was
    retrieved for the answer after it, or its own. Questions that failed are not in the prompt."""
    attached: list[tuple[tuple[AttachmentRecord, ...], tuple[AttachmentRecord, ...] | None]] = []
    for message, after in zip_longest(branch, branch[1:]):
        answered = after is not None and after.role is Role.ASSISTANT
        failed = not answered or (after.state is State.FAILED and after is not branch[-1])
        retrieved = after.attachments if answered and after.retrieved else None
        is_asked = message.role is Role.USER and not failed
        attached.append((message.attachments, retrieved) if is_asked else ((), None))
    for placed in place_attachments(attached):
        yield tuple(each.document for each in placed.in_prompt)


def heading(message: MessageRecord) -> str:
    """Who speaks."""
    return DEMO if is_quote(message) else NAMES[message.role]


def is_quote(message: MessageRecord) -> bool:
    return message.stats is not None and message.stats.quotes


def remarks(message: MessageRecord) -> str:
    """How an answer was read and how it ended, in one line; empty for a question."""
    parts = []
    if (stats := message.stats) is not None:
        said = (
            reading_words.reading_line(stats),
            "" if stats.fallback is None else wording.reason(stats.fallback),
            reading_words.unsure_note(stats),
            "" if stats.guard is None else wording.reason(stats.guard),
        )
        parts += [each for each in said if each]
    if message.truncated and message.state is State.STOPPED:
        parts.append("stopped: the answer repeated itself")
    elif message.state in (State.STOPPED, State.PARTIAL):
        parts.append("stopped")
    elif message.truncated:
        parts.append("truncated at the token limit")
    if message.failure is not None:
        parts.append(wording.failure(message.failure).sentence)
    return " · ".join(parts)


def describe_overrides(overrides: Overrides) -> str:
    """The overrides except the system prompt, in one line."""
    parts = overrides_to_dict(replace(overrides, system=None))
    if overrides.keep is not None:
        parts["keep"] = formatting.keep(overrides.keep)
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts.items())


def to_json(store: Store, conversation: int, out: TextIO) -> None:
    """Everything: every branch, statistics, read maps, token ids and the documents' bytes."""
    tree = store.tree(conversation)
    head = json.dumps(_tree_to_dict(tree), ensure_ascii=False, indent=1)
    out.write(head.removesuffix("\n}") + ',\n "documents": {')
    written: set[str] = set()
    for message in tree.messages:
        for attachment in message.attachments:
            if attachment.sha256 not in written:
                content = base64.b64encode(b"".join(store.iter_bytes(attachment))).decode()
                separator = "," if written else ""
                out.write(f'{separator}\n  "{attachment.sha256}": "{content}"')
                written.add(attachment.sha256)
    out.write("\n }\n}\n")


Writer = Callable[[Store, int, TextIO], None]
FORMATS: dict[str, Writer] = {"md": to_markdown, "json": to_json}


def format_of(path: Path) -> str:
    """By a file's extension; md is the default. Raises StoreError for a web page."""
    ending = path.suffix.removeprefix(".").lower()
    if ending in ("html", "htm"):
        raise StoreError("Conversations are not exported as HTML", "name the file .md or .json")
    return ending if ending in FORMATS else "md"


def to_file(store: Store, conversation: int, path: Path, format: str | None = None) -> None:
    """Export to a file, replacing it only when the export is complete."""
    aside = path.parent / f".{uuid4().hex}.part"
    try:
        with aside.open("x", encoding="utf-8", newline="\n") as out:
            FORMATS[format or format_of(path)](store, conversation, out)
        os.replace(aside, path)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{str(path)!r} cannot be written ({getattr(error, 'strerror', error)})",
            "choose another file",
        ) from error
    finally:
        with suppress(OSError, ValueError):
            aside.unlink(missing_ok=True)


def _tree_to_dict(tree: Tree) -> dict[str, Any]:
    """Messages are numbered from 0, so that an export does not depend on the store."""
    numbers = {message.id: number for number, message in enumerate(tree.messages)}
    conversation = tree.conversation
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": conversation.title,
        "pinned": conversation.pinned,
        "created_at": conversation.created_at.isoformat(),
        "updated_at": conversation.updated_at.isoformat(),
        "current": None if conversation.current is None else numbers[conversation.current],
        "choices": overrides_to_dict(conversation.overrides),
        "messages": [_message_to_dict(m, tree.maps.get(m.id), numbers) for m in tree.messages],
    }


def _message_to_dict(
    message: MessageRecord, read_map: ReadMap | None, numbers: dict[int, int]
) -> dict[str, Any]:
    plain = asdict(without_origins(message))
    del plain["id"], plain["conversation"], plain["stats"]
    return plain | {
        "parent": None if message.parent is None else numbers[message.parent],
        "created_at": message.created_at.isoformat(),
        "run": None if message.stats is None else stats_to_dict(message.stats),
        "read_map": None if read_map is None else _map_to_dict(read_map, numbers),
        "citations": message.citations and asdict(message.citations.renumbered(numbers)),
    }


def _map_to_dict(read_map: ReadMap, numbers: dict[int, int]) -> dict[str, Any]:
    return {
        "spans": [asdict(span) for span in read_map.spans],
        "texts": [asdict(text) | {"message": numbers[text.message]} for text in read_map.texts],
        "importance": base64.b64encode(read_map.importance).decode(),
    }
