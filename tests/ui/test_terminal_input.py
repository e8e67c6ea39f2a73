"""Keys, late answers, and pastes without brackets, as bytes of real terminals."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.events import Key, Paste
from textual.message import Message

from app.ui.chat.composer import ComposeBox
from app.ui.keys import SafeInput
from app.ui.terminal_input import BURST_SECONDS, PASTE_SECONDS, BackgroundReported, PasteSafeParser
from tests.tables import table

MULTI_LINE = "Clause 1. One thing.\rClause 2. Another.\r\tIndented\r\r"


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("textual._parser.get_time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def outline(messages: list[Message]) -> list[str]:
    """Keys by name, with what they type; pastes quoted; other messages by class."""
    found = []
    for each in messages:
        if isinstance(each, Key):
            typed = each.character if each.is_printable else None
            found.append(each.key if typed in (None, each.key) else f"{each.key} {typed}")
        else:
            found.append(repr(each.text) if isinstance(each, Paste) else type(each).__name__)
    return found


def read(clock: Clock, *reads: str, pause: float = 0.0) -> list[str]:
    """What reads with pauses between them mean, and a long silence."""
    parser, messages = PasteSafeParser(), list[Message]()
    for each in reads:
        messages += parser.feed(each)
        clock.now += pause
        messages += parser.tick()
    clock.now += 10
    messages += parser.tick()
    return outline(messages)


KEYS = [
    ("modifiers alone, and locks", "".join(f"\x1b[{n}u" for n in range(57441, 57455)), []),
    ("locks alone", "\x1b[57358u\x1b[57359u\x1b[57360u", []),
    ("a modifier while another is held", "\x1b[57442;5u", []),
    ("a key that is released", "\x1b[97;1:3u\x1b[57442;5:3u", []),
    ("a key that repeats", "\x1b[97;1:2;97u", ["a"]),
    ("alternate codes", "\x1b[99:67:99;5u", ["ctrl+c"]),
    ("Ctrl+C with Num Lock", "\x1b[99;133u", ["ctrl+c"]),
    ("the keypad with its text", "\x1b[57413;;43u\x1b[57409;;44u", ["plus +", "comma ,"]),
    ("the keypad without", "\x1b[57413u\x1b[57400u\x1b[57414u", ["plus +", "1", "enter"]),
    ("the keypad with Ctrl", "\x1b[57413;5u", ["ctrl+plus"]),
    (
        "the keypad of a VT",
        "\x1bOk\x1bOl\x1bOX\x1bOM",
        ["plus +", "comma ,", "equals_sign =", "enter"],
    ),
    ("text without its text", "\x1b[97u\x1b[97;2u\x1b[65;2u", ["a", "A", "A"]),
    ("text with its text", "\x1b[97;2;65u\x1b[49;3;161u", ["A", "inverted_exclamation_mark ¡"]),
    ("Shift+Space", "\x1b[32;2u\x1b[27;2;32~\x1b[32;2;32u", ["space  "] * 3),
    ("Shift+Enter", "\x1b[13;2u\x1b[27;2;13~\x1b[13;130u\x1b[57414;2u\x1bO2M", ["shift+enter"] * 5),
    ("Ctrl+Enter", "\x1b[27;5;13~\x1b[13;5u", ["ctrl+enter"] * 2),
    ("Alt+Enter", "\x1b\r\x1b\n\x1b[13;3u\x1b[27;3;13~", ["alt+enter"] * 4),
    ("Alt+Backspace", "\x1b\x7f\x1b\x08\x1b[127;3u", ["ctrl+w", "ctrl+w", "alt+backspace"]),
    (
        "Alt and a character",
        "\x1b1\x1b-\x1b=\x1bx\x1bY",
        ["alt+1", "alt+minus", "alt+equals_sign", "alt+x", "alt+shift+y"],
    ),
    (
        "Alt+arrows",
        "\x1b\x1b[D\x1b\x1b[C\x1b\x1bOA\x1b\x1bOB",
        ["alt+left", "alt+right", "alt+up", "alt+down"],
    ),
    ("the same by xterm", "\x1b[1;3D\x1b[1;3A", ["alt+left", "alt+up"]),
    (
        "with modifiers",
        "\x1b\x1b[d\x1b\x1bOd\x1b\x1b[1;5D",
        ["alt+shift+left", "alt+ctrl+left", "alt+ctrl+left"],
    ),
    ("older modified arrows", "\x1bO5D\x1bO1;5C", ["ctrl+left", "ctrl+right"]),
    (
        "other keys with Alt",
        "\x1b\x1b[3~\x1b\x1b[5~\x1b\x1b[7~",
        ["alt+delete", "alt+pageup", "alt+home"],
    ),
    ("mintty's Ctrl+Alt+1", "\x1b[1;7q", ["alt+ctrl+1"]),
    ("Esc twice", "\x1b\x1b", ["escape", "escape"]),
    ("Esc twice, then Alt+Left", "\x1b\x1b\x1b[D", ["escape", "alt+left"]),
    ("Esc and a paste", "\x1b\x1b[200~a\x1b[201~", ["escape", "'a'"]),
    ("Esc and a control key", "\x1b\x11", ["escape", "ctrl+q"]),
    ("Alt and the first character of a sequence", "\x1b[", []),
    (
        "st",
        "\x1b[P\x1b[2K\x1b[M\x1b[2J\x1b[K\x1b[J\x1b[4h",
        ["delete", "shift+delete", "ctrl+delete", "shift+home", "shift+end", "ctrl+end", "insert"],
    ),
    ("F1 of a kitty keyboard", "\x1b[?25u\x1b[P\x1b[1;5P", ["f1", "ctrl+f1"]),
    (
        "rxvt-unicode",
        "\x1b[7^\x1b[8^\x1b[7$\x1b[3$\x1bOb\x1b[3@\x1b[5@\x1b[2$\x1b[23^\x1b\x1b[8^\x1b[16@",
        [
            "ctrl+home",
            "ctrl+end",
            "shift+home",
            "shift+delete",
            "ctrl+down",
            "ctrl+shift+delete",
            "ctrl+shift+pageup",
            "shift+insert",
            "ctrl+f11",
            "alt+ctrl+end",
        ],
    ),
    ("the X10 mouse", "\x1b[M !!\x1b[M#\x7f\x7f\x1b[M\x1b[A", ["ctrl+delete", "up"]),
    ("function keys", "\x1bOP\x1b[11~\x1b[[A\x1b[25~", ["f1", "f1", "f1", "f13"]),
    ("focus and the mouse", "\x1b[I\x1b[O\x1b[<0;5;5M", ["AppFocus", "AppBlur", "MouseDown"]),
    (
        "a burst of typed keys",
        "@sr\tde\tb.\tWhat is it?\r",
        [
            "at @",
            *"sr",
            "tab",
            *"de",
            "tab",
            "b",
            "full_stop .",
            "tab",
            *"What",
            "space  ",
            "i",
            "s",
            "space  ",
            "i",
            "t",
            "question_mark ?",
            "enter",
        ],
    ),
]


@table("what, sent, keys", KEYS)
def test_keys_of_terminals(clock: Clock, what: str, sent: str, keys: list[str]) -> None:
    assert read(clock, sent) == keys, what


ANSWERS = [
    "\x1b[?62;4c", "\x1b[>41;390;0c", "\x1b[=1;2c", "\x1b[?997;1n", "\x1b[0n", "\x1b[?2026;2$y",
    "\x1b[4;1$y", "\x1b[?1u", "\x1b[8;24;80t", "\x1b[?1;2;256S", "\x1b[>4;2m", "\x1b[99~",
    "\x1b[201~", "\x1b]11;rgb:0000/0000/0000\x1b\\", "\x1b]10;rgb:ff/ff/ff\x07",
    "\x1b]4;1;rgb:00/00/00\x1b\\", "\x1b]52;c;aGVsbG8=\x07", "\x1b]lthe title\x1b\\",
    "\x1bP>|xterm(390)\x1b\\", "\x1bP1$r0m\x1b\\", "\x1bP1+r544e=787465726d\x1b\\",
    "\x1b_Gi=31;OK\x1b\\", "\x1bXa string\x1b\\", "\x1b^private\x1b\\", "\x9b?62;4c",
    "\x9d11;rgb:00/00/00\x9c", "\x90>|x\x9c", "\x1b]11;" + "x" * 5_000 + "\x07",
    "\x1b[" + "1;" * 500 + "z", "\x1b[9999999999;5u", "\x1b[99;99999999999999u", "\x1b[1114112u",
    "\x1b[55296u", "\x1b[<99999999999999999999999999999999;1;1M", "\x1bOz", "\x1b[57461u",
    "\x1b[?25l",
]  # fmt: skip


@table("answer, length", itertools.product(ANSWERS, [1, 2, 3, 7, 9_999]))
def test_answers_and_unknown_sequences_type_nothing(clock: Clock, answer: str, length: int) -> None:
    reads = [answer[start : start + length] for start in range(0, len(answer), length)]
    found = read(clock, "a", *reads, "b", pause=0.03 if length > 1 else 0)
    ignored = ("BackgroundReported", "CursorPosition", "TerminalSupportsSynchronizedOutput")
    assert [each for each in found if each not in ignored] == ["a", "b"]


LATE = [
    ("\x1b]11;rgb:00", "00/0000/0000\x1b\\"),
    ("\x1b]11;rgb:0000/0000/0000", "\x07"),
    ("\x1b]11;rgb:0000/0000/0000\x1b", "\\"),
    ("\x1b]", "11;rgb:0000/0000/0000\x1b\\"),
    ("\x1b]11;rgb:00", "00/00", "00/0000\x07"),
    ("\x1b]lthe ti", "tle\x1b\\"),
    ("\x1bP>|xt", "erm(390)\x1b\\"),
    ("\x1bP1$r", "0m\x1b\\"),
    ("\x1b_Gi=31;", "OK\x1b\\"),
    ("\x1b[", "?62;4c"),
    ("\x1b[?62", ";4c"),
    ("\x1b[", "24;80R"),
    ("\x1b[", "<0;5;5m"),
]


@table("reads, pause", itertools.product(LATE, [2.1, 60.0]))
def test_the_rest_of_an_answer_is_never_typed(
    clock: Clock, reads: tuple[str, ...], pause: float
) -> None:
    found = read(clock, "a", *reads, "b", pause=pause)
    ignored = ("BackgroundReported", "CursorPosition", "MouseUp")
    assert [each for each in found if each not in ignored] == ["a", "b"]


def test_typing_goes_on_after_an_answer_that_never_ends(clock: Clock) -> None:
    assert read(clock, "\x1b]11;rgb:00", *"ab\r", pause=2.1) == ["a", "b", "enter"]
    assert read(clock, "\x1bP>|x", MULTI_LINE, pause=2.1) == [repr(MULTI_LINE)]
    assert read(clock, "\x1b]11;rgb:00", "\x07", "\x07", pause=2.1) == ["ctrl+g"]


@table("length, pause", itertools.product([1, 2, 5], [0.0, 0.05]))
def test_the_x10_mouse_in_parts(clock: Clock, length: int, pause: float) -> None:
    sent = "\x1b[M !!\x1b[M#\x7f!"
    parts = [sent[start : start + length] for start in range(0, len(sent), length)]
    assert read(clock, "a", *parts, "b", pause=pause) == ["a", "b"]


def test_ctrl_delete_of_st_and_a_key(clock: Clock) -> None:
    assert read(clock, "\x1b[M", "b", pause=0.2) == ["ctrl+delete", "b"]
    assert read(clock, "\x1b[M", "b", pause=0.05) == ["ctrl+delete", "b"]


@table("at, pause", itertools.product(range(1, 12), [0.2, 0.7, 60.0]))
def test_a_paste_in_two_reads_is_whole_at_any_pause(clock: Clock, at: int, pause: float) -> None:
    sent = "\x1b[200~a\rb\r\x1b[201~"
    found = read(clock, sent[:at], sent[at:], pause=pause)
    assert [each for each in found if each != "escape"] == [repr("a\rb\r")]


@table("pause", [0.2, 0.7, 60.0])
def test_a_paste_is_whole_at_any_speed(clock: Clock, pause: float) -> None:
    parser, messages = PasteSafeParser(), list[Message]()
    for number, each in enumerate("\x1b[200~a\rb\x1b[20\x1b[201~c"):
        messages += parser.feed(each)
        clock.now += pause
        if number > 5:
            messages += parser.tick()
    assert outline(messages) == [repr("a\rb\x1b[20"), "c"]


def test_keys_after_alt_and_a_bracket_are_typed(clock: Clock) -> None:
    assert read(clock, "\x1b]", "a", "b", pause=0.2) == ["a", "b"]
    assert read(clock, "\x1b[", "a", "b", pause=0.2) == ["a", "b"]
    assert read(clock, "\x1bP", *"1+r", pause=0.6) == ["1", "plus +", "r"]


@given(
    st.text(
        st.sampled_from("\x1b[]OPX_^\\;:?<>$0159umM~ABRab\r\t\x07\x18\x7f\x9b\x9dé"), max_size=40
    )
)
def test_no_input_ends_the_reader(data: str) -> None:
    parser = PasteSafeParser()
    for each in (data, "\x1b\\", "\x07", *"zzz"):
        list(parser.feed(each))
    assert outline(list(parser.feed("a")))[-1:] in (["a"], []) or parser.is_waiting


@table(
    "answer, is_dark",
    [
        ("rgb:0000/0000/0000", True), ("rgb:ffff/ffff/ffff", False), ("rgb:fb/fa/f7", False),
        ("rgba:1515/1717/1b1b/ffff", True), ("rgb:f/f/f", False), ("#ffffff", None),
    ],
)  # fmt: skip
def test_the_terminals_background(answer: str, is_dark: bool | None) -> None:
    messages = list(PasteSafeParser().feed(f"\x1b]11;{answer}\x1b\\"))
    told = [each.is_dark for each in messages if isinstance(each, BackgroundReported)]
    assert told == ([] if is_dark is None else [is_dark])


# ------------------------------------------------------------------------------ no brackets


@table(
    "sent",
    [
        MULTI_LINE, "line one\rline two\r", "one line of text\r\rand another",
        "a" * 300, "a" * 300 + "\r",
        "/srv/me/contract.txt ", "'/srv/me/a b.txt' ", "~/notes.md and", "file:///tmp/a%20b.txt",
        "a table\tof two rows\r1\t2\r", "with \x1b[31mcolours\x1b[0m in it\rand \x11 keys\r",
        "日本語のテキスト。これは一行目です。\r二行目\r",
    ],
)  # fmt: skip
def test_a_burst_is_a_paste(clock: Clock, sent: str) -> None:
    assert read(clock, sent) == [repr(sent)]


def test_a_path_and_enter(clock: Clock) -> None:
    assert read(clock, "/srv/me/contract.txt\r") == ["'/srv/me/contract.txt'", "enter"]


def test_a_long_line_and_enter_pressed_after_it(clock: Clock) -> None:
    assert read(clock, "a" * 300, "\r", pause=0.02) == [repr("a" * 300), "enter"]


def test_a_question_typed_by_a_program_is_sent(clock: Clock) -> None:
    assert read(clock, "What is handled in office 14?\r")[-2:] == ["question_mark ?", "enter"]
    assert read(clock, "What is handled in office 14?", "\r")[-1] == "enter"
    assert "enter" in read(clock, "What is handled here?\r", "and there?\r", pause=0.2)


def test_keys_typed_ahead_are_keys(clock: Clock) -> None:
    assert read(clock, "\x0735\rah") == ["ctrl+g", "3", "5", "enter", "a", "h"]
    assert read(clock, "ok\rno\r")[2] == "enter"


@table("length", [1_024, 4_095, 37])
def test_a_paste_of_many_reads_is_one(clock: Clock, length: int) -> None:
    text = "".join(f"Clause {number}. The parties agree.\r" for number in range(3_000))
    reads = [text[start : start + length] for start in range(0, len(text), length)]
    assert read(clock, *reads, pause=0.01) == [repr(text)]


def test_lines_written_one_by_one_are_one_paste(clock: Clock) -> None:
    lines = [f"This is line number {number}\r" for number in range(50)]
    assert read(clock, *lines, pause=BURST_SECONDS / 2) == [repr("".join(lines))]


def test_keys_after_a_paste_are_keys(clock: Clock) -> None:
    assert read(clock, MULTI_LINE, "\x11", pause=PASTE_SECONDS + 0.01) == [
        repr(MULTI_LINE),
        "ctrl+q",
    ]


def test_reports_in_the_middle_of_a_paste_are_not_pasted(clock: Clock) -> None:
    found = read(clock, MULTI_LINE, "\x1b[<35;10;2M\x1b[I", MULTI_LINE)
    assert found == ["MouseMove", "AppFocus", repr(MULTI_LINE * 2)]
    question = "What is handled in office 14?\r" + "\x1b[<35;10;2M" * 30
    assert read(clock, question)[-31:] == ["enter", *["MouseMove"] * 30]


def test_a_bracketed_paste_after_a_burst(clock: Clock) -> None:
    assert read(clock, "a line of typed text\r", "\x1b[200~x\ry\x1b[201~")[-2:] == [
        "enter",
        "'x\\ry'",
    ]


# ------------------------------------------------------------------------------ the boxes


class OneBox(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def compose(self) -> ComposeResult:
        yield ComposeBox()
        yield SafeInput()

    def on_compose_box_submitted(self, event: ComposeBox.Submitted) -> None:
        self.sent.append(event.text)


async def test_keys_in_the_boxes() -> None:
    """Alt+Enter and Shift+Enter begin a line, Alt and arrows go by words."""
    async with OneBox().run_test() as pilot:
        box, line = pilot.app.query_one(ComposeBox), pilot.app.query_one(SafeInput)
        box.focus()
        for sent in (
            "a\x1b\rb\x1b[27;2;13~c\x1b[32;2u",
            "\x1b1\x1b[?62;4c",
            "d e\x1b\x1b[Df\x1b[127;3u",
        ):
            for each in PasteSafeParser().feed(sent):
                pilot.app.post_message(each)
            await pilot.pause()
        assert box.text == "a\nb\nc d e"
        for each in PasteSafeParser().feed("\x1b[7^0\x1b[8^1\x1b[1;5H\x1b[3^"):
            pilot.app.post_message(each)
        await pilot.pause()
        assert box.text == "\nb\nc d e1"
        line.focus()
        for each in PasteSafeParser().feed("one two\x1b\x1b[D\x1b\x1b[D-\x1b\x1b[C+"):
            pilot.app.post_message(each)
        await pilot.pause()
        assert line.value == "-one +two"


@table(
    "size, events",
    [
        ("\x1b[48;40;120;800;1200t", ["Resize", "MouseDown"]),
        ("\x1b[48;40;120;0;0t", ["Resize", "MouseDown"]),
        ("\x1b[48;0;120;800;1200t", ["MouseDown"]),
        ("\x1b[48;40;0;800;1200t", ["MouseDown"]),
    ],
)
def test_a_size_of_nothing_is_not_divided_by(size: str, events: list[str]) -> None:
    parser = PasteSafeParser()
    parser.mouse_pixels = True
    assert [
        type(each).__name__ for each in (*parser.feed(size), *parser.feed("\x1b[<0;99;99M"))
    ] == events


@table(
    "sequence, typed",
    [
        ("\x1b[0;;26085:26412u", ["日", "本"]),  # of an input method, without a key
        ("\x1b[0u", []),
        ("\x1b[<35;-1;5Ma", ["a"]),
        ("\x1b[<35;5;-12Ma", ["a"]),
    ],
)
def test_text_without_a_key_and_a_mouse_outside(sequence: str, typed: list[str]) -> None:
    keys = [each for each in PasteSafeParser().feed(sequence) if isinstance(each, Key)]
    assert [each.character for each in keys] == typed


def test_a_slow_paste_ends(clock: Clock) -> None:
    parser, found = PasteSafeParser(), []
    for part in ("\x1b[200~abc", "\x1b[", "2", "01~x"):
        clock.now += 0.2
        found += parser.feed(part)
        found += parser.tick()
    assert [each.text for each in found if isinstance(each, Paste)] == ["abc"]
    assert [each.character for each in found if isinstance(each, Key)] == ["x"]
