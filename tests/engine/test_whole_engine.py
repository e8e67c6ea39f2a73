"""Random conversations with a whole engine. Each row and token equals plain attention over what it
saw, despite sharing, recall, speculation, snapshots, cancels and eviction."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.base import create_causal_mask

from app.engine.cache import shared_rows
from app.engine.cache.caches import PositionedCache
from app.engine.cache.shared_rows import rows_of
from app.protocol.commands import Ask, CachePolicy, DropConversation
from app.protocol.events import Event, Failed, Finished, PhaseProgress, Token
from app.protocol.options import AUTO_KEEP, BackgroundPolicy, Mode, Sampling, Tuning
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason
from tests import tiny
from tests.engine.driver import Driver, gates
from tests.engine.witness import Witness
from tests.tables import slow

TOLERANCE, OF_FEW_BITS = 1e-3, 0.1
"""Tolerances for rows and logits. With 8-bit keys and values, a different rounding moves a value by
one quantisation step and affects later ones."""
OPERATIONS = 7
RESTARTS, SEEDS = 0.3, 25
"""Weight of a restart among the random operations."""
DOCUMENTS = {
    "gates": gates(14),
    "more": gates(14) + " " + gates(9),
    "letter": "Dear Ada,\nthe roof leaks again. " * 9 + "Yours, Bob.",
}
QUESTIONS = (
    "What is the code of gate 7?",
    "Say again: The code of gate 3 is 10. The code of gate 3",
    "Who leaks? And who writes?",
    "Why",
)
TARGETS = ("qwen3", "llama", "gemma3", "gpt_oss", "qwen3 in 8 bits", "glm4")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    wide = {"head_dim": 32}
    folders = {
        name: tiny.save(root / name.split()[0] / str(index), name.split()[0], index, **extra)
        for index, (name, extra) in enumerate(
            (name, wide if "bits" in name else {}) for name in TARGETS
        )
    }
    return folders | {"draft": tiny.save(root / "draft", "qwen3", 99)}


class Chats:
    """Conversations of one engine, which is restarted occasionally."""

    def __init__(self, models: dict[str, Path], kind: int, folder: Path) -> None:
        self.random, self.folder = random.Random(kind), folder
        self.name = TARGETS[kind % len(TARGETS)]
        self.target = models[self.name]
        self.draft = models["draft"] if kind // len(TARGETS) % 2 else None
        self.turn = 0
        self.done: list[str] = []
        self.known = Witness()
        self.forget()

    def forget(self) -> None:
        self.chats: dict[str, tuple[Message, ...]] = {}
        """Messages by conversation."""
        self.names: set[str] = set()
        """Token ids of all conversations of which the engine may have rows."""
        self.stopped: set[str] = set()
        """Conversations whose last answer can be continued."""
        self.known.clear()

    # ------------------------------------------------------------------ the engine

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.end()

    def start(self) -> None:
        self.driver = Driver(step=self.random.choice([16, 64]))
        self.set_policy(self.random.choice([BackgroundPolicy.OFF, BackgroundPolicy.ALWAYS]))
        bits = 8 if "bits" in self.name else None
        loaded = self.driver.load(self.target, self.draft, kv_bits=bits)
        assert loaded.dense_only is None
        self.pair = self.driver.engine._require_pair()
        self.watching = self.known.watching(self.pair.pair.target.model)
        self.watching.__enter__()

    def end(self) -> None:
        self.watching.__exit__(None, None, None)
        self.driver.on_event = lambda event: None
        self.driver.close()

    def set_policy(self, background: BackgroundPolicy) -> None:
        budget = self.random.choice([10**9, 10**9, 400_000])
        policy = CachePolicy(background, budget, str(self.folder))
        self.driver.engine.send(policy)

    def rest(self) -> None:
        """Wait until the engine is idle."""
        for name in self.names:
            self.driver.engine.send(DropConversation(name))
        self.set_policy(BackgroundPolicy.OFF)
        self.turn += 1
        last = Ask((Message(Role.USER, "?"),), sampling=Sampling(max_tokens=1))
        self.driver.answer(last)

    def converse(self, seed: int) -> None:
        self.seed = seed
        self.random.seed(seed)
        done, self.done = self.done, []
        for number in range(OPERATIONS):
            if seed % SEEDS == 0 and number == OPERATIONS // 2:  # not left to chance
                self.done.append("restart")
                self.do_restart()
            self.step()
        self.rest()
        rows, logits = self.known.error()
        details = self.name, seed, " ".join(self.done), self.known.problems
        limit = OF_FEW_BITS if "bits" in self.name else TOLERANCE
        assert not self.known.problems, details
        assert rows < limit, (rows, *details)
        assert logits < limit, (logits, *details)
        self.done += done
        self.forget()
        self.set_policy(self.random.choice([BackgroundPolicy.OFF, BackgroundPolicy.ALWAYS]))

    # ------------------------------------------------------------------ what is done

    def step(self) -> None:
        does = ["new"]
        if self.chats:
            does += ["ask"] * 4 + ["branch", "edit", "again", "drop", "reselect", "cancel"]
            does += ["restart"] * (self.random.random() < RESTARTS)
        if self.stopped:
            does += ["go on"] * 2
        what = self.random.choice(does)
        self.done.append(what)
        getattr(self, f"do_{what.replace(' ', '_')}")()

    def some(self) -> str:
        return self.random.choice(sorted(self.chats))

    def question(self, documents: bool = False) -> Message:
        names = self.random.sample(sorted(DOCUMENTS), self.random.randint(1, 2))
        attached = tuple(Document(name, DOCUMENTS[name]) for name in names) if documents else ()
        return Message(Role.USER, self.random.choice(QUESTIONS), attached)

    def do_new(self) -> None:
        self.ask(f"chat {self.turn}", (self.question(documents=True),))

    def do_ask(self) -> None:
        name = self.some()
        self.ask(name, (*self.chats[name], self.question(self.random.random() < 0.2)))

    def do_branch(self) -> None:
        messages = self.chats[self.some()]
        kept = messages[: 2 * self.random.randint(0, len(messages) // 2)]
        self.ask(f"chat {self.turn}", (*kept, self.question(documents=not kept)))

    def do_edit(self) -> None:
        name = self.some()
        kept = self.chats[name][: 2 * self.random.randint(0, len(self.chats[name]) // 2 - 1)]
        self.ask(name, (*kept, self.question(documents=not kept)))

    def do_again(self) -> None:
        name = self.some()
        self.ask(name, self.chats[name][:-1], read_again=self.random.random() < 0.5)

    def do_go_on(self) -> None:
        name = self.random.choice(sorted(self.stopped))
        self.ask(name, self.chats[name])

    def do_drop(self) -> None:
        name = self.some()
        self.driver.engine.send(DropConversation(name))
        del self.chats[name]
        self.stopped.discard(name)

    def do_restart(self) -> None:
        self.end()
        self.start()

    def do_reselect(self) -> None:
        if self.driver.turn is not None:
            self.driver.engine.reselect(self.driver.turn, self.random.random())

    def do_cancel(self) -> None:
        name, countdown = self.some(), self.random.randint(0, 25)

        def wanted(event: Event) -> bool:
            nonlocal countdown
            countdown -= isinstance(event, PhaseProgress | Token)
            return countdown == 0

        self.driver.cancel_when(wanted)
        self.ask(name, (*self.chats[name], self.question()))

    def ask(self, name: str, messages: tuple[Message, ...], read_again: bool = False) -> None:
        self.turn += 1
        self.names.add(name)
        mode = self.random.choice([Mode.SPARSE] * 4 + [Mode.FULL, Mode.AUTO])
        keep = self.random.choice([0.1, 0.2, 0.5, AUTO_KEEP])
        tuning = Tuning(chunk=8, read_on=self.random.choice([0.0, 0.5, 2.0]))
        sampling = Sampling(max_tokens=self.random.randint(3, 20))
        if continues := messages[-1].role is Role.ASSISTANT:
            before = messages[-1].token_ids or ()
            sampling = Sampling(max_tokens=len(before) + self.random.randint(1, 9))
        ask = Ask(
            messages,
            mode,
            keep,
            sampling,
            tuning,
            conversation=name,
            read_again=read_again,
        )
        found: list[str] = []
        self.driver.on_event = self.checking(ask, continues, self.driver.on_event, found)
        ended = self.driver.run(ask)
        self.driver.on_event = lambda event: None
        self.done += found
        details = self.name, self.seed, " ".join(self.done), self.known.problems[:3]
        assert isinstance(ended, Finished), (ended, *details)
        assert not self.known.problems, details
        self.keep(name, messages, ended)

    def checking(self, ask: Ask, continues: bool, then: Any, found: list[str]) -> Any:
        """Check the engine's state at the end of a turn, on its thread."""

        def on_event(event: Event) -> None:
            then(event)
            if not isinstance(event, Finished | Failed):
                return
            if isinstance(event, Finished) and (figures := event.statistics) is not None:
                if figures.fallback is not None:
                    self.known.problems.append(f"read in full: {figures.fallback}")
                before = len(ask.messages[-1].token_ids or ()) if continues else 0
                self.known.check_answer(figures.prompt_tokens, event.generated_ids[before:])
                found.extend(kind for kind in ("copied",) if figures.proposed_tokens)
                found.extend(kind for kind in ("recalled",) if figures.recalled_tokens)
                found.extend(kind for kind in ("shared",) if figures.reused_tokens)
            if not self.known.problems:
                self.known.check_caches(self.pair.caches._caches)

        return on_event

    def keep(self, name: str, messages: tuple[Message, ...], ended: Finished) -> None:
        if messages[-1].role is Role.ASSISTANT:
            messages = messages[:-1]
        if not ended.generated_ids:
            with suppress(KeyError):
                del self.chats[name]
            self.stopped.discard(name)
            return
        answer = Message(Role.ASSISTANT, ended.text, token_ids=ended.generated_ids)
        self.chats[name] = (*messages, answer)
        if ended.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH):
            self.stopped.add(name)
        else:
            self.stopped.discard(name)


