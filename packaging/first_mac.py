"""Checks what a Mac must confirm, since specchat was made without one, and prints one block to
paste into a report. From a clone:

    .venv/bin/python packaging/first_mac.py [--target TARGET] [--draft DRAFT] [--tokens 16384]

Without a target it uses the demo pair. Each check runs in a process of its own: one that fails,
crashes or hangs becomes a line that says so. It writes a file of a few bytes, which it removes, and
for a moment to the clipboard.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import platform
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.chat import wording

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SECONDS = 600.0
"""Within which a check has to end."""
TOKENS = 16_384
EMBEDDED = "embedded"
QUESTION = "What is the code of gate 7?"


@dataclass(frozen=True)
class Models:
    """What to try, as the command line names it, and the length of the prompts."""

    target: str = EMBEDDED
    draft: str | None = None
    tokens: int = TOKENS

    def arguments(self) -> list[str]:
        named = {"--target": self.target, "--draft": self.draft, "--tokens": str(self.tokens)}
        return [word for name, value in named.items() if value for word in (name, value)]

    @property
    def text(self) -> str:
        """About so many tokens."""
        line, count = "The code of gate {} is {}.\n", self.tokens // 12 + 8
        return "".join(line.format(n, n * 37 % 1000) for n in range(count))


Check = Callable[[Models], Iterator[str]]


def system(models: Models) -> Iterator[str]:
    import psutil

    macos = platform.mac_ver()[0]
    yield f"macOS {macos}" if macos else platform.platform(terse=True)
    memory = psutil.virtual_memory().total / 1e9
    yield f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GB"
    yield f"Python {platform.python_version()}, {_on_battery()}"


def _on_battery() -> str:
    from app.engine.backend.memory_probes import PowerProbe

    return "on battery" if PowerProbe().on_battery() else "on mains"


def doctor(models: Models) -> Iterator[str]:
    from app.cli.doctor import doctor

    out = io.StringIO()
    status = doctor(out)
    yield from (line for line in out.getvalue().splitlines() if line and "folder" not in line)
    yield f"exit status {status}"


def sparse_probe(models: Models) -> Iterator[str]:
    for model in _loaded(models, probes=True):
        why = model.dense_only
        said = "gaps change no answer" if why is None else wording.reason(why)
        yield f"{model.info.name}: {said}"


def steps(models: Models) -> Iterator[str]:
    """What is read at once, and which of MLX's attention is called."""
    import mlx.core as mx
    import numpy as np

    calls: Counter[str] = Counter()
    attention = mx.fast.scaled_dot_product_attention

    def counted(queries: mx.array, *rest: Any, **named: Any) -> mx.array:
        forced = ", forced to be fused" if named.get("force_fused") else ""
        calls[f"head size {queries.shape[-1]}{forced}"] += 1
        return attention(queries, *rest, **named)

    mx.fast.scaled_dot_product_attention = counted  # type: ignore[assignment]
    from app.engine.cache.prefill import make_positioned_cache, prefill

    for model in _loaded(models, probes=False):
        ids = np.random.default_rng(0).integers(3, 1000, models.tokens).astype(np.int32)
        done, start = [0], time.perf_counter()
        calls.clear()
        prefill(
            model.model, make_positioned_cache(model.caches), ids, None, model.step, done.append
        )
        rate = models.tokens / (time.perf_counter() - start)
        sizes = [after - before for before, after in itertools.pairwise(done)]
        runs = ", ".join(f"{count} of {size}" for size, count in Counter(sizes).items())
        yield f"{model.info.name}: {rate:,.0f} tokens/s in steps: {runs}"
        called = ", ".join(f"{what}: {count} calls" for what, count in calls.items())
        yield f"{model.info.name}: {called or 'attention in NumPy, since MLX computes on the CPU'}"


