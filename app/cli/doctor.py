"""`specchat doctor`: checks the installation and, if one is named, a model, and reports versions,
memory and folders."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from packaging.requirements import Requirement

from app import paths
from app.chat import wording
from app.chat.model_pairs import resolve_pair as located
from app.cli.options import RUNS, add_models, parse_prompt_length
from app.cli.settings import requested_pair, user_settings
from app.engine.backend import blas
from app.engine.cache.snapshot_folder import MAX_ON_DISK, disk_limit, folder_bytes
from app.errors import UserError
from app.models import embedded
from app.models.check import loaded_bytes
from app.protocol.memory import format_bytes
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.engine.backend.gpu_check import Product
    from app.engine.model.speed_history import MeasuredSpeed

Row = tuple[str, str]
"""One line of the report: a label and a value."""

Finding = tuple[list[Row], list[str]]
"""Rows of the report, and one sentence for each fault."""

PACKAGES = ("mlx", "mlx-lm", "textual")
_REINSTALL = "reinstall specchat, or run make in its checkout"
_INSTALL_MLX = (
    "install MLX's wheel from PyPI with `pip install --force-reinstall mlx` where specchat is"
    " installed, and if that does not help, report it to MLX"
)

STRESS_RUNS, STRESS_LENGTH = 10, "32k"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stress",
        action="store_true",
        help="run a stress test with long prompts instead, and print what to report",
    )
    command.description = (
        "With --target, loads and checks a model as on its first load, replaces the stored result,"
        " and says if it became slower. All other options belong to --stress."
    )
    command.add_argument(
        "--runs", type=RUNS, metavar="N", help=f"number of runs (default {STRESS_RUNS})"
    )
    command.add_argument(
        "--length",
        type=parse_prompt_length,
        metavar="N",
        help=f"prompt tokens (default {STRESS_LENGTH})",
    )
    add_models(command)


def run(args: argparse.Namespace) -> int:
    """Run the checks, or the stress test; returns the exit status. Raises UserError."""
    if args.stress:
        from app.cli.stress import Stress, stress

        target, draft = requested_pair(args.target, args.draft, user_settings())
        located(target, draft)  # raises for models that are not installed
        tokens = args.length or parse_prompt_length(STRESS_LENGTH)
        return stress(
            Stress(args.runs or STRESS_RUNS, tokens, target, draft), paths.logs_path(), sys.stdout
        )
    for name in ("runs", "length", "draft"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} is only for the stress test", "add --stress, or remove it")
    return doctor(sys.stdout, args.target)


def doctor(
    out: TextIO, target: str | None = None, multiply: Callable[[], Product] | None = None
) -> int:
    """Write the report and one sentence for each fault. Return the exit status, 1 for faults.
    `multiply` replaces the check of the GPU. Raises ModelError if `target` is not found."""
    folder = None if target is None else located(target).target
    rows: list[Row] = []
    faults: list[str] = []
    examinations: tuple[Callable[[], Finding], ...] = (
        _versions,
        partial(_mlx, multiply),
        _folders,
        _pair,
    )
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


def _mlx(multiply: Callable[[], Product] | None) -> Finding:
    """Device, BLAS and memory, and whether the GPU multiplies correctly. OpenBLAS must be loaded
    before MLX."""
    library = blas.load_openblas()
    try:
        mx = import_module("mlx.core")
    except (ImportError, OSError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [("device", "none")], [f"MLX cannot be loaded ({what}): {_REINSTALL}."]
    from app.engine.backend import gpu_check
    from app.engine.backend.memory import memory_stats

    info, on_cpu = mx.device_info(), mx.default_device().type == mx.DeviceType.cpu
    name, architecture = (info.get(key, "unknown") for key in ("device_name", "architecture"))
    rows = [("device", f"{'CPU' if on_cpu else 'GPU'}, {name} ({architecture})")]
    if multiply is None and not on_cpu:
        multiply = gpu_check.multiply
    row, faults = _product(multiply)
    rate = f"{blas.matrix_rate() / 1e9:,.0f} GFLOP/s in float32"
    rows += [row, ("matrix products", f"{rate}, {_blas(library)}")]

    now = memory_stats()
    models = f"{format_bytes(now.used)} of {format_bytes(now.ceiling)} for models"
    machine = f"{format_bytes(now.total)} in total, {format_bytes(now.available)} available"
    rows += [
        ("memory", f"{models}; {machine}"),
        ("this process", format_bytes(now.process)),
    ]
    return rows, faults


def _product(multiply: Callable[[], Product] | None) -> tuple[Row, list[str]]:
    """Check a matrix product of the GPU; None if MLX computes on the CPU."""
    from app.engine.backend.gpu_check import MAX_ERROR
    from app.engine.backend.memory import cause_of

    label = "bfloat16 product"
    if multiply is None:
        return (label, "not compared, since MLX computes on the CPU here"), []
    try:
        product = multiply()
    except RuntimeError as error:
        fault = f"MLX fails on this GPU ({wording.cause(cause_of(error))}): {_INSTALL_MLX}."
        return (label, "failed"), [fault]
    speed = f"{product.rate / 1e12:,.1f} TFLOP/s"
    if product.error <= MAX_ERROR:
        return (label, f"as on the CPU (within {product.error:.1%}), {speed}"), []
    return (label, f"wrong (differs by {product.error:.0%} from the CPU's), {speed}"), [
        "MLX computes wrong matrix products on this GPU, so answers are wrong although nothing"
        f" fails: {_INSTALL_MLX}."
    ]


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
    except UserError:  # reported elsewhere
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
    """Repeat all checks of a model's first load."""
    from app.engine.backend import mlx_patches
    from app.engine.backend.memory import NotEnoughMemory
    from app.engine.cache.prefill import device_backend
    from app.engine.model import speed_history
    from app.engine.model.findings import findings_record
    from app.engine.model.loader import fingerprint, load_one
    from app.engine.model.speed_history import SpeedHistory
    from app.engine.progress import LoadError
    from app.sandbox.process import TextError, TextProcess

    mlx_patches.install()
    records, texts, backend = paths.costs_path(), TextProcess(), device_backend()
    findings_record(records, fingerprint(folder), backend).forget()
    start = time.perf_counter()
    try:
        model = load_one(
            str(folder), name, None, text_process=texts, probes=True, remembered=records
        )
    except (LoadError, NotEnoughMemory) as error:
        fault = wording.failure(error.failure).sentence
        return [("model", f"{name} (damaged or too large)")], [fault]
    except TextError as error:
        fault = f"{error}: choose another model."
        return [("model", f"{name} (damaged or too large)")], [fault]
    finally:
        texts.close()
    loaded = f"{name}, loaded and checked in {time.perf_counter() - start:.1f} s"
    sparse = "supported"
    if model.dense_only is not None:
        sparse = wording.reason(model.dense_only)
    rows = [
        ("model", loaded),
        ("weights", f"{format_bytes(model.info.weight_bytes)}, all finite"),
        ("cache", f"{model.cache_size.bytes(1000) / 1e6:,.1f} MB for 1,000 tokens"),
        ("sparse reading", sparse),
    ]
    now = speed_history.measure(model, backend)
    reading = ", ".join(f"{n:,} tokens at {rate:,.0f}/s" for n, rate in now.reading.items())
    rows.append(("speed", f"reads {reading}; writes {now.writing:,.0f} tokens/s"))
    earlier = SpeedHistory(records, model.fingerprint, backend).add(now)
    return rows, [] if earlier is None else [_slower(now, earlier)]


def _slower(now: MeasuredSpeed, earlier: MeasuredSpeed) -> str:
    what = f"The model is slower than on {earlier.date}: {now.slower_than(earlier)}. "
    if now.versions == earlier.versions:
        return f"{what}Close other programs, and run this again."
    return (
        f"{what}Close other programs, and run this again. If it stays slower, install the versions"
        f" of then ({earlier.versions}; now {now.versions})."
    )


def _pair() -> Finding:
    faults = embedded.integrity()
    return [("demo model", "damaged" if faults else "intact")], list(faults)
