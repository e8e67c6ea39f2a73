"""Importance by question likelihood: how likely the draft finds the question after each piece of
the text, read by itself (query likelihood: Ponte and Croft 1998; UPR, arXiv 2204.07496).

Attention finds the words of a question; this also finds what answers it in other words. It needs no
long context, and costs grow linearly with the text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from numpy.typing import NDArray

from app.engine.backend import memory, mlx_patches
from app.engine.cache.caches import Cache, StepWatcher, flatten
from app.engine.cache.prefill import make_stock_cache
from app.engine.model.prompt import Prompt
from app.protocol.prompt import Message, Role

INSTRUCTION = "Write one question that is answered by this text.\n\n"
MAX_QUESTION = 128
"""Tokens of the question, from its end, whose likelihood counts."""
PIECE, MARGIN = 64, 16
"""Tokens that a piece speaks for, and those before and after that are read with it."""
BATCH_TOKENS, BATCH_LOGITS = 2048, 256
"""Of the pieces that are read together: tokens, and those of them whose logits are in memory."""

Ids = NDArray[np.int32]
OnPieces = Callable[[int, int], None]
"""Called with how many pieces of how many are read. Raises to cancel."""


@dataclass(frozen=True, slots=True)
class QuestionFrame:
    """What stands before and after a piece, where the draft is asked for a question: `before` (a,)
    and `after` (b,), and the `question` (q,) itself."""

    before: Ids
    after: Ids
    question: Ids

    @classmethod
    def of(cls, instruction: Prompt, prompt: Prompt) -> QuestionFrame:
        """From the draft's prompts: `question_messages()` alone, and the turn's."""
        end = instruction.question[1]
        question = prompt.ids[slice(*prompt.question)][-MAX_QUESTION:]
        return cls(instruction.ids[:end], instruction.ids[end:], question)


def question_messages() -> tuple[Message, ...]:
    return (Message(Role.USER, INSTRUCTION),)


def question_likelihood(
    model: Any,
    prompt: Prompt,
    frame: QuestionFrame,
    on_pieces: OnPieces,
) -> NDArray[np.float32]:
    """The mean log-likelihood of the question's tokens after the piece that each of the draft's
    `prompt` tokens is in, float32 (N,); 0 for what is always read. Raises what `on_pieces`
    raises."""
    found = np.zeros(len(prompt.ids), np.float32)
    if not len(frame.question):
        return found
    pieces = [
        (start, min(start + PIECE, end), *_around(start, first, end))
        for first, end in ((t.first, t.first + len(t.starts) - 1) for t in prompt.texts)
        for start in range(first, end, PIECE)
    ]
    pieces.sort(key=lambda piece: piece[3] - piece[2])  # those of a batch are equally long
    stock = make_stock_cache(model)
    _fill(model, stock, frame.before[None])
    at = 0
    while at < len(pieces):
        batch = pieces[at : at + _batch_size(frame)]
        length = batch[0][3] - batch[0][2]
        batch = [piece for piece in batch if piece[3] - piece[2] == length]
        read = np.stack([prompt.ids[first:last] for _, _, first, last in batch])
        scores = _log_likelihood(model, stock, read, frame)
        for (start, end, *_), score in zip(batch, scores, strict=True):
            found[start:end] = score
        memory.trim_buffer_cache()
        at += len(batch)
        on_pieces(at, len(pieces))
    return found


def _around(start: int, first: int, end: int) -> tuple[int, int]:
    """The piece at `start` with its margins. The last one is as long as the others."""
    last = min(start + PIECE + MARGIN, end)
    return max(min(start, last - PIECE - MARGIN) - MARGIN, first), last


def _batch_size(frame: QuestionFrame) -> int:
    question = len(frame.question)
    tokens = PIECE + 2 * MARGIN + len(frame.before) + len(frame.after) + question
    return max(min(BATCH_TOKENS // tokens, BATCH_LOGITS // question), 1)


def _log_likelihood(
    model: Any, stock: Cache, pieces: Ids, frame: QuestionFrame
) -> NDArray[np.float32]:
    """Of the question after each of the `pieces` (n, length): (n,)."""
    count, question = len(pieces), frame.question
    cache = _repeat(stock, count)
    after = np.append(frame.after, question[:-1])
    context = len(frame.after) - 1
    _fill(model, cache, np.hstack([pieces, np.tile(after[:context], (count, 1))]))
    logits = model(mx.array(np.tile(after[context:], (count, 1))), cache=cache)
    chosen = mx.take_along_axis(logits, mx.array(question)[None, :, None], axis=-1)[..., 0]
    likely = chosen.astype(mx.float32) - mx.logsumexp(logits.astype(mx.float32), axis=-1)
    return np.array(likely.mean(axis=1))


def _fill(model: Any, cache: Cache, ids: Ids) -> None:
    """Read `ids` (n, length) into `cache`, without the output head."""
    with mlx_patches.early_exit(StepWatcher(flatten(cache))):
        model(mx.array(ids), cache=cache)
    mx.eval([layer.state for layer in cache])


def _repeat(stock: Cache, count: int) -> Cache:
    """A cache for `count` texts that begin with what is in `stock`."""

    def repeated(value: Any) -> Any:
        return mx.repeat(value, count, axis=0) if isinstance(value, mx.array) else value

    cache = copy.deepcopy(stock)
    for layer in flatten(cache):
        layer.state = tree_map(repeated, layer.state)
    return cache
