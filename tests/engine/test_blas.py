"""OpenBLAS counts only when it was loaded before MLX. Each case needs its own process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.engine.backend import blas


def output(code: str) -> str:
    command = [sys.executable, "-c", f"from app.engine.backend.blas import load_openblas\n{code}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def installed() -> bool:
    try:
        ctypes.CDLL(blas.LIBRARY)
    except OSError:
        return False
    return sys.platform == "linux"


needs_openblas = pytest.mark.skipif(not installed(), reason=f"needs {blas.PACKAGE} on Linux")


@needs_openblas
def test_it_is_loaded_once_and_reported_afterwards() -> None:
    first, second, late = output(
        "print(load_openblas()); print(load_openblas()); import mlx.core; print(load_openblas())"
    ).splitlines()
    assert "libopenblas" in first
    assert first == second == late


@pytest.mark.parametrize(
    ("flags", "kernels"),
    [
        ("flags : fpu avx2 fma avx512f avx512cd avx512bw avx512dq avx512vl", "SKYLAKEX"),
        ("flags : fpu avx2 fma avx512f", "HASWELL"),
        ("flags : fpu sse2", None),
        ("Features : fp asimd", None),
    ],
)
def test_kernels_for_the_cpu(
    flags: str, kernels: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environment := dict[str, str]())
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    blas._choose_kernels(tmp_path / "cpuinfo")
    assert environment.get("OPENBLAS_CORETYPE") == kernels


def test_kernels_that_the_user_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "ZEN")
    (tmp_path / "cpuinfo").write_text("flags : avx2 fma\n")
    blas._choose_kernels(tmp_path / "cpuinfo")
    assert os.environ["OPENBLAS_CORETYPE"] == "ZEN"


def test_after_mlx_it_is_too_late() -> None:
    assert output("import mlx.core, numpy; print(load_openblas())") == "None"


def test_where_it_is_not_installed() -> None:
    code = "import app.engine.backend.blas as b; b.LIBRARY = 'libnone.so'; print(load_openblas())"
    assert output(code) == "None"


def test_never_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.load_openblas() is None


def test_missing_openblas_gets_a_hint() -> None:
    missing = output(
        "from app.engine.backend import blas; blas.LIBRARY = 'libnone.so.0'; load_openblas()\n"
        "import mlx.core as mx; mx.set_default_device(mx.cpu); print(blas.missing_package(True))"
    )
    assert (blas.PACKAGE in missing) == (sys.platform == "linux")


@needs_openblas
def test_nothing_is_advised_where_it_is_in_use() -> None:
    code = "load_openblas(); from app.engine.backend import blas; print(blas.missing_package(True))"
    assert output(code) == "None"
