"""requirements.lock as data, and which of its packages specchat needs where."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PYTHON = "3.13"
"""The Python that the Homebrew formula runs on."""

_POSIX = {
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "python_version": PYTHON,
    "python_full_version": f"{PYTHON}.0",
    "implementation_version": f"{PYTHON}.0",
}
MAC = {**_POSIX, "sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"}
LINUX = {
    **_POSIX,
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}

Environment = Mapping[str, str]
"""What markers ask about a machine."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of the lock; `hashes` are SHA-256, one for every file of that version."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]

    def holds_in(self, environment: Environment) -> bool:
        return self.marker is None or Marker(self.marker).evaluate(dict(environment))


def read(text: str | None = None) -> tuple[Pin, ...]:
    """All pins of the lock, or of `text` in its form. One name may be pinned several times, under
    markers that exclude each other."""
    lines = (LOCK.read_text(encoding="utf-8") if text is None else text).replace("\\\n", " ")
    pins = []
    for line in lines.splitlines():
        if (
            found := re.match(r"([a-z0-9-]+)==(\S+)\s*(?:;\s*(.+?)\s*)?(?=--hash|$)", line)
        ) is None:
            continue
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", line)
        pins.append(Pin(found[1], found[2], found[3], tuple(hashes)))
    return tuple(pins)


def project() -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    return table


def closure(
    wanted: Iterable[str], requires: Callable[[str], Iterable[str]], environment: Environment
) -> dict[str, set[str]]:
    """Everything that the requirement lines `wanted` bring in, each with what it needs itself.
    `requires` gives a package's own requirement lines."""
    needed: dict[str, set[str]] = {}
    asked: set[tuple[str, str]] = set()

    def visit(line: str, extra: str) -> str | None:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and not marker.evaluate({**environment, "extra": extra}):
            return None
        name = canonicalize_name(requirement.name)
        needed.setdefault(name, set())
        for each in ("", *sorted(requirement.extras)):
            if (name, each) not in asked:
                asked.add((name, each))
                needed[name] |= {found for own in requires(name) if (found := visit(own, each))}
        return name

    for line in wanted:
        visit(line, "")
    return needed
