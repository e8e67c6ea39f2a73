"""`specchat doctor`: checks the installation, and a model if one is named, and reports versions,
memory and folders."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TextIO

from packaging.requirements import Requirement

from app import paths
from app.chat.model_pairs import resolve_pair as located
from app.cli.settings import user_settings
from app.engine import blas
from app.engine.snapshot_folder import MAX_ON_DISK, disk_limit, folder_bytes
from app.errors import UserError
from app.models import embedded
from app.models.weights import loaded_bytes
from app.protocol.memory import format_bytes
from app.util.sanitize import sanitize_line

Row = tuple[str, str]
"""One line of the report: a label and a value."""

Finding = tuple[list[Row], list[str]]
"""Rows of the report, and one sentence for each fault."""

PACKAGES = ("mlx", "mlx-lm", "textual")
_REINSTALL = "reinstall specchat, or run make in its checkout"


def only_for_stress(options: Namespace) -> None:
    """Raises UserError for options that only apply to `--stress`."""
    for name in ("runs", "length", "draft"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} is only for the stress test", "add --stress, or remove it")


def doctor(out: TextIO, target: str | None = None) -> int:
    """Write the report and one sentence for each fault. Returns the exit status: 1 for faults.
    Raises ModelError if there is no such `target`."""
    folder = None if target is None else located(target).target
    rows: list[Row] = []
    faults: list[str] = []
    examinations: tuple[Callable[[], Finding], ...] = (_versions, _mlx, _folders, _pair)
    if folder is not None:
        examinations += (partial(_model, target or "", Path(folder)),)
    for examine in examinations:
        new_rows, new_faults = examine()
        rows += new_rows
        faults += new_faults
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        out.write(f"{label:<{width}}  {sanitize_line(value)}\n")
    out.write("\n")
    for sentence in faults or ["No problems found."]:
        out.write(f"{sanitize_line(sentence)}\n")
    return 1 if faults else 0


# --------------------------------------------------------------------------- versions


def _versions() -> Finding:
    rows = [("specchat", _version("specchat") or "not installed, running from source")]
    rows += [("Python", f"{platform.python_version()}, {platform.platform(terse=True)}")]
    rows += [(name, _version(name) or "missing") for name in PACKAGES]
    rows += [("SQLite", sqlite3.sqlite_version)]
    return rows, list(_version_faults(_requirements()))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[Requirement]:
    """specchat's own requirements on this machine."""
    try:
        lines = metadata.requires("specchat") or []
    except metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(line) for line in lines]
    return [each for each in requirements if each.marker is None or each.marker.evaluate()]


def _version_faults(requirements: Iterable[Requirement]) -> Iterable[str]:
    for requirement in requirements:
        version = _version(requirement.name)
        if version is None:
            yield f"{requirement.name} is missing: {_REINSTALL}."
        elif not requirement.specifier.contains(version, prereleases=True):
            yield (
                f"{requirement.name} is {version}, but specchat needs"
                f" {requirement.specifier}: {_REINSTALL}."
            )


# --------------------------------------------------------------------------- MLX


