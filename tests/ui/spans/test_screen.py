"""The spans view, driven by keys and mouse."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio
from textual.app import App
from textual.events import Key
from textual.pilot import Pilot

import app.ui.app as ui
from app.ui.spans.passages import Passage, ReadDocument, ReadKind
from app.ui.spans.screen import READING, AskAgain, Hints, SpansScreen, _fit, document_line
from app.ui.spans.view import Minimap
from app.ui.theme import our_themes
from tests.tables import table
from tests.ui.helpers import in_one_read, screen_text, until, until_gone, until_shown

LINES = [f"Line {i} of the contract." for i in range(1, 201)]
TEXT = "\n".join(LINES)


def at(line: int) -> int:
    """Where a line begins."""
    return sum(len(text) + 1 for text in LINES[: line - 1])


def contract(
    *kept: tuple[int, int], name: str = "contract.txt", number: int = 0, score: float = 3.5
) -> ReadDocument:
    """Of which lines `first` up to but not including `last` were read."""
    passages, done = [], 0
    for first, last in kept:
        passages.append(Passage(done, at(first), ReadKind.UNREAD))
        passages.append(Passage(at(first), at(last), ReadKind.SELECTED, score))
        done = at(last)
    passages.append(Passage(done, len(TEXT), ReadKind.UNREAD))
    importance = tuple(0.5 if 30 <= i < 60 else 0.0 for i in range(100))
    return ReadDocument(0, number, name, TEXT, tuple(passages), importance)


pytestmark = pytest.mark.asyncio(loop_scope="module")


class SpansHost(App[None]):
    CSS_PATH: ClassVar[list[Path]] = [  # type: ignore[assignment]
        Path(ui.__file__).parent / name for name in ("filter_list.tcss", "spans/spans.tcss")
    ]

    spans: SpansScreen
    """The one that is shown, or was shown last."""

    def __init__(self) -> None:
        super().__init__()
        dark, _ = our_themes()
        self.register_theme(dark)
        self.theme = dark.name


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def host() -> AsyncIterator[None]:
    """One app, which shows the screens of all tests, one after the other."""
    app, ready, done = SpansHost(), asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as Shown.pilot:
            ready.set()
            await done.wait()

    running = asyncio.create_task(run())
    await ready.wait()
    yield
    done.set()
    await running


class Shown:
    """A screen of spans in the app that all tests share."""

    pilot: ClassVar[Pilot[None]]

    def __init__(self, screen: SpansScreen) -> None:
        self.spans = screen
        self.results: list[AskAgain | None] = []

    @asynccontextmanager
    async def run_test(self, size: tuple[int, int]) -> AsyncIterator[Pilot[None]]:
        pilot = self.pilot
        host = pilot.app
        assert isinstance(host, SpansHost)
        with host._context():
            if host.size != size:
                await pilot.resize_terminal(*size)
            host.spans = self.spans
            await host.push_screen(self.spans, self.results.append)
            yield pilot
            while len(host.screen_stack) > 1:
                await host.pop_screen()


@pytest.fixture
def tried() -> list[float]:
    return []


@pytest.fixture
def spans(tried: list[float]) -> Shown:
    return Shown(SpansScreen([contract((50, 53), (120, 125))], 0.2, tried.append))


def line(pilot: Pilot[None]) -> int:
    app = pilot.app
    assert isinstance(app, SpansHost)
    return TEXT.count("\n", 0, app.spans.view.cursor) + 1


@asynccontextmanager
async def at_line_50(spans: Shown) -> AsyncIterator[Pilot[None]]:
    """At the first passage that was read."""
    async with spans.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: line(pilot) == 50)
        yield pilot


async def test_it_opens_at_the_first_passage_that_was_read(spans: Shown) -> None:
    async with spans.run_test(size=(80, 24)) as pilot:
        await until_shown(
            pilot, "▌ Line 50 of the contract.", "line 50 · read · importance 3.5x average"
        )
        text = screen_text(pilot)
        assert "contract.txt" in text
        assert "2 passages" in text
        assert "▌ Line 53" not in text
        assert "  Line 53" in text


async def test_from_passage_to_passage(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        await pilot.press("n")
        await until_shown(pilot, "line 120 · read")
        await pilot.press("n")
        await until_shown(pilot, "No more passages were read.")
        await pilot.press("p")
        await until_shown(pilot, "line 50 · read")
        await pilot.press("p")
        await until_shown(pilot, "No earlier passages were read.")


async def test_moving(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        await pilot.press("down", "down", "up")
        assert line(pilot) == 51
        await pilot.press("end")
        await until_shown(pilot, "Line 200", "line 200 · not read")
        await pilot.press("down")
        assert line(pilot) == 200
        await pilot.press("home", "up")
        await until_shown(pilot, "line 1 · not read")
        await pilot.press("pagedown")
        assert 15 <= line(pilot) <= 24
        await until_shown(pilot, f"Line {line(pilot)} of")


async def test_a_hit_that_was_not_read_says_so_and_is_pinned(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        await pilot.press("slash", *"line 19")
        await until_shown(pilot, "hit 2 of 11 · not read (Space pins it)")
        assert line(pilot) == 190
        await pilot.press("enter")
        await until_shown(pilot, "hit 3 of 11")
        await pilot.press("escape")
        await until(pilot, lambda: not spans.spans.search.display)
        await pilot.press("space")
        await until_shown(pilot, "Pinned", "1 pin", "█ Line 191 of")
        await pilot.press("enter")
        await until(pilot, lambda: spans.results)
        (result,) = spans.results
        assert result is not None
        assert result.keep is None
        ((start, end),) = result.pins[0, 0]
        assert start <= at(191) < end


async def test_text_that_is_not_found(spans: Shown) -> None:
    async with spans.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+f", *"penguin")
        await until_shown(pilot, "Not found in the document.")
        await pilot.press("enter", "escape", "escape")
        await until(pilot, lambda: spans.results == [None])


async def test_a_pin_can_be_removed() -> None:
    text = "One.\n\nTwo.\n\nThree."
    whole = ReadDocument(0, 0, "a", text, (Passage(0, len(text), ReadKind.UNREAD),))
    spans = Shown(SpansScreen([whole], 0.2))
    async with spans.run_test(size=(80, 24)) as pilot:
        await pilot.press("down", "down", "space")
        await until_shown(pilot, "1 pin")
        await pilot.press("enter")
        await until(pilot, lambda: spans.results)
    assert spans.results[0] == AskAgain(None, {(0, 0): ((6, 10),)})
    again = Shown(SpansScreen([replace(whole, pinned=((6, 10),))], 0.2))
    async with again.run_test(size=(80, 24)) as pilot:
        await pilot.press("down", "down", "space")
        await until_shown(pilot, "No longer pinned.")
        await pilot.press("enter")
        await until(pilot, lambda: again.results)
    assert again.results[0] == AskAgain(None, {(0, 0): ()})


async def test_folding_hides_what_was_not_read(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        await pilot.press("f")
        await until_shown(
            pilot, "⋯ 49 lines not read", "Line 50", "⋯ 67 lines not read", "⋯ 76 lines not read"
        )
        assert "Line 49" not in screen_text(pilot)
        await pilot.press("f")
        await until_shown(pilot, "Line 49")
        assert line(pilot) == 50


async def test_another_keep_is_tried(spans: Shown, tried: list[float]) -> None:
    async with spans.run_test(size=(80, 24)) as pilot:
        await pilot.press("right", "right", "left")
        await until(pilot, lambda: len(tried) == 3)
        assert tried == [0.21, 0.22, 0.21]
        spans.spans.show([contract((50, 60), (120, 125))], 0.21)
        await until_shown(pilot, "keep 21% would read", "▌ Line 59")


async def test_the_answer_to_an_earlier_key_takes_no_later_key_back(
    spans: Shown, tried: list[float]
) -> None:
    async with spans.run_test(size=(80, 24)) as pilot:
        await pilot.press("right", "right")
        await until(pilot, lambda: len(tried) == 2)
        spans.spans.show([contract((50, 53), (120, 125))], 0.21)
        await pilot.press("right", "enter")
        await until(pilot, lambda: spans.results)
        assert tried == [0.21, 0.22, 0.23]
        assert spans.results == [AskAgain(0.23, {})]


async def test_a_keep_that_cannot_be_tried() -> None:
    spans = Shown(SpansScreen([contract((50, 53))], 0.2))
    async with spans.run_test(size=(80, 24)) as pilot:
        await pilot.press("right")
        await until_shown(pilot, "Another keep can be tried only on the last answer")


FOLDER = [
    contract((10, 12), name="other\x1b.txt", number=0),
    contract(name="unread.txt", number=1),
    contract((50, 53), (120, 125), name="contract.txt", number=2, score=4.0),
    contract((190, 191), name="last.txt", number=3),
]
"""Of four documents the third is the most important one."""


@pytest.fixture
def folder() -> Shown:
    return Shown(SpansScreen(FOLDER, 0.2))


def where(spans: Shown) -> tuple[str, int]:
    view = spans.spans.view
    return view.document.name, TEXT.count("\n", 0, view.cursor) + 1


async def test_next_goes_from_document_to_document(folder: Shown) -> None:
    """It begins at the most important one, not at the first."""
    async with folder.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "What was read  1/4 contract.txt   read 4% · passage 1 of 4")
        seen = [where(folder)]
        for _ in range(3):
            await pilot.press("n")
            await until(pilot, lambda: where(folder) != seen[-1])
            seen.append(where(folder))
        assert seen == [
            ("contract.txt", 50),
            ("contract.txt", 120),
            ("other\x1b.txt", 10),
            ("last.txt", 190),
        ]
        await until_shown(pilot, "3/4 last.txt", "passage 4 of 4", "▌ Line 190")
        await pilot.press("n")
        await until_shown(pilot, "No more passages were read.")
        for place in seen[-2::-1]:
            await pilot.press("p")
            await until(pilot, lambda place=place: where(folder) == place)  # type: ignore[misc]
        await pilot.press("p")
        await until_shown(pilot, "No earlier passages were read.")


async def test_every_document_is_searched(folder: Shown) -> None:
    async with folder.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"Line 190")
        await until_shown(pilot, "hit 1 of 4 in 4 documents · not read")
        seen = [where(folder)]
        for _ in range(4):
            await pilot.press("enter")
            await until(pilot, lambda: where(folder) != seen[-1])
            seen.append(where(folder))
        names = ["contract.txt", "other\x1b.txt", "last.txt", "unread.txt", "contract.txt"]
        assert seen == [(name, 190) for name in names]
        await pilot.press("enter", "enter")
        await until_shown(pilot, "hit 3 of 4 in 4 documents · read")
        await pilot.press("escape")
        await until_shown(pilot, "3/4 last.txt")


async def test_the_documents_of_a_folder_are_listed_with_their_shares(folder: Shown) -> None:
    async with folder.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "1/4 contract.txt")
        await pilot.press("d")
        await until_shown(pilot, "4 documents, the most important first")
        rows = re.findall(r"\d  (\S+) .*[━─]  +(\S+%)", screen_text(pilot))
        assert rows == [
            ("contract.txt", "4%"),
            ("other␛.txt", "1%"),
            ("last.txt", "1%"),
            ("unread.txt", "0%"),
        ]
        await pilot.press(*"oth", "enter")
        await until(pilot, lambda: where(folder) == ("other\x1b.txt", 10))
        await pilot.press("d", "down", "enter")
        await until(pilot, lambda: where(folder) == ("last.txt", 190))
        await pilot.press("tab")
        await until_shown(pilot, "4/4 unread.txt   read 0%")
        await pilot.press("tab", "shift+tab", "shift+tab")
        await until(pilot, lambda: where(folder) == ("last.txt", 190))
        await pilot.press("d", "escape", "n")
        await until_shown(pilot, "No more passages were read.")


async def test_another_keep_leaves_the_documents_in_their_order(folder: Shown) -> None:
    async with folder.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "1/4 contract.txt")
        await pilot.press("n", "n")
        await until_shown(pilot, "2/4 other␛.txt")
        higher = [*FOLDER[:1], contract((1, 200), name="unread.txt", number=1), *FOLDER[2:]]
        folder.spans.show(higher, 0.5)
        await until_shown(pilot, "2/4 other␛.txt   keep 50% would read 1% · passage 3 of 5")


async def test_a_single_document_has_no_list(spans: Shown) -> None:
    async with spans.run_test(size=(80, 24)) as pilot:
        await pilot.press("d")
        await until_shown(pilot, "There is only one document.")


NAMES = ["a.txt", "very/" * 30 + "long.txt", "漢字" * 40, "\x1b[31m"]


@table("width, name", itertools.product([40, 60, 80, 120], NAMES))
async def test_a_document_is_a_line(name: str, width: int) -> None:
    drawn = document_line(contract((10, 12), name=name), 411, width)
    assert drawn.cell_length <= width
    assert drawn.plain.isprintable()
    assert "1%" in drawn.plain
    assert "412" in drawn.plain


async def test_keys_typed_right_after_the_slash_are_searched_for(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        in_one_read(pilot, "/line 1q\x7f9\r")
        await until_shown(pilot, "hit 3 of 11 · not read")
        assert spans.spans.search.value == "line 19"


async def test_keys_typed_right_after_the_search_are_for_the_document(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        in_one_read(pilot, "/contract")
        await until_shown(pilot, "of 200 · ")
        spans.spans.search.post_message(Key("escape", "\x1b"))
        in_one_read(pilot, "nn")
        await until_shown(pilot, "No more passages were read.")
        assert line(pilot) == 120
        assert not spans.spans.search.display


async def test_the_mouse(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        await pilot.click("DocumentView", offset=(10, 0))
        first = line(pilot)
        assert first < 50
        await pilot.click("DocumentView", offset=(10, 2), times=2)
        assert line(pilot) == first + 2
        await until_shown(pilot, "1 pin")
        height = spans.spans.query_one(Minimap).size.height
        await pilot.click("Minimap", offset=(1, height - 1))
        await until(pilot, lambda: line(pilot) > 180)


async def test_a_click_on_its_mark_pins_and_unpins_a_passage() -> None:
    text = "One.\n\nTwo.\nMore.\n\nThree."
    whole = ReadDocument(0, 0, "a", text, (Passage(0, len(text), ReadKind.UNREAD),))
    spans = Shown(SpansScreen([whole], 0.2))
    async with spans.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "Three.")
        await pilot.click("DocumentView", offset=(0, 3))
        await until_shown(pilot, "1 pin", "█ Two.", "█ More.")
        await pilot.click("DocumentView", offset=(0, 2))
        await until_shown(pilot, "No longer pinned.")
        assert "█" not in screen_text(pilot)
        await pilot.click("DocumentView", offset=(1, 5))
        await until_shown(pilot, "█ Three.")
        await pilot.press("enter")
        await until(pilot, lambda: spans.results)
    assert spans.results[0] == AskAgain(None, {(0, 0): ((18, 24),)})


async def test_pinned_text_stays_visible_when_the_rest_is_folded() -> None:
    lines = [f"Line {number}." + "\n" * (number % 3 == 2) for number in range(60)]
    text = "\n".join(lines)
    whole = ReadDocument(0, 0, "a", text, (Passage(0, len(text), ReadKind.UNREAD),))
    spans = Shown(SpansScreen([whole], 0.2))
    async with spans.run_test(size=(80, 24)) as pilot:
        await pilot.press(*["down"] * 5, "space", "f")
        await until_shown(pilot, "█ Line 3.", "█ Line 4.", "█ Line 5.", "⋯ 4 lines not read")
        assert screen_text(pilot).count("⋯") == 2
        await pilot.press("space")
        await until_gone(pilot, "Line 4.")
        assert screen_text(pilot).count("⋯") == 1


async def test_the_legend_explains_the_marks_on_the_screen() -> None:
    text = "One.\n\nTwo.\n\nThree."
    passages = (Passage(0, 6, ReadKind.SELECTED), Passage(6, len(text), ReadKind.UNREAD))
    spans = Shown(SpansScreen([ReadDocument(0, 0, "a", text, passages)], 0.2))
    async with spans.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "▌ read   dim · not read")
        await pilot.press("end", "space")
        await until_shown(pilot, "█ always read   ▌ read   dim · not read")
        await pilot.resize_terminal(80, 12)
        await until_gone(pilot, "dim · not read")


async def test_a_click_on_a_fold_opens_it(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        await pilot.press("f")
        await until_shown(pilot, "⋯ 49 lines not read")
        await pilot.click("DocumentView", offset=(8, 0))
        await until_shown(pilot, "Line 1 of")
        assert "pinned" not in screen_text(pilot)


async def click_hint(pilot: Pilot[None], words: str) -> None:
    await until_shown(pilot, words)
    at = screen_text(pilot).splitlines()[-1].index(words)
    hints = pilot.app.screen.query_one(Hints)
    await pilot.click(hints, offset=(at - hints.region.x, 0))


async def test_everything_can_be_clicked(spans: Shown, tried: list[float]) -> None:
    async with at_line_50(spans) as pilot:
        await click_hint(pilot, "n next")
        await until(pilot, lambda: line(pilot) == 120)
        await click_hint(pilot, "p prev")
        await until(pilot, lambda: line(pilot) == 50)
        await click_hint(pilot, "→ keep")
        await click_hint(pilot, "←")
        await until(pilot, lambda: tried == [0.21, 0.2])
        await click_hint(pilot, "c copy")
        await until_shown(pilot, "Copied 75 characters.")
        await click_hint(pilot, "/ find")
        await pilot.press(*"line 19")
        await until_shown(pilot, "hit 2 of 11")
        await click_hint(pilot, "⏎ next hit")
        await until_shown(pilot, "hit 3 of 11")
        await click_hint(pilot, "Esc close search")
        await click_hint(pilot, "Space pin")
        await until_shown(pilot, "1 pin")
        await click_hint(pilot, "⏎ again")
        await until(pilot, lambda: spans.results)
        assert spans.results[0] is not None
        assert spans.results[0].keep is None


async def test_the_most_important_hints_fit_in_any_width() -> None:
    for width in range(8, 200):
        shown = [text for text, _ in _fit(READING, width)]
        assert len("  ".join(shown)) <= max(width, 9)
        assert ("Esc close" in shown) == (width >= len("  ".join(h.text for h in READING)))
        assert "Space pin" in shown


async def test_the_passage_is_copied(spans: Shown) -> None:
    async with at_line_50(spans) as pilot:
        await pilot.press("c")
        await until_shown(pilot, "Copied 75 characters.")
        assert pilot.app.clipboard == TEXT[at(50) : at(53)]


@pytest.mark.parametrize("size", [(40, 10), (60, 20), (200, 50)])
async def test_any_size_is_drawn(spans: Shown, size: tuple[int, int]) -> None:
    async with spans.run_test(size=size) as pilot:
        await until_shown(pilot, "Line 50")
        await pilot.resize_terminal(70, 15)
        await until_shown(pilot, "Line 50")
        assert all(len(row) <= 70 for row in screen_text(pilot).splitlines())


async def test_hostile_text_is_only_shown() -> None:
    text = "\x1b[31mred\x1b]52;c;AAAA\x07 [@click=app.quit]quit[/] \u202eabc\n" * 50
    hostile = ReadDocument(0, 0, "\x1b]0;x\x07[b]", text, (Passage(0, len(text), ReadKind.UNREAD),))
    spans = Shown(SpansScreen([hostile], 0.2))
    async with spans.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "␛[31mred␛]52;c;AAAA␇ [@click=app.quit]quit[/] ⟨RLO⟩abc")
        assert "\x1b" not in screen_text(pilot)
        await pilot.press("slash", "[")
        await until_shown(pilot, "1 of")


async def test_cited_text_is_shown_first_and_marked() -> None:
    read = contract((50, 53), (120, 125))
    cited = ((at(122), at(123) - 1), (at(160), at(161) - 1))
    spans = Shown(SpansScreen([replace(read, cited=cited)], 0.2))
    async with spans.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "line 122 · cited · read", "a cited")
        await pilot.press("a")
        await until_shown(pilot, "line 160 · cited · not read")
        await pilot.press("a")
        await until_shown(pilot, "line 122 · cited")
        view = spans.spans.view
        (style,) = {
            segment.style
            for segment in view.render_line(view.row - view.scroll_offset.y)
            if "contract" in segment.text
        }
        assert style is not None
        assert style.bold


async def test_an_answer_that_cites_nothing_says_so(spans: Shown) -> None:
    async with spans.run_test(size=(100, 24)) as pilot:
        await until_shown(pilot, "line 50")
        assert "a cited" not in screen_text(pilot)
        await pilot.press("a")
        await until_shown(pilot, "The answer cites nothing in the documents.")
