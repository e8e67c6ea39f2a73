"""What must be the same on all machines."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from app.util.regular_files import open_file, read_file

PACKAGES = ("specchat", "mlx", "mlx-lm")
SAMPLES, SAMPLE_BYTES = 64, 4096
"""Parts of each file of weights that are compared, and their size."""


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def content_fingerprint(folder: Path) -> str:
    """Of a model's files, the same on every machine: of the weights their size and samples, of the
    rest everything. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors":
            digest.update(f"{file.name} {file.stat().st_size}".encode())
            with open_file(file) as weights:
                for index in range(SAMPLES):
                    weights.seek(file.stat().st_size * index // SAMPLES)
                    digest.update(weights.read(SAMPLE_BYTES))
        elif file.suffix in (".json", ".jinja"):
            digest.update(file.name.encode() + read_file(file))
    return digest.hexdigest()
