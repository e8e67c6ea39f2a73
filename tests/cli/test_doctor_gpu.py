"""`specchat doctor` finds a build of MLX that multiplies wrongly or slowly on a Mac's GPU."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from app.cli.doctor import _gpu, doctor
from app.engine.backend import gpu_check
from app.engine.backend.gpu_check import (
    Build,
    Device,
    GpuProbe,
    Origin,
    Product,
    installed_build,
    row_error,
)
from tests.cli.test_doctor import healthy
from tests.tables import table

__all__ = ["healthy"]

M5 = Device("Apple M5 Max", "applegpu_g17s", on_cpu=False, macos=(26, 4))
M2 = replace(M5, name="Apple M2 Pro", architecture="applegpu_g14s")
WHEEL = Build("0.32.4", Origin.WHEEL, "macosx_26_0_arm64", has_nax=True)
BREW = Build("0.32.0", Origin.HOMEBREW, "macosx_26_0_arm64", has_nax=False)
GOOD = Product(error=0.0018, seconds=0.001, float32_seconds=0.0039)
SLOW = replace(GOOD, seconds=0.0037)
WRONG = replace(GOOD, error=1.4)
OLD_WHEEL = replace(WHEEL, tag="macosx_15_0_arm64", has_nax=False)


@dataclass
class ScriptedGpu:
    its_device: Device = M5
    its_build: Build = WHEEL
    product: Product | Exception | None = GOOD

    def device(self) -> Device:
        return self.its_device

    def build(self) -> Build:
        return self.its_build

    def multiply(self) -> Product | None:
        if isinstance(self.product, Exception):
            raise self.product
        return self.product


BY_PIP = "install MLX's wheel from PyPI: `pip install --force-reinstall mlx` where specchat is"
CASES: dict[str, tuple[ScriptedGpu, str, str, str]] = {
    # the GPU, the row on its accelerators, that on the product, and the fault
    "an M5 that is well": (ScriptedGpu(), "used", "as on the CPU (within 0.2%), 34.4 TFLOP/s", ""),
    "a wrong result": (
        ScriptedGpu(its_build=replace(BREW, origin=Origin.SOURCE, has_nax=True), product=WRONG),
        "used",
        "wrong (differs by 140% from the CPU's)",
        f"answers are wrong although nothing fails: {BY_PIP}",
    ),
    "no number": (
        ScriptedGpu(product=replace(GOOD, error=np.nan)),
        "used",
        "wrong",
        "wrong matrix",
    ),
    "a wrong wheel": (ScriptedGpu(product=WRONG), "used", "wrong", "report it to MLX"),
    "a slow result": (
        ScriptedGpu(product=SLOW),
        "not used: this MLX is too slow to use them",
        "1.1 times as fast as float32",
        "does not use this chip's neural accelerators",
    ),
    "Homebrew's build": (
        ScriptedGpu(its_build=BREW, product=SLOW),
        "not used: this MLX has no kernels for them",
        "as on the CPU",
        f"MLX 0.32.0 (built by Homebrew) does not use this chip's neural accelerators, so reading"
        f" takes several times as long: {BY_PIP}",
    ),
    "the wheel of an older macOS": (
        ScriptedGpu(its_build=OLD_WHEEL, product=SLOW),
        "not used: this MLX has no kernels for them",
        "as on the CPU",
        "run `pip install --upgrade pip` and",
    ),
    "an M5 with an older macOS": (
        ScriptedGpu(replace(M5, macos=(26, 1)), OLD_WHEEL, SLOW),
        "not used: they need macOS 26.2 or later",
        "as on the CPU",
        "",
    ),
    "an older chip": (
        ScriptedGpu(M2, BREW, SLOW),
        "this chip has none",
        "1.1 times as fast as float32",
        "",
    ),
    "a phone's GPU of that generation": (
        ScriptedGpu(replace(M5, architecture="applegpu_g17p"), product=SLOW),
        "this chip has none",
        "as on the CPU",
        "",
    ),
    "an error": (
        ScriptedGpu(
            product=RuntimeError("[METAL] Ignored (for causing prior/excessive GPU errors)")
        ),
        "",
        "failed",
        "MLX fails on this GPU (the system stopped its work on the GPU): run `pip",
    ),
}


@table("name", CASES)
def test_what_it_says_of_a_gpu(name: str) -> None:
    gpu, accelerators, product, fault = CASES[name]
    rows, faults = _gpu(gpu)
    report = dict(rows)
    assert report.get("neural accelerators", "") == accelerators
    assert product in report["bfloat16 product"]
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)
    assert all(each.endswith(".") for each in faults)
    assert report["device"].startswith(f"GPU, {gpu.its_device.name} (applegpu_g1")
    assert ", macOS 26." in report["device"]
    assert gpu.its_build.version in report["MLX build"]
    assert str(gpu.its_build.origin) in report["MLX build"]


def test_a_wrong_product_is_a_failed_check() -> None:
    out = io.StringIO()
    assert doctor(out, gpu=ScriptedGpu(product=WRONG)) == 1
    assert "MLX computes wrong matrix products" in out.getvalue().splitlines()[-1]
    assert doctor(io.StringIO(), gpu=ScriptedGpu()) == 0


def test_where_mlx_computes_on_the_cpu_nothing_is_claimed() -> None:
    """As here, where tests run on a CPU."""
    rows, faults = _gpu(GpuProbe())
    assert dict(rows)["bfloat16 product"] == "not compared, since MLX computes on the CPU here"
    assert "neural accelerators" not in dict(rows)
    assert not faults


def test_the_product_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding to bfloat16 is far from a fault, one row in the wrong place is one."""
    monkeypatch.setattr(gpu_check, "WIDTH", 64)
    monkeypatch.setattr(gpu_check, "ROWS", 32)
    found = gpu_check.multiply()
    assert 0 < found.error < gpu_check.MAX_ERROR / 2
    assert found.seconds > 0
    exact = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    moved = exact.copy()
    moved[5] = exact[6]
    assert row_error(exact, exact) == 0
    assert row_error(moved, exact) > 100 * gpu_check.MAX_ERROR
    moved[5, 0] = np.nan
    assert not row_error(moved, exact) <= gpu_check.MAX_ERROR


