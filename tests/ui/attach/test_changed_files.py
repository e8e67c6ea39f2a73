"""Files that change after they were attached: the chips say so, and one key reads them again."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.ingest import changes
from app.models.embedded import draft_path, target_path
from app.protocol.commands import Load
from app.settings.definitions import Documents
from app.ui.app import SpecchatApp
from app.ui.attach.attachment import DELETED
from app.ui.attach.chips import Chip
from app.ui.start import Start
from tests.fakes import FakeEngine, Story
from tests.ingest.helpers import written
from tests.ui.attach.test_attachments import Held, attach
from tests.ui.helpers import (
    WAIT_SECONDS,
    app_with,
    ask,
    box_text,
    kept_app,
    screen_text,
    started,
    until,
    until_gone,
    until_shown,
)

OLD, NEW = "The notice is 30 days.\n", "The notice is now 60 days.\n"


def chat(pilot: Pilot[None]):  # type: ignore[no-untyped-def]
    assert isinstance(pilot.app, SpecchatApp)
    return pilot.app.chat


async def attached(pilot: Pilot[None], path: Path) -> None:
    attach(pilot, path)
    await until_shown(pilot, f"▣ {path.name}")
    await until(pilot, lambda: not chat(pilot).attachments.jobs(chat(pilot).open_chats.shown))


async def checked(pilot: Pilot[None]) -> None:
    """Move the focus away and back, and wait for the check that this starts."""
    await checks(pilot, lambda: chat(pilot).composer.box.focus())


async def checks(pilot: Pilot[None], starts: Callable[[], object]) -> None:
    changed = chat(pilot).attachments.changed
    await until(pilot, lambda: not changed._checking)
    chat(pilot).set_focus(None)
    await pilot.pause()
    changed._next_check = 0.0
    starts()
    await until(pilot, lambda: not changed._checking and changed._next_check)


def texts(engine: FakeEngine) -> list[list[str]]:
    """The documents of each message of the last question."""
    return [[each.text for each in m.in_prompt] for m in engine.asks[-1].messages[::2]]


async def test_an_unsent_file_that_changes_is_read_again_in_its_place(tmp_path: Path) -> None:
    path = written(tmp_path / "contract.txt", OLD)
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, size=(110, 30)) as pilot:
        await attached(pilot, path)
        await checked(pilot)
        assert "changed" not in screen_text(pilot)
        written(path, NEW)
        await checked(pilot)
        await until_shown(pilot, "▣ contract.txt · changed, ⏎ reads it again · ")
        # Reading again can be cancelled.
        read, chat(pilot).attachments.read = chat(pilot).attachments.read, Held()
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "◌ contract.txt · reading")
        await pilot.press("shift+tab", "backspace")
        await until_shown(pilot, "▣ contract.txt · changed")
        (item,) = chat(pilot).composer.chips.attached
        assert item.documents[0].text == OLD
        chat(pilot).attachments.read = read
        await pilot.press("shift+tab", "enter")
        await until_gone(pilot, "changed")
        await until_shown(pilot, "▣ contract.txt · 27 B")
        await ask(pilot, engine)
        assert texts(engine) == [[NEW]]
        # The command looks for changes itself.
        await pilot.press(*"/read-again", "enter")
        await until_shown(pilot, "No attached file has changed.")
        written(path, "Longer: " + NEW)
        await pilot.press(*"/read-again", "enter")
        await until_shown(pilot, "▣ contract.txt")
        await ask(pilot, engine, "And now?")
        assert texts(engine) == [["Longer: " + NEW], []]


@asynccontextmanager
async def sent_and_changed(path: Path) -> AsyncIterator[tuple[Pilot[None], FakeEngine]]:
    """The app, after this file was sent with a question and then changed."""
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, size=(110, 30)) as pilot:
        await attached(pilot, path)
        await ask(pilot, engine)
        written(path, NEW)
        await checked(pilot)
        yield pilot, engine


async def test_a_sent_file_that_changes_is_offered_and_replaced(tmp_path: Path) -> None:
    path = written(tmp_path / "contract.txt", OLD)
    async with sent_and_changed(path) as (pilot, engine):
        await until_shown(pilot, "↻ contract.txt · changed, ⏎ reads it again")
        await ask(pilot, engine, "Offered, not taken?")
        assert texts(engine) == [[OLD], []]
        await until_shown(pilot, "↻ contract.txt · changed")
        await pilot.click(pilot.app.screen.query_one(Chip), offset=(4, 0))
        await until_shown(pilot, "▣ contract.txt · 27 B")
        await ask(pilot, engine, "And now?")
        assert texts(engine) == [[NEW], [], []]
        first = chat(pilot).open_chats.shown.conversation.branch[0]
        assert first.question.documents[0].text == OLD
        await checked(pilot)
        assert not chat(pilot).composer.chips.offers
        # An offer can be dismissed until the file changes again.
        written(path, "Longer: " + NEW)
        await checked(pilot)
        await until_shown(pilot, "↻ contract.txt")
        await pilot.press("shift+tab", "backspace")
        await until_gone(pilot, "↻ contract.txt")
        await checked(pilot)
        assert not chat(pilot).composer.chips.offers
        written(path, "Longer still: " + NEW)
        await checked(pilot)
        await until_shown(pilot, "↻ contract.txt")


@pytest.mark.slow
async def test_the_offer_comes_back_with_the_conversation(tmp_path: Path) -> None:
    path = written(tmp_path / "contract.txt", OLD)
    async with kept_app(tmp_path / "data", engine := FakeEngine(Story(answer="Yes."))) as (
        pilot,
        _,
    ):
        await attached(pilot, path)
        await ask(pilot, engine)
    written(path, NEW)
    engine = FakeEngine(Story(answer="Yes."))
    async with kept_app(tmp_path / "data", engine, size=(110, 30)) as (pilot, _):
        await until_shown(pilot, "↻ contract.txt · changed")
        await pilot.press(*"/read-again", "enter")
        await until_shown(pilot, "▣ contract.txt")
        await ask(pilot, engine, "And now?")
        assert texts(engine) == [[NEW], []]


async def test_a_file_that_is_gone_says_so_and_stays_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / "contract.txt", OLD)
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, size=(110, 30)) as pilot:
        await attached(pilot, path)
        path.unlink()
        await checked(pilot)
        await until_shown(pilot, "▣ contract.txt · gone")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "There is no file or folder", "▣ contract.txt · gone")
        assert box_text(pilot) == ""
        await ask(pilot, engine)
        assert texts(engine) == [[OLD]]
        await checked(pilot)
        await until_shown(pilot, "↻ contract.txt · gone")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "There is no file or folder")
        assert box_text(pilot) == ""


async def test_a_watched_folder_offers_new_and_changed_files(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        written(tmp_path / "src" / name, f"{name} is old\n")
    engine = FakeEngine(Story(answer="Yes."))
    app = app_with(engine, watches=True)
    async with app.run_test(size=(110, 30)) as pilot:
        await until_shown(pilot, "ready")
        await attached(pilot, tmp_path / "src")
        await ask(pilot, engine)
        written(tmp_path / "src" / "a.txt", "a.txt is changed\n")
        (tmp_path / "src" / "b.txt").unlink()
        written(tmp_path / "src" / "d.txt", "d.txt is new\n")
        await checks(pilot, chat(pilot).attachments.changed.check)
        await until_shown(pilot, "↻ src/ · 1 changed, 1 new, 1 gone, ⏎ reads it again")
        chat(pilot).composer.chips.query(Chip)[0].focus()
        await pilot.press("space")
        await until_shown(pilot, "src/  1 changed, 1 new, 1 gone")
        await until_shown(pilot, "a.txt has changed.", "d.txt is new.", "b.txt is gone.")
        await pilot.press("escape")
        chat(pilot).composer.chips.query(Chip)[0].focus()
        await pilot.press("enter")
        await until_shown(pilot, "▣ src/ · 3 files")
        await ask(pilot, engine, "And now?")
        (tree, *files), added = texts(engine)
        assert "b.txt" not in tree
        assert "d.txt" in tree
        assert files == ["a.txt is changed\n", DELETED, "c.txt is old\n"]
        assert added == ["d.txt is new\n"]
        await checks(pilot, chat(pilot).attachments.changed.check)
        assert not chat(pilot).composer.chips.offers
        # A new file that cannot be read is said once.
        written(tmp_path / "src" / "new.bin", b"\0\1")
        await checks(pilot, chat(pilot).attachments.changed.check)
        await until_shown(pilot, "↻ src/ · 1 new")
        chat(pilot).composer.chips.query(Chip)[0].focus()
        await pilot.press("enter")
        await until_shown(pilot, "Nothing that can be read has changed in 'src/'")
        await checks(pilot, chat(pilot).attachments.changed.check)
        assert not chat(pilot).composer.chips.offers


async def test_the_last_lines_of_a_watched_log_are_those_of_each_question(tmp_path: Path) -> None:
    path = written(tmp_path / "server.log", "".join(f"line {n}\n" for n in range(1, 10)))

    def append(line: str) -> None:
        with path.open("a") as log:
            log.write(line)

    for watches in (True, False):
        engine = FakeEngine(Story(answer="Yes."))
        app = app_with(engine, watches=watches)
        async with app.run_test(size=(110, 30)) as pilot:
            await until_shown(pilot, "ready")
            for part in ("#-2", "#5-"):
                attach(pilot, path.with_name(path.name + part))
                await until_shown(pilot, f"▣ server.log{part.rstrip('-')}")
            before = path.read_text().splitlines(keepends=True)
            append("unsent\n")
            await ask(pilot, engine)
            now = path.read_text().splitlines(keepends=True)
            first = now if watches else before
            assert texts(engine) == [["".join(first[-2:]), "".join(first[4:])]]
            append("sent\n")
            await ask(pilot, engine, "And now?")
            then = path.read_text().splitlines(keepends=True)
            last = then if watches else first
            assert texts(engine)[0] == ["".join(last[-2:]), "".join(last[4:])]
            lines = [each.line for each in engine.asks[-1].messages[0].documents]
            assert lines == [len(last) - 1, 5]
            await checks(pilot, chat(pilot).attachments.changed.check)
            assert len(chat(pilot).composer.chips.offers) == (0 if watches else 2)


async def test_a_large_file_is_searched_for_each_question(tmp_path: Path) -> None:
    lines = [f"line {number}: all is well\n" for number in range(1, 50_001)]
    lines[20_000], lines[30_000] = "the vault is open\n", "the zebra is out\n"
    path = written(tmp_path / "huge.log", "".join(lines))
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, size=(110, 30)) as pilot:
        file = pilot.app.settings.file
        file.settings = replace(file.settings, documents=Documents(attach_limit_mb=1))
        await attached(pilot, path)
        await until_shown(pilot, " of 50,000 lines · searched for each question")
        await ask(pilot, engine, "Is the vault open?")
        found = [each for each in engine.asks[-1].messages[0].documents if "vault" in each.text]
        assert [each.line + each.text[: each.text.find("the v")].count("\n") for each in found] == [
            20_001
        ]
        await until_shown(pilot, " · 3,225 lines of 1.2 MB")
        path.write_text("".join(lines) + "the lion sleeps\n")
        await checked(pilot)
        assert not chat(pilot).composer.chips.offers
        await ask(pilot, engine, "And the zebra?")
        assert any("the zebra is out" in text for text in chain(*texts(engine)))
        assert any("the lion sleeps" in text for text in chain(*texts(engine)))
        # Named in the question itself: it is read, and then searched for that question.
        other = written(tmp_path / "other.log", "".join(lines).replace("zebra", "okapi"))
        await ask(pilot, engine, f"@{other} Where is the okapi?")
        assert any("the okapi is out" in text for text in chain(*texts(engine)))
        # What is gone stays as it was read.
        path.unlink()
        await ask(pilot, engine, "Thanks!")
        assert any("the zebra is out" in text for text in chain(*texts(engine)))


@pytest.mark.slow
async def test_files_of_a_folder_wait_while_its_new_version_is_unsent(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        written(tmp_path / "src" / name, f"{name} is old\n")
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, size=(110, 30)) as pilot:
        await attached(pilot, tmp_path / "src")
        await ask(pilot, engine)
        written(tmp_path / "src" / "a.txt", "a.txt has changed\n")
        await checked(pilot)
        await pilot.press(*"/read-again", "enter")
        await until_shown(pilot, "▣ src/ · 1 file")
        written(tmp_path / "src" / "b.txt", "b.txt has changed, too\n")
        await checked(pilot)
        assert not chat(pilot).composer.chips.offers
        await ask(pilot, engine, "And now?")
        assert texts(engine)[0][1:] == ["a.txt has changed\n", "b.txt is old\n"]
        await checked(pilot)
        await until_shown(pilot, "↻ src/ · 1 changed")


async def test_a_drive_that_does_not_answer_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "contract.txt", OLD)
    engine = FakeEngine(Story(answer="Yes."))
    async with started(engine, size=(110, 30)) as pilot:
        await attached(pilot, path)
        await ask(pilot, engine)
        await until(pilot, lambda: not chat(pilot).attachments.changed._checking)
        answers = threading.Event()
        monkeypatch.setattr(changes, "file_state", lambda origin: answers.wait(WAIT_SECONDS))
        chat(pilot).attachments.changed.check(at_once=True)
        await ask(pilot, engine, "And now?")
        await pilot.press("ctrl+n", "ctrl+n")  # the second one confirms
        await until(pilot, lambda: not chat(pilot).open_chats.shown.conversation.turns)
        await until(pilot, lambda: not chat(pilot).attachments.changed._checking)
        answers.set()


async def test_the_context_meter_counts_one_version_only(tmp_path: Path) -> None:
    path = written(tmp_path / "contract.txt", OLD * 400)
    engine = FakeEngine(Story(answer="Yes."))
    load = Load(str(target_path()), str(draft_path()))
    async with SpecchatApp(Start(engine, load)).run_test(size=(110, 30)) as pilot:
        await until_shown(pilot, "ready")
        await attached(pilot, path)
        await ask(pilot, engine)
        before = chat(pilot).cost_estimate.meter().used
        written(path, NEW * 400)
        await checked(pilot)
        await until_shown(pilot, "↻ contract.txt")
        chat(pilot).composer.chips.query(Chip)[0].focus()
        await pilot.press("enter")
        await until_shown(pilot, "▣ contract.txt", " tok · 400 lines")
        meter = chat(pilot).cost_estimate.meter()
        assert before > 2_300
        assert meter.used < before - 2_000
        assert meter.new > 2_300
