"""A folder as package index, with a package that carries a tiny model in two parts."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from app.models.packaged import Package, PackagedModel
from tests.extras.gguf.making import write_gguf


def packaged_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """pip finds its packages in `folder`, and looks nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    folder.mkdir()
    whole = folder / "tiny.gguf"
    write_gguf(whole)
    content = whole.read_bytes()
    whole.unlink()
    middle = len(content) // 2
    parts = (content[:middle], content[middle:])
    packages = tuple(
        _write_package(folder, f"tiny-part{number}", f"tiny.gguf.part{number}", part)
        for number, part in enumerate(parts, 1)
    )
    return PackagedModel("local/tiny", packages, len(content), "MIT")


def _write_package(folder: Path, name: str, file: str, content: bytes) -> Package:
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "raise AssertionError('this is never run')\n")
        wheel.writestr(f"{module}/{file}", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return Package(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest())
