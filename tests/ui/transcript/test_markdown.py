"""Answers are Markdown, and all that the model wrote can be read at any width."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.content import Content
from textual.pilot import Pilot

import app.ui.app as ui
from app.ui.theme import our_themes
from app.ui.transcript.answer import AnswerText
from app.ui.transcript.markdown import answer_parser
from app.ui.transcript.table import Align, Table, table_lines
from tests.ui.helpers import screen_text, until

NARROW = 60


class AnswerApp(App[None]):
    CSS_PATH = str(Path(ui.__file__).parent / "chat" / "chat.tcss")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.answer = AnswerText(text)
        dark, _ = our_themes()
        self.register_theme(dark)
        self.theme = dark.name

    def compose(self) -> ComposeResult:
        yield self.answer


async def shown(text: str, width: int = NARROW, streamed: bool = False) -> str:
    """The answer as it stands on the screen."""
    app = AnswerApp("" if streamed else text)
    async with app.run_test(size=(width, 60)) as pilot:
        if streamed:
            for end in range(0, len(text) + 7, 7):
                await app.answer.show(text[:end])
        for section in app.answer._sections:
            await section.mount_content()
        await until(pilot, lambda: app.screen.query("MarkdownBlock"), "the answer")
        return await _settled(pilot)


async def _settled(pilot: Pilot[None]) -> str:
    await pilot.pause()
    await pilot.pause()
    return screen_text(pilot)


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
async def test_brackets_do_not_vanish(text: str) -> None:
    words = text.lstrip(">#-1. ").replace("`", "")
    assert words in await shown(text)


@pytest.mark.parametrize(
    "text",
    [
        r"So \(x_1 + x_2\) holds for \{a, b\}.",
        "$a*b*c$ is it, and 2*3*4 and f(x)*g(x)*h are others.",
        r"$$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$$",
        r"See C:\_temp\*.log or \\server\share there.",
        "Run __init__.py and src/**/*.py first.",
        "It costs $5 or a**2 + b**2, and x = *p; y = *q.",
    ],
)
async def test_formulas_paths_and_names_stay_as_they_are(text: str) -> None:
    assert text in " ".join((await shown(text, 100)).split())


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_lines_of_a_formula_do_not_become_a_list(streamed: bool) -> None:
    text = "Then\n\n\\[\na_1 * b_2\n- c\n+ d\n= 0\n\\]\n\nholds.\n"
    lines = [line.strip() for line in (await shown(text, streamed=streamed)).split("\n")]
    at = lines.index("\\[")
    assert lines[at : at + 6] == ["\\[", "a_1 * b_2", "- c", "+ d", "= 0", "\\]"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_cells_without_a_header_are_shown(streamed: bool) -> None:
    text = "| a | b |\n|---|---|\n| 1 | 2 | more | and more |\n| 3 |\n"
    on_screen = await shown(text, streamed=streamed)
    assert "│ a │ b │      │          │" in on_screen
    assert "│ 1 │ 2 │ more │ and more │" in on_screen
    assert "│ 3 │   │      │          │" in on_screen


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


@pytest.mark.parametrize("text", EMPHASIS)
async def test_emphasis_stands_at_the_borders_of_words(text: str) -> None:
    _, inline, _ = answer_parser().parse(text)
    parts = [SHOWN_MARKS.get(each.type, each.content) for each in inline.children or ()]
    assert "".join(parts) == EMPHASIS[text]


@pytest.mark.parametrize(
    "piece", ["\\(", "\\[\n", "$$\n", "$a", "__a", "*a", "[a*", "|a|\n|-|\n|1|2|\n"]
)
async def test_parsing_time_grows_with_the_text(piece: str) -> None:
    def seconds(times: int) -> float:
        start = time.process_time()
        answer_parser().parse(piece * times)
        return time.process_time() - start

    few, many = (min(seconds(times) for _ in range(5)) for times in (300, 3_000))
    assert many < 40 * few + 0.05


async def test_brackets_in_tables_and_code_do_not_vanish() -> None:
    text = "| [a] | b |\n|---|---|\n| [x]: y | `[c]` |\n\n```\nz[0](q) = [w]\n```\n"
    on_screen = await shown(text)
    for words in ("[a]", "[x]: y", "[c]", "z[0](q) = [w]"):
        assert words in on_screen


async def test_the_address_of_a_link_can_be_read() -> None:
    text = "[docs](https://a.org/x) <https://b.org> [p](mailto:a@b.org) ![i](https://c.org)"
    on_screen = " ".join((await shown(text, 120)).split())
    assert (
        "docs (https://a.org/x) https://b.org p (mailto:a@b.org) 🖼 i (https://c.org)" in on_screen
    )
    assert "(https://b.org)" not in on_screen


WIDE = """\
| Clause | Title | Notice period | Party | Amount due | Remarks |
|---|:---|---:|:---:|---:|---|
| 12.3(a) | Termination for convenience | 30 days | Landlord | 1,234,567.89 | In writing only |
| 14 | Termination | 7 days | Tenant | 12.00 |
"""


@pytest.mark.parametrize("width", [40, NARROW, 80, 120])
async def test_no_part_of_a_table_is_cut_off(width: int) -> None:
    on_screen = await shown(WIDE, width)
    assert "…" not in on_screen
    for word in re.findall(r"[^\s|:]*\w[^\s|]*", WIDE):
        assert word in on_screen, word


@pytest.mark.parametrize("streamed", [False, True])
async def test_columns_are_aligned_as_the_table_says(streamed: bool) -> None:
    table = "| Item | Sum | Mark |\n|---|---:|:-:|\n| Rent | 1,200.00 | a |\n| Tax | 9 | bcd |\n"
    on_screen = await shown(table, streamed=streamed)
    assert "│ Item │      Sum │ Mark │" in on_screen
    assert "│ Rent │ 1,200.00 │  a   │" in on_screen
    assert "│ Tax  │        9 │ bcd  │" in on_screen


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
