"""Confines the process that reads a document: it has no network, starts no program, writes no large
files, and ends with the process that started it.

What a system does not offer is not used; limits of time and memory hold everywhere.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import resource
import signal
import struct
import sys
import time
from contextlib import suppress

MAX_FILES = 64
_WATCH_SECONDS = 0.5

# Linux: prctl's numbers, and the flag of seccomp that includes all threads.
_NO_NEW_PRIVILEGES, _SET_FILTER, _ALL_THREADS = 38, 1, 1
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the latter with the error EPERM
_OTHER_INTERFACE = 0x40000000
"""Numbers of x86-64's second interface, which this process never uses, begin here."""
_CALLS = {
    # The machine's code, the number of seccomp, and: socket, execve, execveat, ptrace,
    # process_vm_readv, process_vm_writev, io_uring_setup.
    "x86_64": (0xC000003E, 317, (41, 59, 322, 101, 310, 311, 425)),
    "aarch64": (0xC00000B7, 277, (198, 221, 281, 117, 270, 271, 425)),
}


def limit_memory(size: int) -> None:
    """Limit this process's memory, if the system supports it. The caller limits it, too."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def limit_time(seconds: float) -> None:
    """End this process by SIGPROF after `seconds` of processor time from now on."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def end_with(parent: int) -> None:
    """End this process soon after its parent has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    _thread.start_new_thread(watch, ())


def confine(max_bytes: int, seconds: int, may_thread: bool = False) -> None:
    """Drop the rights that reading a document does not need. Files may have `max_bytes`. After
    `seconds` of processor time in all, the process ends. `may_thread`: libraries may start
    threads."""
    limits = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_FSIZE: (max_bytes, max_bytes),
        resource.RLIMIT_CPU: (seconds, seconds + 5),  # the first by SIGXCPU, the second by SIGKILL
    }
    if not may_thread:
        limits |= {resource.RLIMIT_NPROC: (0, 0), resource.RLIMIT_NOFILE: (MAX_FILES, MAX_FILES)}
    for kind, limit in limits.items():
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, limit)
    with suppress(OSError, AttributeError):
        if sys.platform == "linux":
            _refuse_calls()
        elif sys.platform == "darwin" and not may_thread:  # a recogniser asks other processes
            ctypes.CDLL(None).sandbox_init(b"no-network", ctypes.c_uint64(1), ctypes.c_void_p())


def _refuse_calls() -> None:
    """Have the kernel refuse to this process to open sockets, to start programs and to reach into
    other processes."""
    name = os.uname().machine
    if name not in _CALLS or sys.maxsize < 1 << 32:
        return
    machine, seccomp, refused = _CALLS[name]
    rules = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _OTHER_INTERFACE),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for number in refused:
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    rules.append((_RETURN, 0, 0, _ALLOW))
    program = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.syscall(
        ctypes.c_long(seccomp), ctypes.c_long(_SET_FILTER), ctypes.c_long(_ALL_THREADS), head
    )
