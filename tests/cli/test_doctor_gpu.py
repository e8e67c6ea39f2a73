"""`specchat doctor` finds a build of MLX that multiplies wrongly on a Mac's GPU."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from app.cli.doctor import _product, doctor
from app.engine.backend import gpu_check
from app.engine.backend.gpu_check import Product, row_error
from tests.cli.test_doctor import healthy
from tests.tables import table

__all__ = ["healthy"]

GOOD = Product(error=0.0018, seconds=0.001)
WRONG = replace(GOOD, error=1.4)


def broken() -> Product:
    raise RuntimeError("[METAL] Ignored (for causing prior/excessive GPU errors)")


@table(
    "multiply, said, fault",
    [
        (lambda: GOOD, "as on the CPU (within 0.2%), 34.4 TFLOP/s", ""),
        (
            lambda: WRONG,
            "wrong (differs by 140% from the CPU's), 34.4 TFLOP/s",
            "answers are wrong although nothing fails: install MLX's wheel from PyPI",
        ),
        (lambda: replace(GOOD, error=np.nan), "wrong", "wrong matrix"),
        (
            broken,
            "failed",
            "MLX fails on this GPU (the system stopped its work on the GPU): install MLX's",
        ),
    ],
)
def test_what_it_says_of_a_gpu(multiply: Callable[[], Product], said: str, fault: str) -> None:
    row, faults = _product(multiply)
    assert said in row[1]
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)
    assert all(each.endswith(".") for each in faults)


def test_a_wrong_product_is_a_failed_check() -> None:
    out = io.StringIO()
    assert doctor(out, multiply=lambda: WRONG) == 1
    assert "MLX computes wrong matrix products" in out.getvalue().splitlines()[-1]
    assert doctor(io.StringIO(), multiply=lambda: GOOD) == 0


def test_where_mlx_computes_on_the_cpu_nothing_is_claimed() -> None:
    """As here, where tests run on a CPU."""
    out = io.StringIO()
    assert doctor(out) == 0
    assert "not compared, since MLX computes on the CPU here" in out.getvalue()


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
