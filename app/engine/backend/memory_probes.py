"""Reads memory pressure, memory limits and the power source on macOS and Linux.

The macOS calls are written from Apple's headers and were never run on a Mac.
"""

from __future__ import annotations

import ctypes
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Protocol

import mlx.core as mx
import psutil

DEFAULT_CEILING_SHARE = 0.85
"""MLX's share of the machine's memory if the device reports no limit."""


class SystemPressure(IntEnum):
    """The system's pressure level, with the values of macOS: NOTE_MEMORYSTATUS_PRESSURE_* in xnu's
    `bsd/sys/event_private.h` and DISPATCH_MEMORYPRESSURE_* in `dispatch/source.h`."""

    NORMAL = 1
    WARN = 2
    CRITICAL = 4


@dataclass(frozen=True, slots=True)
class MemorySample:
    """MLX uses `used` bytes of `ceiling`; `swap_rate`: bytes per second written to swap. `system`
    reflects the memory that other programs use."""

    system: SystemPressure
    used: int
    ceiling: int
    swap_rate: float = 0.0

    @property
    def share(self) -> float:
        """Used share of the ceiling, 0..1 or more."""
        return self.used / max(self.ceiling, 1)


class MemoryProbe(Protocol):
    def read(self) -> MemorySample:
        """Take a sample, in less than a millisecond. Called from two threads, one at a time."""
        ...


def system_probe() -> MemoryProbe:
    return MacProbe() if sys.platform == "darwin" else LinuxProbe()


def ceiling() -> int:
    """Upper limit for MLX's memory on this machine, in bytes."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    total = psutil.virtual_memory().total
    maximum = int(recommended) if recommended else int(total * DEFAULT_CEILING_SHARE)
    limit = process_limit()
    return maximum if limit is None else min(maximum, limit.free + _mlx_bytes())


def available() -> int:
    """Bytes available without swapping or exceeding the process's limit."""
    limit = process_limit()
    free = int(psutil.virtual_memory().available)
    return free if limit is None else min(free, limit.free)


def _mlx_bytes() -> int:
    """Bytes that MLX has allocated."""
    return int(mx.get_active_memory() + mx.get_cache_memory())


# ------------------------------------------------------------------------------------------ macOS


class MacProbe:
    """Reads the kernel's pressure level and the rate of swapping."""

    def __init__(self) -> None:
        self._level = _sysctl_int("kern.memorystatus_vm_pressure_level")
        self._swap = SwapRate(lambda: psutil.swap_memory().sout)

    def read(self) -> MemorySample:
        level = self._level()
        known = SystemPressure(level) if level in tuple(SystemPressure) else SystemPressure.NORMAL
        return MemorySample(known, _mlx_bytes(), ceiling(), self._swap.bytes_per_second())


def _sysctl_int(name: str) -> Callable[[], int]:
    """A function that reads a sysctl of type CTLTYPE_INT (0 if it does not exist) with `int
    sysctlbyname(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen)` of
    <sys/sysctl.h>. xnu defines the pressure level in `bsd/kern/kern_memorystatus_notify.c`."""
    library = ctypes.CDLL(None)
    call = library.sysctlbyname
    call.restype = ctypes.c_int
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    call.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        size_pointer,
        ctypes.c_void_p,
        ctypes.c_size_t,
    ]

    def read() -> int:
        value = ctypes.c_int(0)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        failed = call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
        return 0 if failed or size.value != ctypes.sizeof(value) else value.value

    return read


class SwapRate:
    """Bytes per second written to swap, from the counter `written`."""

    def __init__(self, written: Callable[[], int]) -> None:
        self._written = written
        self._last = (time.monotonic(), written())
        self._rate = 0.0

    def bytes_per_second(self) -> float:
        now, written = time.monotonic(), self._written()
        at, before = self._last
        if now - at >= 0.5:
            self._rate = max(written - before, 0) / (now - at)
            self._last = (now, written)
        return self._rate


# ------------------------------------------------------------------------------------------ Linux

