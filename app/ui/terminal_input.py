"""Turns what a terminal sends into keys, pastes and reports.

Textual 8.2.8 types every sequence that it does not know, and parses those inside a paste. So this
parser divides the input into characters, whole sequences and pastes itself. Textual's tables name
the keys of a sequence, after `KEYS`; a sequence that neither knows is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator

from textual import _parser, constants
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._keyboard_protocol import FUNCTIONAL_KEYS, MODIFIER_FUNCTIONAL_KEYS
from textual._xterm_parser import (
    BRACKETED_PASTE_END,
    BRACKETED_PASTE_START,
    FOCUSIN,
    FOCUSOUT,
    XTermParser,
    _re_cursor_position,
    _re_mouse_event,
    _re_terminal_mode_response,
)
from textual.events import Key, Paste
from textual.keys import Keys
from textual.message import Message

ESC = "\x1b"
KEYS = {
    "\x1b\r": "alt+enter",
    "\x1b\n": "alt+enter",
    "\x1b\x08": "ctrl+w",
    # st, until the keypad is in application mode
    "\x1b[P": "delete",
    "\x1b[2K": "shift+delete",
    "\x1b[M": "ctrl+delete",
    "\x1b[2J": "shift+home",
    "\x1b[K": "shift+end",
    "\x1b[J": "ctrl+end",
    "\x1b[4h": "insert",
    # rxvt-unicode
    "\x1bOb": "ctrl+down",
    # xterm with modified keypad keys
    "\x1bO2M": "shift+enter",
}
"""Keys that Textual's tables lack or have wrong."""
KITTY_F1 = "\x1b[P"
"""F1 of the kitty keyboard protocol, but Delete of st."""
X10_MOUSE = "\x1b[M"
"""Three characters follow. Alone it is Ctrl+Delete of st."""
RXVT_MODIFIERS = {"$": "shift", "^": "ctrl", "@": "ctrl+shift"}
"""What rxvt-unicode sends in place of the `~` of a key."""
KEYPAD = dict(zip(range(57399, 57414), "0123456789./*-+", strict=True)) | {57415: "=", 57416: ","}
"""The keypad's keys that type a character, in the kitty keyboard protocol."""
SS3_KEYPAD = {"X": "=", "l": ",", " ": " "}
"""Those that Textual's table lacks, of a keypad in application mode."""
SILENT = {*MODIFIER_FUNCTIONAL_KEYS, "caps_lock", "scroll_lock", "num_lock"}
"""Keys that do nothing alone."""
UNKNOWN_KEYS = range(57344, 63744)
"""Numbers of other keys in the kitty keyboard protocol: a private area of Unicode."""
SHIFT, ALT, LOCKS = 1, 2, 64 | 128
RELEASED = "3"
STRINGS = "]P_^X"
"""What follows ESC at the beginning of OSC, DCS, APC, PM and SOS."""
INTRODUCERS = frozenset(ESC + each for each in STRINGS + "[O")
"""Beginnings of sequences that are also Alt and a key."""
STRING_ENDS = "\x07", "\x1b\\"
C1 = frozenset(map(chr, range(0x80, 0xA0)))
"""Each stands for ESC and another character."""
MAX_SEQUENCE = 64
MAX_REPORT = 32
"""Textual types longer sequences."""
BURST = 16
"""A line of at least this length in one read was not typed by hand."""
LONG_BURST = 200
BURST_SECONDS, PASTE_SECONDS = 0.05, 0.2
"""A burst has ended after so long without input, and one that is known to be a paste."""
INTRODUCER_SECONDS = 0.5
"""Time for the rest of a sequence to arrive, if only its first two characters have."""
STRING_SECONDS = 2.0
"""Time for the next part of a string to arrive."""

