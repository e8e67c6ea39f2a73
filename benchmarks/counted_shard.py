"""The process of a rank, extended to count the data that its layers exchange with other ranks."""

from __future__ import annotations

from typing import Any

from app.engine.backend import blas
from app.extras.hosts import shard


class Traffic:
    """Counts the sums over all ranks in a forward, and the bytes of the arrays summed."""

    def __init__(self) -> None:
        import mlx.core as mx

        self._bytes = self._sums = 0
        all_sum = mx.distributed.all_sum

        def counted(array: mx.array, *more: Any, **named: Any) -> mx.array:
            self._bytes, self._sums = self._bytes + array.nbytes, self._sums + 1
            summed: mx.array = all_sum(array, *more, **named)
            return summed

        mx.distributed.all_sum = counted  # type: ignore[assignment]

    def take(self, cache: int) -> dict[str, Any]:
        """Return and reset the counts."""
        taken = {"bytes": self._bytes, "sums": self._sums}
        self._bytes = self._sums = 0
        return taken


def main() -> None:
    blas.load_openblas()
    from app.extras.hosts import runner

    traffic = Traffic()

    class Counting(runner.ShardRunner):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.operations["traffic"] = traffic.take

    runner.ShardRunner = Counting  # type: ignore[assignment,misc]
    shard.main()


if __name__ == "__main__":
    main()
