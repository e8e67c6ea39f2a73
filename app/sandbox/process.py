"""Runs a model's tokenizer and chat template, and measures its configuration, in a process
(`worker.py`) with limits, because none of these is trusted."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.sandbox import worker

Check = Callable[[], object]
"""Called every tenth of a second while waiting; if it raises, the process is stopped."""

_POLL_SECONDS = 0.1
_WALL_CLOCK_FACTOR = 20
"""Maximum wall-clock time of a request, as a multiple of its CPU seconds."""
_MB = 1 << 20
_MAX_SOURCE = 1_000_000
_RESTART_AFTER = 1_000_000
"""After a request with this many characters, the process is restarted to free its memory."""
_MAX_ANSWER = 4 * _MB
_ENVIRONMENT = ("TZ", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
_PACKAGES = ("tokenizers", "jinja2", "markupsafe", "mlx", "mlx_lm", "numpy", "app")
_TOO_LONG, _TOO_MUCH = "it takes too long", "it takes too much memory"


class TextError(RuntimeError):
    """A template or tokenizer failed, or exceeded its limits. The text is a clause."""


class TextRefused(TextError):
    """The template or tokenizer itself raised an error, within its limits."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request: CPU seconds, and bytes of memory and of the answer."""

    seconds: float
    memory: int
    answer: int = _MAX_ANSWER


RENDER_LIMITS = RequestLimits(1.0, 256 * _MB)
"""The first request imports jinja2, which takes 0.2 seconds or more."""

MEASURE_LIMITS = RequestLimits(10.0, 2048 * _MB)
"""MLX reserves more address space than it uses. A model of 64 layers takes half a second."""


def open_limits(size: int) -> RequestLimits:
    """Limits for reading a tokenizer.json of `size` bytes. A file of 25 MB took 6 to 14 seconds on
    a busy machine, and a file of 33 MB took 900 MB of memory."""
    return RequestLimits(4 + size / _MB, 512 * _MB + 64 * size)


def encode_limits(characters: int) -> RequestLimits:
    """Limits for encoding a text. A byte-level tokenizer takes 2 microseconds and 500 bytes per
    character."""
    return RequestLimits(
        4 + characters * 5e-5, 512 * _MB + 2000 * characters, 64 * characters + 64 * _MB
    )


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A text to encode. `after` is what precedes it: `nothing`, a special `token`, or `text`,
    because some tokenizers put a space before the first word. With `special`, special tokens in the
    text are encoded as such."""

    text: str
    special: bool = False
    after: str = "text"
    offsets: bool = False


class TextProcess:
    """The limited process. It is started by the first request, and again after it was stopped. Use
    on one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._setup: tuple[dict[str, Any], list[bytes], RequestLimits] | None = None
        self._unanswered: RequestLimits | None = None
        """Limits of a setup request whose answer was not read yet."""
        self._opened = ""
        """Digest of the tokenizer that `open` has read."""
        self.begin_ids: tuple[int, ...] = ()
        """Token ids that the tokenizer puts before every text. Set once a request was answered."""

    # ---------------------------------------------------------------------------- requests

    def open(self, folder: Path) -> None:
        """Use the tokenizer of the model in `folder`. Does not wait; `finish` does."""
        path = folder / "tokenizer.json"
        size = path.stat().st_size if path.is_file() else 0
        self._set_up({"do": "open"}, str(path).encode(), open_limits(size))

    def load(self, spec: str) -> None:
        """Use the tokenizer with this serialisation. Does not wait; `finish` does. If it is the one
        that `open` has read, it is not read again."""
        setup = {"do": "load"}, [spec.encode()], open_limits(len(spec))
        if self._process is None or self._opened != worker.digest(spec):
            self._set_up(setup[0], setup[1][0], setup[2])
        self._setup = setup  # used after a restart, even if the file has changed

    def finish(self, check: Check = lambda: None) -> None:
        """Wait for `open` or `load`. Raises TextError if the tokenizer cannot be used."""
        if self._unanswered is not None:
            limits, self._unanswered = self._unanswered, None
            answer, _ = self._receive(limits, check)
            self._opened = str(answer.get("digest", ""))
            self.begin_ids = tuple(answer["begin"])

    def render(self, source: str, variables: dict[str, Any]) -> str:
        """Render a chat template with variables that are plain JSON."""
        if len(source) > _MAX_SOURCE:
            raise TextError("it is too long")
        parts = [_to_utf8(source), json.dumps(variables, default=str).encode()]
        _, (text, *_) = self._ask({"do": "render"}, parts, RENDER_LIMITS)
        return text.decode()

    def encode(
        self, pieces: Sequence[TextPiece], check: Check = lambda: None
    ) -> tuple[list[tuple[bytes, bytes]], int]:
        """Encode pieces. Returns for each piece its token ids (int32) and the start and end of each
        token (int64, pairs); and the number of letters, in all pieces, that are in no token."""
        header = {"do": "encode", "pieces": [(p.special, p.after, p.offsets) for p in pieces]}
        texts = [_to_utf8(piece.text) for piece in pieces]
        size = sum(map(len, texts))
        answer, blobs = self._ask(header, texts, encode_limits(size), check)
        if size > _RESTART_AFTER:
            self.close()
            self._restart()
        return list(zip(blobs[::2], blobs[1::2], strict=True)), int(answer["uncovered"])

    def count(self, text: str, check: Check = lambda: None) -> int:
        """Number of tokens of a text, in which special tokens count as plain text."""
        answer, _ = self._ask({"do": "count"}, [_to_utf8(text)], encode_limits(len(text)), check)
        return int(answer["count"])

    def measure(self, config: dict[str, Any], bits: int | None) -> dict[str, Any] | None:
        """Measure a model by its configuration; see `app.sandbox.shapes.measure`."""
        try:
            parts = [json.dumps(each, default=str).encode() for each in (config, bits)]
        except RecursionError as error:
            raise TextError("it is nested too deeply") from error
        answer, _ = self._ask({"do": "measure"}, parts, MEASURE_LIMITS)
        found: dict[str, Any] | None = answer["shape"]
        return found

    def close(self) -> None:
        self._end()
        self._process = self._unanswered = None

    # ---------------------------------------------------------------------------- the process

    def _set_up(self, header: dict[str, Any], part: bytes, limits: RequestLimits) -> None:
        self._setup, self._opened = (header, [part], limits), ""
        self.close()
        self._restart()

    def _restart(self) -> None:
        """Start the process and send the setup, without waiting for an answer."""
        self._process = _start_worker()
        self._end = weakref.finalize(self, _end_worker, self._process)
        if self._setup is not None:
            header, parts, limits = self._setup
            self._send(header, parts, limits)
            self._unanswered = limits

    def _ask(
        self,
        header: dict[str, Any],
        parts: list[bytes],
        limits: RequestLimits,
        check: Check = lambda: None,
    ) -> tuple[dict[str, Any], list[bytes]]:
        # If the process was killed between two requests, the model is not at fault.
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._restart()
        self.finish(check)
        self._send(header, parts, limits)
        return self._receive(limits, check)

    def _send(self, header: dict[str, Any], parts: Sequence[bytes], limits: RequestLimits) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        limited = {**header, "seconds": limits.seconds, "memory": limits.memory}
        with suppress(OSError):  # if the process has ended, reading the answer says why
            worker.write_message(self._process.stdin, limited, parts)

    def _receive(self, limits: RequestLimits, check: Check) -> tuple[dict[str, Any], list[bytes]]:
        assert self._process is not None
        answer = _AnswerReader(self._process, limits, check)
        try:
            header = json.loads(answer.read(struct.unpack("<I", answer.read(4))[0]))
            parts = [answer.read(size) for size in header["parts"]]
        except BaseException:
            self.close()
            raise
        if "error" in header:
            raise TextRefused(str(header["error"]))
        return header, parts