_SIZE = re.compile(r"\x1b\[48;0*+([1-9]\d*+);0*+([1-9]\d*+);(\d++);(\d++)t")
"""A size, in rows and columns, and in pixels. Textual divides by them, also where one is 0."""
_REPORTS = (
    _SIZE,
    _re_cursor_position,
    _re_mouse_event,
    _re_terminal_mode_response,
)
_TEXT = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+")
_PIECE = re.compile(rf"[^\t\r\n]{{{BURST}}}[\r\n]")
_LINE_END = re.compile(r"[\r\n]+")
_PRINTABLE = re.compile(r"[ \t]*[^\x00-\x20\x7f-\x9f]")
_PATH = re.compile(r"""['"]?(?:file:/|~/|/[^/\s'"]+/)[^\s]""")
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
_CSI_BODY = re.compile(r"<[-\d;]*+|[0-?]*[ -/]*")
"""The numbers of the mouse may be negative, outside a window."""
_SS3_BODY = re.compile(r"[\d;]*")
_NUMBERS = re.compile(r"(?:[0-9]{0,7}[:;])*[0-9]{0,7}")
"""Larger ones mean nothing."""
_RXVT_SHIFT = re.compile(r"\d+\$")
_RXVT_KEY = re.compile(r"\x1b\[(\d\d?)([$^@])")
_STRING_END = re.compile(r"[\x07\x18\x1a\x1b\x9c]")
_MIXED_IN = re.compile(r"\x1b\[(?:[IO]|<[-\d;]+[Mm])")
"""Focus and mouse reports, which may arrive in the middle of a paste."""
_BACKGROUND = re.compile(
    r"\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})(?:/[0-9a-fA-F]{1,4})?"
)
_LATE = re.compile(
    r"\x1b(?:\[(?:[<=>?]\d|\d++[~;])"
    r"|(?:\]\d++;|\][lL]|P[\d>!]|_G)(?:[!-~]*+\x1b?\Z|[ -~]*+(?:\x07|\x9c|\x1b\\)))"
)
"""A sequence that nobody types: of a paste, a report, an answer, or a key with numbers."""
_KITTY_ANSWER = re.compile(r"\x1b\[\?\d+u")


class BackgroundReported(Message):
    """The terminal has said what colour its background has."""

    def __init__(self, is_dark: bool) -> None:
        super().__init__()
        self.is_dark = is_dark


