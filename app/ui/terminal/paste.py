"""A parser of terminal input that leaves pastes unchanged.

Textual 8.2.8 parses escape sequences inside a bracketed paste: after an ESC in the pasted text it
drops the characters that look like a sequence, and turns others into key events, Enter among them.
It also removes NUL. So a paste is cut out of the stream
first, and the parent only gets the keys around it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.events import Paste
from textual.message import Message


def partial_marker(text: str, marker: str) -> str:
    """The longest suffix of `text` that is a proper prefix of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return marker[:length]
    return ""


class PasteSafeParser(XTermParser):
    """`XTermParser`, but the text between paste markers becomes one `Paste`, unchanged.

    Reads may split the stream anywhere, even inside a marker. A terminal that does not remove end
    markers from pasted text can end a paste early. In general that cannot be detected; only an end
    marker followed by another one in the same read is treated as text.
    """

    def __init__(self, debug: bool = False) -> None:
        self._pasted: list[str] | None = None
        self._tail = ""
        super().__init__(debug)

    def feed(self, data: str) -> Iterable[Message]:
        if not data:
            yield from super().feed(data)
        while data:
            reader = self._read_keys if self._pasted is None else self._read_paste
            data = yield from reader(data)

    def tick(self) -> Iterable[Message]:
        # No key sends `ESC [ 2` alone, so after it the rest of a marker is still to come.
        if self._pasted is None and len(self._tail) < 3:
            yield from super().tick()

    def _read_keys(self, data: str) -> Generator[Message, None, str]:
        """Pass `data` to the parent up to the end of a start marker; returns the rest."""
        seen = self._tail + data
        start = seen.find(BRACKETED_PASTE_START)
        if start < 0:
            self._tail = partial_marker(seen, BRACKETED_PASTE_START)
            yield from super().feed(data)
            return ""
        body = start + len(BRACKETED_PASTE_START) - len(self._tail)
        yield from super().feed(data[:body])
        # Now the parent is in its paste mode. End that at once and start ours.
        for message in super().feed(BRACKETED_PASTE_END):
            if not isinstance(message, Paste):
                yield message
        self._tail = ""
        self._pasted = []
        return data[body:]

    def _read_paste(self, data: str) -> Generator[Message, None, str]:
        """Collect pasted text up to the end marker; returns the rest."""
        assert self._pasted is not None
        seen = self._tail + data
        end = self._find_end(seen)
        if end < 0:
            self._tail = partial_marker(seen, BRACKETED_PASTE_END)
            self._pasted.append(seen[: len(seen) - len(self._tail)])
            return ""
        self._pasted.append(seen[:end])
        text = "".join(self._pasted)
        self._tail = ""
        self._pasted = None
        yield Paste(text)
        return seen[end + len(BRACKETED_PASTE_END) :]

    @staticmethod
    def _find_end(seen: str) -> int:
        """Where the paste ends: at the last end marker before another paste starts."""
        first = seen.find(BRACKETED_PASTE_END)
        if first < 0:
            return first
        next_start = seen.find(BRACKETED_PASTE_START, first)
        return seen.rfind(BRACKETED_PASTE_END, first, None if next_start < 0 else next_start)
