"""Background prefill, snapshots and eviction between turns."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from app.engine.cache.prefill import StepSize, forward
from app.engine.cache.sizes import CacheSize
from app.engine.cache.snapshot import MANIFEST
from app.engine.cache.snapshot_folder import snapshot_folder
from app.engine.memory.cache_pool import BackgroundPrefill
from app.engine.model.loader import LoadedModel
from app.protocol.commands import Ask, CachePolicy, DropConversation
from app.protocol.events import (
    BackgroundProgress,
    Event,
    Finished,
    ModelInfo,
    PhaseProgress,
    Selected,
    SnapshotFailed,
    SnapshotProgress,
    SnapshotRestored,
)
from app.protocol.options import DEFAULT_TUNING, BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.reasons import ReasonCode
from app.protocol.stats import FinishReason, Phase
from tests.engine.driver import TEXT, Driver
from tests.engine.oracle import TOLERANCE, difference
from tests.engine.test_turns import ANSWER, FIRST, Chat, conversation, dense_logits
from tests.limits import files_end_early
from tests.tables import slow
from tests.tiny import ORACLE, architectures, build

Trouble = Callable[[Path], AbstractContextManager[None]]


@pytest.mark.parametrize("name", architectures(*ORACLE))
def test_background_prefill_equals_a_dense_pass(name: str) -> None:
    model = build(name)
    first, answer, second = conversation()
    chat = Chat(model)
    chat.read(first, FIRST)
    chat.write(first, answer)
    assert chat.conversation.target.has_gaps
    info = ModelInfo("tiny", "", 0, 0, 0)
    prefill = BackgroundPrefill(
        LoadedModel(model, None, info, CacheSize(0, 0), StepSize(16)), chat.conversation
    )
    steps = [prefill.done]
    while not prefill.step():
        steps.append(prefill.done)
    assert len(steps) > 5
    assert steps == sorted(steps)
    prefix = chat.conversation.target
    assert not chat.conversation.target.has_gaps
    assert prefix.cached.all()
    rest = second.ids[len(first.ids) + ANSWER :]
    logits = forward(model, prefix.cache, rest)[0, -1]
    assert difference(logits, dense_logits(model, second.ids)) < TOLERANCE


def ask(
    *texts: str,
    mode: Mode = Mode.SPARSE,
    name: str | None = "c",
    document: str = TEXT,
    **kw: Any,
) -> Ask:
    """Ask the last of `texts` about the document, after the earlier questions and answers."""
    roles = (Role.USER, Role.ASSISTANT)
    documents = (Document("gates.txt", document),)
    messages = tuple(
        Message(roles[i % 2], text, documents if i == 0 else ()) for i, text in enumerate(texts)
    )
    sampling = Sampling(max_tokens=8)
    return Ask(messages, mode, kw.pop("keep", 0.2), sampling, conversation=name, **kw)


def reply(driver: Driver, question: Ask) -> tuple[Message, Finished]:
    finished = driver.answer(question)
    return Message(Role.ASSISTANT, finished.text, token_ids=finished.generated_ids), finished


def second(question: Ask, answer: Message, text: str) -> Ask:
    messages = (*question.messages, answer, Message(Role.USER, text))
    return replace(question, messages=messages)


def test_a_second_turn_reads_only_new_tokens(loaded: Driver) -> None:
    question = ask("What is the code of gate 7?")
    answer, first = reply(loaded, question)
    _, later = reply(loaded, second(question, answer, "And that of gate 40?"))
    assert first.statistics.reused_tokens == 0
    assert later.statistics.reused_tokens > 0.85 * first.statistics.read_tokens
    new = later.statistics.read_tokens - later.statistics.reused_tokens
    again = DEFAULT_TUNING.chunk
    """The chunk after those recalled is read again."""
    assert new - later.statistics.recalled_tokens < 60 + again
    assert loaded.of(Selected)[-1].selected_tokens == later.statistics.read_tokens


def test_a_turn_without_a_conversation_caches_nothing(loaded: Driver) -> None:
    question = ask("What is the code of gate 7?", name=None)
    answer, _ = reply(loaded, question)
    _, later = reply(loaded, second(question, answer, "And that of gate 40?"))
    assert later.statistics.reused_tokens == 0


def test_background_prefill_runs_while_idle(loaded: Driver) -> None:
    loaded.engine.send(CachePolicy(background=BackgroundPolicy.ALWAYS))
    question = ask("What is the code of gate 7?")
    answer, _ = reply(loaded, question)
    event = loaded.finish(BackgroundProgress)
    full = replace(second(question, answer, "And that of gate 40?"), mode=Mode.FULL)
    _, later = reply(loaded, full)
    assert later.statistics.reused_tokens >= event.total
    fresh = replace(full, conversation=None)
    assert loaded.answer(fresh).generated_ids == later.generated_ids


def test_a_snapshot_survives_the_engine(folders: dict[str, Path], tmp_path: Path) -> None:
    driver = Driver()
    policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path / "snapshots"))
    question = ask("What is the code of gate 7?")
    driver.engine.send(policy)
    driver.load(folders["target"], folders["draft"])
    answer, _ = reply(driver, question)
    expected = driver.answer(second(question, answer, "And that of gate 40?"))
    driver.close()
    again = Driver()
    try:
        again.engine.send(policy)
        again.load(folders["target"], folders["draft"])
        third = second(question, answer, "And that of gate 40?")
        finished = again.answer(third)
        assert [e.tokens > 0 for e in again.of(SnapshotRestored)] == [True]
        assert expected.statistics
        assert finished.statistics.reused_tokens > 0
        assert finished.generated_ids == expected.generated_ids
        again.engine.send(DropConversation("c"))
    finally:
        again.close()
    assert not any((tmp_path / "snapshots").iterdir())


def test_loading_and_saving_a_snapshot_report_progress(loaded: Driver, tmp_path: Path) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path / "snapshots"))
    question = ask("What is the code of gate 7?")

    driver = loaded
    driver.engine.send(policy)
    answer, first = reply(driver, question)
    driver.events.clear()
    while (
        driver.until(SnapshotProgress)
        and (saved := driver.of(SnapshotProgress))[-1].done < saved[-1].total
    ):
        pass
    assert [e.done for e in saved] == list(range(1, saved[-1].total + 1))
    assert {e.conversation for e in saved} == {"c"}

    third = second(question, answer, "And that of gate 40?")
    driver.fresh().engine.send(policy)
    driver.cancel_when(lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.RESTORE)
    assert driver.answer(third).finish_reason is FinishReason.CANCELLED
    driver.on_event = lambda event: None
    later = driver.answer(third)
    (restored,) = driver.of(SnapshotRestored)
    assert restored.tokens > 0, "a cancel does not cost the snapshot"
    loading = [e for e in driver.of(PhaseProgress) if e.phase is Phase.RESTORE]
    assert [e.done for e in loading] == sorted(e.done for e in loading)
    assert (loading[0].done, loading[-1].done) == (0, restored.tokens)
    assert {e.total for e in loading} == {restored.tokens}
    read = [e for e in driver.of(PhaseProgress) if e.phase is Phase.SCORE and e.done]
    assert read[0].done > first.statistics.prompt_tokens, "the draft's cache was restored, too"
    phases = {part.phase: part.seconds for part in later.statistics.phases}
    assert phases[Phase.RESTORE] >= loading[-1].elapsed
    assert sum(phases.values()) == pytest.approx(later.statistics.ttft, abs=0.02)


def test_the_time_to_the_first_token_starts_at_sending(loaded: Driver) -> None:
    """The second question is queued during the first answer."""
    questions = [ask("What is the code of gate 7?", name=None)] * 2
    for question in questions:
        loaded.ask(question)
    one, other = (loaded.until(Finished) for _ in questions)
    waited = {part.phase: part.seconds for part in other.statistics.phases}[Phase.WAIT]
    assert other.statistics.ttft > waited > one.statistics.decode_seconds


def test_the_least_recently_used_is_evicted_first(loaded: Driver) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, memory_budget=1, share_prefixes=False)
    loaded.engine.send(policy)
    for name in "aba":
        finished = loaded.answer(ask("What is the code of gate 7?", name=name))
        assert finished.statistics.reused_tokens == 0
    again = loaded.answer(ask("What is the code of gate 7?", name="a"))
    assert again.statistics.reused_tokens > 0


# ------------------------------------------------------------------- where nothing can be saved


@contextmanager
def a_file_instead(snapshots: Path) -> Iterator[None]:
    snapshots.write_text("mine")
    yield
    assert snapshots.read_text() == "mine"


@contextmanager
def a_file_among_them(snapshots: Path) -> Iterator[None]:
    snapshots.mkdir()
    snapshot_folder(snapshots, "c").write_text("mine")
    yield


FSYNC = "app.engine.cache.snapshot.os.fsync"


def failing(name: str, code: int) -> Trouble:
    @contextmanager
    def trouble(snapshots: Path) -> Iterator[None]:
        with mock.patch(name, side_effect=OSError(code, os.strerror(code))):
            yield

    return trouble


@contextmanager
def mlx_cannot_write(snapshots: Path) -> Iterator[None]:
    error = RuntimeError("[write] Unable to write 4096 bytes to file.")
    with mock.patch("app.engine.cache.snapshot.save_prompt_cache", side_effect=error):
        yield


@contextmanager
def really_full(snapshots: Path) -> Iterator[None]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounts a tmpfs")
    snapshots.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(snapshots)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(snapshots)], check=True)


UNSAVED: dict[str, Trouble] = {
    "a file where the folder should be": a_file_instead,
    "a file where a conversation's should be": a_file_among_them,
    "a read-only folder": failing("pathlib.Path.mkdir", errno.EROFS),
    "a folder of somebody else": failing("pathlib.Path.mkdir", errno.EACCES),
    "a full disk when a file is synced": failing(FSYNC, errno.ENOSPC),
    "a broken disk": failing(FSYNC, errno.EIO),
    "a full disk when a file is written": mlx_cannot_write,
    "files that may not grow": files_end_early,
    "a folder that turns read-only": failing("app.engine.cache.snapshot.os.replace", errno.EROFS),
    "a disk that is really full": really_full,
}


AT_ONCE, MAKING_ROOM, AT_THE_END = WHEN = ("at once", "to make room", "at the end")
SOME = ("a full disk when a file is synced", "files that may not grow")


@pytest.mark.parametrize(
    ("name", "when"),
    [*((name, AT_ONCE) for name in UNSAVED), *((name, when) for when in WHEN[1:] for name in SOME)],
)
def test_a_failed_save_is_only_reported(
    name: str, when: str, loaded: Driver, tmp_path: Path
) -> None:
    def end() -> None:
        loaded.engine.send(CachePolicy())
        loaded.settle()

    check_failed_save(loaded, UNSAVED[name], when, tmp_path / "snapshots", end)


@pytest.mark.parametrize("name", [slow(name) for name in UNSAVED if name != SOME[0]] + [SOME[0]])
@pytest.mark.parametrize("when", [slow(AT_ONCE), slow(MAKING_ROOM), AT_THE_END])
def test_a_failed_save_does_not_prevent_closing(
    name: str, when: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    driver = Driver()
    driver.load(folders["target"], folders["draft"])
    check_failed_save(driver, UNSAVED[name], when, tmp_path / "snapshots", driver.close)


def check_failed_save(
    driver: Driver, trouble: Trouble, when: str, snapshots: Path, end: Callable[[], object]
) -> None:
    budget = 1 if when == MAKING_ROOM else 10**9
    question = ask("What is the code of gate 7?", mode=Mode.FULL, document=TEXT[:600])
    unsaved: list[Event] = []
    with trouble(snapshots):
        driver.engine.send(CachePolicy(BackgroundPolicy.OFF, budget, str(snapshots)))
        first = driver.answer(question)
        if when == AT_ONCE:
            unsaved.append(driver.until(SnapshotFailed))
        elif when == MAKING_ROOM:
            driver.run(replace(question, conversation="other"))
            unsaved += driver.of(SnapshotFailed)
        again = driver.answer(question)
        assert again.generated_ids == first.generated_ids
        driver.events.clear()
        end()
        unsaved += driver.of(SnapshotFailed)
    assert unsaved
    for event in unsaved:
        assert isinstance(event, SnapshotFailed)
        assert event.reason.code is ReasonCode.SNAPSHOT_FAILED
        assert event.reason.data["folder"] == str(snapshots)
        assert event.reason.data["error"]
    assert not list(snapshot_folder(snapshots, "c").rglob(MANIFEST))


def test_a_read_only_snapshot_is_used(
    loaded: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path / "snapshots"))
    for _ in range(2):
        loaded.engine.send(policy)
        loaded.answer(ask("What is the code of gate 7?"))
        restored = loaded.of(SnapshotRestored)
        loaded.fresh()  # which saves it
        error = OSError(errno.EROFS, os.strerror(errno.EROFS))
        monkeypatch.setattr("app.engine.cache.snapshot.os.utime", mock.Mock(side_effect=error))
    assert [event.tokens > 0 for event in restored] == [True]
