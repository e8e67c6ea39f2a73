"""Gives damaged input to every door of the program, and reports what the program does not refuse.

Each trial changes a valid input at random; `--seed S --first NUMBER --trials 1` repeats one. It
reports exceptions other than the program's own, results that are known to be wrong, trials that
take too long or too much memory, and crashes.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

Trial = Callable[[random.Random], str]
"""Tries one input, and returns what it was. Raises `Wrong`, or whatever the program raises."""

MAX_SECONDS = 10.0
"""Processor time of one trial, with the processes that it starts."""
HANGS_AFTER = 240
"""Seconds by the clock after which a trial is stopped."""
MAX_GROWTH = 300 << 20
"""Bytes by which the process may grow in a trial."""
_ODD_NUMBERS = (0, 1, -1, 255, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 62, (1 << 64) - 1)
_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, "", "x", "\ud800", "\U000e0041", "9" * 5000, [], {}, [[]], [None], {"": {}}),
    *(0, -1, 1 << 31, 1 << 63, 10**400, 0.5, 1e308, -0.0, float("nan"), float("inf")),
)
_PIECES = (
    *(
        b"\0",
        b"\n",
        b"<",
        b">",
        b"&",
        b"]]>",
        b"<!--",
        b"<table><tr><td>",
        b"</",
        b"{",
        b"}",
        b"[",
        b"\\",
    ),
    *(
        b"#",
        b"|",
        b"```\n",
        b"~~~",
        b"=",
        b"--b\r\n",
        b"\xff",
        b"\xe2\x80\xae",
        b"\xf3\xa0\x81\x81",
    ),
    *(
        b"9" * 40,
        b"-1",
        b"%PDF-",
        b"endobj",
        b" 0 R",
        b"<<",
        b">>",
        b"{\\rtf1",
        b"\\bin9 ",
        b"\\u-1?",
    ),
)


class Wrong(AssertionError):
    """A result that is known to be wrong."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


# ------------------------------------------------------------------------------------- changes


def changed(data: bytes, chance: random.Random) -> bytes:
    """Data with one to six random changes."""
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 4, 8, 30, 500)))
        match chance.randrange(8):
            case 0:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 1:
                number = chance.choice(_ODD_NUMBERS) % (1 << 64)
                size = chance.choice((1, 2, 4, 8))
                packed = (number % (1 << 8 * size)).to_bytes(size, chance.choice(("little", "big")))
                data = data[:at] + packed + data[at + size :]
            case 2:
                data = data[:at] + data[end:]
            case 3:
                data = data[:at] + data[at:end] * chance.choice((2, 3, 200)) + data[end:]
            case 4:
                data = data[:at] + chance.choice(_PIECES) * chance.choice((1, 1, 50)) + data[at:]
            case 5:
                other = chance.randrange(len(data) + 1)
                data = data[:at] + data[other : other + 200] + data[end:]
            case 6:
                data = data[:at] if chance.random() < 0.2 else data[:at] + data[at + 1 :]
            case _:
                data = (
                    data[:at] + bytes([(data[at] ^ (1 << chance.randrange(8)))]) + data[at + 1 :]
                    if at < len(data)
                    else data
                )
    return data


