"""Runs what waits for a disk, a network drive or another program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_background(task: Callable[[], T]) -> T:
    """Returns or raises what `task` does. It runs on a daemon thread, so that a drive that never
    answers does not block the exit of the program."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if future.done() else settled())

    def run() -> None:
        try:
            result = task()
        except BaseException as error:  # raised where it is awaited
            problem = error
            settle(lambda: future.set_exception(problem))
        else:
            settle(lambda: future.set_result(result))

    threading.Thread(target=run, name="background", daemon=True).start()
    return await future
