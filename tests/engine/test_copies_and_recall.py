"""An answer that recalls skipped chunks is the same with and without copying ahead."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.cache.prefill import set_next_position
from app.engine.cache.prefix_cache import find_mismatch
from app.engine.model.prompt import Prompt
from app.engine.turn.decode import Decoder
from app.engine.turn.mid_answer_recall import MidAnswerRecall
from app.models.embedded import target_path
from app.protocol.options import Sampling
from app.protocol.stats import FinishReason
from tests.engine.test_token_stream import Always
from tests.engine.test_turns import CHUNK, DOCUMENT, FIRST, chunk_positions, conversation, pair
from tests.tiny import PURE, build

WRITTEN, PASSAGE = 40, 2 * CHUNK - 5
"""Tokens of an answer, and of a passage of it that the document has: it ends in the next chunk."""
PLANTED = (1, 6, 13)
"""Skipped chunks in which such passages start."""
mlx_patches.install()
model_of = cache(build)
tokenizer = cache(lambda: load_tokenizer(target_path()))


def answer(
    name: str, ids: NDArray[np.int32], sampling: Sampling
) -> tuple[list[int], int, list[tuple[int, ...]]]:
    """What the model answers after it has read the chunks FIRST of the document, how many tokens
    of that were copied ahead, and what it recalled meanwhile."""
    first = conversation()[0]
    prompt = Prompt(ids, first.segments, {})
    target = pair(model_of(name)).target
    prefix = target.make_prefix(positioned=True)
    read = prompt.pinned.copy()
    for chunk in FIRST:
        read[chunk_positions(chunk)] = True
    positions = np.flatnonzero(read)[:-1].astype(np.int32)
    prefix.set_retain_all(True)
    prefix.prefill_at(target.model, ids, positions, target.step, lambda done: None)
    set_next_position(prefix.cache, len(ids) - 1)
    recalled: list[tuple[int, ...]] = []
    recall = MidAnswerRecall(
        target,
        prefix,
        prompt,
        CHUNK,
        10**6,
        lambda each: recalled.append(tuple(each.tolist())),
        lambda done: None,
    )
    texts = tokenizer()
    texts._eos_token_ids = set()  # a random model may write one
    decoder = Decoder(1, texts, sampling, lambda event: None)
    ended = decoder.run(
        target.model,
        prefix,
        ids,
        sampling.max_tokens,
        lambda: None,
        gate=Always(),
        recall=recall,
    )
    assert ended is FinishReason.LENGTH
    prefix.append(np.array([*ids, *decoder.ids], np.int32)[len(prefix) :])
    assert find_mismatch(prefix) is None
    return decoder.ids, decoder.accepted, recalled


def compare(seed: int, **options: Any) -> tuple[int, int]:
    """How many tokens were copied ahead, and how often something was recalled."""
    random, rng = Random(seed), np.random.default_rng(seed)
    name, ids = random.choice(PURE), conversation()[0].ids.copy()
    ids[slice(*DOCUMENT)] = rng.integers(0, ids.max(), DOCUMENT[1] - DOCUMENT[0])
    sampling = Sampling(max_tokens=WRITTEN, speculate=False, seed=seed, **options)
    plain, _, recalled = answer(name, ids, sampling)
    for chunk in PLANTED:  # what was skipped changes nothing before it is recalled
        place = int(chunk_positions(chunk)[0]) + random.randint(0, 4)
        start = random.randint(0, WRITTEN - PASSAGE)
        ids[place : place + PASSAGE] = plain[start : start + PASSAGE]
        plain, _, recalled = answer(name, ids, sampling)
    fast, copied, by_fast = answer(name, ids, Sampling(max_tokens=WRITTEN, seed=seed, **options))
    assert (fast, by_fast) == (plain, recalled), (seed, name)
    return copied, len(recalled)


def test_the_end_of_a_prompt_does_not_recall_what_follows_it_elsewhere() -> None:
    """A template writes the same before every answer: earlier ones may have been skipped."""
    ids = conversation()[0].ids.copy()
    for chunk in PLANTED:
        place = int(chunk_positions(chunk)[-1]) + 1
        ids[place - CHUNK : place] = ids[-CHUNK:]
    for count in (1, 2):
        _, _, recalled = answer("llama", ids, Sampling(max_tokens=count))
        assert not recalled


OPTIONS = ({}, {"temperature": 1.0}, {"repetition_penalty": 1.3})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_copying_ahead_changes_no_answer_that_recalls(options: dict[str, Any]) -> None:
    found = [compare(seed, **options) for seed in range(3)]
    assert all(recalls for _, recalls in found)
    assert any(copied for copied, _ in found)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1300, 50))
def test_nor_three_hundred_greedy_ones(first: int) -> None:
    found = [compare(seed) for seed in range(first, first + 50)]
    assert np.mean([recalls > 0 for _, recalls in found]) > 0.9
    assert np.mean([copied > 0 for copied, _ in found]) > 0.5