def _mlx() -> Finding:
    """Device, BLAS and memory. OpenBLAS must be loaded before MLX."""
    library = blas.load_openblas()
    try:
        import mlx.core as mx
    except (ImportError, OSError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [("device", "none")], [f"MLX cannot be loaded ({what}): {_REINSTALL}."]
    device = mx.default_device()
    info = mx.device_info()
    on_cpu = device == mx.Device(mx.cpu)
    rows = [("device", f"{'CPU' if on_cpu else 'GPU'}, {info.get('device_name', 'unknown')}")]
    from app.engine.memory import memory_stats

    rate = f"{blas.matrix_rate() / 1e9:,.0f} GFLOP/s in float32"
    rows.append(("matrix products", f"{rate}, {_blas(library)}"))

    now = memory_stats()
    models = f"{format_bytes(now.used)} of {format_bytes(now.ceiling)} for models"
    machine = f"{format_bytes(now.total)} in total, {format_bytes(now.available)} available"
    rows += [
        ("memory", f"{models}; {machine}"),
        ("this process", format_bytes(now.process)),
    ]
    return rows, []


def _blas(library: str | None) -> str:
    if library is not None:
        return f"OpenBLAS ({library})"
    if sys.platform == "linux":
        return f"MLX's own BLAS (install {blas.PACKAGE} for a faster CPU)"
    return "MLX's own"


# --------------------------------------------------------------------------- folders and the pair


def _folders() -> Finding:
    folders = {
        "data folder": paths.data_path(),
        "cache folder": paths.cache_path(),
        "settings folder": paths.config_path(),
        "log folder": paths.logs_path(),
    }
    rows: list[Row] = []
    faults: list[str] = []
    for label, folder in folders.items():
        state = _folder_state(folder)
        used = f", {_cached()}" if label == "cache folder" else ""
        rows.append((label, f"{folder} ({state}{used})"))
        if state == "not writable":
            faults.append(f"The {label} '{folder}' is not writable: check its permissions.")
    return rows, faults


def _cached() -> str:
    """The size and limit of the cache folder: `1.1 of 20.0 GB`."""
    weights = 0
    limit, note = MAX_ON_DISK, ""
    try:
        settings = user_settings()
        found = located(settings.models.target, settings.models.draft or None)
        weights = sum(loaded_bytes(Path(path)) for path in (found.target, found.draft) if path)
        requested = settings.cache_policy(None).disk_budget
        limit = disk_limit(requested, paths.snapshots_path(), weights)
    except UserError:  # reported elsewhere; the size is still known
        note = "up to "
    return f"{folder_bytes(paths.cache_path()) / 1e9:.1f} of {note}{limit / 1e9:.1f} GB"


def _folder_state(folder: Path) -> str:
    """Whether files can be written there, or the folder can be created."""
    if folder.exists():
        writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        return "writable" if writable else "not writable"
    parent = next(each for each in folder.parents if each.exists())
    writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
    return "created when needed" if writable else "not writable"


def _model(name: str, folder: Path) -> Finding:
    """Everything that a model's first load checks, again."""
    from app.engine import mlx_patches
    from app.engine.findings import FindingsRecord
    from app.engine.loader import LoadError, fingerprint, load_one
    from app.engine.memory import NotEnoughMemory
    from app.engine.prefill import device_backend
    from app.sandbox.process import TextError, TextProcess

    mlx_patches.install()
    records, texts = paths.costs_path(), TextProcess()
    FindingsRecord(records, fingerprint(folder), device_backend()).forget()
    start = time.perf_counter()
    try:
        model = load_one(
            str(folder), name, None, text_process=texts, probes=True, remembered=records
        )
    except (LoadError, NotEnoughMemory, TextError) as error:
        advice = getattr(error, "advice", "") or "choose another model"
        return [("model", f"{name} (damaged or too large)")], [f"{error}: {advice}."]
    finally:
        texts.close()
    loaded = f"{name}, loaded and checked in {time.perf_counter() - start:.1f} s"
    rows = [
        ("model", loaded),
        ("weights", f"{format_bytes(model.info.weight_bytes)}, all of them numbers"),
        ("cache", f"{model.cache_size.bytes(1000) / 1e6:,.1f} MB for 1,000 tokens"),
        ("sparse reading", model.dense_only or "works: gaps change no answer"),
    ]
    if model.speed is not None:
        each = f"{1 / model.speed.per_token:,.0f} tokens/s"
        rows.append(
            ("first estimate", f"{each} read, {1 / model.speed.step:,.0f} tokens/s written")
        )
    return rows, []


def _pair() -> Finding:
    faults = embedded.integrity()
    return [("embedded pair", "damaged" if faults else "intact")], list(faults)
