"""`specchat settings`, and that other commands go by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run
from app.paths import data_path, settings_path
from app.protocol.prompt import Role
from app.settings.definitions import all_settings
from app.store.store import Store
from tests import tiny
from tests.cli.conftest import without_models
from tests.tables import table

SET = """
[reading]
mode = "sparse"
keep = 0.3
[answers]
max_tokens = 4
temperature = 0.5
[documents]
max_files = 1
[storage]
trash_days = 7
"""


@pytest.fixture
def room(home: Path) -> Path:
    tiny.save(home / "target", "qwen3", 0)
    tiny.save(home / "draft", "qwen3", 1)
    (home / "files").mkdir()
    for name in ("a.txt", "b.txt"):
        (home / "files" / name).write_text(f"All that {name} says. " * 40)
    settings_path().parent.mkdir(parents=True)
    settings_path().write_text(SET)
    return home


def asked(room: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[Any, str]:
    """The statistics of one answer, and what was said beside it."""
    pair = ["--target", str(room / "target"), "--draft", str(room / "draft")]
    assert run(["ask", *pair, "-f", str(room / "files"), "--json", *options, "What?"]) == 0
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    return next(e["statistics"] for e in events if e["event"] == "Finished"), err


def test_they_are_printed_with_their_defaults(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["settings"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{settings_path()} (no file yet")
    for setting in all_settings():
        assert f"\n{setting.name} = " in out
    assert "(default" not in out
    settings_path().parent.mkdir(parents=True)
    settings_path().write_text("[reading]\nkeep = 0.5\nmode = 'fast'\n")
    assert run(["settings"]) == 0
    out, err = capsys.readouterr()
    assert "\nkeep = 0.5 (default auto)\n" in out
    assert err.count("\n") == 1
    assert "'reading.mode' in " in err
    assert run(["settings", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"]["reading.keep"]["value"] == 0.5
    assert printed["settings"]["reading.mode"]["value"] == "auto"
    assert len(printed["problems"]) == 1


def test_ask_goes_by_them_and_its_options_win(
    room: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics, err = asked(room, capsys)
    assert (statistics["mode"], statistics["keep_ratio"]) == ("sparse", 0.3)
    assert statistics["generated_tokens"] <= 4
    assert "Read files: 1 file," in err
    statistics, _ = asked(room, capsys, "--keep", "0.6", "--max-tokens", "6", "--temp", "0")
    assert (statistics["mode"], statistics["keep_ratio"]) == ("sparse", 0.6)
    assert 4 < statistics["generated_tokens"] <= 6
    without_models(monkeypatch)
    assert asked(room, capsys, "--auto")[0]["mode"] == "auto"
    assert asked(room, capsys, "--full")[0]["mode"] == "full"


@table(
    "option, value, sentence",
    [
        ("--top-p", "1.5", "'1.5' is not a valid top-p: use a number from 0.0001 to 1."),
        ("--top-k", "-1", "'-1' is not a valid top-k: use a whole number from 0 to 1,000,000."),
        ("--min-p", "2", "'2' is not a valid min-p: use a number from 0 to 1."),
        ("--min-p", "nan", "'nan' is not a valid min-p: use a number from 0 to 1."),
        (
            "--repetition-penalty",
            "0",
            "'0' is not a valid repetition penalty: use a number from 0.5 to 2.",
        ),
    ],
)
def test_an_impossible_choice_is_refused(
    room: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, sentence: str
) -> None:
    assert run(["ask", option, value, "What?"]) == 2
    assert capsys.readouterr().err == f"specchat: {sentence}\n"


def test_the_trash_keeps_for_as_long_as_is_set(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(data_path()) as store:
        store.add_message(store.create().id, Role.USER, "What?")
    assert run(["conversations", "delete", "1"]) == 0
    assert "in the trash, which keeps it for 7 days." in capsys.readouterr().out