class _AnswerReader:
    """Reads one answer of the process, and enforces limits that the system does not let the process
    set for itself."""

    def __init__(
        self, process: subprocess.Popen[bytes], limits: RequestLimits, check: Check
    ) -> None:
        import psutil  # slow to import, so not before the app's first frame

        assert process.stdout is not None
        self._process, self._check = process, check
        self._status, self._gone = psutil.Process(process.pid), psutil.Error
        self._out, self._bytes_left = process.stdout.fileno(), limits.answer
        self._ready = select.poll()
        self._ready.register(self._out, select.POLLIN)
        self._deadline = time.monotonic() + _WALL_CLOCK_FACTOR * limits.seconds
        self._max_memory = self._memory() + limits.memory

    def read(self, size: int) -> bytes:
        """Read `size` bytes. Raises TextError, and what the caller's check raises."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TextError("it writes too much")
        data = bytearray()
        while len(data) < size:
            if not self._ready.poll(int(1000 * _POLL_SECONDS)):
                self._check_limits()
            elif chunk := os.read(self._out, min(size - len(data), _MB)):
                data += chunk
            else:
                raise TextError(_exit_reason(self._process.wait()))
        return bytes(data)

    def _check_limits(self) -> None:
        self._check()
        if time.monotonic() > self._deadline:
            raise TextError(_TOO_LONG)
        if self._memory() > self._max_memory:
            raise TextError(_TOO_MUCH)

    def _memory(self) -> int:
        try:
            return int(self._status.memory_info().rss)
        except self._gone:
            return 0


def _exit_reason(status: int) -> str:
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    known = {"SIGPROF": _TOO_LONG, "SIGABRT": f"{_TOO_MUCH}, or is damaged"}
    return known.get(name, f"it ended with {name}")


def _to_utf8(text: str) -> bytes:
    """Encode a text. Lone surrogates become question marks, so that the length stays the same."""
    return text.encode(errors="replace")


def _start_worker() -> subprocess.Popen[bytes]:
    """Start the process without the user's environment, module folders, or signals from the
    terminal."""
    specs = [importlib.util.find_spec(name) for name in _PACKAGES]
    paths = {
        str(Path(folder).parent)
        for spec in specs
        for folder in (spec and spec.submodule_search_locations) or ()
    }
    command = [sys.executable, "-I", "-S", str(Path(worker.__file__)), *sorted(paths)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
    except OSError as error:
        raise TextError(f"no process could be started ({error.strerror})") from error


def _end_worker(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()
