"""`specchat bench ui`: how the app feels in the hand, while the engine works beside it.

The program runs in a pseudo-terminal on the embedded pair. Times run from the byte written to the
byte drawn, so they hold everything between: the terminal's reading, Textual, the event loop, and
an engine that prefills on the same cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import TextIO

from app.bench.median_range import Spread, spread
from app.bench.terminal import BACKSPACE, ENTER, ESCAPE, PASTE, PASTE_END, Terminal, own_folders
from app.paths import assets_path

KEYS = [chr(code) for code in range(0x0410, 0x0450)] * 4
"""Letters that nothing else on the screen has."""
KEY_SECONDS = 0.03
"""Between two keys: a fast typist's."""
PROBE_SECONDS = 0.005
PREFILLED, PASTED, SHOWN = 300_000, 1_000_000, 500_000
"""Bytes that are prefilled meanwhile, that are pasted, and of the document in the spans view."""
SPANS, FRAMES = 2_000, 300
CTRL_T = b"\x14"
READY = "Then ask."
PREFILLING = "reading in full"


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds."""

    first_paint: float
    paste_to_chip: float
    key_to_paint_p50: float
    key_to_paint_p95: float
    loop_stall_p99: float
    span_frame_p95: float


WANTED = Figures(500, 300, 50, 50, 100, 16)
NAMES = {
    "first_paint": "first paint, median",
    "paste_to_chip": "1 MB paste to chip, median",
    "key_to_paint_p50": "key to paint while prefilling, median",
    "key_to_paint_p95": "key to paint while prefilling, p95",
    "loop_stall_p99": "event loop stall while prefilling, p99",
    "span_frame_p95": "frame of the spans view, 500 KB, p95",
}


def bench_ui(runs: int, as_json: bool, out: TextIO) -> int:
    """Measure, starting and pasting `runs` times; returns the exit status."""
    from app.bench.machine import machine

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TERM": "xterm-256color", **own_folders(Path(folder))}
        # As on a user's machine, Python keeps what it compiled; the run that warms up writes it.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        paints = [_first_paint(environment) for _ in range(runs + 1)][1:]  # the first one warms up
        stalls = Path(folder) / "stalls.json"
        with Terminal(_program("bench", "ui", "--probed", str(stalls)), environment) as terminal:
            terminal.wait_for(READY)
            pastes = [_paste_to_chip(terminal) for _ in range(runs)]
            keys = list(_keys_while_prefilling(terminal))
        late = json.loads(stalls.read_text())
    seconds = {
        "first_paint": median(paints),
        "paste_to_chip": median(pastes),
        "key_to_paint_p50": median(keys),
        "key_to_paint_p95": percentile(keys, 95),
        "loop_stall_p99": percentile(late, 99),
        "span_frame_p95": percentile(asyncio.run(span_frames()), 95),
    }
    around = {
        name: spread(1000 * value for value in values)
        for name, values in (("first_paint", paints), ("paste_to_chip", pastes))
    }
    figures = Figures(**{name: 1000 * value for name, value in seconds.items()})
    described = machine()
    if as_json:
        out.write(
            json.dumps(
                {
                    "machine": described,
                    "milliseconds": asdict(figures),
                    "wanted": asdict(WANTED),
                    "spread": around,
                }
            )
            + "\n"
        )
    else:
        out.write(_table(figures, described, around))
    return 0


def _table(figures: Figures, described: str, around: Mapping[str, Spread]) -> str:
    lines = [described, f"{len(KEYS)} keys, {FRAMES} frames", ""]
    for name, words in NAMES.items():
        wanted = getattr(WANTED, name)
        of = around.get(name)
        more = f", {of.least:.1f} to {of.most:.1f}" if of else ""
        value = getattr(figures, name)
        lines.append(f"{words:<42}{value:8.1f} ms   (under {wanted:g} wanted{more})")
    return "\n".join(lines) + "\n"


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _program(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "app", *words]


def _first_paint(environment: dict[str, str]) -> float:
    with Terminal(_program(), environment) as terminal:
        return terminal.wait_for(READY) - terminal.started


def _paste_to_chip(terminal: Terminal) -> float:
    terminal.forget()
    begun = time.perf_counter()
    terminal.write(PASTE + _text(PASTED) + PASTE_END)
    seconds = terminal.wait_for("Paste 1") - begun
    terminal.write(BACKSPACE)
    terminal.wait_for("Ask")
    return seconds


def _keys_while_prefilling(terminal: Terminal) -> Iterator[float]:
    """Seconds from each key to its letter on the screen."""
    terminal.write(PASTE + _text(PREFILLED) + PASTE_END)
    terminal.wait_for("Paste 1")
    terminal.write(CTRL_T + b"What is it?" + ENTER)
    terminal.wait_for(PREFILLING)
    for letter in KEYS:
        terminal.forget()
        begun = time.perf_counter()
        terminal.write(letter.encode())
        yield terminal.wait_for(letter) - begun
        time.sleep(KEY_SECONDS)
    terminal.write(ESCAPE)
    terminal.wait_for("stopped")  # it was still being read


def _text(size: int) -> bytes:
    text = (assets_path() / "demo" / "gpl-3.0.txt").read_bytes()
    return (text * (size // len(text) + 1))[:size]


# -------------------------------------------------------------------------- in the app


def probed(stalls: Path) -> int:
    """The app, which notes how late its event loop comes to what is due, from the first question
    to the end."""
    from app.chat.model_pairs import resolve_pair
    from app.engine.engine import MlxEngine
    from app.ui.app import SpecchatApp

    app = SpecchatApp(MlxEngine(), resolve_pair(), folder=stalls.parent / "conversations")
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
    """Seconds for each frame of a document of 500 KB with 2,000 spans, drawn at random places."""
    from textual.geometry import Region

    from app.protocol.commands import Load
    from app.ui.app import SpecchatApp
    from app.ui.spans.passages import Passage, ReadDocument, ReadKind
    from app.ui.spans.screen import SpansScreen

    text, chance = _text(SHOWN).decode(errors="replace"), random.Random(0)
    cuts = sorted(chance.sample(range(1, len(text)), 2 * SPANS))
    ends = [*cuts, len(text)]
    passages = tuple(
        Passage(start, end, ReadKind.SELECTED if index % 2 else ReadKind.UNREAD)
        for index, (start, end) in enumerate(zip([0, *cuts], ends, strict=True))
    )
    app = SpecchatApp(_Idle(), Load("target", None))
    seconds = []
    async with app.run_test(size=(120, 36)) as pilot:
        screen = SpansScreen([ReadDocument(0, 0, "document", text, passages)], 0.2)
        await app.push_screen(screen)
        await pilot.pause()
        view = screen.view
        for _ in range(FRAMES):
            view.scroll_to(y=chance.randrange(len(view.rows)), animate=False, immediate=True)
            begun = time.perf_counter()
            view.render_lines(Region(0, 0, view.size.width, view.size.height))
            seconds.append(time.perf_counter() - begun)
    return seconds


class _Idle:
    """An engine that says nothing."""

    def send(self, command: object) -> None: ...

    def listen(self, listener: object) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...
