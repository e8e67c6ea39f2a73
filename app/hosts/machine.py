"""What is known of the machine that this runs on."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

FREE_SHARE = 0.9
"""Of what the system says is available, for a shard."""


def machine_name() -> str:
    """What its processor is called."""
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            found = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=2,
                check=True,
            )
            return found.stdout.strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def own_addresses() -> list[tuple[str, str]]:
    """IPv4 addresses of this machine that others may reach it at, and their interfaces."""
    return [
        (each.address, interface)
        for interface, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
