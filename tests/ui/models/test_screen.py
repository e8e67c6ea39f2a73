"""What the models screen lists, finds and deletes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.models.catalogue import catalogue
from app.models.library import Library
from app.ui.models.screen import ActionDialog, ModelsScreen
from tests.models import files, pulls
from tests.models.fake_hub import FakeHub
from tests.models.test_pairs import SIZES
from tests.ui.helpers import SMALL, screen_text, until, until_gone, until_shown
from tests.ui.models.conftest import BIG, OTHER, Here, Make
from tests.ui.models.conftest import SMALL as DRAFT
from tests.ui.models.test_choosing import do, models_of, open_dialog, open_models

NARROW, WIDE = (60, 20), (200, 50)


async def test_a_row_says_size_kind_fit_pair_and_gain(
    app: Make, here: Here, whole_catalogue: None
) -> None:
    await here(BIG, DRAFT, OTHER)
    async with models_of(app(), "● installed 4", "○ catalogue 34", "○ downloads 0") as pilot:
        await until_shown(
            pilot,
            "✓ org/big-4bit",
            "91 KB · 1.2M · 4-bit · qwen3",
            "fits 4K · 4.5x faster · with the built-in scorer",
            "Models  may use 24 GB of 32 GB",
        )
        await pilot.press("tab")
        await until_shown(pilot, "● catalogue 34", "mlx-community/Qwen3.8-27B-4bit")
        await pilot.press(*"122b")
        await until_shown(pilot, "mlx-community/Qwen3.5-122B-A10B-4bit", "too big")
        # A costly draft has a warning.
        screen = pilot.app.screen
        assert isinstance(screen, ModelsScreen)
        screen.list.filter.value = "gemma-4-e4b"
        await until_shown(pilot, "4.5x faster · with the built-in scorer")
        await pilot.press("enter")
        await until_shown(pilot, "! The draft costs ", "of the target per token (predicted)")


@pytest.mark.slow
@pytest.mark.parametrize("size", [NARROW, SMALL, WIDE])
async def test_nothing_is_wider_than_the_screen(
    app: Make, here: Here, size: tuple[int, int]
) -> None:
    await here(BIG, DRAFT)
    async with app().run_test(size=size) as pilot:
        screen = await open_models(pilot, "org/small-4bit")
        assert screen.has_class("-wide") == (size == WIDE)
        await pilot.press("down")
        if size == WIDE:
            await until_shown(pilot, "Memory with the built-in scorer", "target, weights")
        assert "Esc" in screen_text(pilot).splitlines()[-1]
        await pilot.press("tab")
        await until_shown(pilot, "mlx-community/Qwen3.8-27B-4bit")


async def test_the_sum_line_by_line(app: Make, here: Here) -> None:
    await here(BIG, DRAFT)
    async with models_of(app(), "small-4bit", size=(100, 40)) as pilot:
        await open_dialog(pilot, "big")
        await until_shown(
            pilot,
            "▸ built-in scorer: 4.5x faster",
            "  small-4bit: 3.5x faster, r 0.07, target and draft: fits 4K",
            "adds attention to the scores; needs ",
            "target, weights  org/big-4bit",
            "target, cache  7,680 bytes per token, 4,096 tokens",
            "one step",
            "total  at 4,096 tokens",
            "Fits 4K tokens when read in full.",
        )
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ActionDialog), "the list")
        # On a wide screen the details are beside the list.
        screen = pilot.app.screen
        assert isinstance(screen, ModelsScreen)
        assert not screen.has_class("-wide")
        await pilot.resize_terminal(*WIDE)
        await until_shown(pilot, "Memory with the built-in scorer", "target, weights")
        assert screen.has_class("-wide")
        assert "Esc" in screen_text(pilot).splitlines()[-1]
        await pilot.resize_terminal(100, 40)
        await until_gone(pilot, "target, weights")
        # The mouse does it, too.
        await pilot.press("ctrl+u")
        await until_shown(pilot, "small-4bit")
        lines = screen_text(pilot).splitlines()
        bar = next(i for i, line in enumerate(lines) if "catalogue" in line)
        await pilot.click(offset=(lines[bar].index("catalogue"), bar))
        await until_shown(pilot, "● catalogue")
        await pilot.click(offset=(lines[bar].index("installed"), bar))
        await until_shown(pilot, "● installed")
        await pilot.click(screen.list.options, offset=(6, 2))
        await until_shown(pilot, "Use with small-4bit")
        dialog = pilot.app.screen
        assert isinstance(dialog, ActionDialog)
        await pilot.click(dialog.list, offset=(3, 0))
        await until_shown(pilot, "Load now")


async def test_a_model_is_deleted_once_that_is_confirmed(
    app: Make, here: Here, library: Library
) -> None:
    await here(BIG, DRAFT)
    async with models_of(app(), "small-4bit") as pilot:
        await pilot.press(*"big", "ctrl+d")
        await until_shown(pilot, f"Delete {BIG}?", "This frees 91 KB and cannot be undone.")
        await pilot.press("enter")
        await until_gone(pilot, "cannot be undone")
        assert library.cache.snapshot_folder(BIG) is not None
        await pilot.press("ctrl+d")
        await do(pilot, "Delete permanently · 91 KB")
        await until_shown(pilot, f"Deleted {BIG}: 91 KB freed.")
        assert library.cache.snapshot_folder(BIG) is None
        await pilot.press("escape")
        await open_dialog(pilot, "small")
        await do(pilot, "Delete · ")
        await until_shown(pilot, f"Delete {DRAFT}?", "you must download or convert it again")
        await do(pilot, "Delete permanently · ")
        await until_shown(pilot, f"Deleted {DRAFT}: ")
        assert library.cache.snapshot_folder(DRAFT) is None


async def test_older_commits_are_deleted(
    app: Make, here: Here, hub: FakeHub, library: Library
) -> None:
    await here(BIG)
    before = hub.repositories[BIG].files
    hub.add(BIG, before | {"chat_template.jinja": b"{{ x }}"})
    await here(BIG)
    async with models_of(app(), "big-4bit") as pilot:
        await open_dialog(pilot, "big")
        await do(pilot, "Delete older commits · ")
        await until_shown(pilot, f"Delete the older commits of {BIG}?", "The current commit stays.")
        await do(pilot, "Delete permanently · ")
        await until_shown(pilot, f"Deleted older commits of {BIG}: ")
        found = library.cache.find(BIG)
        assert found is not None
        assert found.older == 0


@pytest.mark.slow
async def test_what_answers_is_not_thrown_away(app: Make, here: Here) -> None:
    await here(BIG, DRAFT)
    async with models_of(app(), "small-4bit") as pilot:
        await open_dialog(pilot, "big")
        await do(pilot, "Use with small-4bit")
        await until_shown(pilot, "Load now")
        await do(pilot, "Load now")
        await until_shown(pilot, "is loaded")
        await open_models(pilot, "small-4bit")
        await pilot.press(*"small", "ctrl+d")
        await until_shown(pilot, f"{DRAFT} is loaded. Load other models before you delete it.")
        await pilot.press("escape", *"embedded", "ctrl+d")
        await until_shown(pilot, "Nothing here can be deleted.")


@pytest.mark.slow
async def test_checking_its_files(app: Make, here: Here, library: Library) -> None:
    await here(BIG)
    running = app()
    async with models_of(running, "big-4bit") as pilot:
        await open_dialog(pilot, "big")
        await do(pilot, "Check its files")
        await until_shown(pilot, f"{BIG}: 8 files correct.", "● downloads 1")
        snapshot = library.cache.snapshot_folder(BIG)
        assert snapshot is not None
        weights = sorted(snapshot.glob("*.safetensors"))[0].resolve()
        data = weights.read_bytes()
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        running.models.jobs.dismiss(BIG)
        await pilot.press("shift+tab", "shift+tab")
        await open_dialog(pilot, "big")
        await do(pilot, "Check its files")
        await until_shown(pilot, "is damaged", "downloads it again")
    running.shutdown()


async def test_a_model_that_cannot_be_used_and_a_broken_catalogue_are_reported(
    app: Make, here: Here, library: Library, whole_catalogue: None
) -> None:
    await here(BIG)
    assert library.config_folder is not None
    library.config_folder.mkdir()
    (library.config_folder / "catalog.toml").write_text("[[model]]\nname = 3\n")
    snapshot = library.cache.snapshot_folder(BIG)
    assert snapshot is not None
    (snapshot / "config.json").unlink()
    async with models_of(
        app(), "org/big-4bit", "must be text in quotes", "○ catalogue 34"
    ) as pilot:
        await until_shown(pilot, "! Its folder is not a model: it has no config.json")
        dialog = await open_dialog(pilot, "big")
        assert not [label for label, _ in dialog.choices if label.startswith("Use")]
        await do(pilot, "Delete · ")
        await do(pilot, "Delete permanently · ")
        await until_shown(pilot, f"Deleted {BIG}: ")


async def test_searching_the_hub(app: Make, hub: FakeHub) -> None:
    """Names that it answers with are shown and not obeyed, and what is refused has its reason."""
    evil = "[@click=app.quit]x[/]\x1b]0;evil\x07\u202e"
    config = dict(SIZES, num_hidden_layers=2)
    hub.add("org/evil", pulls.tiny_model() | {"config.json": str(config).encode()})
    hub.add("org/code", pulls.tiny_model() | {"modeling_evil.py": b"import os"})
    async with app().run_test(size=SMALL) as pilot:
        screen = await open_models(pilot)
        await pilot.press("tab")
        screen.list.filter.value = "4bit org"
        await until_shown(pilot, "Search Hugging Face for '4bit org'")
        await pilot.press("enter")
        await until_shown(pilot, "2 models found on Hugging Face.", BIG, DRAFT, "on Hugging Face")
        await pilot.press("enter")
        await until_shown(pilot, "qwen3, 1.2 million parameters, 4-bit, 4K context", "Download")
        await pilot.press("escape")
        screen.list.filter.value = "nothing like this"
        await until_gone(pilot, "on Hugging Face")
        await pilot.press("enter")
        await until_shown(pilot, "No MLX model on Hugging Face matches 'nothing like this'.")
        screen.list.filter.value = evil
        await until_shown(pilot, "[@click=app.quit]x[/]␛]0;evil␇⟨RLO⟩")
        screen.list.filter.value = "org/evil"
        await until_shown(pilot, "⏎ details from Hugging Face")
        await pilot.press("enter")
        await until_shown(pilot, "The config.json of org/evil is not a JSON object")
        screen.list.filter.value = "org/code"
        await until_shown(pilot, "⏎ details from Hugging Face")
        await pilot.press("enter")
        await until_shown(pilot, "org/code contains code ('modeling_evil.py')")
        assert pilot.app.screen is screen


@pytest.mark.slow
async def test_adding_a_repository_and_a_folder(
    app: Make, hub: FakeHub, library: Library, tmp_path: Path, whole_catalogue: None
) -> None:
    folder = files.model(tmp_path / "mine")
    files.write(folder / "config.json", {**SIZES, "num_hidden_layers": 2})
    async with app().run_test(size=SMALL) as pilot:
        screen = await open_models(pilot)
        await pilot.press("tab")
        screen.list.filter.value = BIG
        await pilot.press("enter")
        await until_shown(pilot, "Download")
        await do(pilot, "Add to your catalogue")
        await until_shown(pilot, f"Added {BIG} to your catalogue.")
        screen.list.filter.value = str(folder)
        await until_shown(pilot, "⏎ adds this folder to your catalogue")
        await pilot.press("enter")
        await until_shown(pilot, "● installed 2", "your catalogue.")
        screen.list.filter.value = str(tmp_path / "nothing")
        await pilot.press("tab", "enter")
        await until_shown(pilot, "There is no model folder")
    names = [entry.name for entry in catalogue(library.config_folder) if entry.custom]
    assert names == [BIG, str(folder)]
    async with app().run_test(size=SMALL) as pilot:  # at the next start
        screen = await open_models(pilot, "● installed 2", "○ catalogue 35")
        await pilot.press("tab")
        screen.list.filter.value = "big"
        await until_shown(pilot, BIG, "on Hugging Face")
        await pilot.press("enter")
        await until_shown(pilot, "Download")


async def test_leaving_while_it_still_looks_and_the_help(app: Make, here: Here) -> None:
    await here(BIG)
    async with app().run_test(size=(80, 60)) as pilot:
        await until_shown(pilot, "ready")
        await pilot.press("ctrl+l", "escape")
        await until_shown(pilot, "ready")
        await asyncio.sleep(0)
        await pilot.press("ctrl+l")
        await until_shown(pilot, "org/big-4bit")
        # The help has its keys.
        await pilot.press("f1")
        await until_shown(pilot, "Next list: installed, catalogue, downloads", "^L")
        await pilot.press("escape", "ctrl+l")
        await until_gone(pilot, "○ catalogue")