def forced_attention(models: Models) -> Iterator[str]:
    """Whether MLX's fused kernel gives the same, and what it takes."""
    import mlx.core as mx

    if mx.default_device().type == mx.DeviceType.cpu:
        yield "not tried, since MLX computes on the CPU"
        return
    for size in (64, 128, 192, 256):
        queries = mx.random.normal((1, 8, 1024, size), mx.float16)
        keys, values = (mx.random.normal((1, 2, 8192, size), mx.float16) for _ in range(2))
        mx.eval(queries, keys, values)
        found: dict[bool, tuple[mx.array, float, int]] = {}
        for forced in (False, True):
            for _ in range(3):
                mx.reset_peak_memory()
                before, start = mx.get_active_memory(), time.perf_counter()
                result = mx.fast.scaled_dot_product_attention(
                    queries, keys, values, scale=size**-0.5, mask="causal", force_fused=forced
                )
                mx.eval(result)
                spent, peak = time.perf_counter() - start, mx.get_peak_memory() - before
            found[forced] = result, spent, peak
        (usual, seconds, peak), (fused, fused_seconds, fused_peak) = found[False], found[True]
        error = mx.linalg.norm((fused - usual).astype(mx.float32)) / mx.linalg.norm(
            usual.astype(mx.float32)
        )
        yield (
            f"head size {size}: differs by {error.item():.1e}, {seconds * 1e3:.1f} and"
            f" {fused_seconds * 1e3:.1f} ms, {peak / 1e6:.0f} and {fused_peak / 1e6:.0f} MB"
        )


def first_token(models: Models) -> Iterator[str]:
    """The second of two runs each, in one process: the first one compiles kernels."""
    from app.chat.conversation import Conversation, Question
    from app.chat.engine_session import EngineSession
    from app.chat.model_pairs import resolve_pair
    from app.protocol.events import Failed, Finished
    from app.protocol.options import Mode, Sampling
    from app.protocol.prompt import Document

    document = Document("gates.txt", models.text)
    with EngineSession() as session:
        session.load(resolve_pair(models.target, models.draft))
        for name, mode in (("sparse", Mode.SPARSE), ("full", Mode.FULL)):
            for _ in range(2):
                question = Question(QUESTION, (document,), mode)
                _, command = Conversation(Sampling(max_tokens=16)).start_turn(question)
                *_, event = session.run(command)
            if isinstance(event, Failed):
                yield f"{name}: failed: {wording.failure(event.failure).sentence}"
            elif isinstance(event, Finished) and (stats := event.statistics) is not None:
                note = f", fell back: {wording.reason(stats.fallback)}" if stats.fallback else ""
                yield (
                    f"{name}: {stats.ttft:.2f} s, {stats.read_tokens:,} of {stats.prompt_tokens:,}"
                    f" tokens read{note}"
                )


def memory(models: Models) -> Iterator[str]:
    import mlx.core as mx

    from app.engine.backend.memory_probes import ceiling, system_probe

    sample, info = system_probe().read(), mx.device_info()
    yield f"{ceiling() / 1e9:.1f} GB for models, pressure {sample.system.name.lower()}"
    limits = {name: value for name, value in info.items() if isinstance(value, int)}
    yield ", ".join(f"{name} {value:,}" for name, value in sorted(limits.items())) or "no limits"


