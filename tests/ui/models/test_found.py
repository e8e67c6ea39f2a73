"""What other programs keep, on the models screen."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from textual.pilot import Pilot

from app.extras.gguf import file as gguf_file
from app.models.fit import mac_with
from app.models.found import default_places
from app.models.library import Library, default_library
from app.protocol.commands import Load
from app.settings.definitions import Models, Settings
from app.settings.file import SettingsFile
from app.ui.models.inventory import scan
from tests.extras.gguf.making import write_gguf
from tests.fakes import FakeEngine
from tests.models import kept
from tests.tables import slow
from tests.ui.helpers import screen_text, until, until_gone, until_shown
from tests.ui.models.conftest import BIG, Here, Make, model_files
from tests.ui.models.test_choosing import choose, do, models_of, open_dialog

WIDE = (200, 50)


@pytest.fixture
def library(library: Library, home: Path) -> Library:
    """This machine's other programs are those of the tests' own home."""
    return replace(library, places=default_places)


def mlx(home: Path, name: str, layers: int) -> Path:
    folder = home / ".lmstudio/models" / name
    for file, content in model_files(layers).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


def lines_with(pilot: Pilot[None], text: str) -> list[int]:
    return [n for n, line in enumerate(screen_text(pilot).splitlines()) if text in line]


async def test_they_are_a_group_below_the_installed_ones(app: Make, here: Here, home: Path) -> None:
    await here(BIG)
    folder, draft = mlx(home, "aaa/first", 30), mlx(home, "people/little", 2)
    kept.ollama(home / ".ollama/models", "mistral", "7b")  # a name that is not in its path
    short = kept.gguf_file(home / ".lmstudio/models/a/b/short.gguf")
    short.write_bytes(short.read_bytes()[:100])
    (mlx(home, "people/without", 30) / "tokenizer.json").unlink()
    engine = FakeEngine()
    async with models_of(
        app(engine), "● installed 7", "aaa/first", "mistral:7b", "· GGUF", size=(80, 40)
    ) as pilot:
        await until_shown(pilot, "LM Studio · fits", "Ollama · ⏎ details and conversion")
        (big,), (first,), (mistral,) = (
            lines_with(pilot, each) for each in (BIG, "aaa/first", "mistral:7b")
        )
        assert big < first < mistral
        await pilot.press(*"mistral")
        await until_gone(pilot, BIG)
        await until_shown(pilot, "mistral:7b")
        # A damaged file says so.
        await pilot.press("ctrl+u")
        await open_dialog(pilot, "short")
        await until_shown(pilot, "is damaged")
        # An MLX model that cannot be used says why.
        await pilot.press("escape", "ctrl+u")
        await until_shown(pilot, "people/without", "LM Studio · ! ")
        dialog = await open_dialog(pilot, "without")
        await until_shown(pilot, "has no tokenizer.json")
        assert dialog.choices == []
        # Another one is a draft for an installed model,
        await pilot.press("escape", "ctrl+u")
        await open_dialog(pilot, "big")
        await until_shown(pilot, "Use with little · 3.5x faster")
        # and both are loaded from their folders.
        await pilot.press("escape", "ctrl+u")
        await choose(pilot, "first", "Use with little")
        await do(pilot, "Load now")
        await until(pilot, lambda: len(loads(engine)) == 2, "the pair")
        assert (loads(engine)[1].target, loads(engine)[1].draft) == (str(folder), str(draft))


async def test_nothing_of_this_machine_is_found_unless_the_app_says_so(
    library: Library, home: Path
) -> None:
    mlx(home, "aaa/first", 30)

    def found(library: Library) -> int:
        return len(scan(library, mac_with(32 * 10**9), ()).found)

    assert found(library) == 1
    assert found(Library(library.cache)) == 0
    assert default_library().places() == ()


def loads(engine: FakeEngine) -> list[Load]:
    return [command for command in engine.commands if isinstance(command, Load)]


async def test_the_details_say_whose_it_is(app: Make, home: Path) -> None:
    folder = mlx(home, "people/large", 30)
    async with models_of(app(), "large") as pilot:
        await pilot.press("down", "ctrl+d")
        await until_shown(pilot, "people/large belongs to another program")
        assert folder.is_dir()
        dialog = await open_dialog(pilot, "large")
        await until_shown(
            pilot,
            "people/large",
            "in the folder of LM Studio: ~/.lmstudio/models/people/large",
            "specchat never changes or deletes it.",
        )
        labels = [label for label, _ in dialog.choices]
        assert labels == [
            "Use with the built-in scorer · 4.5x faster",
            "Download the text encoder snowflake-arctic-embed-xs · 90.0 MB",
        ]
        await pilot.press("pagedown")
        await until_shown(pilot, "Memory with the built-in scorer")


async def test_a_gguf_file_says_what_it_is_and_how_it_is_converted(app: Make, home: Path) -> None:
    kept.lm_studio(home)
    path = home / ".lmstudio/models/people/tiny-GGUF/tiny.gguf"
    path.parent.mkdir(parents=True)
    write_gguf(path, "llama")
    async with models_of(app(), "Big-Q4_K_M", "tiny", size=WIDE) as pilot:
        dialog = await open_dialog(pilot, "big")
        await until_shown(
            pilot, "A Model", "256, Q4_K_M, qwen3, context 41K", "must be converted before"
        )
        (label,) = [label for label, _ in dialog.choices]
        assert label.startswith("Convert it once · needs about ")
        await do(pilot, "Convert")
        # It has one tensor only.
        await until_shown(pilot, "! local/Big-Q4_K_M", "has no usable", "attention.head_count")
        # Another one is converted and installed.
        await pilot.press("ctrl+u", "shift+tab", "shift+tab")
        await open_dialog(pilot, "tiny")
        await do(pilot, "Convert")
        await until_shown(pilot, "✓ local/tiny", "All matrices are identical to those")
        await pilot.press("ctrl+u", *"tiny")
        await until_gone(pilot, "local/Big")
        await pilot.press("enter")
        await until_shown(pilot, "Use with the built-in scorer · 4.5x faster")


async def test_headers_are_read_beside_the_list_only_when_highlighted(
    app: Make, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    threads: list[threading.Thread] = []
    read = gguf_file.summarise

    def recorded(path: Path) -> object:
        reads.append(path.name)
        threads.append(threading.current_thread())
        return read(path)

    monkeypatch.setattr(gguf_file, "summarise", recorded)
    for name in ("one", "two"):
        kept.gguf_file(home / f".lmstudio/models/a/b/{name}.gguf")
    async with models_of(app(), "two", size=WIDE) as pilot:
        assert reads == []
        await pilot.press("down")
        await until_shown(pilot, "256, Q4_K_M, qwen3")
        await pilot.press("up", "down")
        await pilot.pause()
        assert reads == ["one.gguf"]
        assert threads != [threading.main_thread()]


@pytest.mark.slow
async def test_headers_of_rows_that_were_only_passed_are_not_read(
    app: Make, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    go_on = threading.Event()
    read = gguf_file.summarise

    def slow(path: Path) -> object:
        reads.append(path.stem)
        assert go_on.wait(10)
        return read(path)

    monkeypatch.setattr(gguf_file, "summarise", slow)
    for name in ("a", "b", "c"):
        kept.gguf_file(home / f".lmstudio/models/x/y/{name}.gguf")
    async with models_of(app(), "GGUF", size=WIDE) as pilot:
        await pilot.press("down")
        await until(pilot, lambda: reads == ["a"], "the first header")
        await pilot.press("down", "down")
        go_on.set()
        await until(pilot, lambda: reads[-1] == "c", "the last header")
        assert reads == ["a", "c"]


@pytest.mark.parametrize("number", [float("inf"), slow(10**400)], ids=["infinity", "400 digits"])
async def test_a_hostile_folder_is_listed_with_its_fault(
    app: Make, home: Path, number: float
) -> None:
    folder = mlx(home, "evil/folder", 30)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": number}))
    split = kept.gguf_file(home / ".lmstudio/models/evil/split.gguf")
    writer = gguf.GGUFWriter(split, "qwen3")
    writer.add_string("split.count", "many")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    # The folders of the setting are searched, too.
    kept.gguf_file(home / "mine/some.gguf")
    kept.ollama(home / ".ollama/models", "llama", "8b").unlink()
    settings = SettingsFile(settings=Settings(models=Models(folders="~/mine:/nowhere")))
    async with models_of(
        app(settings=settings), "some", "your folder · ", "There is no folder '/nowhere'", size=WIDE
    ) as pilot:
        await until_shown(pilot, "evil/folder", "split")
        # A file that is gone offers nothing.
        await until_shown(pilot, "llama:8b", "Ollama · ! Its file")
        dialog = await open_dialog(pilot, "llama")
        assert dialog.choices == []
        await pilot.press("escape", "ctrl+u", *"split")
        await until_shown(pilot, "split.count that is not an integer")


async def test_a_task_that_fails_unexpectedly_does_not_end_the_app(
    app: Make, monkeypatch: pytest.MonkeyPatch, failed_tasks: list[logging.LogRecord]
) -> None:
    def broken(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("app.ui.models.screen.scan", broken)
    async with app().run_test(size=WIDE) as pilot:
        await pilot.press("ctrl+l")
        await until_shown(pilot, "inside specchat (OverflowError: too large). See specchat.log.")
        await pilot.press("escape")
        await until_gone(pilot, "inside specchat")
    failed_tasks.clear()
