"""A thread pool that never delays the exit of the program."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonPool:
    """Like a ThreadPoolExecutor, but neither closing it nor exiting waits for running tasks, since
    a disk may be slow."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._started = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args))
                except BaseException as error:
                    future.set_exception(error)

        self._work.put(run)
        if self._started < self._threads:
            self._started += 1
            threading.Thread(target=self._run, name="disk", daemon=True).start()
        return future

    def close(self) -> None:
        """Drop tasks that have not started. Threads end after their current task."""
        with suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # frees the task's data
