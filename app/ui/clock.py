"""The clock the screens read. A parameter, so that a test may stop it."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Monotonic seconds."""
