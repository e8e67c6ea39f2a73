"""`specchat bench all`: every measurement in a process of its own, so that caches and peaks of one
are none of another's, and the report of them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from app.bench.performance import ENTRIES, Entry, Measured, report, with_figures
from app.cli.exit_codes import INTERRUPTED
from app.errors import UserError
from app.util.sanitize import sanitize, sanitize_line

PROGRAM = (sys.executable, "-P", "-m", "app", "bench")
PATIENCE = 10.0
"""Seconds in which one that was stopped may end."""


def bench_all(options: argparse.Namespace, program: Sequence[str] = PROGRAM) -> int:
    """Returns the exit status: 1 where one has failed. Raises UserError."""
    entries, path = _chosen(options.only), options.report
    kept = path.with_suffix("")
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{kept} cannot be made ({error.strerror})", "name another file") from error
    for number, entry in enumerate(entries, 1):
        _say(f"{number}/{len(entries)} {entry.command(options.quick)}")
        begun = time.monotonic()
        try:
            found = _measured(entry, options.quick, program)
        except KeyboardInterrupt:
            return _stopped(entries[number - 1 :], path)
        _keep(kept / f"{entry.name}.json", found)
        _say(found.failed or f"    {time.monotonic() - begun:.0f} s")
    measured = _kept(kept)
    content, pictures = report(measured, kept.name)
    for name, picture in pictures.items():
        _write(kept / name, picture)
    _write(path, content)
    if options.readme is not None:
        _write_figures(options.readme, measured.get("overhead"))
    sys.stdout.write(f"{sanitize_line(str(path))}\n")
    return int(any(found.figures is None for found in measured.values()))


def _write_figures(readme: Path, overhead: Measured | None) -> None:
    if overhead is None or overhead.figures is None:
        raise UserError("There are no figures of `bench overhead`", "measure with --only overhead")
    try:
        _write(readme, with_figures(readme.read_text(encoding="utf-8"), overhead.figures))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{readme} cannot get its figures ({error})", "name another file"
        ) from error


def _chosen(names: str | None) -> tuple[Entry, ...]:
    if names is None:
        return ENTRIES
    known = {entry.name: entry for entry in ENTRIES}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise UserError(f"{name!r} is not measured", f"choose of {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(wanted))


def _measured(entry: Entry, quick: bool, program: Sequence[str]) -> Measured:
    command = entry.command(quick)
    words = [*program, *entry.arguments(quick), "--json"]
    pipe = subprocess.PIPE
    child = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True)
    try:
        out, errors = child.communicate()
    except KeyboardInterrupt:  # the terminal told it, too; it ends what it has started
        try:
            child.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    try:
        if child.returncode == 0:
            return Measured(command, json.loads(out.splitlines()[-1]))
    except (ValueError, IndexError):
        errors = "what it printed is no JSON"
    said = errors.strip().splitlines()[-1:] or ["it said nothing"]
    return Measured(command, None, f"{said[0]} (exit status {child.returncode}).")


def _stopped(rest: Sequence[Entry], path: Path) -> int:
    names = ",".join(entry.name for entry in rest)
    _say(f"Stopped. Go on with: specchat bench all --report {path} --only {names}")
    return INTERRUPTED


def _keep(path: Path, found: Measured) -> None:
    content = {"command": found.command, "figures": found.figures, "failed": found.failed}
    _write(path, json.dumps(content, indent=1) + "\n")


def _kept(folder: Path) -> dict[str, Measured]:
    found = {}
    for entry in ENTRIES:
        path = folder / f"{entry.name}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            found[entry.name] = Measured(**content)
    return found


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def _say(words: str) -> None:
    sys.stderr.write(sanitize(words) + "\n")
