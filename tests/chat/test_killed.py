"""kill -9 of the whole program at any moment: nothing acknowledged is lost, of an answer at most
its last second, and the next start answers as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import ModelPair, model_pair, resolve_pair
from app.chat.stored_conversation import StoredConversation
from app.engine.cache.snapshot import MANIFEST
from app.engine.cache.snapshot_folder import snapshot_folder
from app.engine.engine import MlxEngine
from app.protocol.commands import CachePolicy
from app.protocol.events import Finished, SnapshotRestored
from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.store.records import State
from app.store.store import Store
from tests.chat.killed import STEP, question
from tests.patience import ROUNDS
from tests.store.faults import assert_whole

ROOT = Path(__file__).resolve().parent.parent.parent
LOST_SECONDS = 1.0

AIMS = {"streaming": 2.0, "recalling": 0.3, "saving": 0.06, "saved": 0.2}
"""Where kills are aimed at, and how many seconds later they come at most."""
KILLS, LANES = 48 * ROUNDS, 2
"""Kills, and programs that are killed at the same time, each in its own folder."""
FEW = [("streaming", 0.9), ("saving", 0.2), ("saved", 0.5)]
"""The quick test's kills: where, and at what share of the seconds above."""


def moments(kills: int, lane: int) -> list[tuple[str, float]]:
    """Kills of one lane, in order: where, and at what share of the seconds above."""
    chance = random.Random(lane)
    aims = [[*AIMS][(number + 2 * lane) % len(AIMS)] for number in range(kills)]
    # Early and late ones, and some in the phases that follow.
    return [(aim, (number + chance.random()) / kills) for number, aim in enumerate(aims)]


@dataclass
class Heard:
    """What a killed program had said."""

    asked: set[int] = field(default_factory=set)
    wrote: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    phase: str = "starting"

    def hear(self, line: bytes) -> None:
        said = json.loads(line)
        if "phase" in said:
            self.phase = said["phase"]
        elif "asked" in said:
            self.asked.add(said["asked"])
        elif "wrote" in said:
            self.wrote.setdefault(said["wrote"], []).append((said["at"], said["text"]))
        else:
            self.ended[said["ended"]] = said["text"]


def chat_and_kill(folder: Path, seed: int, aim: str, seconds: float) -> tuple[Heard, float]:
    """Run the program, and kill it that many seconds after the phase `aim` has begun.
    Returns when that was, too."""
    heard = Heard()
    command = [sys.executable, "-m", "tests.chat.killed", str(folder), str(seed)]
    command += ["slowly"] if aim == "streaming" else []
    one_core = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=one_core) as program:
        assert program.stdout is not None
        for line in program.stdout:
            heard.hear(line)
            if heard.phase == aim:
                break
        assert heard.phase == aim, "the next start did not work"
        # What is killed at random is killed by the clock: that is the point of it.
        time.sleep(seconds)
        program.kill()
        killed = time.monotonic()
        for line in program.stdout:
            if line.endswith(b"\n"):
                heard.hear(line)
    return heard, killed


