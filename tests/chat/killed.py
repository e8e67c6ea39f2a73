"""The whole program, but for its screen, until it is killed:
`python -m tests.chat.killed FOLDER SEED [slowly]`.

It opens the store, loads the demo pair, asks about a document, streams the
answers into the store, recalls and saves snapshots while nothing is asked.

Says on standard output, a line of JSON each: `{"phase": NAME}` when one begins, and
what is acknowledged: `{"asked": ID}` once a question is committed, `{"wrote": ID, "text": ALL SO
FAR, "at": TIME}` when an answer's text was handed to the store, `{"ended": ID, "text": ALL}` once
its end is committed.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.chat.conversation import Question
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import model_pair, resolve_pair
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.engine import engine
from app.engine.backend.blas import load_openblas
from app.engine.engine import MlxEngine
from app.protocol.commands import CachePolicy
from app.protocol.events import Event, Finished, Token
from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Document
from app.store.store import Store
from app.util.assets import assets_path

STEP = 128
"""Tokens that are read at once, so that recalling takes several steps."""
TEXT = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")[3000:6500]
DOCUMENT = Document("licence.txt", TEXT)
PHRASES = [
    phrase
    for phrase in re.findall(r"\b[a-z]+ [a-z]+ [a-z]+ [a-z]+\b", TEXT)
    if TEXT.count(phrase) == 1
]


def question(chance: random.Random, mode: Mode, first: bool) -> Question:
    text = f'What does it say of "{chance.choice(PHRASES)}"?'
    return Question(text, (DOCUMENT,) if first else (), mode, 0.3)


def say(**words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())  # at once, so that no two lines mix


def announce(owner: Any, name: str, phase: str) -> None:
    """Say that `phase` begins whenever this function is called."""
    original: Callable[..., Any] = getattr(owner, name)

    def announced(*arguments: Any) -> Any:
        say(phase=phase)
        return original(*arguments)

    setattr(owner, name, announced)


class Watched(MlxEngine):
    """Says when an answer begins, and takes `pause` seconds more for every token."""

    pause = 0.0

    def _emit(self, event: Event) -> None:
        super()._emit(event)
        if isinstance(event, Token):
            time.sleep(self.pause * len(event.ids))


def watch_upkeep(saved: threading.Event) -> None:
    load_openblas()  # before MLX is imported
    from app.engine.cache.snapshot import Snapshots
    from app.engine.memory.cache_pool import BackgroundPrefill

    announce(BackgroundPrefill, "step", "recalling")
    save = Snapshots.save

    def watched(*arguments: Any) -> Iterator[tuple[int, int]]:
        say(phase="saving")
        for done, total in save(*arguments):
            if done == total:
                say(phase="saved")
                saved.set()
            yield done, total

    Snapshots.save = watched  # type: ignore[method-assign]


def main(folder: Path, seed: int, slowly: bool) -> None:
    chance, saved = random.Random(seed), threading.Event()
    engine.IDLE_DELAY = 0.02
    watch_upkeep(saved)
    with Store(folder / "data") as store:
        say(phase="loading")
        watched, load = Watched(STEP), replace(resolve_pair(), only_quotes=False)
        watched.pause = 0.15 if slowly else 0.0
        # What other conversations have read in the background would leave nothing to recall.
        snapshots = str(folder / "snapshots")
        upkeep = CachePolicy(
            BackgroundPolicy.ALWAYS, snapshot_folder=snapshots, share_prefixes=False
        )
        with EngineSession(watched, upkeep) as session:
            session.load(load)
            while True:
                conversation = None
                for turn in range(chance.randrange(1, 4)):
                    mode = chance.choice((Mode.SPARSE, Mode.SPARSE, Mode.FULL))
                    saved.clear()
                    say(phase="asking")
                    sampling = Sampling(max_tokens=60 if slowly else 12)
                    chat = StoredConversation(store, conversation, model_pair(load), sampling)
                    asked = chat.ask(question(chance, mode, turn == 0))
                    conversation = asked.conversation
                    say(asked=store.branch(conversation)[-2].id)
                    answer(session, asked)
                    if chance.random() < 0.8:
                        saved.wait(60)


def answer(session: EngineSession, asked: StoredTurn) -> None:
    id, text = asked.turn.number, ""
    say(phase="reading")
    for event in session.run(asked.command):
        if isinstance(event, Token):
            if not text:
                say(phase="streaming")
            text += event.text
        elif isinstance(event, Finished):
            say(phase="ending")
        asked.apply(event)
        if isinstance(event, Token):
            say(wrote=id, text=text, at=time.monotonic())
    asked.wait()
    say(ended=id, text=text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["slowly"])