def changed_value(value: Any, chance: random.Random, many: int = 3000) -> Any:
    """A JSON value in which one value is another one, is missing, or is there more often, at most
    `many` times."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        odd = chance.choice(_ODD_VALUES)
        if chance.random() < 0.1:
            for _ in range(chance.choice((2, 90, 800))):
                odd = [odd]
        return odd * 7 * many if odd in ("x", [[]], [None]) and chance.random() < 0.2 else odd
    key: Any = chance.choice([*value]) if isinstance(value, dict) else chance.randrange(len(value))
    found: Any = dict(value) if isinstance(value, dict) else list(value)
    match chance.randrange(8):
        case 0:
            del found[key]
        case 1 if isinstance(found, list):
            found[key:key] = [found[key]] * chance.choice((1, 3, many))
        case 1:
            found[chance.choice(("", "type", "text", "content", "x" * 9999))] = found[key]
        case _:
            found[key] = changed_value(found[key], chance, many)
    return found


def changed_json(value: Any, chance: random.Random) -> bytes:
    value = changed_value(value, chance)
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        value = changed_value(value, chance, 2)
    if chance.random() < 0.05:
        text = b"".join(chance.choices((b"[", b'{"a":', b"1", b",", b"]", b"}"), k=5000))
    else:
        text = json.dumps(value).encode()
    return changed(text, chance) if chance.random() < 0.1 else text


def changed_archive(data: bytes, chance: random.Random) -> bytes:
    """An archive with changes in its members, or outside of them."""
    if chance.random() < 0.15:
        return changed(data, chance)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        members = [name for name in old.namelist() if name[-1] != "/"]
        marked = [name for name in members if name.endswith((".xml", ".xhtml", ".opf", ".rels"))]
        chosen = set(chance.choices(marked or members, k=chance.choice((1, 1, 2, 5))))
        for name in members:
            content = old.read(name)
            if name in chosen and chance.random() < 0.05:
                continue
            if name in chosen:
                content = changed(content, chance)
            new.writestr(name, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


# --------------------------------------------------------------------------------------- doors


@contextmanager
def documents(folder: Path) -> Iterator[Trial]:
    """Files of all kinds, through the reader of files."""
    from app.ingest.reader import read
    from app.ingest.records import IngestError

    seeds = {path.name: path.read_bytes() for path in _document_seeds(folder)}
    names = sorted(seeds)

    def trial(chance: random.Random) -> str:
        name = chance.choice(names)
        data = seeds[name]
        is_archive = data.startswith(b"PK")
        data = changed_archive(data, chance) if is_archive else changed(data, chance)
        path = folder / f"changed{Path(name).suffix}"
        path.write_bytes(data)
        try:
            (result,) = read([str(path)]).results
        except IngestError as error:
            _check_sentence(str(error))
            return name
        for document in result.documents:
            document.text.encode()
            require(len(document.text) < 1 << 20 or len(document.text) < 300 * len(data), "long")
        for each in result.skipped:
            _check_sentence(each.sentence)
        return name

    yield trial


def _document_seeds(folder: Path) -> Iterator[Path]:
    """Documents that programs wrote (`make real-producers`), if they are there, and small ones."""
    from tests.ingest.test_office import docx, epub, opendocument, paragraph, pptx, shape, slide
    from tests.ingest.test_pdf import pdf_of
    from tests.ingest.test_sheets import book, c, row

    written = Path(".cache/producers/files")
    known = (".docx", ".xlsx", ".pptx", ".odt", ".ods", ".epub", ".fodt", ".pdf", ".rtf", ".eml")
    for path in sorted(written.glob("*")):
        if path.suffix in (*known, ".html", ".ipynb", ".csv") and path.stat().st_size < 300_000:
            yield path
    table = "<table:table table:name='A'><table:table-row><table:table-cell><text:p>a</text:p>"
    table += "</table:table-cell></table:table-row></table:table>"
    small: dict[str, str | bytes] = {
        "text.docx": docx(paragraph("a", "Heading1", "<w:numPr><w:numId w:val='1'/></w:numPr>")),
        "sheet.xlsx": book(row(1, c(1), c(2.5, style=2), c("=A1", "str"))),
        "slides.pptx": pptx(slide(shape("title", "<a:r><a:t>a</a:t></a:r>")), slide()),
        "text.odt": opendocument("text", f"<text:h text:outline-level='2'>a</text:h>{table}"),
        "sheet.ods": opendocument("spreadsheet", table),
        "book.epub": epub(a="<h1>a</h1><p>b<sup>2</sup>", b="<table><tr><td>c</table>"),
        "pages.pdf": pdf_of("a b", "", "c"),
        "page.html": "<html><style>.a{display:none}</style><p class=a>x<table><tr><td colspan=3>a"
        "<th>b<tr><td rowspan=2><ol reversed><li>c</ol></table><pre>d</pre><select><option>e"
        "</select><math><mfrac><mi>f</mi><mn>2</mn></mfrac></math>",
        "mail.eml": "From: a@b.c\nSubject: =?utf-8?q?A=20b?=\nContent-Type: multipart/mixed;"
        " boundary=b\n\n--b\nContent-Type: text/html\n\n<p>Hello <b>you</b>\n--b\n"
        "Content-Type: text/calendar\n\nBEGIN:VCALENDAR\nBEGIN:VEVENT\n"
        "DTSTART:20260102T030405Z\nRRULE:FREQ=DAILY\nEND:VEVENT\n--b--",
        "text.rtf": "{\\rtf1\\ansi{\\fonttbl{\\f0 A;}}{\\*\\bkmkstart a}"
        "\\trowd\\cellx99 a\\cell\\row"
        "{\\listtable{\\list{\\listlevel\\levelnfc0}}}\\u8364? {\\footnote b}\\'e4 \\bin3 abc}",
        "notes.md": "# A\n\ntext [b](c)\n\n```py\nd\n```\n\n| a | b |\n| --- | --- |\n| c | d |\n",
        "notebook.ipynb": json.dumps(
            {
                "cells": [
                    {"cell_type": "markdown", "source": ["# A"]},
                    {
                        "cell_type": "code",
                        "source": "b",
                        "outputs": [
                            {"output_type": "stream", "text": "c\b\rd"},
                            {"output_type": "display_data", "data": {"text/html": ["<td>e"]}},
                        ],
                    },
                ],
            }
        ),
        "data.json": '{"a": [1, {"b": null}]}',
    }
    for name, content in small.items():
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        yield path


def _check_sentence(sentence: str) -> None:
    require(sentence.endswith(".") and "\n" not in sentence, f"no sentence: {sentence[:300]!r}")


@contextmanager
def requests(folder: Path) -> Iterator[Trial]:
    """Bodies of requests to the server, with an engine that plays a story."""
    import httpx2 as httpx

    from tests.extras.serve.running import TOKEN, served
    from tests.fakes import FakeEngine, Story

    parts = [
        {"type": "text", "text": "Who pays?"},
        {"type": "text", "text": "<file name='a'>b</file>"},
    ]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "A tenant.", "reasoning_content": "Hm."},
        {"role": "user", "content": "And when?"},
    ]
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "stream": False, "specprefill": "auto"}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    data = "data:text/plain;base64,VGhlIHJlbnQgaXMgMTIwMC4="
    document = {"type": "document", "source": {"type": "text", "data": "The rent."}, "title": "t"}
    file = {"type": "input_file", "filename": "a.txt", "file_data": data}
    bodies: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/chat/completions", {"model": "a", "messages": messages, "stop": ["x"], **sampling}),
        (
            "/v1/chat/completions",
            {
                "model": "a",
                "messages": [{"role": "system", "content": "Be brief."}, *messages],
                "stream": True,
                "stream_options": {"include_usage": True},
                "tools": tools,
                "tool_choice": "auto",
                "logit_bias": {"3": 1},
                "response_format": {"type": "text"},
            },
        ),
        ("/v1/completions", {"model": "a", "prompt": ["Once upon"], "max_tokens": 9, **sampling}),
        (
            "/v1/messages",
            {
                "model": "a",
                "max_tokens": 9,
                "system": parts,
                "messages": [{"role": "user", "content": [document, *parts]}],
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "stop_sequences": ["x"],
                **sampling,
            },
        ),
        ("/v1/messages/count_tokens", {"model": "a", "messages": messages, "system": "Be brief."}),
        (
            "/v1/responses",
            {
                "model": "a",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "b"}, file]}],
                "instructions": "Be brief.",
                "reasoning": {"effort": "low"},
                "max_output_tokens": 9,
                "store": False,
                **sampling,
            },
        ),
    )
    engine = FakeEngine(Story(answer="The tenant pays."))
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with (
        served(engine) as (_, address),
        httpx.Client(base_url=address, headers=headers, timeout=60, verify=False) as client,
    ):

        def trial(chance: random.Random) -> str:
            path, body = chance.choice(bodies)
            given = body | {"stream": True} if chance.random() < 0.3 else body
            reply = client.post(path, content=changed_json(given, chance))
            engine.asks.clear()
            require(reply.status_code < 500, f"{path}: {reply.status_code}, {reply.text[:300]}")
            if "event-stream" in reply.headers.get("content-type", ""):
                _check_events(reply.text)
            else:
                found = reply.json()
                is_error = "error" in found and found["error"] is not None
                require(is_error == (reply.status_code >= 400), f"{path}: {reply.text[:300]}")
            return f"{path} {reply.status_code}"

        yield trial


def _check_events(text: str) -> None:
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    ends = ("[DONE]", "message_stop", "response.completed", "response.incomplete", "error")
    require(bool(lines) and any(end in lines[-1] for end in ends), f"no end: {text[-300:]}")
    for line in lines:
        if line != "[DONE]":
            json.loads(line)


@contextmanager
def stores(folder: Path) -> Iterator[Trial]:
    """Files of a store of conversations, values in its tables, and exported conversations."""
    from app.chat.export import to_json
    from app.store.importing import from_json
    from app.store.records import StoreError
    from app.store.store import Store
    from tests.store.faults import DATABASE
    from tests.store.samples import DOCUMENT, answered

    def written(store: Store, conversation: int) -> str:
        out = io.StringIO()
        to_json(store, conversation, out)
        return out.getvalue()

    whole, trials = folder / "whole", iter(range(1 << 60))
    with Store(whole) as store:
        conversation = answered(store)
        exported = json.loads(written(store, conversation))
    with closing(sqlite3.connect(whole / DATABASE)) as database:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%\\_data%'"
        columns = [
            (table, row[1])
            for (table,) in database.execute(f"{tables} ESCAPE '\\'").fetchall()
            for row in database.execute(f"PRAGMA table_info('{table}')").fetchall()
        ]

    def damage(place: Path, chance: random.Random) -> str:
        files = sorted(path for path in place.rglob("*") if path.is_file())
        if chance.random() < 0.5:
            table, column = chance.choice(columns)
            value = chance.choice(
                (None, -1, 1 << 62, 1e300, "", "x", "[", "{}", "\ud800x", b"\0\xff")
            )
            with closing(sqlite3.connect(place / DATABASE)) as database, database:
                database.execute("PRAGMA ignore_check_constraints = 1")
                with suppress(sqlite3.Error, UnicodeEncodeError):
                    database.execute(f"UPDATE '{table}' SET '{column}' = ?", (value,))
            return f"{table}.{column} = {value!r}"
        path = chance.choice(files)
        path.write_bytes(changed(path.read_bytes(), chance))
        return path.name

    def use(store: Store) -> None:
        for each in [*store.conversations(), *store.conversations(trashed=True)]:
            with suppress(StoreError):
                for message in store.tree(each.id).messages:
                    for attachment in message.attachments:
                        text = store.text(attachment)
                        require(text == DOCUMENT, "another document")
                    with suppress(StoreError):
                        store.read_map(message.id)
            with suppress(StoreError):
                written(store, each.id)
        for query in ("tenant", "ten*", '"'):
            store.search(query)

    def trial(chance: random.Random) -> str:
        place = folder / str(next(trials))
        what = "an export"
        try:
            if chance.random() < 0.5:
                text = changed_json(exported, chance).decode("utf-8", "replace")
                with Store(place) as store, suppress(StoreError):
                    from_json(store, io.StringIO(text))
                    written(store, store.conversations()[0].id)
                return what
            shutil.copytree(whole, place)
            what = damage(place, chance)
            for _ in range(2):  # at the second start, mended
                with suppress(StoreError), Store(place) as store:
                    for notice in store.notices:
                        _check_sentence(notice)
                    use(store)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return what

    yield trial


@contextmanager
def snapshots(folder: Path) -> Iterator[Trial]:
    """Files of a cache that was saved: it is loaded as it was, or refused."""
    from app.engine.cache import snapshot
    from app.engine.memory.conversation_cache import ConversationCache
    from tests.engine.test_snapshot import BUDGET, IDENTITY, new_chat, same
    from tests.engine.test_turns import pair
    from tests.tiny import build

    snapshot.BLOCK = 16
    models = pair(build("llama"))
    chat = new_chat(models)
    saved = snapshot.Snapshots(folder / "whole", BUDGET, IDENTITY)
    for _ in saved.save("c", chat.conversation):
        pass

    def trial(chance: random.Random) -> str:
        place = folder / "changed"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "whole", place)
        path = chance.choice(sorted(each for each in place.rglob("*") if each.is_file()))
        before = path.read_bytes()
        data = changed(before, chance)
        if path.name == snapshot.MANIFEST and chance.random() < 0.7:
            manifest = json.loads(before.decode().partition("\n")[2])
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                data = snapshot.with_checksum(changed_value(manifest, chance)).encode()
        path.write_bytes(data)
        loaded = None
        with suppress(snapshot.SnapshotError):
            changed_place = snapshot.Snapshots(place, BUDGET, IDENTITY)
            loaded = changed_place.load("c", lambda: ConversationCache(models))
        is_resealed = path.name == snapshot.MANIFEST  # its values may be others
        if loaded is not None and not is_resealed:
            require(same(loaded, chat.conversation), f"{path.name} was accepted")
        return path.name

    yield trial


@contextmanager
def gguf(folder: Path) -> Iterator[Trial]:
    """GGUF files: summarised and converted, or refused."""
    from app.extras.gguf.file import summarise
    from app.models.errors import ModelError
    from tests.extras.gguf.making import NAMES, write_gguf
    from tests.extras.gguf.test_damaged import HEADER, converted, parse, wrong_files

    wholes = []
    for name in NAMES:
        write_gguf(folder / f"{name}.gguf", name)
        wholes.append((folder / f"{name}.gguf").read_bytes())
    wrong = [each for whole in wholes for each in wrong_files(parse(whole))]
    path = folder / "changed.gguf"

    def trial(chance: random.Random) -> str:
        whole = chance.choice(wrong).bytes() if chance.random() < 0.5 else chance.choice(wholes)
        path.write_bytes(changed(whole[:HEADER], chance) + whole[HEADER:])
        for step in (summarise, converted):
            try:
                step(path)
            except ModelError as error:
                require("\n" not in str(error) and len(str(error)) < 500, str(error)[:300])
        return "a file"

    yield trial


@contextmanager
def tokenizers(folder: Path) -> Iterator[Trial]:
    """tokenizer.json, chat templates and configurations, in the sandbox."""
    from app.sandbox.process import TextError, TextPiece, TextProcess
    from tests import tiny

    tiny.save(folder / "m")
    seeds = [(folder / "m" / "tokenizer.json").read_bytes()]
    for name in ("pair/target", "encoders/multilingual"):
        path = Path("assets") / name / "tokenizer.json"
        if path.exists() and path.stat().st_size < 2_000_000:
            seeds.append(path.read_bytes())
    contents = [json.loads(each) for each in seeds]
    templates = [tiny.TEMPLATE.encode()]
    configs = [tiny.config_of(name) for name in ("llama", "qwen3_moe", "gemma3_text", "mamba2")]

    def trial(chance: random.Random) -> str:
        process = TextProcess()
        try:
            match chance.randrange(4):
                case 0:
                    source = changed(templates[0], chance).decode("utf-8", "replace")
                    message = {"role": "user", "content": "Hello?"}
                    process.render(source, {"messages": [message], "add_generation_prompt": True})
                    return "a template"
                case 1:
                    process.measure(changed_value(chance.choice(configs), chance), None)
                    return "a configuration"
            number = chance.randrange(len(seeds))
            data = changed(seeds[number], chance)
            if chance.random() < 0.8:
                data = changed_json(contents[number], chance)
            (folder / "m" / "tokenizer.json").write_bytes(data)
            process.open(folder / "m")
            process.finish()
            ids, _ = process.encode(
                [TextPiece("Hello, <|im_end|>\u4e16\u754c", special=True, offsets=True)]
            )
            require(len(ids[0][1]) == 4 * len(ids[0][0]), "offsets")
            process.count("a" * 1000)
        except TextError as error:
            require(bool(str(error)), "a refusal without a reason")
        finally:
            process.close()
        return "a tokenizer"

    yield trial


@contextmanager
def keys(folder: Path) -> Iterator[Trial]:
    """Bytes from the terminal: they are parsed at once, and a paste arrives as it is."""
    from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START
    from textual.events import Paste

    from app.ui.terminal_input import PasteSafeParser

    pieces = (
        *(
            "a",
            "ü",
            "\U0001f600",
            "\r",
            "\n",
            "\t",
            "\x1b",
            "\x1b[",
            "\x1bO",
            "\x1b[A",
            "\x1b[1;5C",
        ),
        *(
            "\x1b[200~",
            "\x1b[201~",
            "\x1b[20",
            "1~",
            "\x1b[13;2u",
            "\x1b[57414;1u",
            "\x1b[27;2;13~",
        ),
        *(
            "\x1b[<0;5;5M",
            "\x1b[<0;5;5m",
            "\x1b[M !!",
            "\x1b[I",
            "\x1b[O",
            "\x1b[?62;4c",
            "\x1b[?2026;2$y",
        ),
        *("\x1b]11;rgb:0000/0000/0000\x1b\\", "\x1bP>|xterm(390)\x1b\\", "\x1b_Gi=1;OK\x1b\\"),
        *("\x1b[48;24;80;480;800t", "\x1b[24;80R", "\x1b[?997;1n", "\x1b[?1u", "\x1b[97:65;2;65u"),
        *(
            "\x1b[99999999999999999999u",
            "\x1b[;;;u",
            "\x1b[1;999999999A",
            "\x00",
            "\x7f",
            "\x9b",
            "\ufffd",
        ),
    )

    now = 0.0

    def feed(parser: PasteSafeParser, text: str, length: int, chance: random.Random) -> Any:
        """Read a text in pieces. The time between two of them may be any, as on a busy machine."""
        nonlocal now
        for start in range(0, len(text), length):
            now += chance.choice((0.0, 0.0, 0.01, 0.15, 1.0, 5.0))
            yield from parser.feed(text[start : start + length])

    def trial(chance: random.Random) -> str:
        text = "".join(chance.choices(pieces, k=chance.choice((1, 5, 40, 400))))
        text = changed(text.encode(), chance).decode("utf-8", "replace")
        length = chance.choice((1, 2, 3, 7, 64, 65_536))
        parser = PasteSafeParser()
        for _ in feed(parser, text, length, chance):
            if chance.random() < 0.1:
                [*parser.tick()]
        pasted = text
        while BRACKETED_PASTE_END in pasted:
            pasted = pasted.replace(BRACKETED_PASTE_END, "")
        stream = f"{BRACKETED_PASTE_START}{pasted}{BRACKETED_PASTE_END}"
        found = [*feed(PasteSafeParser(), stream, length, chance)]
        pastes = [each.text for each in found if isinstance(each, Paste)]
        require(pastes == [pasted], "a paste is another one")
        return "keys"

    with patch("textual._parser.get_time", lambda: now):  # a trial repeats on any machine
        yield trial


DOORS = {
    each.__name__: each for each in (requests, stores, snapshots, gguf, tokenizers, documents, keys)
}


# --------------------------------------------------------------------------------------- running


@dataclasses.dataclass(frozen=True)
class Run:
    door: str
    seed: int
    end: float
    """When to stop, by `time.time`."""
    last: int
    """Number of the last trial."""


def _work(run: Run, first: int, number: Any, reports: Any) -> None:
    """Run trials from the `first` on. `number` is that of the current one."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    with tempfile.TemporaryDirectory() as folder, DOORS[run.door](Path(folder)) as trial:
        for current in range(first, run.last + 1):
            if time.time() > run.end:
                break
            number.value = current
            faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
            started, size = _seconds(), _peak()
            try:
                what = trial(random.Random(f"{run.seed} {current}"))
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                kind = f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}"
                reports.put((current, kind, traceback.format_exc(limit=-12)))
                what = "a failure"
            took, grown = _seconds() - started, _peak() - size
            if took > MAX_SECONDS:
                reports.put((current, "time", f"{what} took {took:.1f} s"))
            if grown > MAX_GROWTH and current > first:
                reports.put((current, "memory", f"{what} took {grown >> 20:,} MiB of memory"))
        faulthandler.cancel_dump_traceback_later()


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _peak() -> int:
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size << 10


