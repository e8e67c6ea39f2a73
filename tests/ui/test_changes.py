"""Only what has changed of a frame is written, and the terminal shows the whole frame."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from app.ui.changes import Changes, Drawn

CONSOLE = Console(color_system="truecolor", force_terminal=True, _environ={})
WIDTH, CUT = 12, 5
BOLD = Style(bold=True)
MOVE, STYLE = re.compile(r"\x1b\[(\d+);(\d+)H"), re.compile(r"\x1b\[[\d;]*m")

Cells = Sequence[tuple[str, bool]]


def strip(cells: Cells) -> Strip:
    return Strip([Segment(text, BOLD if bold else Style()) for text, bold in cells]).simplify()


def runs(length: int) -> st.SearchStrategy[Cells]:
    """Parts of a row: texts of one character each, plain or bold."""
    part = st.tuples(st.sampled_from("ab"), st.booleans())
    return st.lists(part, min_size=length, max_size=length)


ROWS = st.lists(st.tuples(runs(CUT), runs(WIDTH - CUT)), min_size=2, max_size=2)


def partly(rows: Sequence[tuple[Cells, Cells]], spans: list[tuple[int, int, int]]) -> ChopsUpdate:
    chops: list[Mapping[int, Strip | None]] = [{0: strip(a), CUT: strip(b)} for a, b in rows]
    return ChopsUpdate(chops, spans, [[CUT, WIDTH]] * len(rows))


def whole(rows: Sequence[tuple[Cells, Cells]]) -> LayoutUpdate:
    strips = [[strip(a), strip(b)] for a, b in rows]
    return LayoutUpdate(list(strips), Region(0, 0, WIDTH, len(rows)))


def draw(screen: list[list[str]], written: str) -> None:
    """What a terminal does with it."""
    x = y = 0
    while written:
        if move := MOVE.match(written):
            y, x = int(move[1]) - 1, int(move[2]) - 1
            written = written[move.end() :]
        elif style := STYLE.match(written):
            written = written[style.end() :]
        else:
            if written[0] != "\n":
                screen[y][x] = written[0]
                x += 1
            written = written[1:]


@given(st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=6))
def test_the_screen_is_what_was_drawn(
    frames: list[tuple[Sequence[tuple[Cells, Cells]], bool]],
) -> None:
    drawn, screen = Drawn(), [[" "] * WIDTH for _ in range(2)]
    for rows, is_whole in frames:
        every = [(0, 0, WIDTH), (1, 0, WIDTH)]
        update = whole(rows) if is_whole else partly(rows, every)
        draw(screen, Changes(update, drawn).render_segments(CONSOLE))
        wanted = ["".join(text for text, _ in (*a, *b)) for a, b in rows]
        assert ["".join(row) for row in screen] == wanted


def test_only_changed_parts_are_written() -> None:
    rows = [([("name", True), (" ", False)], [("1 s", False), ("....", True)])]
    later = [([("name", True), (" ", False)], [("2 s", False), ("....", True)])]
    everywhere, drawn = [(0, 0, WIDTH)], Drawn()
    assert "name" in Changes(whole(rows), drawn).render_segments(CONSOLE)
    assert Changes(partly(rows, everywhere), drawn).render_segments(CONSOLE) == ""
    assert Changes(partly(later, everywhere), drawn).render_segments(CONSOLE) == "\x1b[1;6H2"
    # What is outside the updated cells may lack widgets.
    assert Changes(partly(rows, [(0, 0, CUT)]), drawn).render_segments(CONSOLE) == ""
    drawn.forget()
    again = Changes(partly(later, everywhere), drawn).render_segments(CONSOLE)
    assert "name" in again
    assert "...." in again


def test_characters_of_two_cells_stay_whole() -> None:
    drawn = Drawn()
    for text, written in (("日本a", "\x1b[1;1H日本a"), ("日語a", "\x1b[1;1H日語a"), ("日語a", "")):
        update = ChopsUpdate([{0: strip([(text, False)])}], [(0, 0, 5)], [[5]])
        assert Changes(update, drawn).render_segments(CONSOLE) == written


def test_a_new_division_of_a_row_is_written() -> None:
    drawn = Drawn()
    one = ([("ab", False)], [("cd", False)])
    first = ChopsUpdate([{0: strip(one[0]), 2: strip(one[1])}], [(0, 0, 4)], [[2, 4]])
    Changes(first, drawn).render_segments(CONSOLE)
    joined = ChopsUpdate([{0: strip([("abcd", False)])}], [(0, 0, 4)], [[4]])
    assert Changes(joined, drawn).render_segments(CONSOLE) == "\x1b[1;1Habcd"
    assert Changes(first, drawn).render_segments(CONSOLE) == "\x1b[1;1Hab\x1b[1;3Hcd"
