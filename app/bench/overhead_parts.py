"""What a sparse turn does beside reading: it builds the prompt, and selects.

Prompts are real turns of the embedded pair about the GPL, over and over, each time with another
first line, since the last prompt's documents are not encoded again. Selecting is what moving the
slider takes: random importance, one long document.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import sample
from app.models.embedded import target_path
from app.protocol.commands import Ask
from app.protocol.events import Finished
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Message, Role, Segment, SegmentKind
from app.protocol.stats import Phase, Statistics

LONG = 131_072
"""Tokens of the prompt that is selected from."""
QUESTION = "What does it say of the Corresponding Source?"


@dataclass(frozen=True, slots=True)
class Built:
    """Medians of `runs` turns: tokens of the prompt, seconds to build it, to the first token."""

    tokens: int
    building: float
    ttft: float
    share: float


def built(lengths: tuple[int, ...], keep: float, runs: int) -> Iterator[Built]:
    """A row for each length. The first turn of a length warms up and is not counted."""
    text = sample().text
    tokenizer = Tokenizer.from_file(str(target_path() / "tokenizer.json"))
    tokens = len(tokenizer.encode(text, add_special_tokens=False))
    with EngineSession() as session:
        session.load(resolve_pair())
        for length in lengths:
            whole = text * (length // tokens + 1)
            part = whole[: len(text) * length // tokens]
            turns = [_turn(session, index, part, keep) for index in range(runs + 1)][1:]
            seconds = [(_building(turn), turn.ttft) for turn in turns]
            yield Built(
                turns[0].prompt_tokens,
                statistics.median(building for building, _ in seconds),
                statistics.median(ttft for _, ttft in seconds),
                statistics.median(building / ttft for building, ttft in seconds),
            )


def _turn(session: EngineSession, index: int, text: str, keep: float) -> Statistics:
    document = Document("text.txt", f"Copy {index}\n{text}")
    message = Message(Role.USER, QUESTION, (document,))
    ask = Ask(index + 1, (message,), Mode.SPARSE, keep, Sampling(max_tokens=1))
    (*_, finished) = session.run(ask)
    if not isinstance(finished, Finished) or finished.statistics is None:
        raise RuntimeError("the turn did not finish")
    return finished.statistics


def _building(turn: Statistics) -> float:
    return sum(part.seconds for part in turn.phases if part.phase is Phase.TOKENISE)


def selecting(keep: float, runs: int) -> float:
    """Seconds from a move of the slider to what is kept, at LONG tokens: the median."""
    from app.engine.conversation_cache import ScoredPrompt
    from app.engine.prompt import Prompt
    from app.protocol.options import DEFAULT_TUNING

    border = LONG - 32
    segments = (
        Segment(SegmentKind.DOCUMENT, 0, border, 0, 0),
        Segment(SegmentKind.QUESTION, border, LONG, 0),
    )
    prompt = Prompt(np.zeros(LONG, np.int32), segments, {(0, 0): np.arange(border + 1)})
    importance = np.random.default_rng(0).random(LONG, np.float32)
    scored = ScoredPrompt(1, prompt, importance, DEFAULT_TUNING, np.zeros(0, bool))
    seconds = []
    for _ in range(runs + 1):
        begun = time.perf_counter()
        scored.select(keep)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])
