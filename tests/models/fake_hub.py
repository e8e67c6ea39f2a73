"""A hub on loopback: the API, small files over a redirect on the same host, large ones over one to
a storage server on another port, and every way that we could think of in which these go wrong."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 4096
"""Bytes from which a file is one of LFS."""


@dataclass
class Answer:
    """What the server is about to say; a fault changes it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    """Send so many bytes of the body, then break the connection."""
    reset: bool = False
    stall: int | None = None
    """Send so many bytes of the body, then nothing."""
    drip: float = 0.0
    """Seconds between single bytes."""
    raw: bytes | None = None
    """Send this instead of an HTTP answer."""
    chunked: bool = False


@dataclass(frozen=True)
class Asked:
    """One request: `hub` or `storage`, its path without the query, its range and credentials."""

    server: str
    path: str
    range: tuple[int, int] | None
    authorization: str | None
    at: float


Change = Callable[[Answer, Asked], None]


@dataclass
class Fault:
    """Changes the answers to the requests whose `server:path` matches `where`, `times` of them,
    after the first `skip`."""

    where: str
    change: Change
    times: int = 1
    skip: int = 0

    def take(self, asked: Asked) -> bool:
        if not re.search(self.where, f"{asked.server}:{asked.path}"):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return self.times >= 0


@dataclass
class Repository:
    files: dict[str, bytes]
    commit: str

    def digest(self, path: str) -> str:
        data = self.files[path]
        if len(data) >= LARGE:
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def tree(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for path, data in self.files.items():
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid}
            if len(data) >= LARGE:
                lfs = {"oid": self.digest(path), "size": len(data), "pointerSize": 134}
                entry |= {"lfs": lfs, "xetHash": "0" * 64}
            entries.append(entry)
        return entries