def package(folder: Path, name: str, version: str, **files: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / file.replace("_json", ".json")).write_text(text)


TAG = "Wheel-Version: 1.0\nTag: {}-macosx_26_0_arm64\n"
PLACES: dict[str, tuple[str, str, bool, dict[str, str], Origin]] = {
    # the folder, the version, whether there is mlx-metal, files, and what that is
    "pip": ("venv", "0.32.4", True, {"INSTALLER": "uv"}, Origin.WHEEL),
    "pip in Homebrew's Python": ("opt/homebrew/lib", "0.32.4", True, {}, Origin.WHEEL),
    "Homebrew": (
        "opt/homebrew/Cellar/mlx",
        "0.32.0",
        False,
        {"direct_url_json": "{}"},
        Origin.HOMEBREW,
    ),
    "a clone": ("venv", "0.32.4.dev20260801+846d176", False, {}, Origin.SOURCE),
    "a clone's release": ("venv", "0.32.4", True, {"direct_url_json": "{}"}, Origin.SOURCE),
    "conda": ("conda", "0.32.4", False, {"INSTALLER": "conda\n"}, Origin.CONDA),
}


@table("name", PLACES)
def test_where_mlx_comes_from(tmp_path: Path, name: str) -> None:
    place, version, metal, files, origin = PLACES[name]
    folder = tmp_path / str([*PLACES].index(name)) / place
    package(folder, "mlx", version, WHEEL=TAG.format("cp313-cp313"), **files)
    if metal:
        package(folder, "mlx-metal", version, WHEEL=TAG.format("py3-none"))

    def find(wanted: str) -> metadata.Distribution:
        found = metadata.distributions(name=wanted, path=[str(folder)])
        for distribution in found:
            return distribution
        raise metadata.PackageNotFoundError(wanted)

    library = tmp_path / "mlx.metallib"
    library.write_bytes(b"\0" * 5000 + b"steel_gemm_fused_nax_nt_bfloat16" + b"\0" * 5000)
    with_nax = installed_build(find, (library,))
    assert with_nax == Build(version, origin, "macosx_26_0_arm64", has_nax=True)
    library.write_bytes(b"\0" * 5000 + b"steel_gemm_fused_nt_bfloat16")
    assert installed_build(find, (library,)).has_nax is False
    assert installed_build(find).has_nax is None
