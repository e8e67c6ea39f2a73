"""Answers are Markdown, and all that the model wrote can be read at any width."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.content import Content
from textual.pilot import Pilot

import app.ui.app as ui
from app.ui.theme import our_themes
from app.ui.transcript.answer import AnswerText
from app.ui.transcript.markdown import answer_parser
from app.ui.transcript.table import Align, Table, table_lines
from tests.tables import slow, table
from tests.ui.helpers import screen_text, until

NARROW = 60


class AnswerApp(App[None]):
    CSS_PATH = str(Path(ui.__file__).parent / "chat" / "chat.tcss")

    def __init__(self) -> None:
        super().__init__()
        dark, _ = our_themes()
        self.register_theme(dark)
        self.theme = dark.name


@asynccontextmanager
async def opened() -> AsyncIterator[Pilot[None]]:
    """An app that shows one answer after the other."""
    async with AnswerApp().run_test(size=(NARROW, 60)) as pilot:
        yield pilot


async def shown(pilot: Pilot[None], text: str, width: int = NARROW, streamed: bool = False) -> str:
    """The answer as it stands on the screen, which nothing else is on."""
    if pilot.app.size.width != width:
        await pilot.resize_terminal(width, 60)
    answer = AnswerText("" if streamed else text)
    await pilot.app.screen.mount(answer)
    if streamed:
        for end in range(0, len(text) + 7, 7):
            await answer.show(text[:end])
    for section in answer._sections:
        await section.mount_content()
    await until(pilot, lambda: answer.query("MarkdownBlock"), "the answer")
    await pilot.pause()
    await pilot.pause()
    on_screen = screen_text(pilot)
    await answer.remove()
    return on_screen


BRACKETS = [
    "> [Tenant]: shall",
    "[12]: contract.txt",
    '> "The [Tenant]" [...] pay [sic]',
    "f[i](x) and a[0][1]",
    "[](x)",
    "# [1] of [bold]two[/bold]",
    "- [ ] open",
    "1. [x]: done",
    "`[c]` and [@click=app.quit]q[/]",
    "[the note](Party)",
]
LITERAL = [
    r"So \(x_1 + x_2\) holds for \{a, b\}.",
    "$a*b*c$ is it, and 2*3*4 and f(x)*g(x)*h are others.",
    r"$$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$$",
    r"See C:\_temp\*.log or \\server\share there.",
    "Run __init__.py and src/**/*.py first.",
    "It costs $5 or a**2 + b**2, and x = *p; y = *q.",
]


async def test_nothing_that_the_model_wrote_vanishes() -> None:
    """Neither brackets nor the marks of formulas, paths and names."""
    async with opened() as pilot:
        for text in BRACKETS:
            words = text.lstrip(">#-1. ").replace("`", "")
            assert words in await shown(pilot, text)
        for text in LITERAL:
            assert text in " ".join((await shown(pilot, text, 100)).split())
        text = "| [a] | b |\n|---|---|\n| [x]: y | `[c]` |\n\n```\nz[0](q) = [w]\n```\n"
        on_screen = await shown(pilot, text)
        for words in ("[a]", "[x]: y", "[c]", "z[0](q) = [w]"):
            assert words in on_screen
        # The address of a link can be read.
        text = "[docs](https://a.org/x) <https://b.org> [p](mailto:a@b.org) ![i](https://c.org)"
        on_screen = " ".join((await shown(pilot, text, 120)).split())
        assert (
            "docs (https://a.org/x) https://b.org p (mailto:a@b.org) 🖼 i (https://c.org)"
            in on_screen
        )
        assert "(https://b.org)" not in on_screen


async def lines_of_a_formula_do_not_become_a_list(pilot: Pilot[None], streamed: bool) -> None:
    text = "Then\n\n\\[\na_1 * b_2\n- c\n+ d\n= 0\n\\]\n\nholds.\n"
    on_screen = await shown(pilot, text, streamed=streamed)
    lines = [line.strip() for line in on_screen.split("\n")]
    at = lines.index("\\[")
    assert lines[at : at + 6] == ["\\[", "a_1 * b_2", "- c", "+ d", "= 0", "\\]"]


async def cells_without_a_header_are_shown(pilot: Pilot[None], streamed: bool) -> None:
    text = "| a | b |\n|---|---|\n| 1 | 2 | more | and more |\n| 3 |\n"
    on_screen = await shown(pilot, text, streamed=streamed)
    assert "│ a │ b │      │          │" in on_screen
    assert "│ 1 │ 2 │ more │ and more │" in on_screen
    assert "│ 3 │   │      │          │" in on_screen


async def columns_are_aligned_as_the_table_says(pilot: Pilot[None], streamed: bool) -> None:
    text = "| Item | Sum | Mark |\n|---|---:|:-:|\n| Rent | 1,200.00 | a |\n| Tax | 9 | bcd |\n"
    on_screen = await shown(pilot, text, streamed=streamed)
    assert "│ Item │      Sum │ Mark │" in on_screen
    assert "│ Rent │ 1,200.00 │  a   │" in on_screen
    assert "│ Tax  │        9 │ bcd  │" in on_screen


async def test_formulas_and_tables_whole_and_streamed() -> None:
    async with opened() as pilot:
        for streamed in (False, True):
            await lines_of_a_formula_do_not_become_a_list(pilot, streamed)
            await cells_without_a_header_are_shown(pilot, streamed)
            await columns_are_aligned_as_the_table_says(pilot, streamed)
        for width in (40, NARROW, 80, 120):
            await no_part_of_a_table_is_cut_off(pilot, width)


WIDE = """\
| Clause | Title | Notice period | Party | Amount due | Remarks |
|---|:---|---:|:---:|---:|---|
| 12.3(a) | Termination for convenience | 30 days | Landlord | 1,234,567.89 | In writing only |
| 14 | Termination | 7 days | Tenant | 12.00 |
"""


async def no_part_of_a_table_is_cut_off(pilot: Pilot[None], width: int) -> None:
    on_screen = await shown(pilot, WIDE, width)
    assert "…" not in on_screen
    for word in re.findall(r"[^\s|:]*\w[^\s|]*", WIDE):
        assert word in on_screen, (width, word)


def test_a_wide_row_of_a_long_table_is_complete_and_quick() -> None:
    wide = "|".join(f"c{i}" for i in range(1_000))
    tokens = answer_parser().parse(f"|a|\n|-|\n|{wide}|\n" + "|d|\n" * 1_000)
    assert len(tokens) < 50_000
    texts = " | ".join(token.content for token in tokens if token.content)
    assert " | ".join(f"c{i}" for i in range(1_000)) in texts


EMPHASIS = {
    "**bold** and *it*, (*x*)": "[bold] and (it), ((x))",
    "这是**重点**内容": "这是[重点]内容",
    "**Note:** `c`, ***both***, **50%**": "[Note:] c, ([both]), [50%]",
    "_em_ and __Strong words__ of __name__": "(em) and [Strong words] of __name__",
    "**A**/**B**, **$x$**": "[A]/[B], [$x$]",
    "a*b*c, **/*.py, 5 * 3 * 2, /a/*/b/*/c": "a*b*c, **/*.py, 5 * 3 * 2, /a/*/b/*/c",
}
SHOWN_MARKS = {"strong_open": "[", "strong_close": "]", "em_open": "(", "em_close": ")"}


@table("text", EMPHASIS)
def test_emphasis_stands_at_the_borders_of_words(text: str) -> None:
    _, inline, _ = answer_parser().parse(text)
    parts = [SHOWN_MARKS.get(each.type, each.content) for each in inline.children or ()]
    assert "".join(parts) == EMPHASIS[text]


PIECES = ["\\(", "\\[\n", "$$\n", "$a", "__a", "*a", "[a*", "|a|\n|-|\n|1|2|\n"]


@pytest.mark.parametrize("number", [30, slow(300)])
def test_parsing_time_grows_with_the_text(number: int) -> None:
    for piece in PIECES:
        parsing_time_grows_with(piece, number)


def parsing_time_grows_with(piece: str, number: int) -> None:
    def seconds(times: int) -> float:
        start = time.process_time()
        answer_parser().parse(piece * times)
        return time.process_time() - start

    few, many = (min(seconds(times) for _ in range(5)) for times in (number, 10 * number))
    assert many < 40 * few + 0.05, piece


CELLS = st.text("ab1 [](|日", max_size=30).map(Content)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    columns = draw(st.integers(1, 6))
    row = st.tuples(*[CELLS] * columns)
    aligns = draw(st.tuples(*[st.sampled_from(Align)] * columns))
    return Table(draw(row), aligns, tuple(draw(st.lists(row, max_size=4))))


@given(tables(), st.integers(20, 120))
def test_a_table_fits_its_width_and_shows_every_character(table: Table, width: int) -> None:
    lines = table_lines(table, width)
    assert all(line.cell_length <= width for line in lines)
    drawn = "".join(line.plain for line in lines)
    for character in "ab1[](日":
        wanted = sum(cell.plain.count(character) for row in table.rows for cell in row)
        assert drawn.count(character) >= wanted
