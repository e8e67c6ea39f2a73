"""kill -9 at any moment: no acknowledged message is lost, of a reply at most its last second."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.store.records import State
from app.store.store import Store
from tests.store.faults import assert_whole
from tests.store.killed import text_of

ROOT = Path(__file__).resolve().parent.parent.parent
LOST_SECONDS = 1.0


@dataclass
class Acknowledged:
    """What a killed program had said: ids of messages, and the replies' lengths at given times."""

    asked: set[int] = field(default_factory=set)
    ended: dict[int, int] = field(default_factory=dict)
    wrote: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def hear(self, line: str) -> None:
        what, number, *more = line.split()
        id = int(number)
        if what == "asked":
            self.asked.add(id)
        elif what == "began":
            self.wrote[id] = []
        elif what == "wrote":
            self.wrote[id].append((float(more[1]), int(more[0])))
        elif what == "ended":
            self.ended[id] = int(more[0])


def chat_and_kill(folder: Path, seed: int, seconds: float, heard: Acknowledged) -> float:
    """Run the chatting program, kill it that many seconds after it opened the store, and return
    when that was."""
    command = [sys.executable, "-m", "tests.store.killed", str(folder), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        line = program.stdout.readline()
        assert line.startswith("open"), "the next start did not work"
        # What is killed at random is killed by the clock: that is the point of it.
        time.sleep(seconds)
        program.kill()
        killed = time.monotonic()
        for line in program.stdout:
            if line.endswith("\n"):
                heard.hear(line)
    return killed


def check(folder: Path, heard: Acknowledged, killed: float) -> int:
    """Nothing that was said is missing, and the next start works. Returns how many characters of
    replies that were cut off had to be there."""
    due = 0
    with Store(folder) as store:
        assert store.read_only is None
        assert [n for n in store.notices if "cut off when specchat ended" not in n] == []
        for id in heard.asked:
            message = store.message(id)
            assert message.text.startswith("question")
            for attachment in message.attachments:
                assert sum(map(len, store.iter_bytes(attachment))) == attachment.size
        for id, said in heard.wrote.items():
            reply = store.message(id)
            assert reply.text == text_of(id, len(reply.text))
            assert (reply.token_ids or ()) == tuple(range(len(reply.text)))
            if id in heard.ended:
                assert (reply.state, len(reply.text)) == (State.DONE, heard.ended[id])
            else:
                assert reply.state in (State.STOPPED, State.DONE)
                old = [length for at, length in said if at < killed - LOST_SECONDS]
                assert len(reply.text) >= max(old, default=0)
                due += max(old, default=0)
    assert_whole(folder / "conversations.db")
    return due


LANES = 3
"""Stores that are killed at the same time: most of it is waiting."""


def kill_many(folder: Path, kills: int, longest: float) -> None:
    with ThreadPoolExecutor(LANES) as lanes:
        for result in [
            lanes.submit(kill_one, folder / str(lane), range(lane, kills, LANES), longest)
            for lane in range(LANES)
        ]:
            result.result()


def kill_one(folder: Path, seeds: range, longest: float) -> None:
    """Kill one store again and again."""
    chance, heard, due, kills = random.Random(seeds.start), Acknowledged(), 0, len(seeds)
    for seed in seeds:
        heard.wrote = {}  # their times are about this run; what had ended stays in `ended`
        seconds = 1.7 if seed % 5 == 0 else longest * chance.random() ** 2
        killed = chat_and_kill(folder, seed, seconds, heard)
        due += check(folder, heard, killed)
    assert len(heard.asked) > kills / 2
    assert len(heard.ended) > kills / 4
    assert due > 300


@pytest.mark.slow
def test_killed_30_times(tmp_path: Path) -> None:
    kill_many(tmp_path, 30, longest=0.4)


@pytest.mark.slow
def test_killed_200_times(tmp_path: Path) -> None:
    kill_many(tmp_path, 200, longest=2.0)
