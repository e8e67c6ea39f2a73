"""Counts what the layers of a rank exchange with the other ranks."""

from __future__ import annotations

from typing import Any

import mlx.core as mx


class Traffic:
    """From its making on, in this process. Counts sums over all ranks when a forward is built: the
    bytes of each array that is summed."""

    def __init__(self) -> None:
        self._bytes = self._sums = 0
        all_sum = mx.distributed.all_sum

        def counted(array: mx.array, *more: Any, **named: Any) -> mx.array:
            self._bytes, self._sums = self._bytes + array.nbytes, self._sums + 1
            summed: mx.array = all_sum(array, *more, **named)
            return summed

        mx.distributed.all_sum = counted  # type: ignore[assignment]

    def take(self, cache: int) -> dict[str, Any]:
        """What was counted since the last call."""
        taken = {"bytes": self._bytes, "sums": self._sums}
        self._bytes = self._sums = 0
        return taken
