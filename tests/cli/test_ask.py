"""`specchat ask`: its output, its exit status, its refusals; and what --conversation keeps."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from app.chat.conversation import Conversation, Question, Turn
from app.cli.main import run
from app.cli.report import Report
from app.engine.backend import memory, mlx_patches
from app.engine.cache.prefill import StepSize, make_positioned_cache, prefill, set_next_position
from app.engine.cache.snapshot_folder import snapshot_folder
from app.paths import costs_path, data_path, snapshots_path
from app.protocol.commands import Load
from app.protocol.events import EngineWarning, Event, Finished, Retrieved, Token
from app.protocol.options import Mode
from app.protocol.prompt import Document, RetrievalReason, RetrievedPart
from app.protocol.reasons import FailureKind, Reason, ReasonCode
from app.protocol.stats import DocumentsRead, FinishReason
from app.settings.definitions import Documents, KvBits, ReadingSettings, Settings
from app.store.records import MessageRecord, Overrides, State
from app.store.store import Store
from app.util.assets import assets_path
from tests import tiny
from tests.cli.conftest import TEXT, without_models
from tests.fakes import FakeEngine
from tests.tables import slow, table

READ = r"Read \d+% of [\w/]+\.txt \([\d,]+ of [\d,]+ tokens\) in [\d.]+ s"


def _ask(room: Path, *arguments: str) -> list[str]:
    return ["ask", "--target", str(room / "target"), "--draft", str(room / "draft"), *arguments]


def test_the_answer_goes_to_output_and_the_figures_to_errors(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(room / "text.txt")
    assert run(_ask(room, "-f", file, "--keep", "0.2", "--max-tokens", "5", "What?")) == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert re.fullmatch(READ, err.splitlines()[-1])


@pytest.fixture(scope="module")
def folder_asked(room: Path) -> tuple[str, str]:
    """What a question about a folder prints with -v and --map: its output and its errors."""
    folder = room / "docs"
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT)
    (folder / "binary").write_bytes(b"\0")
    how = ["--keep", "0.2", "--max-tokens", "5", "-v", "--map"]
    out, err = TextIOWrapper(BytesIO(), "utf-8"), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert run(_ask(room, "-f", str(folder), *how, "What?")) == 0
    out.seek(0)
    return out.read(), err.getvalue()


def test_verbose_says_everything_a_line_each(folder_asked: tuple[str, str]) -> None:
    lines = folder_asked[1].splitlines()
    cut_off, head, *details = lines[lines.index(next(x for x in lines if "Cut off" in x)) :]
    assert cut_off.startswith("Cut off")
    assert re.fullmatch(READ, head)
    known = dict(line.split(maxsplit=1) for line in details if not line.startswith("  First"))
    assert known["Read"].endswith(" tokens, sparse")
    assert known["Mode"] == "sparse, keep 20%"
    assert known["Answer"].startswith("5 tokens")
    assert known["Why"].startswith("Sparse reading at keep 20% was requested.")


def test_the_map_shows_the_strip_and_the_spans(folder_asked: tuple[str, str]) -> None:
    out, _ = folder_asked
    assert " importance\n" in out
    assert " selected\n" in out
    assert "pinned" in out
    assert "text.txt: " in out


def test_a_folder_is_read_and_told(folder_asked: tuple[str, str]) -> None:
    out, err = folder_asked
    assert "docs/text.txt: " in out
    assert err.startswith(f"Read docs: 1 file, {len(TEXT) / 1000:.0f} KB; skipped 1: 1 binary.\n")
    advice = "only text, PDF and office documents are supported"
    assert f"Skipped: docs/binary is a binary file: {advice}.\n" in err


def test_a_draft_of_another_family_scores(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(room / "text.txt")
    drafted = _ask(room, "--draft", "embedded", "-f", file, "--keep", "0.2", "--max-tokens", "5")
    assert run([*drafted, "--verbose", "What does line 37 say?"]) == 0
    details = capsys.readouterr().err
    assert "tokens, sparse\n" in details
    assert re.search(r"Phases .*score", details)


def test_json_lines_say_what_was_not_read_and_let_another_program_recompute_the_turn(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = room / "notes"
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT)
    (folder / "binary").write_bytes(b"\0")
    run(_ask(room, "-f", str(folder), "--keep", "0.2", "--max-tokens", "6", "--json", "What?"))
    first, *events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["event"], first["path"], first["reason"]) == ("Skipped", "notes/binary", "binary")
    by_name: dict[str, dict[str, Any]] = {event["event"]: event for event in events}
    ids = np.array(by_name["Planned"]["prompt_ids"], np.int32)
    spans = by_name["Selected"]["spans"]
    assert {span["reason"] for span in spans} == {"pinned", "important"}
    kept = np.concatenate([np.arange(s["start"], s["end"], dtype=np.int32) for s in spans])
    statistics = by_name["Finished"]["statistics"]
    assert statistics["read_tokens"] == len(kept)
    read = sum(
        len(np.intersect1d(kept, np.arange(each["start"], each["end"])))
        for each in by_name["Planned"]["segments"]
        if each["kind"] == "document"
    )
    documents = statistics["documents"]
    assert (documents["name"], documents["read"]) == ("notes/text.txt", read)
    assert statistics["read_fraction"] == read / documents["tokens"]
    assert statistics["keep_ratio"] == by_name["Selected"]["keep_ratio"] == 0.2
    assert by_name["Finished"]["finish_reason"] == "length"

    mlx_patches.install()
    model = tiny.build("qwen3", 0, vocabulary=tiny.BYTES)
    cache = make_positioned_cache(model)
    prefill(model, cache, ids[kept[:-1]], kept[:-1], StepSize(100), lambda done: None)
    set_next_position(cache, int(kept[-1]))
    tokens = generate_step(mx.array(ids[-1:]), model, max_tokens=6, prompt_cache=cache)
    assert [token for token, _ in tokens] == by_name["Finished"]["generated_ids"]


def test_an_answer_cites_only_what_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    licence = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
    start = licence.index("  4. Conveying Verbatim Copies.")
    (tmp_path / "gpl-3.0.txt").write_text(licence[start - 800 : start + 1700])
    file = str(tmp_path / "gpl-3.0.txt")
    asked = ["ask", "--target", "embedded", "-f", file, "--keep", "0.1", "May I charge for a copy?"]
    assert run([*asked, "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_name: dict[str, dict[str, Any]] = {event["event"]: event for event in events}
    assert [event["event"] for event in events[-2:]] == ["Cited", "Finished"]
    cited = by_name["Cited"]["citations"]["found"]
    notes = by_name["Cited"]["footnotes"]
    assert (notes[0]["number"], notes[0]["kind"], notes[0]["page"]) == (1, "quotation", None)
    text = Path(file).read_text(encoding="utf-8")
    assert notes[0]["text"] == text[cited[0]["passage_start"] : cited[0]["passage_end"]]
    read = {
        offset
        for each in by_name["Selected"]["texts"]
        for offset in range(each["start"], each["end"])
    }
    for each in cited:
        assert read.issuperset(range(each["passage_start"], each["passage_end"]))
    run(asked)
    assert f'[1] gpl-3.0.txt, line {notes[0]["line"]}: "' in capsys.readouterr().err
    run([*asked, "--no-citations"])
    assert "citation" not in capsys.readouterr().err


def test_standard_input_is_a_file(
    room: Path, engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (room / "text.txt").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert run(_ask(room, "-f", "-", "?")) == 0
    (asked,) = engines[0].asks
    assert [document.text for document in asked.messages[0].documents] == [TEXT]


REFUSALS = {
    "missing file": (["-f", "nothing-here"], "nothing-here"),
    "binary file": (["-f", "{room}/binary"], "binary"),
    "empty folder": (["-f", "{room}/empty"], "empty"),
    "keep above 1": (["--keep", "1.5"], "not a valid keep"),
    "no tokens": (["--max-tokens", "0"], "not a valid number of tokens"),
    "a seed too large": (["--seed", str(2**64)], "not a valid seed"),
    "no such model": (["--target", "no/model"], "no/model"),
    "folder without a model": (["--target", "{room}/empty"], "is not a model"),
    "truncated weights": (["--target", "{truncated}"], "truncated"),
    "longer than the context": (["--target", "{short}", "How? " * 70], "at most 300"),
    "unknown architecture": (["--target", "{unknown}"], "could not be loaded"),
}


@pytest.fixture(scope="module")
def broken(room: Path, unknown: Path) -> dict[str, Path]:
    truncated = tiny.save(room / "truncated")
    short = tiny.save(room / "short", max_position_embeddings=300)
    weights = truncated / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    return {"truncated": truncated, "short": short, "unknown": unknown}


@table("case", REFUSALS)
def test_bad_input_is_one_sentence_and_status_2(
    room: Path, broken: dict[str, Path], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = REFUSALS[case]
    filled = [a.format(room=room, **broken) for a in arguments]
    before = sorted(room.rglob("*"))
    asked = filled.pop() if filled[-1].startswith("How?") else "What?"
    status = run(_ask(room, "-f", str(room / "text.txt"), *filled, asked))
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    sentences = [line for line in err.splitlines() if line.startswith("specchat: ")]
    assert len(sentences) == 1, err
    assert expected in sentences[0]
    assert sentences[0].endswith(".")
    assert "Traceback" not in err
    assert sorted(room.rglob("*")) == before, "nothing is left behind"


def test_an_empty_question_is_refused(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_ask(room, "  \n")) == 2
    assert "question is empty" in capsys.readouterr().err


def test_modes_exclude_each_other(room: Path) -> None:
    assert run(_ask(room, "--full", "--keep", "0.2", "What?")) == 2


def test_a_question_that_is_not_utf8_is_refused(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_ask(room, "What is \udcff?")) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_standard_input_may_be_closed(
    room: Path, engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(_ask(room, "--max-tokens", "1", "What?")) == 0


def test_the_embedded_pair_is_asked_nothing_without_a_document(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kept in ([], ["--conversation", "new"]):
        assert run(["ask", "What?", "--target", "embedded", *kept]) == 2
        assert "questions about documents: add one with -f" in capsys.readouterr().err
    with Store(data_path()) as store:
        assert store.conversations() == ()


def test_a_narrow_terminal_still_gets_a_map(
    room: Path,
    engines: list[FakeEngine],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "5")
    file = str(room / "text.txt")
    assert run(_ask(room, "-f", file, "--keep", "0.1", "--max-tokens", "1", "--map", "?")) == 0
    assert " selected\n" in capsys.readouterr().out


def test_a_failure_is_in_the_json_too(
    room: Path, broken: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = _ask(room, "-f", str(room / "text.txt"), "--json", "How? " * 70)
    assert run([*arguments, "--target", str(broken["short"])]) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["event"] == "Failed"


def test_ctrl_c_while_printing_still_ends_in_good_order(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal may come anywhere, not only while waiting for the engine."""
    shown = Report.show

    def interrupted(self: Report, event: Event) -> None:
        shown(self, event)
        if isinstance(event, Token) and event.text:
            os.kill(os.getpid(), signal.SIGINT)
            monkeypatch.setattr(Report, "show", shown)

    monkeypatch.setattr(Report, "show", interrupted)
    assert run(_ask(room, "--max-tokens", "100000", "Go on.")) == 130
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert "Stopped." in err
    assert "Read everything in" in err


