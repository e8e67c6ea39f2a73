"""What waits for a disk, a network drive or another program, beside the screen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_background(task: Callable[[], T]) -> T:
    """What `task` returns or raises. It has a thread of its own, for which the end of the program
    does not wait: a drive that does not answer may hold it for ever."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
