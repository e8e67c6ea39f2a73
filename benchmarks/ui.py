"""Latency of the app while the engine is busy.

The app runs in a pseudo-terminal with the embedded pair. Times run from writing a byte to its
appearance in the output, so they include terminal input, Textual, the event loop, and an engine
that prefills on the same cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from app.protocol.engine import TurnHandle
from app.util.assets import assets_path
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, columns
from benchmarks.terminal import (
    BACKSPACE,
    ENTER,
    ESCAPE,
    IMPORT_TEXTUAL,
    PASTE,
    PASTE_END,
    Terminal,
    own_folders,
)

KEYS = [chr(code) for code in range(0x0410, 0x0450)] * 4
"""Letters that do not occur elsewhere on the screen."""
KEY_SECONDS = 0.03
"""Seconds between two keys of a fast typist."""
PROBE_SECONDS = 0.005
FRAME_SECONDS = 0.3
PREFILLED, PASTED, SHOWN = 300_000, 1_000_000, 500_000
"""Bytes of the document that is prefilled, of the paste, and of the document in the spans view."""
SPANS, FRAMES = 2_000, 300
CTRL_T = b"\x14"
READY = "Then ask."
PREFILLING = "Reading all of"
GOALS = {
    "first paint": 500,
    "importing Textual alone, measured alternately": 500,
    "1 MB paste to chip": 300,
    "key to paint while prefilling, median": 50,
    "key to paint while prefilling, p95": 50,
    "event loop stall while prefilling, p99": 100,
    "frame of the spans view, 500 KB, p95": 16,
}
"""Milliseconds."""


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """A row for each of GOALS."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TERM": "xterm-256color", **own_folders(Path(folder))}
        # As on a user's machine, Python writes compiled modules; the warm-up run does that.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        imports: list[float] = []
        paints = progress.repeat("first paint", partial(_first_paint, environment, imports))
        stalls = Path(folder) / "stalls.json"
        with Terminal(
            _program("benchmarks", "ui", "--probed", str(stalls)), environment
        ) as terminal:
            terminal.wait_for(READY)
            pastes = progress.repeat("paste", partial(_paste_to_chip, terminal), warm_up=False)
            progress.show("keys while prefilling")
            keys = list(_keys_while_prefilling(terminal))
        late = json.loads(stalls.read_text())
    frames = asyncio.run(span_frames())
    key_times = [median(keys), percentile(keys, 95)]
    measured = [paints, imports[1:], pastes, *([each] for each in key_times)]
    measured += [[percentile(late, 99)], [percentile(frames, 95)]]
    for (name, goal), seconds in zip(GOALS.items(), measured, strict=True):
        yield Row({"what": name, "goal": goal}, [{"ms": 1000 * each} for each in seconds])


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _program(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def _first_paint(environment: dict[str, str], imports: list[float]) -> float:
    """Seconds to the first paint. First appends the seconds of a process that only imports Textual
    to `imports`."""
    started = time.perf_counter()
    subprocess.run(IMPORT_TEXTUAL, env=environment, check=True)
    imports.append(time.perf_counter() - started)
    with Terminal(_program("app"), environment) as terminal:
        return terminal.wait_for(READY) - terminal.started


def _paste_to_chip(terminal: Terminal) -> float:
    terminal.discard()
    started = time.perf_counter()
    terminal.write(PASTE + _text(PASTED) + PASTE_END)
    seconds = terminal.wait_for("Paste 1") - started
    time.sleep(FRAME_SECONDS)  # until the whole frame has been drawn
    terminal.discard()
    terminal.write(BACKSPACE)
    terminal.wait_for(READY)  # it moves down as the chip goes
    return seconds


def _keys_while_prefilling(terminal: Terminal) -> Iterator[float]:
    """Seconds from each key to its letter on the screen."""
    terminal.write(PASTE + _text(PREFILLED) + PASTE_END)
    terminal.wait_for("Paste 1")
    terminal.write(CTRL_T + b"What is it?" + ENTER)
    terminal.wait_for(PREFILLING)
    for letter in KEYS:
        terminal.discard()
        started = time.perf_counter()
        terminal.write(letter.encode())
        yield terminal.wait_for(letter) - started
        time.sleep(KEY_SECONDS)
    terminal.write(ESCAPE)
    terminal.wait_for("stopped")  # proves that it was still prefilling


def _text(size: int) -> bytes:
    text = (assets_path() / "demo" / "gpl-3.0.txt").read_bytes()
    return (text * (size // len(text) + 1))[:size]


# -------------------------------------------------------------------------- in the app


def probed(stalls: Path) -> int:
    """Run the app and record the delays of its event loop while it is busy."""
    from app.chat.model_pairs import resolve_pair
    from app.engine.engine import MlxEngine
    from app.ui.app import SpecchatApp
    from app.ui.start import Start

    app = SpecchatApp(Start(MlxEngine(), resolve_pair(), folder=stalls.parent / "conversations"))
    late: list[float] = []

    async def probe() -> None:
        while True:
            due = time.perf_counter() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            if app.chat.open_chats.busy:
                late.append(time.perf_counter() - due)

    async def run() -> None:
        probing = asyncio.create_task(probe())
        await app.run_async()
        probing.cancel()
        with suppress(asyncio.CancelledError):
            await probing

    asyncio.run(run())
    stalls.write_text(json.dumps(late))
    app.shutdown()
    return 0


async def span_frames() -> list[float]:
    """Seconds for each frame of a document of 500 KB with 2,000 spans, at random positions."""
    from textual.geometry import Region

    from app.protocol.commands import Load
    from app.ui.app import SpecchatApp
    from app.ui.spans.passages import Passage, ReadDocument, ReadKind
    from app.ui.spans.screen import SpansScreen
    from app.ui.start import Start

    text, rng = _text(SHOWN).decode(errors="replace"), random.Random(0)
    cuts = sorted(rng.sample(range(1, len(text)), 2 * SPANS))
    ends = [*cuts, len(text)]
    passages = tuple(
        Passage(start, end, ReadKind.SELECTED if index % 2 else ReadKind.UNREAD)
        for index, (start, end) in enumerate(zip([0, *cuts], ends, strict=True))
    )
    app = SpecchatApp(Start(_Idle(), Load("target", None)))
    seconds = []
    async with app.run_test(size=(120, 36)) as pilot:
        screen = SpansScreen([ReadDocument(0, 0, "document", text, passages)], 0.2)
        await app.push_screen(screen)
        await pilot.pause()
        view = screen.view
        for _ in range(FRAMES):
            view.scroll_to(y=rng.randrange(len(view.rows)), animate=False, immediate=True)
            started = time.perf_counter()
            view.render_lines(Region(0, 0, view.size.width, view.size.height))
            seconds.append(time.perf_counter() - started)
    return seconds


class _Idle:
    """An engine without events."""

    pair = None

    def ask(self, *about: object) -> TurnHandle:
        raise NotImplementedError

    def reselect(self, turn: object, keep_ratio: float) -> None: ...

    def send(self, command: object) -> None: ...

    def listen(self, listener: object) -> Callable[[], None]:
        return lambda: None

    def join(self, timeout: float | None = None) -> None: ...


# -------------------------------------------------------------------------- the report


def about(result: Result) -> str:
    return (
        "Milliseconds from the byte written to the byte drawn, in a pseudo-terminal, on the"
        f" embedded pair: {len(KEYS)} keys while it prefills, {FRAMES} frames of the spans view."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        ms = row.median("ms")
        yield Goal(f"{row['what']}: under {row['goal']:g} ms", f"{ms:.1f} ms", ms < row["goal"])


BENCH = Bench(
    "ui",
    "latency of drawing, starting and pasting in the app",
    "The screen",
    measure,
    about,
    columns(
        Column("", "what"), Column("ms", "ms", ".1f", spread=True), Column("goal", "goal", "g")
    ),
    goals,
    report_args="--runs 3",
    flags={"runs": "5"},
)
