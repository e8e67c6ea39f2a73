"""The shell command that installs what an optional extra of specchat needs."""

from __future__ import annotations

import shlex
import shutil
import sys
from functools import cache
from importlib.util import find_spec


@cache
def install_command(extra: str) -> str:
    """For this installation: the packages of the `extra` go into the environment that runs."""
    # These are slow to import.
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        every = [Requirement(each) for each in requires("specchat") or ()]
    except PackageNotFoundError:  # run from its folder, without being installed
        every = []
    wanted = [
        str(each).partition(";")[0].strip()
        for each in every
        if each.marker is not None
        and each.marker.evaluate({"extra": extra})
        and not each.marker.evaluate({"extra": ""})
    ]
    packages = [shlex.quote(each) for each in wanted] or [f"'specchat[{extra}]'"]
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None and shutil.which("uv"):
        return " ".join(["uv pip install --python", python, *packages])
    return " ".join([python, "-m pip install", *packages])