def fsync(models: Models) -> Iterator[str]:
    import fcntl

    from app.util.atomic_files import sync

    with tempfile.NamedTemporaryFile() as file:
        for _ in range(2):
            file.write(b"specchat")
            file.flush()
            start = time.perf_counter()
            sync(file.fileno())
            seconds = time.perf_counter() - start
        full = "no F_FULLFSYNC on this system"
        if (command := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
            fcntl.fcntl(file.fileno(), command)
            full = "F_FULLFSYNC works"
        yield f"{seconds * 1e3:.1f} ms, {full}"


def clipboard(models: Models) -> Iterator[str]:
    from app.ui.terminal import system_clipboard

    found = system_clipboard()
    if found is None:
        yield "no program for it"
        return
    before, text = found.read().result(), "specchat ✓ é 漢字"
    found.write(text).result()
    read = found.read().result()
    found.write(before or "").result()
    yield "reads back what was written" if read == text else f"failed: read {read!r}"


def terminal(models: Models) -> Iterator[str]:
    names = ("TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM", "COLORTERM", "LANG", "LC_ALL")
    yield ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    try:
        device = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        yield "no terminal to ask"
        return
    with open(device, "r+b", buffering=0):
        size, reply = os.get_terminal_size(device), _asked(device)
    name = re.search(r"\x1bP>\|([^\x1b]*)", reply)
    keyboard = "no " if re.search(r"\x1b\[\?\d+u", reply) is None else ""
    drawing = "" if re.search(r"\x1b\[\?2026;[123]\$y", reply) else "no "
    yield f"{size.columns} x {size.lines}, {name[1] if name else 'gives no name'}"
    yield f"{keyboard}kitty keyboard, {drawing}synchronised output"


def _asked(device: int) -> str:
    """What a terminal answers to: its keyboard protocol, synchronised output, its name, and what
    every terminal answers."""
    before, reply = termios.tcgetattr(device), b""
    try:
        tty.setcbreak(device)
        os.write(device, b"\x1b[?u\x1b[?2026$p\x1b[>q\x1b[c")
        while select.select([device], [], [], 2.0)[0]:
            reply += os.read(device, 1000)
            if re.search(rb"\x1b\[\?[\d;]*c", reply):
                break
    finally:
        termios.tcsetattr(device, termios.TCSAFLUSH, before)
    return reply.decode(errors="replace")


def _loaded(models: Models, probes: bool) -> Iterator[Any]:
    """Both models of the pair, one after the other."""
    from app.engine.backend import blas

    blas.load_openblas()
    from app.chat.model_pairs import resolve_pair
    from app.engine.backend import mlx_patches
    from app.engine.model.loader import load_one
    from app.sandbox.process import TextProcess

    mlx_patches.install()
    load, texts = resolve_pair(models.target, models.draft), TextProcess()
    try:
        for folder, name in zip((load.target, load.draft), load.names, strict=True):
            if folder is not None and name is not None:
                yield load_one(folder, name, None, text_process=texts, probes=probes)
    finally:
        texts.close()


CHECKS: dict[str, Check] = {
    "system": system,
    "doctor": doctor,
    "sparse probe": sparse_probe,
    "steps": steps,
    "forced attention": forced_attention,
    "first token": first_token,
    "memory": memory,
    "fsync": fsync,
    "clipboard": clipboard,
    "terminal": terminal,
}


def result(name: str, models: Models, seconds: float = SECONDS) -> list[str]:
    """The lines of a check that runs in a process of its own, and how it failed, if it did."""
    command = [sys.executable, __file__, "--only", name, *models.arguments()]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        return [*_lines(error.stdout), f"failed: no end within {seconds:.0f} s"]
    lines = _lines(ended.stdout)
    if ended.returncode < 0:
        said = [*_lines(ended.stderr), f"ended by {signal.Signals(-ended.returncode).name}"]
        lines.append(f"failed: {', '.join(said[-2:])}")
    elif ended.returncode:
        said = [f"exit status {ended.returncode}", *_lines(ended.stderr)]
        lines.append(f"failed: {said[-1]}")
    return lines or ["failed: it said nothing"]


def _lines(output: bytes | None) -> list[str]:
    text = (output or b"").decode(errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def main(arguments: list[str]) -> int:
    """Exits with 0 whatever failed: the block says it."""
    parser = argparse.ArgumentParser(description="Prints what a Mac must confirm, to be pasted.")
    parser.add_argument("--target", default=EMBEDDED, help="a model, as for `specchat ask`")
    parser.add_argument("--draft", help="its draft")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="length of the prompts")
    parser.add_argument("--only", choices=CHECKS, help="one check, in this process")
    options = parser.parse_args(arguments)
    models = Models(options.target, options.draft, options.tokens)
    if options.only is not None:
        for line in CHECKS[options.only](models):
            print(line, flush=True)
        return 0
    print("```")
    print(f"specchat on a Mac, {time.strftime('%Y-%m-%d')}, {models.target}")
    for name in CHECKS:
        first, *rest = result(name, models)
        print(f"{name + ':':<18}{first}", flush=True)
        for line in rest:
            print(f"{'':<18}{line}")
    print("```")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
