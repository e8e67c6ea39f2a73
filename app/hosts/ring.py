"""What the system knows of the connections of MLX's ring, for which MLX waits without end."""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import sys
from contextlib import suppress

_LINUX = sys.platform == "linux"
# Of the system's description of a connection: its option, size, and where its bytes are counted.
_TCP_INFO = (socket.IPPROTO_TCP, 11, 136) if _LINUX else (socket.IPPROTO_TCP, 0x106, 112)
_COUNTS = (120, 128) if _LINUX else (64, 88)
_PEER_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def sockets() -> dict[int, tuple[int, int]]:
    """The open sockets of this process: for each descriptor what it refers to."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError, ValueError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = (status.st_dev, status.st_ino)
    return found


class Ring:
    """The connections to the neighbours: those that were opened since `before`."""

    def __init__(self, before: dict[int, tuple[int, int]]) -> None:
        self._sockets = []
        for descriptor, reference in sockets().items():
            if before.get(descriptor) != reference:
                with suppress(OSError):  # one that only listens, or that is closed by now
                    opened = socket.socket(fileno=os.dup(descriptor))
                    opened.getpeername()
                    self._sockets.append(opened)

    @property
    def closed(self) -> bool:
        """Whether a neighbour has closed its end."""
        poll = select.poll()
        for each in self._sockets:
            poll.register(each, _PEER_CLOSED)
        return any(event & _PEER_CLOSED for _, event in poll.poll(0))

    @property
    def bytes(self) -> int | None:
        """Sent and received so far. None where the system does not count them."""
        try:
            return sum(map(_bytes, self._sockets)) if self._sockets else None
        except (OSError, struct.error):
            return None


def _bytes(sock: socket.socket) -> int:
    level, option, size = _TCP_INFO
    data = sock.getsockopt(level, option, size)
    return sum(struct.unpack_from("=Q", data, offset)[0] for offset in _COUNTS)
