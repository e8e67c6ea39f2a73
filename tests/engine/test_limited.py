"""A process with a real memory limit refuses turns that do not fit, runs others, and survives."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tiny

MB = 1_000_000
SCANT = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
WIDE = {**SCANT, "num_hidden_layers": 13, "head_dim": 2048, "max_position_embeddings": 1 << 16}
"""Its cache has 2 x 13 x 2 x 2,048 numbers per token, 426 KB."""
HEAVY = {**SCANT, "hidden_size": 1536, "intermediate_size": 12_288, "head_dim": 64}
"""A draft with 240 MB of weights."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has no such limit")


def saved(
    monkeypatch: pytest.MonkeyPatch, folder: Path, seed: int, changes: dict[str, int]
) -> Path:
    config = {**copy.deepcopy(tiny.CONFIGS["llama"]), **changes}
    monkeypatch.setitem(tiny.CONFIGS, "llama", config)
    path = tiny.save(folder, "llama", seed)
    monkeypatch.undo()
    return path


def run(limit: int, target: Path, draft: Path, gates: int, *modes: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.engine.limited"]
    what = [str(limit), str(target), str(draft), str(gates), *modes]
    # The default on two cores. With one thread, OpenBLAS crashes if an allocation fails. With the
    # threshold that it adapts, glibc keeps much of what was freed, in pieces that nobody can use.
    settings = {"OPENBLAS_NUM_THREADS": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}
    environment = {**os.environ, **settings}
    done = subprocess.run(
        [*command, *what], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_turn_that_does_not_fit_densely_is_refused_and_runs_sparsely(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = saved(monkeypatch, tmp_path / "target", 0, WIDE)
    draft = saved(monkeypatch, tmp_path / "draft", 1, {**SCANT, "max_position_embeddings": 1 << 16})
    full, sparse, auto, again = run(600 * MB, target, draft, 68, "full", "sparse", "auto", "full")

    assert full["event"] == "Failed"
    assert "needs about 8" in full["said"][-1]
    assert "read it sparsely (keep" in full["said"][-1]
    assert "can be read in full" in full["said"][-1]
    assert sparse["event"] == "Finished"
    assert (sparse["reading"], sparse["fallback"]) == ("sparse", False)
    assert sparse["kept"] < 0.2 * sparse["prompt"]
    assert sparse["peak"] > 80 * MB, "a tenth of almost 1 GB"
    assert auto["reading"] == "sparse"
    assert "needs about 8" in auto["reason"]
    assert again["event"] == "Failed"


@pytest.mark.slow
def test_a_forced_turn_stops_before_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = saved(monkeypatch, tmp_path / "target", 0, WIDE)
    draft = saved(monkeypatch, tmp_path / "draft", 1, SCANT)
    modes = ("sparse", "full", "full!", "sparse")
    first, refused, dared, sparse = run(700 * MB, target, draft, 60, *modes)

    assert first["event"] == "Finished"

    assert refused["kinds"].count("PhaseProgress") == 0
    assert dared["event"] == "Failed"
    assert "Memory was nearly used up" in dared["said"][-1]
    assert dared["kinds"].count("PhaseProgress") > 3, "it was started"
    assert sparse["event"] == "Finished", "the process lives"


@pytest.mark.slow
def test_models_that_do_not_fit_together_are_loaded_alternately(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = saved(monkeypatch, tmp_path / "target", 0, HEAVY)
    draft = saved(monkeypatch, tmp_path / "draft", 1, HEAVY)
    weights = (target / "model.safetensors").stat().st_size
    first, second = run(200 * MB + 2 * weights, target, draft, 20, "sparse", "sparse")

    for turn in (first, second):
        assert turn["event"] == "Finished"
        assert (turn["reading"], turn["fallback"]) == ("sparse", False)
        order = [kind for kind in turn["kinds"] if kind in ("Unloaded", "Reloaded", "Selected")]
        assert order[-3:] == ["Selected", "Unloaded", "Reloaded"], "the draft made way"
        assert turn["peak"] < 1.5 * weights, "never both"
    assert "loaded alternately" in first["said"][0]
    assert second["kinds"].index("Reloaded") < second["kinds"].index("Selected")