class FakeHub:
    """`endpoint` is the address of the hub. Faults may be added at any time."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.sent: dict[str, int] = {}
        """Bytes of bodies that were sent, by the digest of a large file."""
        self.gated: set[str] = set()
        self.tokens: set[str] = set()
        self.page = 1000
        self.tree: Callable[[list[dict[str, Any]]], Any] = lambda entries: entries
        self.connections = {"hub": 0, "storage": 0}
        """How many were made to each server."""
        self.rate = 0
        """Bytes a second of a connection; 0 is as fast as it goes."""
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._hub = _server(self, "hub")
        self._storage = _server(self, "storage")
        self.endpoint = f"http://127.0.0.1:{self._hub.server_address[1]}"
        self.storage = f"http://127.0.0.1:{self._storage.server_address[1]}"

    def close(self) -> None:
        self.closing.set()
        for server in (self._hub, self._storage):
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: dict[str, bytes]) -> Repository:
        content = "".join(f"{path}{len(data)}" for path, data in files.items())
        digest = hashlib.sha1(content.encode() + b"".join(files.values()))
        self.repositories[name] = Repository(files, digest.hexdigest())
        return self.repositories[name]

    def add_folder(self, name: str, folder: Path) -> Repository:
        found = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return self.add(
            name, {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
        )

    def note(self, asked: Asked) -> None:
        with self._lock:
            self.asked.append(asked)

    def count(self, path: str, amount: int) -> None:
        with self._lock:
            self.sent[path] = self.sent.get(path, 0) + amount

    def answer(self, asked: Asked, query: dict[str, list[str]], auth: str | None) -> Answer:
        answer = self._storage_answer(asked) if asked.server == "storage" else None
        answer = answer or self._hub_answer(asked, query, auth)
        with self._lock:
            hit = [fault for fault in self.faults if fault.take(asked)]
        for fault in hit:
            fault.change(answer, asked)
        return answer

    def _storage_answer(self, asked: Asked) -> Answer:
        digest = asked.path.removeprefix("/blobs/")
        for repository in self.repositories.values():
            for path, data in repository.files.items():
                if repository.digest(path) == digest:
                    return ranged(data, asked.range)
        return Answer(404)

    def _hub_answer(self, asked: Asked, query: dict[str, list[str]], auth: str | None) -> Answer:
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(\w+)", asked.path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/(\w+)/(.+)", asked.path)
        cached = re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/(\w+)/(.+)", asked.path)
        if asked.path == "/api/models":
            return self._search(query)
        found = api or resolve or cached
        if auth is not None and auth.removeprefix("Bearer ") not in self.tokens:
            return Answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        if found is None or found[1] not in self.repositories:
            status = 404 if auth else 401
            return Answer(status, {"X-Error-Code": "RepoNotFound"})
        name, repository = found[1], self.repositories[found[1]]
        if api:
            if api[2] == "revision":
                return jsoned({"id": name, "sha": repository.commit, "siblings": []})
            return self._tree_page(name, repository, int(query.get("cursor", ["0"])[0]))
        if name in self.gated and auth is None:
            return Answer(401, {"X-Error-Code": "GatedRepo"})
        commit, path = found[2], unquote(found[3])
        if commit != repository.commit:
            return Answer(404, {"X-Error-Code": "RevisionNotFound"})
        if path not in repository.files:
            return Answer(404, {"X-Error-Code": "EntryNotFound"})
        data = repository.files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{repository.digest(path)}"'}
        if len(data) >= LARGE:
            there = f"{self.storage}/blobs/{repository.digest(path)}?Signature=secret&Expires=1"
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": headers["ETag"]}
            return Answer(302, headers | {"Location": there})
        if resolve:
            there = f"/api/resolve-cache/models/{name}/{commit}/{found[3]}?etag=x"
            return Answer(307, headers | {"Location": there})
        answer = ranged(data, asked.range)
        answer.headers |= headers
        return answer

    def _search(self, query: dict[str, list[str]]) -> Answer:
        words = query.get("search", [""])[0].casefold().split()
        names = [name for name in self.repositories if all(word in name for word in words)]
        return jsoned([self._entry(name) for name in names[: int(query["limit"][0])]])

    def _entry(self, name: str) -> dict[str, Any]:
        config = json.loads(self.repositories[name].files["config.json"])
        return {"id": name, "downloads": 1, "config": {"model_type": config["model_type"]}}

    def _tree_page(self, name: str, repository: Repository, start: int) -> Answer:
        entries = self.tree(repository.tree())
        if not isinstance(entries, list):
            return jsoned(entries)
        answer = jsoned(entries[start : start + self.page])
        if start + self.page < len(entries):
            there = f"{self.endpoint}/api/models/{name}/tree/{repository.commit}"
            following = f"{there}?recursive=True&cursor={start + self.page}"
            answer.headers["Link"] = f'<{following}>; rel="next"'
        return answer


def jsoned(content: Any) -> Answer:
    body = json.dumps(content).encode()
    return Answer(200, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body)


def ranged(data: bytes, asked: tuple[int, int] | None) -> Answer:
    if asked is None:
        return Answer(200, {"Content-Length": str(len(data)), "Accept-Ranges": "bytes"}, data)
    first, last = asked[0], min(asked[1], len(data) - 1)
    if first > last:
        return Answer(416, {"Content-Range": f"bytes */{len(data)}"})
    part = data[first : last + 1]
    told = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "Content-Length": str(len(part))}
    return Answer(206, told, part)


def _server(hub: FakeHub, name: str) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            split = urlsplit(self.path)
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            bounds = (int(wanted[1]), int(wanted[2] or sys.maxsize)) if wanted else None
            auth = self.headers.get("Authorization")
            asked = Asked(name, split.path, bounds, auth, time.monotonic())
            hub.note(asked)
            answer = hub.answer(asked, parse_qs(split.query), auth)
            with suppress(OSError):
                self._send(answer, asked)

        do_HEAD = do_GET

        def _send(self, answer: Answer, asked: Asked) -> None:
            self.close_connection = True
            if answer.raw is not None:
                self.wfile.write(answer.raw)
                return
            headers = {"Content-Length": str(len(answer.body))} | answer.headers
            if answer.chunked:
                headers.pop("Content-Length")
                headers["Transfer-Encoding"] = "chunked"
            odd = (answer.cut, answer.stall) != (None, None) or answer.reset or answer.status == 204
            ends = "close" if odd or self.command == "HEAD" else "keep-alive"
            head = f"HTTP/1.1 {answer.status} Whatever\r\nConnection: {ends}\r\n"
            head += "".join(f"{key}: {value}\r\n" for key, value in headers.items())
            self.wfile.write(head.encode("latin-1") + b"\r\n")
            if self.command == "HEAD":
                return
            body = answer.body
            if answer.cut is not None:
                body = body[: answer.cut]
            if answer.stall is not None:
                body = body[: answer.stall]
            self._send_body(answer, asked, body)
            if answer.stall is not None:
                hub.closing.wait(20)
            if answer.reset:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            self.close_connection = odd

        def _send_body(self, answer: Answer, asked: Asked, body: bytes) -> None:
            step = 1 if answer.drip else 16384
            for start in range(0, len(body), step):
                piece = body[start : start + step]
                if answer.chunked:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                else:
                    self.wfile.write(piece)
                hub.count(asked.path, len(piece))
                pause = answer.drip or (len(piece) / hub.rate if hub.rate else 0)
                if pause and hub.closing.wait(pause):
                    return
            if answer.chunked and answer.cut is None:
                self.wfile.write(b"0\r\n\r\n")

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def process_request(self, *request: Any) -> None:
            hub.connections[name] += 1
            super().process_request(*request)

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


# ---------------------------------------------------------------------------- faults


def status(code: int, **headers: str) -> Change:
    def change(answer: Answer, _: Asked) -> None:
        answer.status, answer.body = code, b"\x1b]0;evil\x07 said the server"
        answer.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    return change


def cut(after: int) -> Change:
    return lambda answer, _: setattr(answer, "cut", after)


def reset(after: int) -> Change:
    def change(answer: Answer, _: Asked) -> None:
        answer.cut, answer.reset = after, True

    return change


def stall(after: int) -> Change:
    return lambda answer, _: setattr(answer, "stall", after)


def drip(seconds: float) -> Change:
    return lambda answer, _: setattr(answer, "drip", seconds)


def raw(content: bytes) -> Change:
    return lambda answer, _: setattr(answer, "raw", content)


def body(content: bytes, **headers: str) -> Change:
    def change(answer: Answer, _: Asked) -> None:
        answer.status, answer.body = 200, content
        answer.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    return change


def redirect(location: str) -> Change:
    def change(answer: Answer, _: Asked) -> None:
        answer.status, answer.headers, answer.body = 302, {"Location": location}, b""

    return change


def header(name: str, value: str) -> Change:
    return lambda answer, _: answer.headers.update({name: value})


def flip(answer: Answer, _: Asked) -> None:
    """One bit of the body."""
    if answer.body:
        middle = len(answer.body) // 2
        changed = bytes([answer.body[middle] ^ 1])
        answer.body = answer.body[:middle] + changed + answer.body[middle + 1 :]


def longer(answer: Answer, _: Asked) -> None:
    answer.body += b"more"
    answer.headers["Content-Length"] = str(len(answer.body))


def shorter(answer: Answer, _: Asked) -> None:
    answer.body = answer.body[:-4]
    answer.headers["Content-Length"] = str(len(answer.body))


def chunked(answer: Answer, _: Asked) -> None:
    answer.chunked = True


def chunked_short(answer: Answer, _: Asked) -> None:
    answer.chunked, answer.body = True, answer.body[: len(answer.body) // 2]


def shifted(answer: Answer, _: Asked) -> None:
    """Other bytes than were asked for, and said so."""
    told = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
    if told:
        answer.headers["Content-Range"] = f"bytes {int(told[1]) + 1}-{int(told[2]) + 1}/{told[3]}"


def no_ranges(hub: FakeHub) -> Change:
    """200 and everything, whatever was asked for."""

    def change(answer: Answer, asked: Asked) -> None:
        if answer.status in (206, 416):
            whole = hub._storage_answer(Asked("storage", asked.path, None, None, 0))
            answer.status, answer.headers, answer.body = 200, whole.headers, whole.body

    return change
