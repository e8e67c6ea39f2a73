"""The timings of the loaded model pair on this machine, stored for later starts.

One file per pair and machine. It only saves time: an unreadable file counts as missing. Two
programs may write the same file: each adds its timings to those in it, and replaces it atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.engine.cost_fit import MAX_TIMINGS, fit_costs
from app.engine.loader import ModelPair
from app.protocol.cost_model import FREE, AttentionWork, Costs, CostTerm, Timing

FORMAT = 2
MAX_FILES = 40
"""The most recently used ones."""


class CostStore:
    """For one loaded model pair; without a folder nothing is stored."""

    def __init__(self, pair: ModelPair, folder: Path | None) -> None:
        draft = pair.draft
        self._has_draft = draft is not None
        self._ratios = (
            pair.target.attention_cost_ratio,
            draft.attention_cost_ratio if draft else 0.0,
        )
        self._file = None if folder is None else folder / f"{_key(pair)}.json"
        self._timings = _read(self._file) if self._file else []
        self.costs = self._fit()

    def add(self, timings: Sequence[Timing]) -> None:
        """Add timings, and fit the costs again."""
        known = self._file and _read(self._file)  # another program may have added to it
        self._timings = _newest([*(known or self._timings), *timings])
        if self._file is not None:
            _write(self._file, self._timings)
        self.costs = self._fit()

    def _fit(self) -> Costs:
        costs = fit_costs(self._timings, self._ratios)
        return costs if self._has_draft else replace(costs, draft=FREE)


def _newest(timings: Sequence[Timing]) -> list[Timing]:
    return [
        each for part in CostTerm for each in [c for c in timings if c.term is part][-MAX_TIMINGS:]
    ]


def _key(pair: ModelPair) -> str:
    """Identifies both models and the machine."""
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
    """Empty if there is no such file, or a damaged one."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT:
            return []
        rows = stored["timings"] if "timings" in stored else stored["clocked"]  # as older versions
        return _newest([_parse_timing(*row) for row in rows])
    except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return []


def _parse_timing(part: Any, tokens: Any, before: Any, most: Any, seconds: Any) -> Timing:
    counts = int(tokens), int(before), int(most)
    if not 0 < float(seconds) < 1e6 or not all(0 <= count < 1 << 32 for count in counts):
        raise ValueError("not a plausible timing")
    return Timing(CostTerm(part), AttentionWork(*counts), float(seconds))


def _write(file: Path, timings: Sequence[Timing]) -> None:
    rows = [
        [str(c.term), c.work.tokens, c.work.cached, c.work.max_context, round(c.seconds, 6)]
        for c in timings
        if c.seconds >= 1e-6
    ]
    aside = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, suffix=".part", delete=False
        ) as writing:
            aside = Path(writing.name)
            json.dump({"format": FORMAT, "timings": rows}, writing)
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
