"""What the machines of `--hosts` are like, and how fast their links are."""

from __future__ import annotations

import platform
import statistics
import time

import numpy as np
import psutil

from app.chat import wording
from app.engine.model.loader import LoadError
from app.hosts.control import HostControl
from app.hosts.machine import FREE_SHARE, machine_name
from app.hosts.wire import Seal
from app.protocol.hosts import Host, Hosts, Machine

SMALL, LARGE = 64, 4 << 20
"""Bytes that are sent there and back, to measure latency and rate."""
RUNS = 5


class HostsLook:
    """Meets `Machines`."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts

    def look(self) -> list[Machine]:
        memory = psutil.virtual_memory()
        own = Machine(platform.node(), machine_name(), memory.total, memory.available * FREE_SHARE)
        return [own, *(_look_at(host) for host in self.hosts.others)]


def _look_at(host: Host) -> Machine:
    try:
        control = HostControl(host)
    except LoadError as error:
        return Machine(host.name, problem=wording.problem(error.failure))
    try:
        about = control.about
        latency, rate = _measure(control)
        return Machine(host.name, about["machine"], about["total"], about["free"], latency, rate)
    except LoadError as error:
        return Machine(host.name, problem=wording.problem(error.failure))
    finally:
        control.close()


def _measure(control: HostControl) -> tuple[float, float]:
    """Seconds one way, and bytes a second."""
    small, large = (_echo_seconds(control, size) for size in (SMALL, LARGE))
    # Each message gets a tag at one end, which is checked at the other; the layers' data have none.
    started_at = time.perf_counter()
    Seal(b"").tag(bytes(LARGE))
    tags = 4 * (time.perf_counter() - started_at)
    return small / 2, 2 * LARGE / max(large - small - tags, (large - small) / 4, 1e-9)


def _echo_seconds(control: HostControl, size: int) -> float:
    data, seconds = np.zeros(size, np.uint8), []
    for _ in range(RUNS):
        started_at = time.perf_counter()
        control.ask({"do": "echo", "data": data})
        seconds.append(time.perf_counter() - started_at)
    return statistics.median(seconds)