def partial_marker(text: str, marker: str) -> str:
    """The longest suffix of `text` that is a proper prefix of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return marker[:length]
    return ""


def is_multi_line(text: str) -> bool:
    """Whether text stands before and after a line end."""
    lines = (line for line in _LINE_END.split(text) if _PRINTABLE.match(line))
    return next(lines, None) is not None and next(lines, None) is not None


def is_paste(burst: str) -> bool:
    """Whether a burst is a paste of a terminal without bracketed paste: several lines, a long one,
    or a path, which a terminal types when a file is dropped on it. The rest was typed ahead, or is
    typed by a program."""
    return len(burst) >= LONG_BURST or is_multi_line(burst) or _PATH.match(burst) is not None


def _is_burst(text: str) -> bool:
    """Whether one read may be a paste, or the beginning of one. A line that ends with the read may
    be followed by others."""
    text = _SEQUENCES.sub("", text)
    if len(text) < LONG_BURST and not _PATH.match(text):
        return _PIECE.search(text) is not None or (len(text) >= BURST and is_multi_line(text))
    return True


class PasteSafeParser(XTermParser):
    """`feed` takes what was read, which may end anywhere, even inside a sequence; `tick` must be
    called soon after if `is_waiting`.

    A bracketed paste becomes one `Paste`, unchanged. A terminal that does not remove end markers
    from pasted text can end a paste early. In general that cannot be detected; only an end marker
    followed by another one in the same read is treated as text. Without brackets, a paste is a
    burst of text (`is_paste`).
    """

    def __init__(self, debug: bool = False) -> None:
        self._pasted: list[str] | None = None
        """The parts of a bracketed paste."""
        self._burst: list[str] | None = None
        self._string: str | None = None
        """The beginning of an OSC, DCS, APC, PM or SOS, without ESC."""
        self._pending = ""
        """The end of the input so far, if that may be the beginning of a sequence."""
        self._late = ""
        """What a sequence had when its rest did not arrive in time."""
        self._deadline: float | None = None
        self._fed_at = 0.0
        self._may_burst = True
        """Whether a burst may begin in what was read."""
        self._speaks_kitty = False
        super().__init__(debug)

    @property
    def is_waiting(self) -> bool:
        return self._deadline is not None

    @property
    def is_due(self) -> bool:
        """Whether `tick` has something to do, if no input has arrived meanwhile."""
        return self._deadline is not None and _now() >= self._deadline

    def feed(self, data: str) -> Iterable[Message]:
        if not data:
            yield from super().feed(data)
            return
        now = _now()
        started = ESC + self._string if self._string else self._pending
        is_alt = self._pasted is None and started in INTRODUCERS and len(data) == 1
        is_alt = is_alt and not BRACKETED_PASTE_START.startswith(started + data)
        if is_alt and now - self._fed_at > constants.ESCAPE_DELAY:
            self._pending, self._string = "", None
        late, self._late = self._late + data, ""
        is_key = late == ESC + data and not late.startswith(BRACKETED_PASTE_START)
        is_rest = late.endswith(STRING_ENDS) or (len(data) > 1 and not is_key)
        if late != data and _LATE.match(late) and is_rest:
            data = late
        self._fed_at, self._may_burst = now, True
        while data:
            if self._pasted is not None:
                data = yield from self._read_paste(data)
            elif self._burst is not None:
                data = yield from self._read_burst(self._take_pending() + data)
            elif self._string is not None:
                data = yield from self._read_string(self._take_pending() + data)
            else:
                data = yield from self._read_keys(self._take_pending() + data)
        self._deadline = self._next_deadline(now)

    def tick(self) -> Iterable[Message]:
        if not self.is_due:
            return
        pending = self._take_pending()
        if self._burst is not None:
            yield from self._end_burst(pending)
        elif self._string is not None:
            self._late, self._string = ESC + self._string + pending, None
        elif X10_MOUSE in pending:
            key = pending.index(X10_MOUSE) + len(X10_MOUSE)
            yield from self._messages(pending[:key])
            yield from self._read_keys(pending[key:])
        else:  # Alt and a key is nothing
            escapes = pending.count(ESC) - (not pending.endswith(ESC))
            yield from (Key("escape", ESC) for _ in range(escapes))
            self._late = pending[pending.rfind(ESC) :]
        self._deadline = self._next_deadline(_now())

    def _take_pending(self) -> str:
        pending, self._pending = self._pending, ""
        return pending

    def _next_deadline(self, now: float) -> float | None:
        if self._burst is not None:
            known = is_paste("".join(self._burst[:2]))
            return now + (PASTE_SECONDS if known else BURST_SECONDS)
        if self._string is not None:
            return now + (STRING_SECONDS if self._string[1:] else INTRODUCER_SECONDS)
        if self._pasted is not None or not self._pending:
            return None
        introduced = self._pending.lstrip(ESC)
        if not introduced or introduced.startswith("[M"):
            return now + constants.ESCAPE_DELAY
        # No key sends more than `ESC [` alone: the rest of a longer one is still to come.
        return (
            None if introduced.startswith("[") and len(introduced) > 1 else now + INTRODUCER_SECONDS
        )

    # ------------------------------------------------------------------------- pastes

    def _read_paste(self, data: str) -> Generator[Message, None, str]:
        """Collect pasted text up to the end marker; returns the rest."""
        assert self._pasted is not None
        seen = self._take_pending() + data
        end = self._find_end(seen)
        if end < 0:
            self._pending = partial_marker(seen, BRACKETED_PASTE_END)
            self._pasted.append(seen[: len(seen) - len(self._pending)])
            return ""
        self._pasted.append(seen[:end])
        text = "".join(self._pasted)
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

    def _read_burst(self, data: str) -> Generator[Message, None, str]:
        """Collect a burst. It ends when nothing more arrives, before a bracketed paste, and before
        Enter if it is not known to be a paste."""
        assert self._burst is not None
        start = data.find(BRACKETED_PASTE_START)
        is_enter = data in ("\r", "\n") and self._burst and not is_multi_line(self._burst[0])
        if start >= 0 or is_enter:
            at = max(start, 0)
            yield from self._end_burst(data[:at])
            return data[at:]
        self._pending = partial_marker(data, BRACKETED_PASTE_START)
        self._burst.append(data[: len(data) - len(self._pending)])
        return ""

    def _end_burst(self, last: str) -> Generator[Message, None, None]:
        assert self._burst is not None
        read = "".join((*self._burst, last))
        text, self._burst = _MIXED_IN.sub("", read), None
        if not is_paste(text):
            text = read
        else:
            for report in _MIXED_IN.findall(read):
                yield from self._messages(report)
            is_line = len(text) < LONG_BURST and not is_multi_line(text)
            pasted = text.rstrip("\r\n") if is_line else text
            yield Paste(pasted)
            text = text[len(pasted) :]
        self._may_burst = False
        while text:
            if self._string is None:
                text = yield from self._read_keys(text)
            else:
                text = yield from self._read_string(text)

    # ------------------------------------------------------------------------- sequences

    def _read_keys(self, data: str) -> Generator[Message, None, str]:
        """Read characters and sequences, up to a paste or a string; returns the rest."""
        position = 0
        while position < len(data):
            character = data[position]
            if character in C1 and BRACKETED_PASTE_START not in data:
                data, position = _spelled_out(data[position:]), 0
            elif character == ESC:
                end = _sequence_end(data, position)
                if end is None:
                    self._pending = data[position:]
                    return ""
                sequence, position = data[position:end], end
                if sequence[1:] and sequence[1] in STRINGS:
                    self._string = sequence[1]
                    return data[position:]
                if sequence.endswith(BRACKETED_PASTE_START):
                    yield from self._messages(sequence.removesuffix(BRACKETED_PASTE_START))
                    self._pasted = []
                    return data[position:]
                yield from self._messages(sequence)
            elif text := _TEXT.match(data, position):
                may_burst, self._may_burst = self._may_burst, False
                if may_burst and _is_burst(data[position:]):
                    self._burst = []
                    return data[position:]
                for each in text[0]:
                    yield from self._sequence_to_key_events(each)
                position = text.end()
            else:
                yield from self._sequence_to_key_events(character)
                position += 1
        return ""

    def _read_string(self, data: str) -> Generator[Message, None, str]:
        """Skip a string up to its end; returns what follows."""
        assert self._string is not None
        end = _STRING_END.search(data)
        self._string += data[: end.start() if end else None][:MAX_SEQUENCE]
        self._string = self._string[:MAX_SEQUENCE]
        if end is None:
            return ""
        if end[0] == ESC and end.end() == len(data):
            self._pending = ESC
            return ""
        if colour := _BACKGROUND.fullmatch(self._string):
            red, green, blue = (int(each, 16) / (16 ** len(each) - 1) for each in colour.groups())
            yield BackgroundReported(0.299 * red + 0.587 * green + 0.114 * blue < 0.5)
        self._string = None
        if end[0] != ESC:
            return data[end.end() :]
        return data[end.start() + 2 :] if data[end.end()] == "\\" else data[end.start() :]

    def _messages(self, sequence: str) -> Iterator[Message]:
        """What a whole sequence means; nothing if it is not known, or empty."""
        if _is_report(sequence):
            yield from super().feed(_with_pixels(sequence))
        elif sequence == ESC:
            yield Key("escape", ESC)
        elif sequence.startswith(ESC + ESC):  # Alt and a key, in rxvt-unicode and PuTTY
            messages = list(self._messages(sequence[1:]))
            if len(messages) == 1 and isinstance(messages[0], Key):
                yield _with_alt(messages[0].key)
            else:
                yield Key("escape", ESC)
                yield from messages
        elif sequence:
            yield from self._keys(sequence)

    def _keys(self, sequence: str) -> Iterator[Key]:
        if _KITTY_ANSWER.fullmatch(sequence):
            self._speaks_kitty = True
        elif sequence in KEYS and not (sequence == KITTY_F1 and self._speaks_kitty):
            yield Key(KEYS[sequence], None)
        elif len(sequence) == 2:
            yield from self._alt_key(sequence)
        elif modified := _RXVT_KEY.fullmatch(sequence):
            for each in self._keys(f"\x1b[{modified[1]}~"):
                yield Key(f"{RXVT_MODIFIERS[modified[2]]}+{each.key}", None)
        elif sequence.startswith("\x1bO"):
            body, final = sequence[2:-1], sequence[-1]
            if body:  # `ESC O 5 D` is an older form of `CSI 1;5 D`
                yield from self._keys(f"\x1b[1;{body.rpartition(';')[2]}{final}")
            elif final in SS3_KEYPAD:
                yield from self._sequence_to_key_events(SS3_KEYPAD[final])
            elif sequence in ANSI_SEQUENCES_KEYS:
                yield from self._sequence_to_key_events(sequence)
        elif (extended := self._extended_keys(sequence)) is not None:
            yield from extended
        else:
            match ANSI_SEQUENCES_KEYS.get(sequence):
                case (Keys.Escape, key):
                    yield _with_alt(key.value)
                case (key,):
                    yield Key(key.value, None)

    def _alt_key(self, sequence: str) -> Iterator[Key]:
        """ESC and a character. Alt types nothing: where it gives a character, the terminal sends
        that."""
        character = sequence[1]
        named = ANSI_SEQUENCES_KEYS.get(sequence)
        if isinstance(named, tuple):
            yield from (Key(each.value, None) for each in named)
        elif character.isprintable():
            for key in self._sequence_to_key_events(character):
                upper = len(key.key) == 1 and key.key.isupper()
                yield _with_alt(f"shift+{key.key.lower()}" if upper else key.key)
        else:  # Esc, then the key
            yield Key("escape", ESC)
            yield from self._sequence_to_key_events(character)

    def _extended_keys(self, sequence: str) -> list[Key] | None:
        """The keys of a sequence with numbers: of the kitty keyboard protocol, of xterm's
        modifyOtherKeys, and older ones. None if it is not of that form, or names no key."""
        final, fields = sequence[-1], sequence[2:-1].split(";")
        if len(sequence) > MAX_SEQUENCE or not _NUMBERS.fullmatch(sequence, 2, len(sequence) - 1):
            return None
        if final == "~" and fields[0] == "27" and len(fields) == 3:  # modifyOtherKeys
            final, fields = "u", [fields[2], fields[1]]
        code = int(fields[0].partition(":")[0] or 1)
        modifier, _, kind = (fields[1] if len(fields) > 1 else "").partition(":")
        bits = max(0, int(modifier or 1) - 1)
        typed = [int(each or 0) for each in fields[2].split(":")] if len(fields) > 2 else []
        text = "".join(chr(each) for each in typed if _is_character(each))
        name = FUNCTIONAL_KEYS.get(f"{code}{final}")
        if final == "u":
            self._speaks_kitty = True
        elif name is None:
            return None
        if kind == RELEASED or name in SILENT:
            return []
        if code in KEYPAD and final == "u":
            code, name = ord(KEYPAD[code]), None
        is_unknown = code in UNKNOWN_KEYS or not _is_character(code)
        if name is None and is_unknown and not (code == 0 and text):  # 0: text without a key
            return []
        if not text and name is None and not bits & ~(SHIFT | LOCKS):
            text = chr(code).upper() if bits & SHIFT else chr(code)
        if text and not bits & ~(SHIFT | ALT | LOCKS):
            return [key for each in text for key in self._sequence_to_key_events(each)]
        shifts = f";{bits + 1}" if bits else ""
        return list(self._sequence_to_key_events(f"\x1b[{code}{shifts}{final}"))


def _now() -> float:
    return _parser.get_time()  # type: ignore[attr-defined]


def _spelled_out(data: str) -> str:
    return data.translate({ord(each): f"{ESC}{chr(ord(each) - 0x40)}" for each in C1})


def _is_report(sequence: str) -> bool:
    """Whether Textual reads something else than a key in it, and reads it whole."""
    if len(sequence) > MAX_REPORT:
        return False
    return sequence in (FOCUSIN, FOCUSOUT) or any(each.match(sequence) for each in _REPORTS)


def _with_pixels(sequence: str) -> str:
    """A size that says 0 pixels, because they are not known, with one for each character."""
    size = _SIZE.fullmatch(sequence)
    if size is None or (int(size[3]) and int(size[4])):
        return sequence
    return f"\x1b[48;{size[1]};{size[2]};{size[1]};{size[2]}t"


def _is_character(code: int) -> bool:
    """Whether it is a code point of text: no control, no surrogate."""
    return 0x20 <= code < 0x7F or 0x9F < code < 0xD800 or 0xDFFF < code < 0x110000


def _with_alt(key: str) -> Key:
    *modifiers, name = key.split("+")
    return Key("+".join([*sorted({"alt", *modifiers}), name]), None)


def _sequence_end(data: str, start: int) -> int | None:
    """Where the sequence that begins with ESC at `start` ends; None if it is not complete. A
    sequence that another character interrupts ends there."""
    if len(data) < start + 2:
        return None
    body = start + 2
    match data[start + 1]:
        case "[":
            if shifted := _RXVT_SHIFT.match(data, body):
                return shifted.end()
            parameters = _CSI_BODY.match(data, body)
            end = body if parameters is None else parameters.end()
            if end == len(data):
                return None
            if data[end] == "[" and end == body:  # function keys of the Linux console
                return None if len(data) < body + 2 else body + 2
            if data[end] == "M" and end == body:
                position = data[body + 1 : body + 4]
                if any(each < " " for each in position):
                    return body + 1
                return body + 4 if len(position) == 3 else None
            return end + 1 if "@" <= data[end] <= "~" else end
        case "O":
            parameters = _SS3_BODY.match(data, body)
            end = body if parameters is None else parameters.end()
            if end == len(data):
                return None
            return end + 1 if " " <= data[end] <= "~" else end
        case "\x1b":
            if len(data) < start + 3:
                return None
            return _sequence_end(data, start + 1) if data[start + 2] in "[O" else start + 1
    return start + 2
