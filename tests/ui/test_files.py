"""Which files of how many were put before the model, and choosing others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.protocol.citations import Citations
from app.protocol.events import PhaseProgress, Retrieved
from app.protocol.options import Mode
from app.protocol.prompt import SEARCHED, Document, Origin, RetrievalReason, RetrievedPart
from app.ui.app import SpecchatApp
from app.ui.files.overview import (
    FileFacts,
    best_first,
    choice_text,
    chosen_text,
    files_of,
    fit_files,
    lines_of,
    summary,
)
from app.ui.files.screen import FilesScreen, FileTree, ReadChoice, TreeRow, row_content
from app.ui.text import fit_path
from tests.fakes import FakeEngine, Story
from tests.tables import slow, table
from tests.ui.helpers import (
    LONG,
    SMALL,
    app_with,
    ask,
    attach,
    kept_app,
    repository,
    screen_text,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)

STORY = Story(answer="It resolves.", retrieves=3)
QUESTION = "Where is the resolver and the middleware?"


async def answered(pilot: Pilot[None], engine: FakeEngine, question: str = QUESTION) -> None:
    await until_shown(pilot, "ready")
    attach(pilot, repository())
    await ask(pilot, engine, question)
    await until_shown(pilot, "3 of 30 files")


def opened(pilot: Pilot[None]) -> FilesScreen:
    assert isinstance(pilot.app.screen, FilesScreen)
    return pilot.app.screen


async def open_files(pilot: Pilot[None]) -> FilesScreen:
    await pilot.press("ctrl+f")
    await until(pilot, lambda: isinstance(pilot.app.screen, FilesScreen), "the files")
    await until_shown(pilot, "Type to find")
    return opened(pilot)


def overrides(pilot: Pilot[None]) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    assert isinstance(pilot.app, SpecchatApp)
    found = pilot.app.chat.open_chats.shown.conversation.overrides
    return found.always_read, found.never_read


async def go_to(pilot: Pilot[None], name: str) -> None:
    """By the filter."""
    screen = opened(pilot)
    screen.list.filter.value = name
    await until(pilot, lambda: name in screen.list.highlighted, name)


async def test_the_line_is_there_as_soon_as_the_files_are_chosen() -> None:
    engine = FakeEngine(STORY, stepping=True)
    async with started(engine) as pilot:
        attach(pilot, repository())
        await type_in(pilot, QUESTION)
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        engine.advance_to(lambda event: isinstance(event, PhaseProgress) and event.done)
        await until_shown(pilot, "Choosing parts of 30 files in repo/ · 50%")
        assert "3 of 30 files" not in screen_text(pilot)
        engine.advance_to(lambda event: isinstance(event, Retrieved))
        await until_shown(pilot, "3 of 30 files: long.py:280–319, base.py, resolvers.py · ^F to")
        engine.finish()
        await pilot.resize_terminal(150, 30)
        await until_shown(
            pilot, "3 of 30 files: long.py:280–319, urls/base.py, urls/resolvers.py · ^F to change"
        )
        # The spans of a part have the lines of its file.
        engine.stepping = False
        await pilot.press("ctrl+s", "slash", *"middleware", "enter", "escape", "down")
        await until_shown(pilot, "repo/long.py:280", "line 301")
        await pilot.press("up", "space", "enter")
        await until(pilot, lambda: len(engine.asks) == 2)
        parts = engine.asks[1].messages[-1].retrieved
        assert parts is not None  # the same ones
        assert [part.name for part in parts if part.pinned] == ["repo/long.py"]
        await until_shown(pilot, "‹ 2/2 ›", "3 of 30 files")


NAMES = ["middleware/csrf.py:29–56, 130–250", "template/utils.py", "views/csrf.py:1–20"]


@table(
    "width, shown",
    [
        (90, "middleware/csrf.py:29–56, 130–250, template/utils.py, views/csrf.py:1–20"),
        (60, "csrf.py:29–56, 130–250, utils.py, csrf.py:1–20"),
        (45, "csrf.py, utils.py, csrf.py"),
        (30, "csrf.py, utils.py, csrf.py"),
        (18, "csrf.py, …"),
        (5, ""),
    ],
)
def test_names_matter_more_than_lines_and_folders(width: int, shown: str) -> None:
    assert fit_files(NAMES, width) == shown


def test_what_does_not_fit_ends_in_an_ellipsis() -> None:
    names = [*NAMES, "a/long/way/down/to/the/last_file_of_all.py"]
    assert fit_files(names, 40) == "middleware/csrf.py, template/utils.py, …"
    assert fit_files(names, 32) == "csrf.py, utils.py, csrf.py, …"


def test_for_a_single_document_the_line_says_how_much_was_chosen() -> None:
    long = Document("long.py", LONG)
    part = RetrievedPart(replace(long, text=LONG[: len(LONG) // 4]), 90, RetrievalReason.WORDS)
    assert chosen_text([part], [long], ["long.py:1–80"], 40) == "25% of long.py:1–80"
    assert chosen_text([part], [long], ["long.py:1–80"], 16) == "25% of long.py"
    assert chosen_text([part], [long, long], ["long.py:1–80"], 40) == "1 of 2 files: long.py:1–80"


@pytest.mark.parametrize("size", [SMALL, slow((60, 20)), slow((160, 40))])
async def test_the_tree_says_what_each_file_takes_and_why(size: tuple[int, int]) -> None:
    engine = FakeEngine(STORY)
    async with app_with(engine).run_test(size=size) as pilot:
        await answered(pilot, engine)
        screen = await open_files(pilot)
        await until_shown(pilot, "Files  3 of 30 files · ", "▾ repo/", "▸ parts/", "README.md")
        await until_shown(pilot, "✓ repo/urls/resolvers.py", "✓ repo/urls/base.py")
        assert screen.list.highlighted == screen.list.options.options[0].id == "repo/long.py"
        assert "▸ urls/" not in screen_text(pilot)  # both of its files stand above
        assert "file3.txt" not in screen_text(pilot)
        if size[0] >= 80:
            await until_shown(pilot, "4,096 tokens", "words: resolver")
            await until_shown(pilot, "rank 4, score 1.00")  # it nearly made it
        await go_to(pilot, "long")
        await until_shown(pilot, "lines 280–319")
        await pilot.press("escape")
        await until(pilot, lambda: not screen.list.filter.value)
        lines = screen_text(pilot).splitlines()
        assert all(len(line) <= size[0] for line in lines)
        # Folders open and close.
        screen.draw("repo/parts/")
        await pilot.press("right")
        await until_shown(pilot, "▾ parts/", "▸ part0/")
        await pilot.press("down", "right", "down")
        await until_shown(pilot, "file0.txt")
        assert screen.list.highlighted.endswith("file0.txt")
        await pilot.press("left")
        assert screen.list.highlighted == "repo/parts/part0/"
        await pilot.press("left", "left", "left")
        await until_gone(pilot, "part0")
        await pilot.press(*["pagedown"] * 3, *["pageup"] * 4)
        assert screen.list.options.highlighted == 0


async def test_a_choice_asks_again_with_it() -> None:
    engine = FakeEngine(STORY)
    async with app_with(engine).run_test(size=(100, 30)) as pilot:
        await answered(pilot, engine)
        await open_files(pilot)
        await go_to(pilot, "file7.txt")
        await pilot.press("space")
        await until_shown(pilot, "● repo/parts/part0/file7.txt", "1 always")
        await go_to(pilot, "base.py")
        await pilot.press("space", "space")
        await until_shown(pilot, "× repo/urls/base.py", "1 always, 1 never")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 2, "the second answer")
        again = engine.asks[1]
        assert again.files.always == {"repo/parts/part0/file7.txt"}
        assert again.files.never == {"repo/urls/base.py"}
        assert again.messages[-1].retrieved is None  # they are to be chosen again
        assert again.messages[-1].text == QUESTION
        await until_shown(pilot, "‹ 2/2 ›", "3 of 30 files: file7.txt")
        screen = await open_files(pilot)
        await until_shown(pilot, "1 always, 1 never", "your choice")
        await go_to(pilot, "file7")
        await pilot.press("space", "space")
        await until_shown(pilot, "1 never")
        assert screen.files.chosen(ReadChoice.ALWAYS) == ()
        await pilot.press("escape", "escape")
        # A repeated question does not choose again, and an edited one does.
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asks) == 3)
        assert engine.asks[2].mode is Mode.FULL
        assert len(engine.asks[2].messages[-1].retrieved or ()) == 3
        await until_shown(pilot, "‹ 3/3 ›", "3 of 30 files: file7.txt")
        await pilot.press("tab", "up", "ctrl+e")
        await until_shown(pilot, "Editing an earlier question")
        await type_in(pilot, " Or file12.txt?")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 4)
        assert engine.asks[3].messages[-1].retrieved is None
        await until_shown(pilot, "3 of 30 files: file12.txt, ")


async def test_a_poor_answer_says_in_one_line_what_helps() -> None:
    engine = FakeEngine(replace(STORY, citations=Citations((), 1)))
    async with app_with(engine).run_test(size=(140, 30)) as pilot:
        await answered(pilot, engine)
        await until_shown(pilot, "Ask in the documents' words · ^F looks into other parts")
        engine.story = replace(STORY, citations=Citations((), 1), unsure=True)
        await pilot.press("ctrl+a")
        await until_shown(
            pilot, "≈ The model was unsure after reading 4% of 30 files in repo/ · ^F"
        )
        assert screen_text(pilot).count("documents' words") == 1


async def test_closing_keeps_the_choice_for_the_next_question(tmp_path: Path) -> None:
    async with kept_app(tmp_path, engine := FakeEngine(STORY)) as (pilot, _):
        await answered(pilot, engine)
        await open_files(pilot)
        await go_to(pilot, "file7.txt")
        await pilot.press("space", "escape", "escape")
        await until_shown(pilot, "Files from the next question on: 1 always.")
        assert len(engine.asks) == 1
    engine = FakeEngine(STORY)
    async with kept_app(tmp_path, engine, size=(150, 30)) as (pilot, _):
        # A stored answer says it too.
        await until_shown(pilot, "3 of 30 files: long.py:280–319, urls/base.py, urls/res")
        await open_files(pilot)
        await until_shown(pilot, "3 of 30 files · ", "words: resolver", "✓ repo/urls/base.py")
        await pilot.press("escape")
        await until_gone(pilot, "Type to find")
        await ask(pilot, engine, "What is the urlconf?")
        assert engine.asks[0].files.always == {"repo/parts/part0/file7.txt"}
        await until_shown(pilot, "3 of 30 files: parts/part0/file7.txt, ")
        await open_files(pilot)
        await until_shown(pilot, "from an earlier question", "2 from earlier questions")


@pytest.mark.slow
async def test_files_that_made_room_for_a_later_question_are_not_shown() -> None:
    engine = FakeEngine(STORY)
    async with app_with(engine).run_test(size=(100, 30)) as pilot:
        await answered(pilot, engine)
        engine.story = replace(STORY, makes_room=True)
        await ask(pilot, engine, "And file20.txt?")
        await until_shown(pilot, "3 of 30 files: file20.txt")
        await open_files(pilot)
        await until_shown(pilot, "Files  3 of 30 files", "named in the question")
        assert "earlier" not in screen_text(pilot)
        await pilot.press("escape", "ctrl+s")
        await until_shown(pilot, "What was read  1/3")


async def test_files_can_be_chosen_before_a_question() -> None:
    engine = FakeEngine(STORY)
    async with started(engine) as pilot:
        await pilot.press("ctrl+f")
        await until_shown(pilot, "No files here. Type @ to attach")
        attach(pilot, repository())
        screen = await open_files(pilot)
        await until_shown(pilot, "30 files · about", "⏎ done")
        screen.draw("repo/urls/")
        await pilot.press("space", "space", "enter")
        await until_shown(pilot, "Files from the next question on: 2 never.")
        assert not engine.asks
        await ask(pilot, engine, QUESTION)
        assert engine.asks[0].files.never == {"repo/urls/base.py", "repo/urls/resolvers.py"}
        await until_shown(pilot, "3 of 30 files: long.py", "README.md")


@pytest.mark.slow
async def test_if_all_files_fit_they_are_shown_as_read() -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine) as pilot:
        attach(pilot, repository())
        await ask(pilot, engine)
        await until_shown(pilot, "Yes.")
        assert "^F to change" not in screen_text(pilot)
        await open_files(pilot)
        await until_shown(pilot, "30 of 30 files", "✓ README.md", "⏎ done")


@pytest.mark.slow
async def test_the_conversations_settings_count_and_clear_the_choice() -> None:
    engine = FakeEngine(STORY)
    async with app_with(engine).run_test(size=SMALL) as pilot:
        await answered(pilot, engine)
        await open_files(pilot)
        await go_to(pilot, "file")
        await pilot.press("space", "down", "space", "space", "escape", "escape")
        await until_shown(pilot, "1 always, 1 never")
        await pilot.press("f3")
        await until_shown(pilot, "This conversation")
        await pilot.press(*["down"] * 12)
        await until_shown(
            pilot, "1 always, 1 never", "^D clears it", "Files that are always or never"
        )
        await pilot.press("ctrl+d")
        await until_shown(pilot, "all automatic")
        await pilot.press("escape")
        await until(pilot, lambda: overrides(pilot) == (None, None))


@pytest.mark.slow
async def test_an_edited_question_chooses_again_and_a_repeated_one_does_not() -> None:
    engine = FakeEngine(STORY)
    async with app_with(engine).run_test(size=(100, 30)) as pilot:
        await answered(pilot, engine)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asks) == 2)
        assert engine.asks[1].mode is Mode.FULL
        assert len(engine.asks[1].messages[-1].retrieved or ()) == 3
        await until_shown(pilot, "‹ 2/2 ›", "3 of 30 files: long.py")
        await pilot.press("tab", "up", "ctrl+e")
        await until_shown(pilot, "Editing an earlier question")
        await type_in(pilot, " Or file12.txt?")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.asks) == 3)
        assert engine.asks[2].messages[-1].retrieved is None
        await until_shown(pilot, "3 of 30 files: file12.txt, ")


@pytest.mark.slow
async def test_five_thousand_files() -> None:
    engine = FakeEngine(STORY)
    async with started(engine) as pilot:
        attach(pilot, repository(5_000), tokens=8_000_000)
        await until_shown(pilot, "8,000,000 tokens in 5,000 files · only the best files")
        screen = await open_files(pilot)
        await pilot.press(*"file499")
        await until_shown(pilot, "repo/parts/part49/file499.txt")
        assert screen.list.options.option_count == 7  # with file4990.txt to file4995.txt
        await pilot.press("escape", "space")
        await until_shown(pilot, "5,000 always")
        await pilot.press("space", "space", "escape")
        await ask(pilot, engine, QUESTION)
        await until_shown(pilot, "▣ repo/  5,000 files", "3 of 5,000 files: long.py:280–319")
        await open_files(pilot)
        await until_shown(pilot, "✓ repo/urls/resolvers.py", "3 of 5,000 files · ")
        await pilot.press("escape", "ctrl+s")
        await until_shown(pilot, "What was read  1/3")
        await pilot.press("escape", "tab", "up", "ctrl+e")
        await until_shown(pilot, "Editing an earlier question", "▣ repo/ · 5,000 files")


# ------------------------------------------------------------------------------ no screen


FACTS = [FileFacts(f"a/b{n % 7}/c{n}.py", n, in_prompt=n == 3) for n in range(50)]


def test_chosen_files_come_first_and_folders_of_the_users_choice_start_open() -> None:
    tree = FileTree(FACTS, {"a/b5/c5.py": ReadChoice.NEVER})
    rows = tree.rows()
    assert [(row.depth, row.label) for row in rows[:2]] == [(0, "a/b3/c3.py"), (0, "a/")]
    assert [row.folder for row in rows if row.is_open] == ["a/", "a/b5/"]
    tree.set_open("a/b3/", True)
    assert "c3.py" not in [row.label for row in tree.rows()]
    assert [row.key for row in tree.rows("B3 c1")] == ["a/b3/c10.py", "a/b3/c17.py"]


def test_a_folder_chooses_all_its_files() -> None:
    tree = FileTree(FACTS, {"a/b0/c7.py": ReadChoice.NEVER})
    folder = next(row for row in tree.rows() if row.folder == "a/b0/")
    assert tree.choice(folder) is None
    tree.cycle(folder)
    assert tree.choice(folder) is ReadChoice.ALWAYS
    assert len(tree.chosen(ReadChoice.ALWAYS)) == len(folder.files)
    tree.cycle(folder)
    tree.cycle(folder)
    assert not tree.choices


def test_choices_for_files_that_are_not_listed_stay() -> None:
    tree = FileTree(FACTS, {"gone.py": ReadChoice.ALWAYS})
    tree.cycle(tree.rows()[0])
    assert "gone.py" in tree.chosen(ReadChoice.ALWAYS)


@table(
    "width, shown",
    [
        (30, "django/middleware/csrf.py"),
        (20, "django/…/csrf.py"),
        (12, "…/csrf.py"),
        (7, "csr….py"),
    ],
)
def test_a_path_is_shortened_in_its_middle(width: int, shown: str) -> None:
    assert fit_path("django/middleware/csrf.py", width) == shown


def chosen(name: str, reason: RetrievalReason, text: str, *words: str) -> RetrievedPart:
    return RetrievedPart(Document(name, text), 9, reason, words)


def test_the_best_files_come_first() -> None:
    by_words, by_meaning = RetrievalReason.WORDS, RetrievalReason.MEANING
    parts = [
        chosen("a/locale/sr.po", by_meaning, "similar"),
        chosen("a/csrf_tests.py", by_words, "csrf token", "csrf", "token"),
        chosen("a/middleware/csrf.py", by_words, "csrf token, csrf token", "csrf", "token"),
        chosen("a/named.py", RetrievalReason.NAME, "other"),
        chosen("a/views.py", by_words, "token token token", "token"),
    ]
    names = [of_file[0].document.name for of_file in best_first(parts)]
    assert [name.removeprefix("a/") for name in names] == [
        "named.py",
        "middleware/csrf.py",
        "csrf_tests.py",
        "views.py",
        "locale/sr.po",
    ]


@table("width, choice", itertools.product([20, 40, 76, 200], [None, *ReadChoice]))
def test_each_row_is_a_line(width: int, choice: ReadChoice | None) -> None:
    for name in ("a", "very/" * 40 + "x", "漢字" * 40, "\x1b[31m\n"):
        why = "words: " + "resolver, " * 20
        facts = FileFacts(name, 2_000, True, lines="1–20", reason=why)
        for row in (TreeRow(1, name, (facts,)), TreeRow(2, name, (facts,), "a/")):
            drawn = row_content(row, choice, 8_192, width)
            assert drawn.cell_length <= width
            assert drawn.plain.isprintable()


def test_the_summary() -> None:
    assert summary(FACTS, None, 0, 0) == "1 of 50 files · 3 tokens"
    assert summary(FACTS, 4096, 2, 1) == "1 of 50 files · 3 of 4,096 tokens · 2 always, 1 never"
    assert choice_text(0, 1_000) == "1,000 never"


async def test_the_line_says_that_no_file_stands_out() -> None:
    engine = FakeEngine(replace(STORY, stands_out=False))
    async with started(engine) as pilot:
        await answered(pilot, engine)
        await until_shown(pilot, "No file stands out: 3 of 30 files: ", " · ^F to change")


def test_what_was_found_in_a_searched_file_is_one_file_with_its_lines() -> None:
    origin = Origin("/logs/app.log", 3_000_000_000, part=SEARCHED)
    found = [Document("app.log", f"line {n}\n" * 3, line=n, origin=origin) for n in range(1, 90, 9)]
    other = Document("b.txt", "text")
    files = files_of([*found, other])
    assert [each.name for each in files] == ["app.log", "b.txt"]
    assert lines_of(found[:2], files[0]) == "1–3, 10–12"
    assert lines_of(found[:1], files[0]) == "1–3", "not all of the file"
    assert lines_of(found, files[0]).endswith(", …")
    assert lines_of([other], other) == ""
    part = RetrievedPart(found[0], 6, RetrievalReason.WORDS)
    assert chosen_text([part], files[:1], ["app.log:1–3"], 40) == "<1% of app.log:1–3"
