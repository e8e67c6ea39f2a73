"""`specchat conversations`: what it prints, what it changes, its refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run
from app.engine.cache.snapshot_folder import snapshot_folder
from app.paths import data_path, snapshots_path
from app.protocol.prompt import Role
from app.store.records import ConversationRecord
from app.store.store import Store
from tests.store.samples import answered
from tests.tables import table

NUMBERED = [(1, "Who pays?"), (2, "When?")]
HOSTILE = "evil\x1b]0;title\x07\u202eright"

Shell = Callable[..., str]


@pytest.fixture
def shell(home: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs `specchat conversations` with these arguments; returns its output."""

    def act(*arguments: str) -> str:
        status = run(["conversations", *arguments])
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        return out

    return act


def kept(*questions: str) -> None:
    with Store(data_path()) as store:
        for question in questions:
            answered(store, question)


def there(trashed: bool = False) -> list[ConversationRecord]:
    with Store(data_path()) as store:
        return list(store.conversations(trashed))


def test_they_are_listed_last_used_first(shell: Shell) -> None:
    kept("Who pays?", "When?")
    first, second = shell().splitlines()
    assert first.split()[0] == "2"
    assert first.endswith("When?")
    assert second.endswith("Who pays?")
    assert shell("list") == shell()


@pytest.mark.parametrize(
    ("arguments", "remark"), [([], "no conversations yet"), (["list", "--trash"], "trash is empty")]
)
def test_an_empty_list_is_no_failure(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], remark: str
) -> None:
    assert run(["conversations", *arguments]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert remark in err


def test_the_list_as_json(shell: Shell) -> None:
    assert json.loads(shell("list", "--json")) == []
    kept("Who pays?")
    (plain,) = json.loads(shell("list", "--json"))
    assert (plain["id"], plain["title"], plain["pinned"]) == (1, "Who pays?", False)


def test_last_is_the_one_used_last_and_not_the_pinned_one(shell: Shell) -> None:
    kept("Old?", "New?", "Trashed?")
    shell("pin", "1")
    shell("delete", "3")
    assert shell().splitlines()[0].endswith("Old?")
    assert "New?" in shell("show", "last")


def test_one_is_shown_with_its_figures(shell: Shell) -> None:
    kept("Who pays?")
    out = shell("show", "1")
    for part in ("# Who pays?", "contract.txt", "The tenant.", "Read 25%"):
        assert part in out
    plain: dict[str, Any] = json.loads(shell("show", "1", "--json"))
    assert [message["text"] for message in plain["messages"]] == ["Who pays?", "The tenant."]
    question, answer = plain["messages"]
    assert answer["token_ids"] == [1, 70_000, 2**32 - 1]
    assert question["stats"] is None
    assert (answer["stats"]["keep_ratio"], answer["stats"]["read_tokens"]) == (0.2, 250)
    assert answer["truncated"] is False


def test_words_are_found(shell: Shell) -> None:
    kept("Who pays?", "When?")
    assert shell("search", "who", "pay").startswith("    1  Who pays? · You: ")
    first, second, document = shell("search", "tenant").splitlines()
    assert {first, second} == {f"    {n}  {q} · Answer: The tenant." for n, q in NUMBERED}
    assert document == "    2  When? · contract.txt, line 1: The tenant pays."


def test_the_best_documents_are_shown_and_all_counted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(data_path()) as store:
        files = [(f"{n}.txt", f"needle {n}".encode()) for n in range(25)]
        store.add_message(store.create().id, Role.USER, "x", store.attach_all(files))
    assert run(["conversations", "search", "needle"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 20
    assert err == "The best 20 of 25 documents. Add a word to narrow the search.\n"


@table(
    "arguments, begins",
    [
        (["-o", "{home}/x.md"], "# Who"),
        (["-o", "{home}/x.json"], "{"),
        (["-o", "{home}/x.JSON"], "{"),
        (["-o", "{home}/x.txt"], "# Who"),
        (["-o", "{home}/x.md", "--format", "json"], "{"),
        (["--format", "json", "-o", "-"], "{"),
        ([], "# Who"),
    ],
)
def test_exports(home: Path, shell: Shell, arguments: list[str], begins: str) -> None:
    kept("Who pays?")
    for before in home.glob("x.*"):
        before.unlink()
    out = shell("export", "1", *(each.format(home=home) for each in arguments))
    files = [*home.glob("x.*")]
    text = files[0].read_text() if files else out
    assert text.startswith(begins)
    assert not files or out == ""
    assert not [*home.glob(".*")]


def test_an_export_that_fails_leaves_the_file_that_was_there(
    home: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    kept("Who pays?")
    for document in (data_path() / "attachments").rglob("*.gz"):
        document.unlink()
    (home / "x.json").write_text("before")
    assert run(["conversations", "export", "1", "--force", "-o", str(home / "x.json")]) == 2
    assert "contract.txt" in capsys.readouterr().err
    assert (home / "x.json").read_text() == "before"
    assert not [*home.glob(".*")]


def test_an_export_replaces_a_file_only_when_told_to(
    home: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    kept("Who pays?")
    path = home / "x.md"
    path.write_text("before")
    assert run(["conversations", "export", "1", "-o", str(path)]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"specchat: '{path}' already exists: choose another name, or replace it with --force.\n"
    )
    assert path.read_text() == "before"
    shell("export", "1", "--force", "-o", str(path))
    assert path.read_text().startswith("# Who")


def test_an_export_with_a_pinned_passage_can_be_imported(home: Path, shell: Shell) -> None:
    kept("Who pays?")
    with Store(data_path()) as store:
        question, _ = store.branch(1)
        store.pin_passages(question.id, {0: ((4, 10), (17, 33))})
    shell("export", "1", "-o", str(home / "x.json"))
    assert shell("import", str(home / "x.json")) == "Conversation 2 · Who pays?\n"
    assert shell("show", "2") == shell("show", "1")
    assert shell("export", "2", "--format", "json") == (home / "x.json").read_text()


def test_an_export_is_imported_from_standard_input(home: Path, shell: Shell) -> None:
    kept("Wer zählt?")
    command = [sys.executable, "-m", "app", "conversations"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    export = subprocess.run(
        [*command, "export", "1", "--format", "json"], capture_output=True, env=ascii_only
    )
    text = b"\xef\xbb\xbf" + export.stdout  # as some editors begin a file
    subprocess.run([*command, "import", "-"], input=text, check=True, capture_output=True)
    assert {each.title for each in there()} == {"Wer zählt?"}
    assert len(there()) == 2


def test_deleted_restored_renamed_pinned(shell: Shell) -> None:
    kept("Who pays?")
    snapshots = [snapshot_folder(snapshots_path(), name) for name in ("1", "2")]
    for snapshot in snapshots:
        snapshot.mkdir(parents=True)
        (snapshot / "manifest.json").touch()
    said = shell("delete", "1")
    assert [snapshot.exists() for snapshot in snapshots] == [False, True]
    assert "conversations restore 1" in said
    assert there() == []
    assert shell("list", "--trash").endswith("Who pays?\n")
    shell("restore", "1")
    shell("rename", "1", "Contract review")
    shell("pin", "1")
    (found,) = there()
    assert (found.title, found.pinned) == ("Contract review", True)
    assert "★" in shell()
    shell("pin", "1", "--unpin")
    assert not there()[0].pinned


REFUSALS = {
    "no last one": (["show", "last"], "no conversations yet"),
    "no such number": (["show", "99"], "no conversation '99'"),
    "no number": (["delete", "one\x1b[2J"], "no conversation 'one"),
    "huge number": (["pin", "9" * 30], "no conversation"),
    "not in the trash": (["restore", "1"], "not in the trash"),
    "empty title": (["rename", "1", " "], "title is empty"),
    "title that is no UTF-8": (["rename", "1", "\udcff"], "not valid Unicode"),
    "nothing found": (["search", "zebra"], "Nothing matches 'zebra'"),
    "search that is no UTF-8": (["search", "\udcff"], "not valid Unicode"),
    "file that is not there": (["import", "{home}/nothing"], "No such file"),
    "folder": (["import", "{home}"], "is not a regular file"),
    "name with a zero": (["import", "a\0b"], "null byte"),
    "pipe without a writer": (
        ["import", "{home}/pipe"],
        "is not a regular file: redirect it to standard input",
    ),
    "no export": (["import", "{home}/text"], "not a complete conversation"),
    "binary": (["import", "{home}/binary"], "not a complete conversation"),
    "nowhere to export": (["export", "1", "-o", "{home}/no/x.md"], "cannot be written"),
    "export to a folder": (["export", "1", "-o", "{home}"], "cannot be written"),
    "export to no name": (["export", "1", "-o", ""], "cannot be written"),
}


@table("case", REFUSALS)
def test_bad_input_is_one_sentence_and_status_2(
    home: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    arguments, expected = REFUSALS[case]
    if ("1" in arguments or "search" in arguments) and not there():
        kept("Who pays?")
    (home / "text").write_text("{}")
    if not (home / "pipe").exists():
        os.mkfifo(home / "pipe")
    (home / "binary").write_bytes(b"\xff\xfe\x00")
    assert run(["conversations", *(each.format(home=home) for each in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.startswith("specchat: ")
    assert len(err.splitlines()) == 1
    assert err.endswith(".\n")
    assert "\x1b" not in err


def test_in_the_trash_already(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    kept("Who pays?")
    shell("delete", "1")
    assert run(["conversations", "delete", "1"]) == 2
    assert "already in the trash" in capsys.readouterr().err


def test_beside_the_app_they_are_read_and_changed_and_the_app_sees_it(
    home: Path, shell: Shell
) -> None:
    kept("Who pays?", "When?")
    shell("export", "1", "-o", str(home / "x.json"))
    with Store(data_path()) as app:
        reply = app.begin_reply(app.branch(2)[0].id)
        assert "The tenant." in shell("show", "1")
        shell("delete", "1")
        shell("rename", "2", "Dates")
        shell("import", str(home / "x.json"))
        assert [each.title for each in app.conversations()] == ["Who pays?", "Dates"]
        shell("restore", "1")
        assert len(app.conversations()) == 3
        app.rename(3, "The app still writes")
        reply.append("Soon.")
        reply.finish()
        assert app.branch(2)[-1].text == "Soon."
    assert {each.title for each in there()} == {"Who pays?", "Dates", "The app still writes"}


def test_on_a_terminal_nothing_from_a_text_reaches_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(data_path()) as store:
        id = store.create(HOSTILE).id
        document = store.attach(HOSTILE, b"x")
        store.add_message(id, Role.USER, HOSTILE, [document])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for arguments in (
        ["list"],
        ["list", "--json"],
        ["show", "1"],
        ["show", "1", "--json"],
        ["search", "evil"],
        *(["export", "1", "--format", form] for form in ("md", "json")),
    ):
        out = shell(*arguments)
        assert "evil" in out
        assert not {"\x1b", "\x07", "\u202e"} & {*out}, arguments


def test_into_a_pipe_a_text_goes_as_it_is(shell: Shell) -> None:
    with Store(data_path()) as store:
        store.add_message(store.create("x").id, Role.USER, HOSTILE)
    assert HOSTILE in shell("show", "1")
