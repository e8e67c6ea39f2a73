"""Measures a real chat pair, Qwen2.5-Coder 1.5B and 0.5B Instruct (`make real-pair`).

`python -m benchmarks pair TABLE` measures one table and prints it. Each measurement is appended to
`results/real-pair/TABLE.jsonl` at once, so the same command continues after an interruption. The
machine is rarely quiet for hours, so every measurement has seconds of the clock and seconds of the
process on all cores; ratios are taken of the latter.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from app.cli.bench import machine
from app.cli.options import parse_fraction, parse_prompt_length, whole
from app.engine.backend import blas
from app.errors import UserError
from app.protocol.commands import Ask
from app.protocol.events import Event
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Statistics
from app.util.tables import TextTable
from benchmarks.harness import parse_list

if TYPE_CHECKING:
    from app.engine.model.loader import ModelPair

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / ".cache" / "real" / "texts"
TARGET = "local/qwen2.5-coder-1.5b-instruct"
SMALLER = "local/qwen2.5-coder-0.5b-instruct"
BUILT_IN = "built-in"
LONG_TEXT = "handbook-en.txt"
QUESTION = "Which package makes it possible to create a Debian package without being root?"
STEP = 512
MLX_LM, FULL = "mlx-lm", "full"
Figures = dict[str, Any]
Cell = Mapping[str, Any]


class Log:
    """Measurements as lines of JSON: the labels of a cell, and its figures."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Figures] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            self._known[_key(record["cell"])] = record

    def figures(self, cell: Cell) -> Figures | None:
        record = self._known.get(_key(cell))
        return None if record is None else record["figures"]

    def measure(self, cell: Cell, measure: Callable[[], Figures]) -> Figures:
        """The figures of this cell; they are measured and written if they are not known."""
        if (known := self.figures(cell)) is not None:
            return known
        sys.stderr.write(f"{', '.join(f'{k} {v}' for k, v in cell.items())}\n")
        figures = measure()
        record = {"cell": cell, "figures": figures, "day": time.strftime("%Y-%m-%d")}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(record | {"machine": machine()}) + "\n")
        self._known[_key(cell)] = record
        return figures


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def timed(measure: Callable[[], Figures]) -> Figures:
    """The figures with the `seconds` and the `cpu_seconds` that measuring took."""
    started, cpu = time.perf_counter(), time.process_time()
    figures = measure()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    load = os.getloadavg()[0]
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "load": round(load, 1)} | figures


# ------------------------------------------------------------------------------- first word


def first_word(options: argparse.Namespace, log: Log) -> TextTable:
    """The first word by length, keep and draft, and mlx-lm's."""
    target = options.target
    for draft in options.drafts:
        ways: list[str | float] = [*options.keeps]
        if draft == options.drafts[0]:  # what does not depend on the draft
            ways = [MLX_LM, FULL, *ways]
        missing = [
            cell
            for length in options.lengths
            for run in range(options.runs)
            for way in ways
            if log.figures(cell := _first_word_cell(target, draft, length, way, run)) is None
        ]
        if missing:
            pair = load(target, draft)
            for cell in missing:
                text = excerpt(pair, cell["length"])
                log.measure(cell, partial(_first_word, pair, text, cell["way"]))
            pair.target.unload()
            gc.collect()
    return _first_word_table(options, log)


def _first_word_cell(
    target: str, draft: str, length: int, way: str | float, run: int
) -> dict[str, Any]:
    draft = "" if way in (MLX_LM, FULL) else draft
    return {"target": target, "draft": draft, "length": length, "way": way, "run": run}


def _first_word(pair: ModelPair, text: str, way: str | float) -> Figures:
    """Seconds to the first token: of mlx-lm (`way`), in full, or at this keep."""
    import mlx.core as mx

    from benchmarks.token_turn import plain

    mx.clear_cache()
    ask = asked(text, QUESTION, Mode.SPARSE if isinstance(way, float) else Mode.FULL)
    if way == MLX_LM:
        ids = pair.prompts.build(ask.messages).ids
        return timed(lambda: {"seconds": plain(pair.target.model, ids, STEP), "read": len(ids)})
    keep = way if isinstance(way, float) else 1.0
    return timed(lambda: _of(run(pair, asked(text, QUESTION, ask.mode, keep))))


