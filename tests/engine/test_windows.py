"""What sliding-window layers store: no more than they need, and as much as predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from app.engine.backend.memory import NotEnoughMemory
from app.engine.cache.caches import WindowedCache, flatten, positioned_layers
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.snapshot import Snapshots
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager
from app.engine.model.loader import CacheMaker, _measure
from app.engine.model.prompt import Prompt
from app.engine.turn.turn_estimate import TurnEstimate
from app.protocol.commands import Ask
from app.protocol.options import Mode
from app.protocol.prompt import Message, Role
from app.protocol.stats import Reading
from tests.engine.oracle import difference
from tests.engine.test_turns import FIRST, LATER, Chat, conversation, dense_logits, pair
from tests.tiny import SLIDING, WINDOW, build

TOLERANCE = 1e-4
MIDDLE = (4, 244)
BLOCK = 256
"""Tokens by which buffers grow."""
LONG = (4, 804)
"""A document far longer than a window and its slack."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What left a window goes at once, so that shorter documents show it."""
    monkeypatch.setattr(WindowedCache, "slack", 8)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: build(name) for name in SLIDING}


def windows(prefix: PrefixCache) -> list[WindowedCache]:
    return [c for c in positioned_layers(prefix.cache) if isinstance(c, WindowedCache)]


def predicted(model: Any, tokens: int, retained: bool) -> float:
    size = _measure(Path(), model, CacheMaker(model), None).cache_size
    return size.bytes(tokens, retained)


@pytest.mark.parametrize("name", SLIDING)
def test_a_full_reading_after_a_sparse_one_drops_what_left_the_windows(
    name: str, models: dict[str, Any]
) -> None:
    model = models[name]
    first, answer, second = conversation(LONG)
    chat = Chat(model)
    chat.read(first, tuple(range(90)))
    chat.write(first, answer)
    prefix = chat.conversation.target
    read = int(prefix.cached.sum())
    assert [c.size() for c in windows(prefix)] == [read] * 2, "a later recall may need it"
    assert predicted(model, read, True) <= prefix.nbytes <= predicted(model, read + BLOCK, True)
    logits = chat.read(second, None)
    assert difference(logits, dense_logits(model, second.ids)) < TOLERANCE
    assert all(c.size() <= WINDOW + c.slack for c in windows(prefix))
    saved = sum(c.nbytes for point in prefix.checkpoints for c in point.states.values())
    at_most = predicted(model, len(second.ids) + BLOCK, False)
    assert predicted(model, len(second.ids) - BLOCK, False) <= prefix.nbytes - saved <= at_most
    prefix.eval()
    before, nbytes = mx.get_active_memory(), prefix.nbytes
    prefix.clear()
    assert before - mx.get_active_memory() == pytest.approx(nbytes, rel=0.1), "nothing else lives"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("needed", [None, LATER], ids=["dense", "sparse"])
