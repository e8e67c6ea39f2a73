"""The only thread that changes the database: each task is a transaction."""

from __future__ import annotations

import heapq
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from app.store.database import transaction
from app.store.errors import DamagedError, StoreError

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], T]


@dataclass(frozen=True, slots=True)
class _Job:
    task: Task[Any]
    result: Future[Any]
    due: float


class Writer:
    """Every method may be called from any thread."""

    def __init__(
        self, connection: sqlite3.Connection, on_damage: Callable[[], None] = lambda: None
    ) -> None:
        """Takes over the connection and closes it. `on_damage` is called if SQLite reports that the
        file is damaged."""
        self._connection = connection
        self._on_damage = on_damage
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store writer", daemon=True)
        self._thread.start()

    def run(self, task: Task[T]) -> T:
        """Run a task in a transaction and wait until it is on the disk. Raises StoreError, or what
        the task raises; then it is rolled back."""
        return self.submit(task, 0).result()

    def submit(self, task: Task[T], delay: float) -> Future[T]:
        """The same after `delay` seconds, unless the writer is closed before."""
        result: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise StoreError("The conversations were closed", "start specchat again")
            self._jobs.put(_Job(task, result, time.monotonic() + delay))
        return result

    def close(self) -> None:
        """Finish the tasks that are due, and end the thread."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        waiting: list[tuple[float, int, _Job]] = []
        order = itertools.count()
        while True:
            now = time.monotonic()
            if waiting and waiting[0][0] <= now:
                self._execute(heapq.heappop(waiting)[2])
                continue
            try:
                job = self._jobs.get(timeout=waiting[0][0] - now if waiting else None)
            except queue.Empty:
                continue
            if job is None:
                break
            if job.due <= time.monotonic():
                self._execute(job)
            else:
                heapq.heappush(waiting, (job.due, next(order), job))
        for _, _, job in waiting:
            job.result.cancel()
        self._connection.close()

    def _execute(self, job: _Job) -> None:
        try:
            with transaction(self._connection):
                result = job.task(self._connection)
        except BaseException as error:
            if isinstance(error, DamagedError):
                self._on_damage()
            job.result.set_exception(error)
        else:
            job.result.set_result(result)
