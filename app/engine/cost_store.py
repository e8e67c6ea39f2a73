"""What the loaded pair costs on this machine: learnt from its turns, and kept in a file for later
starts.

A file a pair and machine, in a folder of a few. It only saves time: what cannot be read or written
is as if it was not there. Two programs may write the same file: each adds what it has timed to what
is there, and puts the whole in place at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.engine.cost_fit import MAX_TIMINGS, fit_costs
from app.engine.loader import ModelPair
from app.protocol.cost_model import AttentionWork, Costs, CostTerm, Timing

FORMAT = 2
MAX_FILES = 40
"""Those that were used last stay."""


class CostStore:
    """Belongs to one loaded pair; without a folder it forgets."""

    def __init__(self, pair: ModelPair, folder: Path | None) -> None:
        draft = pair.draft
        self._ratios = (
            pair.target.attention_cost_ratio,
            draft.attention_cost_ratio if draft else 0.0,
        )
        self._file = None if folder is None else folder / f"{_key(pair)}.json"
        self._timings = _read(self._file) if self._file else []
        self.costs: Costs = fit_costs(self._timings, self._ratios)

    def add(self, clocked: Sequence[Timing]) -> None:
        """These were timed."""
        known = self._file and _read(self._file)  # another program may have added to it
        self._timings = _newest([*(known or self._timings), *clocked])
        if self._file is not None:
            _write(self._file, self._timings)
        self.costs = fit_costs(self._timings, self._ratios)


def _newest(clocked: Sequence[Timing]) -> list[Timing]:
    return [
        each for part in CostTerm for each in [c for c in clocked if c.term is part][-MAX_TIMINGS:]
    ]


def _key(pair: ModelPair) -> str:
    """Of both models and of the machine."""
    models = [pair.target.fingerprint, pair.draft.fingerprint if pair.draft else ""]
    return hashlib.sha256("\n".join([*models, *_machine()]).encode()).hexdigest()[:32]


def _machine() -> list[str]:
    import mlx.core as mx
    import psutil

    from app.engine import blas

    device = str(mx.device_info().get("device_name", platform.machine()))
    memory, library = psutil.virtual_memory().total >> 30, blas.load_openblas() or ""
    kind = mx.default_device().type.name
    return [device, str(os.cpu_count()), str(memory), kind, version("mlx"), Path(library).name]


def _read(file: Path) -> list[Timing]:
    """Nothing, where there is no such file, or a damaged one."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["format"] != FORMAT:
            return []
        return _newest([_parse_timing(*row) for row in kept["clocked"]])
    except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return []


def _parse_timing(part: Any, tokens: Any, before: Any, most: Any, seconds: Any) -> Timing:
    counts = int(tokens), int(before), int(most)
    if not 0 < float(seconds) < 1e6 or not all(0 <= count < 1 << 32 for count in counts):
        raise ValueError("nobody has timed that")
    return Timing(CostTerm(part), AttentionWork(*counts), float(seconds))


def _write(file: Path, clocked: Sequence[Timing]) -> None:
    rows = [
        [str(c.term), c.work.tokens, c.work.cached, c.work.max_context, round(c.seconds, 6)]
        for c in clocked
        if c.seconds >= 1e-6
    ]
    aside = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, suffix=".part", delete=False
        ) as writing:
            aside = Path(writing.name)
            json.dump({"format": FORMAT, "clocked": rows}, writing)
        aside.replace(file)
        _delete_old(file.parent)
    except OSError:
        if aside is not None:
            with suppress(OSError):
                aside.unlink(missing_ok=True)


def _delete_old(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MAX_FILES:]:
        with suppress(OSError):
            file.unlink(missing_ok=True)
