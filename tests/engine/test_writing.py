"""What a decoder writes for a model whose choices are known, and what of its text is shown."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.cache.prefix_cache import PrefixCache
from app.engine.turn.decode import Decoder
from app.protocol.events import Token
from app.protocol.options import Sampling
from app.protocol.stats import FinishReason
from tests import tiny

LIKED = {"a": 10.0, "b": 9.6, "c": 9.3}
LENGTH = 6


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of bytes, with tags for thinking."""
    folder = tmp_path_factory.mktemp("model")
    tiny.save(folder)
    backend = tiny.byte_tokenizer()
    backend.add_tokens(["<think>", "</think>"])
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(Path(folder))


def ids_of(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


class Scripted:
    """A model whose next tokens are known, or that likes some best at each place."""

    def __init__(self, vocabulary: int, script: list[int], liked: dict[int, float]) -> None:
        self._vocabulary, self._liked = vocabulary, liked
        self._script = itertools.chain(script, itertools.repeat(0))

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        rows = np.zeros((1, tokens.shape[1], self._vocabulary), np.float32)
        for row in rows[0]:
            for token, logit in (self._liked or {next(self._script): 20.0}).items():
                row[token] = logit
        return mx.array(rows)


def write(
    tokenizer: Any,
    sampling: Sampling,
    text: str = "",
    liked: dict[int, float] | None = None,
    prefix: tuple[int, ...] = (),
    asked: str = "?",
    **options: Any,
) -> tuple[Decoder, FinishReason, str]:
    """The decoder, why it ended, and the text of its events."""
    script = ids_of(tokenizer, text)
    model = Scripted(len(tokenizer), script[len(prefix) :], liked or {})
    events: list[Token] = []
    decoder = Decoder(1, tokenizer, sampling, events.append, **options)
    prompt = np.array([*ids_of(tokenizer, asked), *prefix], np.int32)
    ended = decoder.run(
        model, PrefixCache(list), prompt, sampling.max_tokens, lambda: None, len(prefix)
    )
    return decoder, ended, "".join(event.text for event in events)


def like(tokenizer: Any, **more: float) -> dict[int, float]:
    return {ids_of(tokenizer, letter)[0]: logit for letter, logit in (LIKED | more).items()}


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, "aaaaaa"),
        ({"presence_penalty": 1.0}, "abcaaa"),
        ({"presence_penalty": -1.0}, "aaaaaa"),
        ({"frequency_penalty": 0.5}, "abacba"),
        ({"repetition_penalty": 1.5}, "abcaaa"),
        ({"repetition_penalty": 1.5, "penalty_tokens": 1}, "ababab"),
        ({"temperature": 1.0, "top_p": 0.0}, "aaaaaa"),
        ({"temperature": 1.0, "top_p": 1e-46}, "aaaaaa"),
        ({"temperature": 1e-40}, "aaaaaa"),
        ({"temperature": 1.0, "min_p": 1.0}, "aaaaaa"),
        ({"temperature": 0.01, "top_k": 1}, "aaaaaa"),
        ({"temperature": 0.01, "xtc_probability": 1.0}, "cccccc"),
        ({"temperature": 0.01, "top_p": 0.0, "xtc_probability": 1.0}, "aaaaaa"),
    ],
)
def test_each_field_of_sampling_changes_what_is_written(
    tokenizer: Any, options: dict[str, Any], written: str
) -> None:
    sampling = Sampling(max_tokens=LENGTH, seed=1, **options)
    decoder, ended, shown = write(tokenizer, sampling, liked=like(tokenizer))
    assert (decoder.text, shown, ended) == (written, written, FinishReason.LENGTH)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_counts_no_token_of_the_prompt(tokenizer: Any, penalty: str) -> None:
    (a,) = ids_of(tokenizer, "a")
    sampling = Sampling(max_tokens=2, **{penalty: 1.0})
    for prefix, written in (((), "ab"), ((a,), "abc")):
        decoder, _, _ = write(tokenizer, sampling, liked=like(tokenizer), prefix=prefix, asked="a")
        assert decoder.text == written


def test_single_tokens_are_made_likely_or_impossible(tokenizer: Any) -> None:
    (a,), (b,), (z,) = (ids_of(tokenizer, letter) for letter in "abz")
    for bias, written in ((((a, -100.0),), "bbb"), (((z, 50.0), (b, -1.0)), "zzz")):
        sampling = Sampling(max_tokens=3, logit_bias=bias)
        assert write(tokenizer, sampling, liked=like(tokenizer))[0].text == written


def test_an_answer_ends_at_the_tokens_that_were_named(tokenizer: Any) -> None:
    (stop,) = ids_of(tokenizer, "c")
    decoder, ended, shown = write(tokenizer, Sampling(stop_ids=(stop,)), "abcd")
    assert (decoder.text, shown, ended) == ("ab", "ab", FinishReason.STOP)


def test_the_end_of_an_answer_can_be_ignored(tokenizer: Any) -> None:
    (end,) = tokenizer.eos_token_ids
    liked = like(tokenizer) | {end: 30.0}
    assert write(tokenizer, Sampling(), liked=liked)[1] is FinishReason.STOP
    decoder, ended, _ = write(tokenizer, Sampling(max_tokens=4, ignore_eos=True), liked=liked)
    assert (decoder.text, ended) == ("aaaa", FinishReason.LENGTH)


@pytest.mark.parametrize(("trim", "shown"), [(False, "  x"), (True, " x")])
def test_a_text_that_is_continued_keeps_the_space_it_begins_with(
    tokenizer: Any, trim: bool, shown: str
) -> None:
    decoder, _, text = write(tokenizer, Sampling(max_tokens=3), "  x", trim_space=trim)
    assert (decoder.text, text) == (shown, shown)


TEXT = "a <b> < <think>no</think> ü < "


def test_an_answer_that_is_cut_off_shows_all_that_it_has(tokenizer: Any) -> None:
    for text in ("a ", "a <", "a <thi", "x  ", "ü"):
        length = len(ids_of(tokenizer, text))
        decoder, ended, shown = write(tokenizer, Sampling(max_tokens=length), text)
        assert (decoder.text, shown, ended) == (text, text, FinishReason.LENGTH)
    assert write(tokenizer, Sampling(max_tokens=2), "aü")[2] == "a", "no half character"


def test_cut_off_anywhere_and_continued_it_is_the_same_text(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, TEXT)
    whole, _, shown = write(tokenizer, Sampling(max_tokens=len(ids)), TEXT)
    assert whole.text == shown == "a <b> <  ü < "
    for cut in range(len(ids)):
        first = write(tokenizer, Sampling(max_tokens=cut), TEXT) if cut else None
        begun = first[2] if first else ""
        rest = Sampling(max_tokens=len(ids) - cut)
        decoder, _, more = write(tokenizer, rest, TEXT, prefix=tuple(ids[:cut]))
        assert begun + more == decoder.text == shown, cut