STARTED = "import sys, app.__main__ as m; print('started', flush=True); sys.exit(m.main())"


@pytest.mark.parametrize("moment", [slow(0.0), 0.3, slow(0.6), 1.0])
def test_ctrl_c_at_any_moment_ends_with_130(room: Path, moment: float) -> None:
    """While importing, loading, reading or writing: never a traceback, never an abort."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *_ask(room, "--max-tokens", "1000000", "Go on.")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(moment + 0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err


CALLBACK = """
import os, signal, sys, time, weakref
import app.__main__ as m, app.cli.main

def run(arguments):
    gone = set()
    reference = weakref.ref(gone, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del gone  # Python drops what is raised here
    time.sleep(30)
    return 0

app.cli.main.run = run
sys.exit(m.main())
"""


def test_ctrl_c_that_python_drops_is_repeated() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLBACK], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_what_is_read_may_be_kept_in_fewer_bits(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what = ["-f", str(room / "text.txt"), "--max-tokens", "3", "--kv-bits"]
    assert run(["ask", *what, "4", "What does line 7 say?"]) == 0
    assert run(_ask(room, *what, "8", "What?")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "target cannot be quantised to 8 bits (its heads are 16 wide" in error
    assert error.endswith("set KV bits to full.")


def test_the_settings_say_in_how_many_bits(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(Settings(), reading=ReadingSettings(kv_bits=KvBits.EIGHT))
    monkeypatch.setattr("app.cli.ask.user_settings", lambda: settings)
    file = ["-f", str(room / "text.txt"), "--max-tokens", "3"]
    assert run(_ask(room, *file, "What?")) == 2
    assert "8 bits" in capsys.readouterr().err
    engines = without_models(monkeypatch)
    assert run(_ask(room, *file, "--kv-bits", "full", "What?")) == 0
    assert engines[0].pair is not None
    assert engines[0].pair[0].kv_bits is None


def test_what_does_not_fit_is_refused_and_may_be_tried(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = memory.free
    # Of what there is, only so much is left that the models fit and a prompt does not.
    monkeypatch.setattr(memory, "free", lambda: 600_000.0 if engaged else original())
    engaged: list[bool] = []
    seen = Report.show

    def show(self: Report, event: Event) -> None:
        engaged.append(True)
        seen(self, event)

    monkeypatch.setattr(Report, "show", show)
    file = ["-f", str(room / "text.txt"), "--max-tokens", "3", "--full", "What?"]
    assert run(_ask(room, *file)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"needs about [1-9] MB, but only 1 MB is free", error)
    assert "choose a smaller model" in error
    engaged.clear()
    assert run(_ask(room, *file, "--skip-memory-check")) == 0


Ask = Callable[..., list[str]]


@pytest.fixture
def ask(room: Path, home: Path) -> Ask:
    """The arguments of an `ask` of the tiny pair."""

    def arguments(*more: str) -> list[str]:
        pair = ["--target", str(room / "target"), "--draft", str(room / "draft")]
        return ["ask", *pair, "--max-tokens", "4", *more]

    return arguments


def branch(id: int = 1) -> tuple[MessageRecord, ...]:
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


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--full"], ["--keep", "0.2"]])
def test_a_second_process_reuses_what_the_first_has_read(
    room: Path, ask: Ask, how: list[str]
) -> None:
    file = ["-f", str(room / "text.txt")]
    first = in_a_process(ask("--conversation", "new", *file, *how, "What does line 7 say?"))
    assert first.startswith("Conversation 1 · What does line 7 say?\n")
    assert "reused" not in first
    second = in_a_process(ask("--conversation", "last", "-v", *how, "And line 50?"))
    assert second.startswith("Conversation 1 · What does line 7 say?\n")
    question, answer, _, follow_up = branch()
    assert answer.stats is not None
    assert follow_up.stats is not None
    assert follow_up.stats.reused_tokens == answer.stats.read_tokens + len(answer.token_ids or ())
    assert re.search(r"^Read .+ tokens, ([0-9,]+|nothing) new\) in ", second, re.MULTILINE)
    assert f"  Reused      {follow_up.stats.reused_tokens:,} tokens" in second
    assert follow_up.stats.prompt_tokens > len(TEXT)
    assert [each.name for each in question.attachments] == ["text.txt"]
    assert snapshots_path().stat().st_mode & 0o077 == 0, "nobody else reads what was read"


def test_a_changed_file_takes_the_place_of_its_earlier_version_and_a_damaged_cache_is_read_again(
    room: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    path = room / "text.txt"
    run(ask("--conversation", "new", "-f", str(path), "--full", "What does line 7 say?"))
    path.write_text(path.read_text() + "One more line.\n")
    run(ask("--conversation", "last", "-f", str(path), "--full", "And the last line?"))
    _, first, _, second = branch()
    assert first.stats is not None
    assert second.stats is not None
    assert second.stats.prompt_tokens < 1.5 * first.stats.prompt_tokens
    assert second.stats.reused_tokens > first.stats.prompt_tokens // 2

    (manifest,) = snapshots_path().rglob("manifest.json")
    manifest.write_text("{")
    capsys.readouterr()
    assert run(ask("--conversation", "last", "Three?")) == 0
    err = capsys.readouterr().err
    assert re.search(
        r"The saved cache cannot be used \(.+\), so the tokens are read again\.\n", err
    )
    assert "reused" not in err


def test_what_was_chosen_for_a_conversation_holds_unless_an_option_says_otherwise(
    home: Path, room: Path, engines: list[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(data_path()) as store:
        id = store.create().id
        store.set_overrides(id, Overrides(system="Be brief.", mode="full", max_tokens=3, seed=5))
    pair = ["--target", str(room / "target"), "--draft", str(room / "draft")]
    arguments = ["ask", *pair, "--conversation", "1", "--temp", "0.5", "--json"]
    for more in ([], ["--max-tokens", "2", "--seed", "6", "--keep", "0.5"]):
        assert run([*arguments, *more, "What?"]) == 0
    first, second = (engine.asks[0] for engine in engines)
    assert (first.mode, first.sampling.seed, first.sampling.max_tokens) == (Mode.FULL, 5, 3)
    assert (second.mode, second.keep_ratio) == (Mode.SPARSE, 0.5)
    assert (second.sampling.seed, second.sampling.max_tokens) == (6, 2)
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


def test_a_file_that_is_too_large_is_searched_for_each_question(
    home: Path,
    ask: Ask,
    engines: list[FakeEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = Settings(documents=Documents(attach_limit_mb=1))
    monkeypatch.setattr("app.cli.ask.user_settings", lambda: limits)
    lines = [f"line {number}: all is well\n" for number in range(1, 50_001)]
    lines[20_000], lines[30_000] = "the vault is open\n", "the zebra is out\n"
    file = tmp_path / "huge.log"
    file.write_text("".join(lines))

    def asked(*arguments: str) -> tuple[tuple[Document, ...], str]:
        assert run(ask(*arguments)) == 0
        return engines[-1].asks[0].messages[0].documents, capsys.readouterr().err

    documents, said = asked("--conversation", "new", "-f", str(file), "Is the vault open?")
    assert {each.name for each in documents} == {"huge.log"}
    (found,) = (each for each in documents if "vault" in each.text)
    assert lines[found.line - 1 :][: found.text.count("\n")] == found.text.splitlines(keepends=True)
    assert "huge.log is too large to be read as a whole (1.2 MB), so " in said
    assert " of its 50,000 lines were chosen: " in said
    assert "huge.log: only lines chosen from 1.2 MB" in said
    documents, said = asked("--conversation", "last", "And the zebra?")
    assert any("zebra" in each.text for each in documents)
    assert " of its 50,000 lines were chosen: " in said
    file.unlink()
    documents, _ = asked("--conversation", "last", "And now?")
    assert any("zebra" in each.text for each in documents)


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


def test_other_conversations_are_not_touched(ask: Ask, engines: list[FakeEngine]) -> None:
    run(ask("--conversation", "new", "One?"))
    run(ask("--conversation", "new", "Other?"))
    run(ask("--conversation", "1", "Two?"))
    assert [message.text for message in branch()[::2]] == ["One?", "Two?"]
    assert [message.text for message in branch(2)[::2]] == ["Other?"]
    run(ask("--conversation", "last", "Three?"))
    assert len(branch(1)) == 6


@pytest.mark.slow
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


KEPT_REFUSALS = {
    "no last one": (["--conversation", "last"], "no conversations yet"),
    "no such one": (["--conversation", "7"], "no conversation '7'"),
    "no number": (["--conversation", "\x1b[2J"], "no conversation"),
    "no file": (["--conversation", "new", "-f", "nothing-here"], "nothing-here"),
    "no model": (["--conversation", "new", "--target", "no/model"], "no/model"),
}


@table("case", KEPT_REFUSALS)
def test_what_is_refused_is_not_kept(
    ask: Ask, case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, expected = KEPT_REFUSALS[case]
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


@table("verbose, lines", [(False, 12), (True, 41)])
def test_of_many_chosen_files_ten_are_named(
    verbose: bool, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tuple(
        RetrievedPart(Document(f"many/f{n}.txt", f"{n}\n"), 9, RetrievalReason.WORDS)
        for n in range(40)
    )
    report = Report(Turn(1, Question("What?")), Conversation(), verbose=verbose)
    capsys.readouterr()
    report.show(Retrieved(1, parts, (), DocumentsRead("", 5000, 1_000, 100), 8000))
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        "40 of 5,000 files fit this question (360 of about 1,000 tokens):",
        "  many/f0.txt",
    ]
    assert said[-1] == ("  many/f39.txt" if verbose else "  and 30 more (-v lists them)")
    assert len(said) == lines


def test_if_no_file_stands_out_the_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    part = RetrievedPart(Document("many/f1.txt", "1\n"), 9, RetrievalReason.WORDS)
    documents = DocumentsRead("", 5000, 1_000, 100)
    capsys.readouterr()
    Report(Turn(1, Question("What?")), Conversation()).show(
        Retrieved(1, (part,), (), documents, 8000, stands_out=False)
    )
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        "No file stands out: 1 of 5,000 files were chosen (9 of about 1,000 tokens):"
    )


def test_notices_do_not_stand_in_the_middle_of_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(Turn(1, Question("What?")), Conversation())
    warning = EngineWarning(Reason(ReasonCode.BACKGROUND_STOPPED, {"error": "disk full"}))
    report.show(Token(1, (1,), "The "))
    report.show(warning)
    report.show(warning)
    assert capsys.readouterr() == ("The ", "")
    report.show(Token(1, (2,), "end."))
    report.show(Finished(1, FinishReason.STOP, "The end.", (1, 2), None))
    out, err = capsys.readouterr()
    assert out == "end.\n"
    assert err.count("Background reading stopped (disk full)") == 1