def fuzz(run: Run, first: int) -> int:
    """Run a door's trials in a process that is started again when it crashes. Shows the first fault
    at each place, and returns how many there were."""
    spawn = multiprocessing.get_context("spawn")
    number, reports, found = spawn.Value("q", first - 1), spawn.SimpleQueue(), Counter[str]()

    def show(at: int, kind: str, report: str) -> None:
        found[kind] += 1
        if found[kind] == 1:
            print(f"{run.door}, seed {run.seed}, trial {at}:\n{report}", flush=True)

    while True:
        process = spawn.Process(target=_work, args=(run, first, number, reports))
        process.start()
        while process.is_alive() or not reports.empty():
            while not reports.empty():
                show(*reports.get())
            process.join(0.5)
        if process.exitcode == 0:
            break
        show(number.value, f"exit {process.exitcode}", f"ended with {process.exitcode}")
        if number.value < first:  # it did not start
            break
        first = number.value + 1
    print(f"{run.door}: {number.value + 1:,} trials, {len(found)} faults", *found.items(), sep="\n")
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("door", nargs="?", default="all", choices=[*DOORS, "all"])
    parser.add_argument("--minutes", type=float, default=6, help="minutes for each door")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--trials", type=int, default=1 << 60, help="maximum number of trials")
    options = parser.parse_args()
    faults = 0
    for door in DOORS if options.door == "all" else (options.door,):
        end = time.time() + 60 * options.minutes
        run = Run(door, options.seed, end, options.first + options.trials - 1)
        faults += fuzz(run, options.first)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