def _first_word_table(options: argparse.Namespace, log: Log) -> TextTable:
    lines = []
    for length in options.lengths:

        def figure(draft: str, way: str | float, name: str, length: int = length) -> float | None:
            cells = (
                _first_word_cell(options.target, draft, length, way, number)
                for number in range(options.runs)
            )
            found = [each[name] for cell in cells if (each := log.figures(cell)) is not None]
            return median(found) if found else None

        plain, full = (figure("", way, "cpu_seconds") for way in (MLX_LM, FULL))
        if plain is None or full is None:
            continue
        whole_line = [f"{length:,}", "", "all", "", _seconds(plain), _seconds(full), "", "", ""]
        lines.append(whole_line)
        for draft in options.drafts:
            for keep in options.keeps:
                sparse = figure(draft, keep, "cpu_seconds")
                if sparse is None:
                    continue
                clock = figure(draft, keep, "seconds") or sparse
                others = figure(draft, keep, "outside_prefill") or 0.0
                r = (figure(draft, keep, "score") or 0.0) / clock * sparse / full
                e = others / clock * sparse / full
                share = (figure(draft, keep, "read") or 0.0) / length
                lines.append(
                    [
                        f"{length:,}",
                        draft.removeprefix("local/"),
                        f"{keep:g}",
                        f"{share:.2f}",
                        "",
                        _seconds(sparse),
                        f"{full / sparse:.2f}",
                        f"{plain / sparse:.2f}",
                        f"{1 / (r + share + e):.2f}",
                    ]
                )
    head = ["tokens", "draft", "keep", "read", "mlx-lm, s", "ours, s", "of ours in full"]
    return TextTable([*head, "of mlx-lm", "1/(r+k+e)"], lines)


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


# ------------------------------------------------------------------------- shared by tables


def load(target: str, draft: str) -> ModelPair:
    """Load a pair from the cache of `make real-pair`. Raises UserError if it is not there."""
    from app.chat.model_pairs import resolve_pair
    from app.engine.pair_loader import load_pair

    chosen = None if draft == BUILT_IN else draft
    return load_pair(resolve_pair(target, chosen), STEP)


def excerpt(pair: ModelPair, length: int) -> str:
    """The beginning of a long text, so that the prompt has about `length` tokens."""
    path = TEXTS / LONG_TEXT
    if not path.is_file():
        raise UserError("The texts are missing", "fetch them with `make real-texts`")
    text = path.read_text(encoding="utf-8")[: 8 * length]
    around = len(pair.prompts.build(asked("", QUESTION, Mode.FULL).messages).ids)
    ids = pair.target.tokenizer.encode(text, add_special_tokens=False)[: length - around]
    return str(pair.target.tokenizer.decode(ids))


def asked(text: str, question: str, mode: Mode, keep: float = 1.0, tokens: int = 1) -> Ask:
    message = Message(Role.USER, question, (Document(LONG_TEXT, text),))
    return Ask((message,), mode, keep, Sampling(max_tokens=tokens, temperature=0.0))


def run(pair: ModelPair, ask: Ask) -> Statistics:
    """Run a turn in a new conversation. Raises RuntimeError if it fell back to another mode."""
    from app.engine.memory.conversation_cache import ConversationCache
    from benchmarks.token_turn import finished, run_turn

    events: list[Event] = []
    run_turn(pair, ask, ConversationCache(pair), events)
    return finished(events)


def _of(statistics: Statistics) -> Figures:
    phases = {str(part.phase): part.seconds for part in statistics.phases}
    scored, prefill = phases.get("score", 0.0), phases.get("prefill", 0.0)
    return {
        "seconds": statistics.ttft,
        "score": scored,
        "outside_prefill": statistics.ttft - scored - prefill,
        "read": statistics.read_tokens,
        "prompt": statistics.prompt_tokens,
        "peak": statistics.peak_bytes,
    }


# --------------------------------------------------------------------------------- commands

TABLES: dict[str, Callable[[argparse.Namespace, Log], TextTable]] = {"first-word": first_word}


def measure(options: argparse.Namespace) -> int:
    """Measure a table and print it. Returns the exit status. Raises UserError."""
    os.environ.setdefault("HF_HUB_CACHE", str(TEXTS.parent))
    blas.load_openblas()  # must happen before MLX is imported
    from app.engine.backend import mlx_patches

    mlx_patches.install()
    log = Log(options.results / f"{options.table}.jsonl")
    table = TABLES[options.table](options, log)
    sys.stdout.write(f"{machine()}\n\n{table.markdown() if options.markdown else table.plain()}\n")
    return 0


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Measures a real pair of models, and continues where the same command was stopped."
    )
    say = command.add_argument
    say("table", choices=tuple(TABLES), help="what to measure")
    say("--target", default=TARGET, metavar="T", help="the model (default %(default)s)")
    say(
        "--drafts",
        type=lambda text: parse_list(text, str),
        default=(BUILT_IN, SMALLER),
        metavar="D,D",
        help="drafts, such as built-in,local/…",
    )
    say(
        "--length",
        dest="lengths",
        type=lambda text: parse_list(text, parse_prompt_length),
        default=(1024, 2048, 4096, 8192, 16384),
        metavar="N,N",
        help="prompt tokens",
    )
    say(
        "--keep",
        dest="keeps",
        type=lambda text: parse_list(text, parse_fraction),
        default=(0.05, 0.1, 0.2, 0.3, 0.5),
        metavar="K,K",
        help="fractions of the prompt to read",
    )
    say("--runs", type=whole("number of runs", 1, 99), default=1, help="runs of each measurement")
    say("--markdown", action="store_true", help="print the table as Markdown")
    say(
        "--results",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "real-pair",
        metavar="FOLDER",
        help="where measurements are kept",
    )
