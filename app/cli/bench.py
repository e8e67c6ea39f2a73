"""`specchat bench`: measures how fast a pair of models is on this machine and prints a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from statistics import median

import psutil

from app.chat.conversation import Conversation, Question
from app.chat.engine_session import EngineError, EngineSession
from app.chat.sample import QUESTION, text_of
from app.cli.options import RUNS, add_kv_bits, add_length, add_models, parse_fraction
from app.cli.settings import requested_load, user_settings
from app.cli.terminal import ProgressLine
from app.engine.backend import blas
from app.protocol.commands import CachePolicy
from app.protocol.events import Failed, Finished, Loaded
from app.protocol.options import DEFAULT_KEEP_RATIO, BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Document
from app.protocol.stats import Statistics
from app.util.formatting import size
from app.util.tables import TextTable

ANSWER_TOKENS = 32
MODES = (Mode.SPARSE, Mode.FULL)
ALONE = CachePolicy(BackgroundPolicy.OFF, share_prefixes=False)
"""No turn reuses what another one has read."""
Runs = list[tuple[Statistics, Statistics]]
"""Statistics of the sparse and the full turn of each run."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Asks a question about a long text sparsely and in full, and reports the time to the first"
        " word, tokens per second and peak memory."
    )
    add_length(command)
    command.add_argument(
        "--keep",
        type=parse_fraction,
        default=DEFAULT_KEEP_RATIO,
        help="fraction of the prompt that the sparse turn reads (default %(default)s)",
    )
    command.add_argument(
        "--runs", type=RUNS, default=3, help="number of runs (default %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print every run as JSON")
    add_models(command)
    add_kv_bits(command)


def run(options: argparse.Namespace) -> int:
    """Measure, and print; returns the exit status. Raises UserError."""
    text = text_of(options.length)
    with EngineSession(upkeep=ALONE) as session, ProgressLine() as line:
        loaded, runs = session.load(requested_load(options, user_settings())), Runs()
        for number in range(options.runs + 1):  # the first one warms up
            line.show(f"run {number} of {options.runs}" if number else "warming up")
            sparse, full = (_turn(session, text, options.keep, each) for each in MODES)
            if number:
                runs.append((sparse, full))
    if options.json:
        sys.stdout.write(json.dumps(_plain(loaded, runs)) + "\n")
    else:
        _print(loaded, runs, options.keep)
    return 0


def ask(
    session: EngineSession, text: str, question: str, mode: Mode, keep: float, sampling: Sampling
) -> tuple[str, Statistics]:
    """Ask one question about `text` as turn 0; return the answer. Raises EngineError."""
    asked = Question(question, (Document("text.txt", text),), mode, keep)
    _, command = Conversation(sampling).start_turn(asked, number=0)
    *_, event = session.run(command)
    if isinstance(event, Failed):
        raise EngineError(event.failure)
    assert isinstance(event, Finished)
    assert event.statistics is not None, "a turn that was not cancelled ends with statistics"
    return event.text, event.statistics


def _turn(session: EngineSession, text: str, keep: float, mode: Mode) -> Statistics:
    sampling = Sampling(max_tokens=ANSWER_TOKENS, stop_repeats=False, ignore_eos=True)
    _, statistics = ask(session, text, QUESTION, mode, keep, sampling)
    return statistics


def machine() -> str:
    """One line: processor, cores, memory, system, MLX's version and device, and the BLAS."""
    library = blas.load_openblas()  # before mlx, or it has no effect
    import mlx.core as mx

    device = mx.device_info().get("device_name", platform.machine())
    memory = psutil.virtual_memory().total / 2**30
    parts = [
        f"{device}, {os.cpu_count()} cores, {memory:.0f} GiB",
        f"{platform.system()}, Python {platform.python_version()}",
        f"mlx {version('mlx')} on {mx.default_device().type.name}, mlx-lm {version('mlx-lm')}",
    ]
    if mx.default_device().type == mx.DeviceType.cpu:
        parts.append(f"BLAS {os.path.basename(library) if library else 'of mlx'}")
    return "; ".join(parts)


def _plain(loaded: Loaded, runs: Runs) -> dict[str, object]:
    plain = [
        {
            str(mode): {
                "ttft": each.ttft,
                "prompt_tokens": each.prompt_tokens,
                "read_tokens": each.read_tokens,
                "decode_rate": each.decode_rate,
                "peak_bytes": each.peak_bytes,
            }
            for mode, each in zip(MODES, pair, strict=True)
        }
        for pair in runs
    ]
    return {
        "specchat": version("specchat"),
        "machine": machine(),
        "target": loaded.target.name,
        "draft": loaded.draft.name if loaded.draft else None,
        "runs": plain,
    }


def _print(loaded: Loaded, runs: Runs, keep: float) -> None:
    draft = loaded.draft.name if loaded.draft else "the built-in scorer"
    both = list(zip(*runs, strict=True))  # of all sparse turns, and of all full ones
    rows = [
        ["first word", *(f"{median(s.ttft for s in each):.2f} s" for each in both)],
        ["tokens read", *(f"{each[0].read_tokens:,}" for each in both)],
        ["tokens a second", *(f"{median(s.decode_rate for s in each):.1f}" for each in both)],
        ["peak memory", *(size(max(s.peak_bytes for s in each)) for each in both)],
    ]
    ratio = median(full.ttft / sparse.ttft for sparse, full in runs)
    sys.stdout.write(
        f"specchat {version('specchat')}; {machine()}\n"
        f"{loaded.target.name} with {draft}, medians of {len(runs)}\n\n"
        f"{TextTable(['', f'keep {keep:.0%}', 'in full'], rows).plain()}\n"
        f"\nThe first word of a sparse read came {ratio:.2f} times as fast as in full.\n"
    )
