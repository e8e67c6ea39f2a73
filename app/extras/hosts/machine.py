"""This machine: its processor, addresses, versions, and the models that it has."""

from __future__ import annotations

import hashlib
import platform
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from app.util.regular_files import open_file, read_file

FREE_SHARE = 0.9
"""Share of the available memory that a shard may use."""
PACKAGES = ("specchat", "mlx", "mlx-lm")
SAMPLES, SAMPLE_BYTES = 64, 4096
"""Number of samples of each weight file, and bytes of each sample."""


def machine_name() -> str:
    """Name of the processor."""
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
    """IPv4 addresses at which other machines may reach this one, and their interfaces."""
    return [
        (each.address, interface)
        for interface, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def content_fingerprint(folder: Path) -> str:
    """Digest of a model's files, to compare machines. It covers the size and samples of the
    weights, and all of the configuration and tokenizer. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors":
            digest.update(f"{file.name} {file.stat().st_size}".encode())
            with open_file(file) as weights:
                for index in range(SAMPLES):
                    weights.seek(file.stat().st_size * index // SAMPLES)
                    digest.update(weights.read(SAMPLE_BYTES))
        elif file.suffix in (".json", ".jinja"):
            digest.update(file.name.encode() + read_file(file))
    return digest.hexdigest()
