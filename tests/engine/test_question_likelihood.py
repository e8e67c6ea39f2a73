"""Question likelihood as a scorer is exact."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from app.engine.cache.prefill import forward, make_stock_cache
from app.engine.pair_loader import load_pair
from app.engine.scorers.question_likelihood import (
    MARGIN,
    PIECE,
    QuestionFrame,
    question_likelihood,
    question_messages,
)
from app.protocol.commands import Load
from app.protocol.prompt import Document, Message, Role
from app.util.assets import assets_path

LICENCE = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")


def stop_at_once(done: int, pieces: int) -> None:
    raise InterruptedError


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid"])
def test_a_piece_scores_what_it_does_alone(folders: dict[str, Path], name: str) -> None:
    pair = load_pair(Load(str(folders[name]), str(folders[name])))
    assert pair.draft is not None
    asked = Message(Role.USER, "Who may copy it?", (Document("a", LICENCE[:600]),))
    prompt, alone = pair.prompts.build((asked,)), pair.prompts.build(question_messages())
    frame, steps = QuestionFrame.of(alone, prompt), list[tuple[int, int]]()
    model = pair.draft.model
    found = question_likelihood(model, prompt, frame, lambda *step: steps.append(step))
    (text,) = prompt.texts
    last = text.first + len(text.starts) - 1
    assert steps[-1] == (-(-(last - text.first) // PIECE),) * 2
    assert not found[: text.first].any()
    for start in (text.first, text.first + 2 * PIECE):
        around = prompt.ids[max(start - MARGIN, text.first) : start + PIECE + MARGIN]
        ids = np.concatenate([frame.before, around, frame.after, frame.question])
        logits = forward(model, make_stock_cache(model), ids)[0].astype(mx.float32)
        likely = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        rows = np.arange(len(ids) - len(frame.question) - 1, len(ids) - 1)
        expected = likely[rows, frame.question].mean()
        assert found[start : start + PIECE] == pytest.approx(expected, abs=1e-4)
    with pytest.raises(InterruptedError):
        question_likelihood(model, prompt, frame, stop_at_once)
