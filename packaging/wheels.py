"""Finds the wheel of every locked package for Macs with Apple silicon, and writes wheels.json.

    python packaging/wheels.py

Run it after requirements.lock changed; it asks pip, so it needs the network. The file says of each
wheel its name, its SHA-256, which must be in the lock, and its BLAKE2b digest, which is the place
where the public registry keeps it. `formula.py` and `sbom.py` need no network then.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import lock

FILE = lock.ROOT / "packaging" / "wheels.json"
MACOS = (14, 15, 26)
"""Versions of macOS for which MLX builds apart."""


def main() -> int:
    pins = {pin.name: pin for pin in lock.read() if pin.holds_in(lock.MAC)}
    with tempfile.TemporaryDirectory() as folder:
        oldest = _Downloads(pins, Path(folder), MACOS[0])
        wanted: Any = lock.project()["dependencies"]
        needed = sorted(lock.closure(wanted, oldest.requires, lock.MAC))
        versions = [oldest, *(_Downloads(pins, Path(folder), each) for each in MACOS[1:])]
        wheels = [_described(name, pins[name].version, versions) for name in needed]
    FILE.write_text(json.dumps(wheels, indent=1) + "\n", encoding="utf-8")
    print(f"{len(wheels)} packages are in {FILE.relative_to(lock.ROOT)}")
    return 0


class _Downloads:
    """Wheels for one version of macOS, fetched when they are asked for."""

    def __init__(self, pins: dict[str, lock.Pin], folder: Path, macos: int) -> None:
        self._pins, self._folder, self.macos = pins, folder / str(macos), macos
        self._paths: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        if name not in self._paths:
            pin = self._pins[name]
            folder = self._folder / name
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary=:all:", "--python-version", lock.PYTHON]
            command += ["--platform", f"macosx_{self.macos}_0_arm64", "--dest", str(folder)]
            subprocess.run([*command, f"{pin.name}=={pin.version}"], check=True)
            (self._paths[name],) = folder.iterdir()
        return self._paths[name]

    def requires(self, name: str) -> list[str]:
        with zipfile.ZipFile(self.path(name)) as wheel:
            (metadata,) = (each for each in wheel.namelist() if each.endswith("-info/METADATA"))
            headers = HeaderParser().parsestr(wheel.read(metadata).decode("utf-8"))
        return headers.get_all("Requires-Dist") or []


def _described(name: str, version: str, downloads: list[_Downloads]) -> dict[str, Any]:
    """A package with its files, each under the oldest macOS that it is for."""
    files: dict[str, dict[str, Any]] = {}
    pure = downloads[0].path(name).name.endswith("-none-any.whl")
    for each in downloads[:1] if pure else downloads:
        path = each.path(name)
        data = path.read_bytes()
        digests = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "blake2b": hashlib.blake2b(data, digest_size=32).hexdigest(),
        }
        files.setdefault(path.name, {"macos": each.macos, "file": path.name, **digests})
    requires = downloads[0].requires(name)
    return {"name": name, "version": version, "requires": requires, "files": [*files.values()]}


if __name__ == "__main__":
    sys.exit(main())