def converse(models: dict[str, Path], seeds: range, folder: Path) -> Counter[str]:
    chats = Chats(models, seeds.start // len(seeds), folder)
    with chats.running():
        for seed in seeds:
            chats.converse(seed)
    return Counter(chats.done)


@pytest.mark.parametrize("kind", [0, *map(slow, (2, 3))])
def test_rows_and_tokens_equal_plain_attention_over_what_they_saw(
    kind: int, models: dict[str, Path], tmp_path: Path
) -> None:
    assert converse(models, range(kind, kind + 1), tmp_path)


def causal(self: PositionedCache, N: int, window_size: int | None = None, **_: Any) -> Any:
    return None if N == 1 else create_causal_mask(N, self.inner.offset)


def swapped(layer: Any, entries: Any) -> Any:
    return rows_of(layer, entries[::-1])


FAULTS = {
    "order instead of positions": (PositionedCache, "make_mask", causal),
    "rows in each other's places": (shared_rows, "rows_of", swapped),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_witness_notices_errors(
    fault: str, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = Chats(models, 0, tmp_path)

    def converse_often() -> None:
        for seed in range(9):
            chats.converse(seed)

    with chats.running():
        monkeypatch.setattr(*FAULTS[fault])
        with pytest.raises(AssertionError):
            converse_often()


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(2 * len(TARGETS)))
def test_rows_and_tokens_of_300_conversations_equal_plain_attention(
    kind: int, models: dict[str, Path], tmp_path: Path
) -> None:
    done = converse(models, range(kind * SEEDS, (kind + 1) * SEEDS), tmp_path)
    for what in ("edit", "again", "branch", "go on", "cancel", "restart", "copied", "shared"):
        assert done[what], (what, done)
    assert done["recalled"], done