class Killing:
    """Kills the program in `folder` again and again, and looks at what is left each time."""

    def __init__(
        self,
        folder: Path,
        session: EngineSession,
        one_at_a_time: threading.Lock,
        made_with: ModelPair,
    ) -> None:
        self.phases: Counter[str] = Counter()
        self.torn = self.restored = self.due = 0
        self._folder, self._snapshots = folder, folder / "snapshots"
        self._session, self._one_at_a_time, self._models = session, one_at_a_time, made_with
        self._asked: set[int] = set()
        self._ended: dict[int, str] = {}

    def run(self, kills: list[tuple[str, float]], lane: int) -> None:
        chance = random.Random(lane)
        for number, (aim, share) in enumerate(kills):
            seconds = AIMS[aim] * share
            heard, killed = chat_and_kill(self._folder, 1000 * lane + number, aim, seconds)
            self.phases[heard.phase] += 1
            self._asked |= heard.asked
            self._ended |= heard.ended
            with Store(self._folder / "data") as store:
                assert store.read_only is None
                assert [n for n in store.notices if "cut off when specchat ended" not in n] == []
                self._nothing_is_lost(store, heard, killed)
                if heard.asked:
                    self._the_next_answer_is_right(store, heard.asked, chance)
            assert_whole(self._folder / "data" / "conversations.db")

    def _nothing_is_lost(self, store: Store, heard: Heard, killed: float) -> None:
        for id in self._asked:
            message = store.message(id)
            assert message.text.startswith("What does it say")
            for attachment in message.attachments:
                assert sum(map(len, store.iter_bytes(attachment))) == attachment.size
        for id, text in self._ended.items():
            reply = store.message(id)
            assert (reply.state, reply.text) == (State.DONE, text)
            assert reply.stats is not None
        for id in heard.wrote.keys() - heard.ended.keys():
            reply = store.message(id)
            assert reply.state in (State.STOPPED, State.DONE)
            old = [text for at, text in heard.wrote[id] if at < killed - LOST_SECONDS]
            assert reply.text.startswith(max(old, default="", key=len))
            last = heard.wrote[id][-1][1]
            assert last.startswith(reply.text) or reply.text.startswith(last)
            self.due += len(max(old, default="", key=len))

    def _the_next_answer_is_right(
        self, store: Store, asked: set[int], chance: random.Random
    ) -> None:
        """Read in full after a snapshot it is what is answered to somebody who kept nothing."""
        snapshots = {
            id: _snapshot(self._snapshots, str(id))
            for id in sorted(store.message(each).conversation for each in asked)
        }
        self.torn += sum(map(torn, snapshots.values()))
        whole = [id for id, folder in snapshots.items() if (folder / MANIFEST).exists()]
        conversation, saved = max(whole or snapshots), bool(whole)
        mode = Mode.FULL if saved else Mode.SPARSE
        asks = question(chance, mode, first=False)
        sampling = Sampling(max_tokens=12)
        turn = StoredConversation(store, conversation, self._models, sampling).ask(asks)
        with self._one_at_a_time:
            folder = str(self._snapshots)
            policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=folder, share_prefixes=False)
            self._session.set_policy(policy)
            events = list(self._session.run(turn.command))
            for event in events:
                turn.apply(event)
            turn.wait()
            assert [e.reason for e in events if isinstance(e, SnapshotRestored)] == [None] * saved
            assert isinstance(events[-1], Finished)
            if saved:
                self.restored += 1
                fresh = list(self._session.run(replace(turn.command, conversation=None)))[-1]
                assert isinstance(fresh, Finished)
                assert events[-1].generated_ids == fresh.generated_ids
            # Nothing of it is saved: that is for the program that is killed.
            self._session.set_policy(CachePolicy(BackgroundPolicy.OFF))


def _snapshot(snapshots: Path, conversation: str) -> Path:
    """The folder of a conversation's only target."""
    folder = snapshot_folder(snapshots, conversation)
    return next(folder.glob("*"), folder / "none")


def torn(snapshot: Path) -> bool:
    """Whether files lie there that no manifest names."""
    if not snapshot.is_dir():
        return False
    named = set()
    if (snapshot / MANIFEST).exists():
        manifest = json.loads((snapshot / MANIFEST).read_text().partition("\n")[2])
        named = {file["name"] for file in manifest["files"]}
    return bool({path.name for path in snapshot.iterdir()} - named - {MANIFEST})


@pytest.fixture(scope="module")
def session() -> Iterator[EngineSession]:
    with EngineSession(MlxEngine(STEP)) as session:
        session.load(replace(resolve_pair(), only_quotes=False))
        yield session


def kill(
    folder: Path, session: EngineSession, *lanes: list[tuple[str, float]]
) -> tuple[Counter[str], int]:
    """Kill in these lanes, and check what is left. Returns how often in which phase, and the number
    of torn snapshots."""
    one_at_a_time, made_with = threading.Lock(), model_pair(resolve_pair())
    every = [Killing(folder / str(n), session, one_at_a_time, made_with) for n in range(len(lanes))]
    with ThreadPoolExecutor(len(lanes)) as pool:
        runs = zip(every, lanes, range(len(lanes)), strict=True)
        for run in [pool.submit(each.run, kills, n) for each, kills, n in runs]:
            run.result()
    phases = sum((each.phases for each in every), Counter())
    torn, restored = sum(each.torn for each in every), sum(each.restored for each in every)
    due = sum(each.due for each in every)
    report = f"killed while {dict(phases)}: {torn=} snapshots, {restored=} ones, {due=} characters"
    print(report)
    assert phases.total() == sum(map(len, lanes))
    assert phases["streaming"], report
    assert restored, report
    assert due, report
    return phases, torn


@pytest.mark.slow
def test_killed_while_it_streams_and_saves(tmp_path: Path, session: EngineSession) -> None:
    kill(tmp_path, session, FEW)


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path, session: EngineSession) -> None:
    lanes = [moments(KILLS // LANES, lane) for lane in range(LANES)]
    phases, torn = kill(tmp_path, session, *lanes)
    assert phases.keys() >= {"recalling", "saving"}
    assert torn
