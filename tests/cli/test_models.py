"""`specchat models`: what it prints, its refusals, its one line of progress."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from app.cli.models import Display, progress_line
from app.models.cache import ModelCache
from app.models.progress import Progress, ProgressMeter
from app.util.formatting import size
from tests.cli.conftest import Shell
from tests.models import fake_hub as fake
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, tiny_model


def test_from_an_empty_cache_to_a_model_and_back(shell: Shell, hub: FakeHub) -> None:
    status, out, err = shell()
    assert (status, out) == (0, "")
    assert err.startswith("No models are installed: `specchat models pull")
    status, out, err = shell("pull", NAME)
    assert (status, out) == (0, "")
    assert f"{NAME} is installed (306 KB), and every file is verified.\n" in err
    assert shell("pull", NAME)[2].endswith("is already up to date.\n")
    assert shell("list") == (0, f"      306 KB  {NAME}\n", "")
    status, out, _ = shell("show", NAME)
    assert "Downloaded and verified by specchat." in out
    assert "      200 KB  model-00001-of-00002.safetensors" in out
    assert shell("verify", NAME)[:2] == (0, "8 files verified.\n")
    status, out, _ = shell("rm", NAME)
    assert f"specchat models restore {NAME}" in out
    assert NAME in shell("list", "--trash")[1]
    assert shell("restore", NAME)[1] == f"{NAME} is restored.\n"
    shell("rm", NAME)
    assert shell("empty")[1].endswith("KB freed.\n")
    assert shell("list", "--trash")[2].startswith("The trash is empty:")


def test_as_json(shell: Shell) -> None:
    shell("pull", NAME)
    content = json.loads(shell("list", "--json")[1])
    assert [each["repository"] for each in content["installed"]] == [NAME]
    assert content["unfinished"] == []
    shell("rm", NAME)
    assert len(json.loads(shell("list", "--trash", "--json")[1])) == 1


def test_an_unfinished_one(shell: Shell, hub: FakeHub) -> None:
    hub.faults = [Fault("model-00002", fake.status(418), 100)]
    status, _, err = shell("pull", NAME)
    assert status == 2
    assert err.endswith("specchat: The hub answered with status 418: try again later.\n")
    assert "unfinished, " in shell("list")[1]
    assert "unfinished, " in shell("show", NAME)[1]
    hub.faults = []
    assert shell("resume", NAME)[0] == 0
    status, _, err = shell("resume", NAME)
    assert (status, f"`specchat models pull {NAME}` starts one" in err) == (2, True)


def test_damage_is_told(shell: Shell, tmp_path: Path) -> None:
    shell("pull", NAME)
    snapshot = ModelCache(tmp_path / "hub").snapshot_folder(NAME)
    assert snapshot is not None
    (snapshot / "config.json").write_text('{"model_type": "qwen2"}')
    status, out, _ = shell("verify", NAME)
    assert status == 1
    assert out.splitlines()[0].startswith("'config.json' is damaged: ")


@pytest.mark.parametrize(
    "arguments",
    [
        *((action, "../x") for action in ("show", "pull", "pause", "resume", "rm", "verify")),
        *((action, "org/none") for action in ("show", "pause", "resume", "rm", "verify")),
        ("restore", NAME),
        ("pull", "org/none"),
        ("pull", "evil\x1b]0;title\x07\u202e/x"),
    ],
)
def test_bad_input_gets_one_sentence(shell: Shell, arguments: tuple[str, ...]) -> None:
    status, out, err = shell(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("specchat: ")
    assert err.endswith(".\n")
    assert err[:-1].isprintable()


def test_the_line_of_progress() -> None:
    progress = Progress(3_200_000_000, 7_100_000_000, 45_100_000.0, 83.2, "")
    assert progress_line(progress) == " 45%  3.2 GB of 7.1 GB · 45.1 MB/s · 1:23 left"
    assert progress_line(Progress(0, 0, 0.0, None, "asking\x1b the hub")) == "asking␛ the hub"
    assert progress_line(Progress(1, 9, 1e-9, 1e20, "")).endswith("99:59:59 left")
    assert size(999) == "999 B"


def test_progress_stays_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    display = Display("org/" + "x" * 50)
    display.report(Progress(1, 2, 3.0, 4.0, "note\nnote"))
    assert len(screen.getvalue()) == len("\r\x1b[K") + 39
    display.clear()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert "\n" not in screen.getvalue()


def test_speed_is_that_of_the_last_seconds_and_bytes_never_run_backwards() -> None:
    times = iter((0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 60.0, 60.0))
    meter = ProgressMeter(lambda: next(times))
    meter.start(100, 1000)
    assert meter.read() == Progress(100, 1000, 0.0, None, "")
    for _ in range(3):
        meter.add(100)
        assert meter.read().speed == pytest.approx(100)
    meter.add(-300)
    assert meter.read().done == 400
    assert meter.read().seconds_left == pytest.approx(9.0)
    assert meter.read().speed == 0.0
    meter.add(5000)
    assert meter.read().done == 1000


def test_giving_a_download_up(shell: Shell, hub: FakeHub) -> None:
    hub.faults = [Fault("model-00002", fake.status(418), 100)]
    shell("pull", NAME)
    assert "unfinished, " in shell("list")[1]
    assert shell("cancel", NAME)[1] == "Download cancelled.\n"
    assert shell("list")[2].startswith("No models are installed")
    assert "There is no unfinished download of" in shell("cancel", NAME)[2]


def test_what_only_drafts_for_another_model_is_no_model(shell: Shell, hub: FakeHub) -> None:
    for kind in ("qwen3_5_mtp", "gemma4_assistant"):
        config = json.dumps({"model_type": kind, "num_hidden_layers": 1}).encode()
        hub.add(f"org/tiny-{kind}", tiny_model() | {"config.json": config})
        for command in ("fit", "pull"):
            status, out, err = shell(command, f"org/tiny-{kind}")
            assert (status, out) == (2, "")
            assert f"not a whole model, only layers that draft for one ({kind})" in err
    found = shell("search", "--hub", "tiny")[1]
    assert NAME in found
    assert "org/tiny-" not in found


def test_searching_the_hub_and_adding_what_was_found(shell: Shell, hub: FakeHub) -> None:
    status, out, _ = shell("search", "--hub", "tiny")
    assert (status, out.splitlines()[0]) == (0, NAME)
    assert (
        "The hub has no MLX model named like 'none such'"
        in shell("search", "--hub", "none", "such")[2]
    )
    assert shell("add", NAME)[1].startswith(f"{NAME} is in your catalogue")
    assert NAME in shell("search", "tiny")[1]
    assert shell("add", NAME)[0] == 0
    assert len(shell("search", NAME)[1].splitlines()) == 1
    assert "There is no model folder" in shell("add", "nothing here")[2]
