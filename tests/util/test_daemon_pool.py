"""Threads that nobody waits for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from app.util.daemon_pool import DaemonPool

ENDLESS = """
import threading
from app.util.daemon_pool import DaemonPool
begun = threading.Event()
DaemonPool(2).submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
print("the end", flush=True)
"""


def test_what_is_submitted_is_done_and_errors_come_with_the_result() -> None:
    pool = DaemonPool(2)
    futures = [pool.submit(lambda n: 10 // n, n) for n in (5, 2, 0)]
    assert [future.result() for future in futures[:2]] == [2, 5]
    with pytest.raises(ZeroDivisionError):
        futures[2].result()
    pool.close()


def test_closing_waits_for_nothing_and_what_has_not_begun_never_runs() -> None:
    pool, release, begun, ran = DaemonPool(1), threading.Event(), threading.Event(), []

    def hold() -> None:
        begun.set()
        release.wait()

    first = pool.submit(hold)
    pool.submit(ran.append, 1)
    begun.wait()
    pool.close()
    release.set()
    first.result()
    assert not ran


def test_the_end_of_the_program_waits_for_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "the end\n"
