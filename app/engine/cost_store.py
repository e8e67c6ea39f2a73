"""The timings of the loaded model pair on this machine, and how sure it was of its last answers,
stored for later starts.

One file per pair and machine. It only saves time: an unreadable file counts as missing. Two
programs may write the same file: each adds to what is in it, and replaces it atomically.
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
from statistics import median
from typing import Any, NamedTuple

from app.engine.cost_fit import MAX_TIMINGS, fit_costs
from app.engine.loader import ModelPair
from app.protocol.cost_model import FREE, AttentionWork, Costs, CostTerm, Timing

FORMAT = 2
MAX_FILES = 40
"""The most recently used ones."""
ANSWERS = 32
"""The last answers, whose confidence is the usual one."""
FEWEST_ANSWERS = 8
"""With fewer it is unknown."""


class _Stored(NamedTuple):
    timings: list[Timing]
    confidences: list[float]
    """Of the last answers, 0..1."""


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
        self._stored = _Stored([], []) if self._file is None else _read(self._file)
        self.costs = self._fit()

    @property
    def usual_confidence(self) -> float | None:
        """The median of the last answers' confidence, 0..1; None after too few of them."""
        known = self._stored.confidences
        return median(known) if len(known) >= FEWEST_ANSWERS else None

    def add(self, timings: Sequence[Timing], confidences: Sequence[float] = ()) -> None:
        """Add timings and answers' confidences, and fit the costs again."""
        known = self._stored
        if self._file is not None and (found := _read(self._file)) != ([], []):
            known = found  # another program may have added to it
        self._stored = _Stored(
            _newest([*known.timings, *timings]), [*known.confidences, *confidences][-ANSWERS:]
        )
        if self._file is not None:
            _write(self._file, self._stored)
        self.costs = self._fit()

    def _fit(self) -> Costs:
        costs = fit_costs(self._stored.timings, self._ratios)
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


def _read(file: Path) -> _Stored:
    """Empty if there is no such file, or a damaged one."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT:
            return _Stored([], [])
        rows = stored["timings"] if "timings" in stored else stored["clocked"]  # as older versions
        confidences = [float(each) for each in stored.get("confidences", ())]
        if not all(0 <= each <= 1 for each in confidences):
            raise ValueError("not a probability")
        return _Stored(_newest([_parse_timing(*row) for row in rows]), confidences[-ANSWERS:])
    except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return _Stored([], [])


def _parse_timing(part: Any, tokens: Any, before: Any, most: Any, seconds: Any) -> Timing:
    counts = int(tokens), int(before), int(most)
    if not 0 < float(seconds) < 1e6 or not all(0 <= count < 1 << 32 for count in counts):
        raise ValueError("not a plausible timing")
    return Timing(CostTerm(part), AttentionWork(*counts), float(seconds))


def _write(file: Path, stored: _Stored) -> None:
    rows = [
        [str(c.term), c.work.tokens, c.work.cached, c.work.max_context, round(c.seconds, 6)]
        for c in stored.timings
        if c.seconds >= 1e-6
    ]
    aside = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, suffix=".part", delete=False
        ) as writing:
            aside = Path(writing.name)
            confidences = [round(each, 4) for each in stored.confidences]
            json.dump({"format": FORMAT, "timings": rows, "confidences": confidences}, writing)
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
