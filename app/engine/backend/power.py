"""Whether the machine runs on its battery."""

from __future__ import annotations

from typing import Protocol

import psutil


class PowerProbe(Protocol):
    def on_battery(self) -> bool:
        """False also where the system does not say."""
        ...


class SystemPower:
    def on_battery(self) -> bool:
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        return battery is not None and battery.power_plugged is False
