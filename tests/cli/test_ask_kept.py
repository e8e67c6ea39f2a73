"""`specchat ask --conversation`: what is kept, what is reused, what is refused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli.main import run
from app.engine.cache.snapshot_folder import snapshot_folder
from app.paths import costs_path, data_path, snapshots_path
from app.protocol.commands import Load
from app.protocol.reasons import FailureKind
from app.store.records import Message, Overrides, State
from app.store.store import Store
from tests.cli.conftest import TEXT

Ask = Callable[..., list[str]]


@pytest.fixture
def ask(room: Path, home: Path) -> Ask:
    """The arguments of an `ask` of the tiny pair."""

    def arguments(*more: str) -> list[str]:
        pair = ["--target", str(room / "target"), "--draft", str(room / "draft")]
        return ["ask", *pair, "--max-tokens", "4", *more]

    return arguments


def branch(id: int = 1) -> tuple[Message, ...]:
    with Store(data_path()) as store:
        return store.branch(id)


def in_a_process(arguments: list[str]) -> str:
    """What it wrote to standard error."""
    completed = subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stderr


@pytest.mark.parametrize("how", [["--full"], ["--keep", "0.2"]])
def test_a_second_process_reuses_what_the_first_has_read(
    room: Path, ask: Ask, how: list[str]
) -> None:
    file = ["-f", str(room / "text.txt")]
    first = in_a_process(ask("--conversation", "new", *file, *how, "What does line 7 say?"))
    assert first.startswith("Conversation 1 · What does line 7 say?\n")
    assert "reused" not in first
    second = in_a_process(ask("--conversation", "last", "-v", *how, "And line 90?"))
    assert second.startswith("Conversation 1 · What does line 7 say?\n")
    question, answer, _, follow_up = branch()
    assert answer.stats is not None
    assert follow_up.stats is not None
    assert follow_up.stats.reused_tokens == answer.stats.read_tokens + len(answer.token_ids or ())
    assert re.search(r"^Read .+ \(<?\d+% new\) in ", second, re.MULTILINE)
    assert f"  Reused      {follow_up.stats.reused_tokens:,} tokens" in second
    assert follow_up.stats.prompt_tokens > len(TEXT)
    assert [each.name for each in question.attachments] == ["text.txt"]
    assert snapshots_path().stat().st_mode & 0o077 == 0, "nobody else reads what was read"


def test_what_was_chosen_for_a_conversation_holds_unless_an_option_says_otherwise(
    home: Path, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(data_path()) as store:
        id = store.create().id
        store.set_overrides(id, Overrides(system="Be brief.", mode="full", max_tokens=3, seed=5))
    pair = ["--target", str(room / "target"), "--draft", str(room / "draft")]
    arguments = ["ask", *pair, "--conversation", "1", "--temp", "0.5", "--json"]
    for more in ([], ["--max-tokens", "2", "--seed", "6", "--keep", "0.5"]):
        assert run([*arguments, *more, "What?"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, second = (each["statistics"] for each in lines if each["event"] == "Finished")
    assert (first["mode"], first["seed"], first["generated_tokens"]) == ("full", 5, 3)
    assert (second["mode"], second["seed"]) == ("sparse", 6)
    assert second["generated_tokens"] == 2
    capsys.readouterr()
    assert run(["conversations", "show", "1"]) == 0
    shown = capsys.readouterr().out
    assert "*mode full · max tokens 3 · seed 5*\n\n## System\n\nBe brief.\n" in shown


def test_without_a_conversation_nothing_is_kept(home: Path, ask: Ask) -> None:
    assert run(ask("What?")) == 0
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert {path.parent for path in kept} == {costs_path()}, "how long it took, and nothing else"
    assert all("What" not in path.read_text() for path in kept)


def test_a_file_may_be_attached_to_a_later_question(
    room: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    run(ask("--conversation", "new", "-f", str(room / "text.txt"), "One?"))
    capsys.readouterr()
    red = str(room / "\x1b[31mred.txt")
    assert run(ask("--conversation", "1", "-f", red, "--keep", "0.9", "--map", "Two?")) == 0
    out = capsys.readouterr().out
    assert "text.txt: " in out, "the map quotes documents of earlier messages"
    assert "red.txt: Red." in out
    assert [len(message.attachments) for message in branch()] == [1, 0, 1, 0]


def test_what_was_saved_of_deleted_conversations_goes_and_all_else_stays(ask: Ask) -> None:
    """As after a kill between moving one to the trash and deleting its snapshot. Only with the lock
    on the conversations: without it, another program saves its own."""
    with Store(data_path()) as store:
        there, trashed = store.create().id, store.create().id
        store.trash(trashed)
        left = [snapshot_folder(snapshots_path(), str(id)) for id in (there, trashed, 77)]
        for folder in left:
            folder.mkdir(parents=True)
            (folder / "manifest.json").touch()
        assert run(ask("--conversation", str(there), "What?")) == 2, "beside the app"
    assert run(ask("What?")) == 0
    assert all(folder.exists() for folder in left)
    assert run(ask("--conversation", "new", "What?")) == 0
    assert [folder.exists() for folder in left] == [True, False, False]
    assert len([*snapshots_path().iterdir()]) == 2, "and its own"


def test_a_snapshot_of_no_use_is_said_so_and_read_again(
    room: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    run(ask("--conversation", "new", "-f", str(room / "text.txt"), "One?"))
    (manifest,) = snapshots_path().rglob("manifest.json")
    manifest.write_text("{")
    capsys.readouterr()
    assert run(ask("--conversation", "last", "Two?")) == 0
    err = capsys.readouterr().err
    assert re.search(
        r"The saved cache cannot be used \(.+\), so the tokens are read again\.\n", err
    )
    assert "reused" not in err


def test_other_conversations_are_not_touched(ask: Ask) -> None:
    run(ask("--conversation", "new", "One?"))
    run(ask("--conversation", "new", "Other?"))
    run(ask("--conversation", "1", "Two?"))
    assert [message.text for message in branch()[::2]] == ["One?", "Two?"]
    assert [message.text for message in branch(2)[::2]] == ["Other?"]
    run(ask("--conversation", "last", "Three?"))
    assert len(branch(1)) == 6


def test_ctrl_c_stops_within_a_step_and_keeps_what_was_written(ask: Ask) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "app"),
            *ask("--conversation", "new", "--max-tokens", "100000", "--json", "Go on."),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if '"Token"' in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    finished = json.loads(out.splitlines()[-1])
    assert (finished["event"], finished["finish_reason"]) == ("Finished", "cancelled")
    answer = branch()[1]
    assert answer.state is State.STOPPED
    assert answer.text == finished["text"]
    assert answer.token_ids == tuple(finished["generated_ids"]) != ()
    assert answer.stats is not None


def test_a_pair_that_does_not_load_is_on_the_record(unknown: Path, ask: Ask) -> None:
    assert run(ask("--conversation", "new", "--target", str(unknown), "What?")) == 2
    question, answer = branch()
    assert question.text == "What?"
    assert answer.state is State.FAILED
    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.MODEL_NOT_LOADED


REFUSALS = {
    "no last one": (["--conversation", "last"], "no conversations yet"),
    "no such one": (["--conversation", "7"], "no conversation '7'"),
    "no number": (["--conversation", "\x1b[2J"], "no conversation"),
    "no file": (["--conversation", "new", "-f", "nothing-here"], "nothing-here"),
    "no model": (["--conversation", "new", "--target", "no/model"], "no/model"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused_is_not_kept(
    ask: Ask, case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, expected = REFUSALS[case]
    monkeypatch.setattr("app.chat.engine_session.EngineSession.load", _not_called)
    assert run(ask(*arguments, "What?")) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert expected in err
    assert "\x1b" not in err
    with Store(data_path()) as store:
        assert store.conversations() == ()


def _not_called(session: object, command: Load) -> None:
    raise AssertionError("refused only after a model was loaded")


def test_one_in_the_trash_is_refused(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(data_path()) as store:
        store.trash(store.create().id)
    assert run(ask("--conversation", "1", "What?")) == 2
    assert "conversations restore 1" in capsys.readouterr().err


def test_beside_the_app_it_is_refused(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(data_path()) as store:
        store.create()
        assert run(ask("--conversation", "1", "What?")) == 2
        assert "Another specchat has the conversations open" in capsys.readouterr().err