SOME_STALLED_WARNING, FULL_STALLED_CRITICAL = 20.0, 40.0
"""Percent of the last ten seconds in which tasks waited for memory. The level is WARN if some tasks
waited longer, CRITICAL if all did and available memory is below `LOW_SHARE`. Chosen, not measured:
Linux has no levels. (systemd-oomd kills at 60.)"""
LOW_SHARE, WARNING_SHARE, CRITICAL_SHARE = 0.10, 0.05, 0.025
"""Available shares of the machine's memory. Below WARNING_SHARE the level is WARN, below
CRITICAL_SHARE CRITICAL."""


class LinuxProbe:
    """Derives the level from pressure stall information and available memory."""

    def __init__(self, pressure: Path = Path("/proc/pressure/memory")) -> None:
        self._pressure = pressure
        self._swap = SwapRate(lambda: psutil.swap_memory().sout)

    def read(self) -> MemorySample:
        return MemorySample(self._level(), _mlx_bytes(), ceiling(), self._swap.bytes_per_second())

    def _level(self) -> SystemPressure:
        memory = psutil.virtual_memory()
        left = memory.available / memory.total
        try:
            stalled = stall_percentages(self._pressure.read_text())
        except OSError:  # kernel before 4.20, or built without it
            stalled = {}
        stuck = stalled.get("full", 0.0) > FULL_STALLED_CRITICAL and left < LOW_SHARE
        if stuck or left < CRITICAL_SHARE:
            return SystemPressure.CRITICAL
        waits = stalled.get("some", 0.0) > SOME_STALLED_WARNING
        return SystemPressure.WARN if waits or left < WARNING_SHARE else SystemPressure.NORMAL


def stall_percentages(text: str) -> dict[str, float]:
    """`some` and `full` of a pressure file, in percent of the last ten seconds."""
    found = re.findall(r"^(some|full) avg10=([\d.]+)", text, re.MULTILINE)
    return {kind: float(percent) for kind, percent in found}


@dataclass(frozen=True, slots=True)
class ProcessLimit:
    """A memory limit of this process and how much of it is used, in bytes."""

    limit: int
    used: int

    @property
    def free(self) -> int:
        return max(self.limit - self.used, 0)


def process_limit() -> ProcessLimit | None:
    """The tightest limit: RLIMIT_DATA, RLIMIT_AS, or of a control group. On Linux it takes the role
    of a Mac's recommended working set. None if there is no limit, and on macOS."""
    if sys.platform != "linux":
        return None
    return min([*_resource_limits(), *_cgroup_limits()], key=lambda one: one.free, default=None)


def _resource_limits() -> Iterator[ProcessLimit]:
    """Linux compares `VmData` and `VmSize` with the two limits, see getrlimit(2)."""
    limits = ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize"))
    set_here = [(soft, name) for kind, name in limits if (soft := _soft_limit(kind)) is not None]
    if not set_here:
        return
    status = Path("/proc/self/status").read_text()
    for soft, name in set_here:
        if found := re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE):
            yield ProcessLimit(soft, int(found[1]) * 1024)


def _soft_limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


CGROUP_ROOT = Path("/sys/fs/cgroup")


def _cgroup_limits(
    root: Path = CGROUP_ROOT, own_groups: Path = Path("/proc/self/cgroup")
) -> Iterator[ProcessLimit]:
    """Limits of this process's control group and its parents, versions 2 and 1. The kernel counts
    the page cache as used, although it is reclaimed first, so it is subtracted."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, kinds, path = line.split(":", 2)
        if number == "0" and not kinds:
            base, maximum, used = root, "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            base, maximum, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = PurePosixPath(path).relative_to("/")
        # In a container, the path may be the host's, of which only the root is visible.
        for part in (group, *group.parents):
            if (limit := _cgroup_limit(base / part, maximum, used)) is not None:
                yield limit


def _cgroup_limit(folder: Path, maximum: str, used: str) -> ProcessLimit | None:
    try:
        limit, now = (folder / maximum).read_text().strip(), int((folder / used).read_text())
        files = re.search(r"^inactive_file (\d+)", (folder / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):
        return None
    # Version 1 expresses "no limit" as a huge number.
    if not limit.isdigit() or int(limit) > psutil.virtual_memory().total:
        return None
    return ProcessLimit(int(limit), max(now - (int(files[1]) if files else 0), 0))


class PowerProbe:
    def on_battery(self) -> bool:
        """False also if unknown."""
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        return battery is not None and battery.power_plugged is False
