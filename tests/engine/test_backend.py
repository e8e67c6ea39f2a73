"""Memory probes, OpenBLAS and kernel folders. Of the macOS code, only parts that run anywhere."""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil
import pytest

from app.engine.backend import blas, memory, memory_probes
from app.engine.backend.memory_probes import (
    LinuxProbe,
    MacProbe,
    ProcessLimit,
    SwapRate,
    SystemPressure,
    stall_percentages,
    system_probe,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's files")
QUIET = "some avg10=0.00 avg60=1.00 avg300=0.00 total=8\nfull avg10=0.00 avg60=0 avg300=0 total=7\n"


def test_the_probe_reads_this_system() -> None:
    read = system_probe().read()
    assert 0 <= read.used <= read.ceiling
    assert 0 < read.ceiling <= psutil.virtual_memory().total
    assert memory_probes.available() > 0
    assert read.system in tuple(SystemPressure)


@linux
@pytest.mark.parametrize(
    ("some", "full", "left", "level"),
    [
        ("0.00", "0.00", 90, SystemPressure.NORMAL),
        ("30.5", "3.0", 90, SystemPressure.WARN),
        ("60", "41.2", 90, SystemPressure.WARN),
        ("60", "41.2", 9, SystemPressure.CRITICAL),
    ],
)
def test_stalls_raise_the_pressure_level(
    some: str,
    full: str,
    left: int,
    level: SystemPressure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plenty = psutil.virtual_memory()._replace(total=100, available=left)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: plenty)
    file = tmp_path / "memory"
    file.write_text(QUIET.replace("some avg10=0.00", f"some avg10={some}"))
    file.write_text(file.read_text().replace("full avg10=0.00", f"full avg10={full}"))
    assert stall_percentages(file.read_text()) == {"some": float(some), "full": float(full)}
    assert LinuxProbe(file)._level() is level


@linux
@pytest.mark.parametrize(
    ("left", "level"),
    [(6, SystemPressure.NORMAL), (4, SystemPressure.WARN), (2, SystemPressure.CRITICAL)],
)
def test_without_stall_information_available_memory_decides(
    left: int, level: SystemPressure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()._replace(total=100, available=left)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert LinuxProbe(tmp_path / "none")._level() is level


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_limits_of_a_control_group_and_its_parents_are_found(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    group(
        tmp_path / "fs/a",
        {
            "memory.max": "900\n",
            "memory.current": "700\n",
            "memory.stat": "x 1\ninactive_file 50\n",
        },
    )
    group(tmp_path / "fs/a/b", {"memory.max": "max\n", "memory.current": "1\n", "memory.stat": ""})
    assert list(memory_probes._cgroup_limits(tmp_path / "fs", own)) == [ProcessLimit(900, 650)]


def test_limits_of_a_version_1_control_group_are_found(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("9:name=systemd:/\n4:cpu,memory:/x\n0::/\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    inner = dict(zip(names, ("900", "1000", "inactive_file 0"), strict=True))
    none = dict(zip(names, (str((1 << 63) - 4096), "1000", ""), strict=True))
    group(tmp_path / "fs/memory/x", inner)
    group(tmp_path / "fs/memory", none)
    (found,) = memory_probes._cgroup_limits(tmp_path / "fs", own)
    assert found.free == 0
    assert not list(memory_probes._cgroup_limits(tmp_path / "fs", tmp_path / "missing"))


CHILD = """
import resource, sys
resource.setrlimit(resource.{kind}, (3_000_000_000, resource.RLIM_INFINITY))
from app.engine.backend import memory_probes as probes
limit = probes.process_limit()
print(limit.limit, limit.used, probes.ceiling(), probes.available())
"""


@linux
@pytest.mark.parametrize("kind", ["RLIMIT_DATA", "RLIMIT_AS"])
def test_the_processs_own_limit_is_the_ceiling(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(kind=kind)], capture_output=True, text=True, check=True
    )
    most, used, ceiling, available = map(int, done.stdout.split())
    assert most == 3_000_000_000
    assert 10_000_000 < used < most
    assert available <= most - used + 50_000_000
    assert ceiling <= available + 50_000_000
    assert resource.getrlimit(getattr(resource, kind))[0] != most, "of the child alone"


def test_the_swap_rate_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [10.0], [1000]
    monkeypatch.setattr(memory_probes.time, "monotonic", lambda: now[0])
    pace = SwapRate(lambda: written[0])
    now[0], written[0] = 10.1, 5000
    assert pace.bytes_per_second() == 0.0, "too soon to tell"
    now[0] = 12.0
    assert pace.bytes_per_second() == 2000.0
    now[0], written[0] = 13.0, 4000
    assert pace.bytes_per_second() == 0.0, "the counter restarted"


class Kernel:
    """A fake `sysctlbyname` (<sys/sysctl.h>) that knows one name."""

    def __init__(self, value: int | None) -> None:
        self.value = value

    def sysctlbyname(self, name: bytes, old: Any, size: Any, new: Any, length: int) -> int:
        assert name == b"kern.memorystatus_vm_pressure_level"
        assert (new, length) == (None, 0)
        if self.value is None:
            return -1
        assert size._obj.value == 4
        old._obj.value = self.value
        return 0


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (1, SystemPressure.NORMAL),
        (2, SystemPressure.WARN),
        (4, SystemPressure.CRITICAL),
        (None, SystemPressure.NORMAL),
    ],
)
def test_the_pressure_level_of_macos_is_read(
    value: int | None, level: SystemPressure, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(value)

    class Library:
        def __init__(self) -> None:
            self.sysctlbyname = lambda *given: kernel.sysctlbyname(*given)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert MacProbe().read().system is level


def test_mlx_limits_are_lowered_to_the_ceiling_but_never_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"set_memory_limit": 1000, "set_cache_limit": 20}
    limits = dict(own)

    def setter(name: str) -> Callable[[int], int]:
        def change(limit: int) -> int:
            before, limits[name] = limits[name], limit
            return before

        return change

    for name in own:
        monkeypatch.setattr(mx, name, setter(name))
    monkeypatch.setattr(mx, "set_wired_limit", None)
    monkeypatch.setattr(memory, "ceiling", lambda: 2000)
    memory.set_limits()
    assert limits == own
    monkeypatch.setattr(memory, "ceiling", lambda: 160)
    memory.set_limits()
    assert limits == {"set_memory_limit": 160, "set_cache_limit": 10}


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
def test_openblas_is_loaded_once_and_reported_afterwards() -> None:
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
def test_openblas_kernels_match_the_cpu(
    flags: str, kernels: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environment := dict[str, str]())
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    blas._choose_kernels(tmp_path / "cpuinfo")
    assert environment.get("OPENBLAS_CORETYPE") == kernels


def test_openblas_kernels_chosen_by_the_user_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "ZEN")
    (tmp_path / "cpuinfo").write_text("flags : avx2 fma\n")
    blas._choose_kernels(tmp_path / "cpuinfo")
    assert os.environ["OPENBLAS_CORETYPE"] == "ZEN"


def test_openblas_is_not_loaded_after_mlx() -> None:
    assert output("import mlx.core, numpy; print(load_openblas())") == "None"


def test_a_missing_openblas_is_reported_as_none() -> None:
    code = "import app.engine.backend.blas as b; b.LIBRARY = 'libnone.so'; print(load_openblas())"
    assert output(code) == "None"


def test_openblas_is_never_loaded_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.load_openblas() is None


def test_missing_openblas_gets_a_hint() -> None:
    missing = output(
        "from app.engine.backend import blas; blas.LIBRARY = 'libnone.so.0'; load_openblas()\n"
        "import mlx.core as mx; mx.set_default_device(mx.cpu); print(blas.missing_package(True))"
    )
    assert (blas.PACKAGE in missing) == (sys.platform == "linux")


@needs_openblas
def test_no_hint_if_openblas_is_in_use() -> None:
    code = "load_openblas(); from app.engine.backend import blas; print(blas.missing_package(True))"
    assert output(code) == "None"


CODE = """
import mlx.core as mx, os, tempfile
from app.engine.backend import mlx_patches
mlx_patches.install()
mlx_patches.install()
print(os.environ["TMPDIR"], tempfile.gettempdir())
mx.eval(mx.compile(lambda x: mx.exp(x) * 2 + x)(mx.ones(3)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken by others"])
def test_kernels_are_never_loaded_from_a_shared_folder(tmp_path: Path, taken: bool) -> None:
    shared, own = tmp_path / "shared", tmp_path / "shared" / f"specchat-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o1777)
    if taken:
        own.mkdir()
        own.chmod(0o777)
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "TMPDIR": str(shared)},
        check=True,
        capture_output=True,
        text=True,
    )
    used, temporary = ran.stdout.split()
    assert temporary == str(shared), "other temporary files stay where they were"
    assert stat.S_IMODE(os.stat(used).st_mode) == 0o700
    assert (Path(used) == own) is not taken
    assert not (shared / "mlx").exists()
    if sys.platform == "linux":
        assert list(Path(used).rglob("*.so"))