def test_what_a_full_reading_dropped_is_read_again_where_it_is_missing(
    name: str,
    needed: tuple[int, ...] | None,
    models: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A document that is changed in its middle, after a sparse and a full reading of it."""
    model = models[name]
    first, answer, second = conversation(MIDDLE)
    chat, fresh = Chat(model), Chat(model)
    chat.read(first, FIRST)
    chat.write(first, answer)
    chat.read(second, None)
    prefix = chat.conversation.target
    edited = Prompt(second.ids.copy(), second.segments, {})
    edited.ids[120:] = edited.ids[120:][::-1].copy()
    assert not prefix.can_insert_at(120)
    assert prefix.rewind_target(120) == MIDDLE[0]
    models_of = pair(model)
    full = Ask((Message(Role.USER, ""),), Mode.FULL)
    room = MemoryManager(models_of, lambda event: None)
    monkeypatch.setattr(room, "max_available", lambda *_: -1.0)
    with pytest.raises(NotEnoughMemory) as raised:
        TurnEstimate(models_of, full, edited, chat.conversation, room).check(Reading.DENSE)
    assert raised.value.failure.data["reading"] == len(edited.ids) - 1 - MIDDLE[0]
    logits = chat.read(edited, needed)
    assert chat.reader is not None
    assert chat.reader.reused_tokens == MIDDLE[0], "back to the checkpoint before the document"
    assert difference(logits, fresh.read(edited, needed)) < TOLERANCE
    if needed is None:
        assert difference(logits, dense_logits(model, edited.ids)) < TOLERANCE


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", SLIDING)
def test_checkpoints_copy_no_more_than_windows(
    name: str, models: dict[str, Any], tmp_path: Path
) -> None:
    first, answer, second = conversation(MIDDLE)
    chat = Chat(models[name])
    for prompt in (first, second):
        chat.read(prompt, tuple(range(25)))
        chat.write(prompt, answer)
        prefix = chat.conversation.target
        alone = sum(c.nbytes for c in flatten(prefix.cache))
        assert prefix.checkpoints
        assert prefix.nbytes == alone, "a layer that retains everything needs no copy"
    snapshots = Snapshots(tmp_path, 1 << 30, {"target": name})
    list(snapshots.save("c", chat.conversation))
    on_disk = sum(f.stat().st_size for f in tmp_path.rglob("*.safetensors"))
    assert on_disk < 1.1 * alone
    again = snapshots.load("c", lambda: ConversationCache(pair(models[name])))
    assert again is not None
    position = prefix.checkpoints[-1].position
    assert again.target.rewind(position) == prefix.rewind(position) == position

    chat.read(second, None)
    each = sum(c.nbytes // c.size() for c in windows(prefix))
    for checkpoint in prefix.checkpoints:
        states = checkpoint.states.values()
        assert len(states) == 2
        assert sum(c.nbytes for c in states) <= WINDOW * each


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", SLIDING)
def test_rewinding_to_a_checkpoint_of_windows_is_as_if_never_read(
    name: str, models: dict[str, Any]
) -> None:
    """After a full reading: the window before a checkpoint is all that is left of it."""
    first, answer, second = conversation(MIDDLE)
    chat, fresh = Chat(models[name]), Chat(models[name])
    chat.read(first, None)
    chat.write(first, np.concatenate([answer] * 3))
    prefix = chat.conversation.target
    checkpoint = prefix.checkpoints[-1].position
    assert MIDDLE[1] < checkpoint <= len(first.ids)
    assert prefix.rewind_target(len(first.ids) + 1) == checkpoint
    logits = chat.read(second, None)
    assert chat.reader is not None
    assert chat.reader.reused_tokens > MIDDLE[1]
    assert difference(logits, fresh.read(second, None)) < TOLERANCE


@pytest.mark.parametrize("name", SLIDING)
def test_windowed_layers_attended_to_everything_stored(
    name: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sparse turn they keep it, but a step is given no more than its first token's window."""
    first, answer, second = conversation(LONG)
    chat = Chat(models[name])
    given: list[tuple[int, int, int]] = []
    fetch = WindowedCache.update_and_fetch

    def counted(self: WindowedCache, keys: mx.array, values: mx.array) -> Any:
        recalls = self.offset < self.positions.end
        found = fetch(self, keys, values)
        given.append((recalls, found[0].shape[2], self.size()))
        return found

    monkeypatch.setattr(WindowedCache, "update_and_fetch", counted)
    chat.read(first, tuple(range(0, 90, 2)))
    chat.write(first, answer)
    chat.read(second, tuple(range(1, 90, 9)))
    assert max(keys for recalls, keys, _ in given if not recalls) <= WINDOW - 1 + 16
    assert max(stored for *_, stored in given) > 400
    recalled = [(keys, stored) for recalls, keys, stored in given if recalls]
    assert len(recalled) > 4
    assert all(keys < stored / 4 for keys, stored in recalled)
