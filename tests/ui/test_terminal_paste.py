"""Hostile pastes through our parser: all text arrives, and nothing of it becomes a key."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from textual._xterm_parser import BRACKETED_PASTE_END as END
from textual._xterm_parser import BRACKETED_PASTE_START as START
from textual._xterm_parser import XTermParser
from textual.events import Key, Paste
from textual.message import Message

from app.ui.terminal import PasteSafeParser

HOSTILE = [
    "an escape \x1b alone",
    "colours \x1b[31mred\x1b[0m and more",
    "an arrow \x1b[A then Enter \r and quit \x11",
    "\x1b",
    "\x1b\x1b\x1b",
    "\r\n\r\n\n\r",
    "NUL \x00 inside, form feed \x0c, unit \x1f",
    "C1 \x9b31m and \x85",
    "half a marker \x1b[20",
    "half a marker \x1b[201",
    "a start marker " + START + " again",
    "focus \x1b[I\x1b[O mouse \x1b[<0;1;1M size \x1b[48;24;80;480;800t",
    "\u2028\u2029\u202e\ufeff\ud7ff\U0001f600",
    "",
]


def fed(parser: XTermParser, reads: list[str]) -> list[Message]:
    messages: list[Message] = []
    for read in reads:
        messages.extend(parser.feed(read))
    return messages


def split(text: str, length: int) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text), length)]


def outline(messages: list[Message]) -> list[tuple[str, str]]:
    kinds = []
    for message in messages:
        assert isinstance(message, Key | Paste), message
        if isinstance(message, Key):
            kinds.append(("key", message.key))
        else:
            kinds.append(("paste", message.text))
    return kinds


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 4096])
def test_a_hostile_paste_is_one_paste_however_it_is_split(text: str, length: int) -> None:
    stream = f"a{START}{text}{END}\r"
    got = outline(fed(PasteSafeParser(), split(stream, length)))
    assert got == [("key", "a"), ("paste", text), ("key", "enter")]


def test_the_defect_is_there_without_our_parser() -> None:
    """When this fails, Textual was repaired, and `app/ui/terminal` can go."""
    text = "one \x1b[31m two \x1b\r three"
    got = outline(fed(XTermParser(), [f"{START}{text}{END}"]))
    assert got != [("paste", text)]


@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=60), st.integers(1, 20))
def test_any_text_arrives_whole(text: str, length: int) -> None:
    text = text.replace(END, "")
    got = outline(fed(PasteSafeParser(), split(f"{START}{text}{END}", length)))
    assert got == [("paste", text)]


@given(st.lists(st.sampled_from(["\x1b", "[", "2", "0", "1", "~", "x", "\r"]), max_size=24))
def test_texts_made_of_pieces_of_markers_arrive_whole(pieces: list[str]) -> None:
    text = "".join(pieces)
    assume(END not in text)
    got = outline(fed(PasteSafeParser(), split(f"{START}{text}{END}", 1)))
    assert got == [("paste", text)]


def test_two_pastes_and_keys_between() -> None:
    stream = f"{START}one\x1b[A{END}\x1b[B{START}two{END}\t"
    got = outline(fed(PasteSafeParser(), [stream]))
    assert got == [("paste", "one\x1b[A"), ("key", "down"), ("paste", "two"), ("key", "tab")]


def test_an_end_marker_inside_a_paste_of_one_read_is_text() -> None:
    text = f"before {END}\r after"
    assert outline(fed(PasteSafeParser(), [f"{START}{text}{END}"])) == [("paste", text)]


def test_keys_are_read_as_before() -> None:
    stream = "a\x1b[A\x1b[20~\x1bOP\x14\x07\n\r"
    assert outline(fed(PasteSafeParser(), [stream])) == outline(fed(XTermParser(), [stream]))


def test_a_lone_escape_is_still_the_escape_key(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = PasteSafeParser()
    assert outline(list(parser.feed("\x1b"))) == []
    monkeypatch.setattr("textual._parser.get_time", lambda: float("inf"))
    assert outline(list(parser.tick())) == [("key", "escape")]


def test_a_start_marker_split_by_a_slow_line_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = PasteSafeParser()
    assert outline(list(parser.feed("\x1b[20"))) == []
    monkeypatch.setattr("textual._parser.get_time", lambda: float("inf"))
    assert outline(list(parser.tick())) == []
    assert outline(list(parser.feed(f"0~text{END}"))) == [("paste", "text")]


def test_a_megabyte_of_escapes_is_quick() -> None:
    """The parent takes a step of a generator per character; a paste must not."""
    text = "\x1b[31m" * 200_000
    got = fed(PasteSafeParser(), split(f"{START}{text}{END}", 4096))
    assert outline(got) == [("paste", text)]
