"""Answers are the same with and without proposals, token by token, and in distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load_tokenizer
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.cache.caches import Cache, PositionedCache, can_drop_last, flatten
from app.engine.cache.kv_quantisation import Quantisation, quantise_cache
from app.engine.cache.prefill import (
    StepSize,
    make_positioned_cache,
    make_stock_cache,
    prefill,
    set_next_position,
)
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.model.speculation import DRAFTED, NOTHING, Choice, Gate
from app.engine.model.token_stream import CopyIndex, DraftProposals, TokenStream
from app.engine.turn.decode import Decoder
from app.models.embedded import target_path
from app.protocol.options import Sampling
from app.protocol.stats import FinishReason
from tests.engine.test_turns import pair
from tests.tiny import ORACLE, PURE, VOCABULARY, build

WRITTEN = 48
mlx_patches.install()


class Always(Gate):
    """Proposes as much as it can: a test of what is exact, not of what is fast."""

    preferred = DRAFTED

    def choose(self, kind: int, available: int) -> Choice:
        return Choice(2.0 + (kind == self.preferred), min(available, 5))


def repetitive(seed: int, length: int = 120) -> NDArray[np.int32]:
    """A prompt (length,) in which passages occur again."""
    rng = np.random.default_rng(seed)
    passages = rng.integers(0, VOCABULARY, (6, 7))
    ids = np.concatenate([passages[i] for i in rng.integers(0, 6, length // 7 + 1)])
    return ids[:length].astype(np.int32)


def sparse_cache(model: Any, ids: NDArray[np.int32]) -> Cache:
    """What a sparse prefill of about a third leaves: gaps, and the last token not read."""
    chosen = np.arange(len(ids) - 1, dtype=np.int32)
    chosen = chosen[(chosen < 4) | (chosen // 9 % 3 == 0) | (chosen > len(ids) - 12)]
    cache = make_positioned_cache(model)
    prefill(model, cache, ids[chosen], chosen, StepSize(16), lambda done: None)
    set_next_position(cache, len(ids) - 1)
    return cache


def stock_cache(model: Any, ids: NDArray[np.int32]) -> Cache:
    cache = make_stock_cache(model)
    prefill(model, cache, ids[:-1], None, StepSize(16), lambda done: None)
    return cache


def quantised_cache(model: Any, ids: NDArray[np.int32]) -> Cache:
    cache = quantise_cache(make_stock_cache(model), Quantisation(8, 32))
    prefill(model, cache, ids[:-1], None, StepSize(16), lambda done: None)
    return cache


def holding(cache: Cache) -> PrefixCache:
    return PrefixCache(lambda: cache)


def stream(model: Any, cache: Cache, text: NDArray[np.int32] | None, **named: Any) -> TokenStream:
    """One that proposes from a text."""
    index = None if text is None else CopyIndex(text)
    return TokenStream(model, holding(cache), Always(), index, **named)


def write(source: TokenStream, ids: NDArray[np.int32], count: int = WRITTEN) -> list[int]:
    return list(source.tokens(int(ids[-1]), count))


def nearly(answer: list[int]) -> NDArray[np.int32]:
    """A text that the answer might have been copied from, but for every seventh token."""
    wrong = [(token + 1) % VOCABULARY if i % 7 == 6 else token for i, token in enumerate(answer)]
    return np.array(wrong, np.int32)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    built = {name: build(name) for name in ORACLE}
    return built | {"wide": build("llama", head_dim=32)}  # wide enough to be quantised


def assert_same_or_tie(
    model: Any, ids: NDArray[np.int32], plain: list[int], fast: list[int]
) -> None:
    """Where they differ, both tokens are as likely, up to rounding."""
    if plain == fast:
        return
    at = next(i for i, (a, b) in enumerate(zip(plain, fast, strict=True)) if a != b)
    cache = sparse_cache(model, ids)
    logits = None
    for token in [int(ids[-1]), *plain[:at]]:
        logits = model(mx.array([[token]]), cache=cache)[0, -1]
    assert logits is not None
    assert abs(float(logits[plain[at]] - logits[fast[at]])) < 1e-4


@pytest.mark.parametrize("name", ORACLE)
def test_greedy_answers_are_the_same(name: str, models: dict[str, Any]) -> None:
    check_greedy(models[name], name, range(3), WRITTEN)


@pytest.mark.slow
@pytest.mark.parametrize("name", PURE)
def test_two_hundred_greedy_answers_are_the_same(name: str, models: dict[str, Any]) -> None:
    check_greedy(models[name], name, range(200), 24)


def check_greedy(model: Any, name: str, seeds: range, count: int) -> None:
    accepted = 0
    for seed in seeds:
        ids = repetitive(seed)
        plain = write(stream(model, sparse_cache(model, ids), None), ids, count)
        fast = stream(model, sparse_cache(model, ids), nearly(plain))
        assert_same_or_tie(model, ids, plain, write(fast, ids, count))
        accepted += fast.accepted
    assert (accepted > 0) == (name in PURE), "recurrent layers cannot drop what is rejected"


def entries(cache: Cache) -> list[int]:
    layers = flatten(cache)
    return [c.size() if isinstance(c, PositionedCache) else c.offset for c in layers]


@pytest.mark.parametrize("make_cache", [stock_cache, quantised_cache, sparse_cache])
@pytest.mark.parametrize("stop_after", [1, 2, 9, 10, 11, 12, 13, WRITTEN])
def test_what_is_rejected_leaves_no_trace(
    make_cache: Callable[[Any, NDArray[np.int32]], Cache], stop_after: int, models: dict[str, Any]
) -> None:
    """Also where whoever takes the tokens stops in the middle of what was accepted."""
    model, ids = models["wide"], repetitive(1)
    plain = write(stream(model, make_cache(model, ids), None), ids)
    cache = make_cache(model, ids)
    before = entries(cache)
    tokens = stream(model, cache, nearly(plain)).tokens(int(ids[-1]), WRITTEN)
    taken = [next(tokens) for _ in range(stop_after)]
    tokens.close()
    assert taken == plain[:stop_after]
    assert entries(cache) == [count + stop_after + 1 for count in before]
    for layer in flatten(cache):
        if isinstance(layer, PositionedCache):
            assert layer.offset == len(ids) + stop_after
    rest = np.array([*ids, *taken], np.int32)
    for layer in flatten(cache):
        layer.trim(1)  # which the stream feeds again
    more = write(stream(model, cache, nearly(plain)), rest, WRITTEN - stop_after)
    assert taken + more == plain


def test_without_proposals_it_is_what_mlx_lm_writes(models: dict[str, Any]) -> None:
    model, ids = models["llama"], repetitive(2)
    cache = stock_cache(model, ids)
    theirs = generate_step(
        mx.array(ids[-1:]), model, max_tokens=WRITTEN, prompt_cache=stock_cache(model, ids)
    )
    assert write(stream(model, cache, None), ids) == [int(token) for token, _ in theirs]


@pytest.mark.parametrize("settings", [{"temp": 0.7}, {"temp": 1.0, "top_p": 0.8, "top_k": 9}])
def test_a_seed_gives_the_same_answer_either_way(
    settings: dict[str, float], models: dict[str, Any]
) -> None:
    model, sampler = models["llama"], make_sampler(**settings)  # type: ignore[arg-type]
    found = []
    for seed in range(4):
        ids = repetitive(seed)
        settled: dict[str, Any] = {"sampler": sampler, "seed": seed}
        plain = write(stream(model, sparse_cache(model, ids), None, **settled), ids)
        fast = stream(model, sparse_cache(model, ids), nearly(plain), **settled)
        assert write(fast, ids) == plain
        assert fast.accepted > WRITTEN / 3
        found.append(tuple(plain))
    assert len(set(found)) == len(found)


def careless(self: TokenStream, token: int, proposal: Any) -> tuple[mx.array, int]:
    """Accepts whatever is proposed."""
    self.proposed += len(proposal.ids)
    chosen = self._feed(mx.array([token, *proposal.ids]))
    return type(chosen)(*(each[-1:] for each in chosen)), len(proposal.ids)


def test_a_seeds_answer_shows_a_rule_that_is_broken(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = models["llama"], repetitive(0)
    settled: dict[str, Any] = {"sampler": make_sampler(1.0), "seed": 0}
    plain = write(stream(model, sparse_cache(model, ids), None, **settled), ids)
    monkeypatch.setattr(TokenStream, "_verify", careless)
    fast = stream(model, sparse_cache(model, ids), nearly(plain), **settled)
    assert write(fast, ids) != plain


def test_it_knows_how_likely_each_token_was(models: dict[str, Any]) -> None:
    """Also of accepted proposals, and where it is stopped after some of those."""
    model, ids = models["llama"], repetitive(3)
    answer = write(stream(model, stock_cache(model, ids), None), ids)
    every = np.array([*ids, *answer], np.int32)
    logits = model(mx.array(every[None, :-1]))[0, len(ids) - 1 :]
    log_probabilities = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    expected = [float(row[token]) for row, token in zip(log_probabilities, answer, strict=True)]
    for text in (None, nearly(answer)):
        for count in (len(answer), 5):
            source = stream(model, stock_cache(model, ids), text)
            given = source.tokens(int(ids[-1]), len(answer))
            assert [next(given) for _ in range(count)] == answer[:count]
            given.close()
            assert source.log_probabilities == pytest.approx(expected[:count], abs=1e-4)


def test_an_answer_in_two_parts_is_the_same(models: dict[str, Any]) -> None:
    """The second part's places are those after the first."""
    model, ids, sampler = models["llama"], repetitive(5), make_sampler(1.0)
    whole = stream(model, stock_cache(model, ids), ids, sampler=sampler, seed=3)
    expected = write(whole, ids, 20)
    part = np.array([*ids, *expected[:8]], np.int32)
    rest = stream(model, stock_cache(model, part), nearly(expected), sampler=sampler, seed=3)
    assert list(rest.tokens(int(part[-1]), 12, 8)) == expected[8:]


def test_a_processor_sees_what_was_accepted(models: dict[str, Any]) -> None:
    """One that forbids the last three tokens needs all of them, in order."""
    model, ids = models["llama"], repetitive(3)

    def no_repeats(before: mx.array, logits: mx.array) -> mx.array:
        return mx.put_along_axis(logits, before[None, -3:], mx.array(-mx.inf), axis=-1)

    plain = write(stream(model, stock_cache(model, ids), None, processors=[no_repeats]), ids)
    fast = stream(model, stock_cache(model, ids), nearly(plain), processors=[no_repeats])
    assert write(fast, ids) == plain
    assert fast.accepted > WRITTEN / 3
    assert all(len(set(plain[i : i + 4])) == 4 for i in range(WRITTEN - 4))


class Coin:
    """A model of four tokens, whatever came before: a cache that only counts."""

    SHARES = (0.1, 0.2, 0.3, 0.4)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        for layer in cache:
            layer.update_and_fetch(*[mx.zeros((1, 1, ids.shape[1], 1))] * 2)
        return mx.broadcast_to(mx.log(mx.array(self.SHARES)), (1, ids.shape[1], 4))


def drawn(count: int, temperature: float = 1.0) -> NDArray[np.int64]:
    """How often each token was written, where proposals are tried at every step."""
    ids = np.array([0, 1, 2, 3, 3, 2, 1, 0] * 40, np.int32)
    found = np.zeros(4, np.int64)
    for seed in range(count // 500):
        cache = [PositionedCache()]
        sampler = make_sampler(temperature)
        source = TokenStream(Coin(), holding(cache), Always(), CopyIndex(ids), sampler, seed=seed)
        found += np.bincount(write(source, ids, 500), minlength=4)
        assert source.proposed > 300
    return found


def chi_square(found: NDArray[np.int64]) -> float:
    wanted = np.array(Coin.SHARES) * found.sum()
    return float(((found - wanted) ** 2 / wanted).sum())


MOST = 16.27
"""The chi-square with three degrees of freedom that one of a thousand draws exceeds."""


@pytest.mark.slow
def test_sampled_answers_have_the_models_distribution() -> None:
    assert chi_square(drawn(20_000)) < MOST


@pytest.mark.slow
def test_the_distribution_shows_a_rule_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is proposed is accepted."""

    monkeypatch.setattr(TokenStream, "_verify", careless)
    assert chi_square(drawn(20_000)) > MOST


def test_only_layers_that_can_drop_tokens_take_proposals(models: dict[str, Any]) -> None:
    for name in ORACLE:
        assert can_drop_last(make_positioned_cache(models[name])) == (name in PURE)


def decoded(
    model: Any,
    sampling: Sampling,
    stop: Callable[[Decoder], FinishReason | None] = lambda decoder: None,
    stop_ids: frozenset[int] = frozenset(),  # a random model may write one
    likely: list[int] | None = None,
) -> tuple[Decoder, FinishReason, int]:
    """A whole decoder's answer, why it ended, and how many tokens are cached. With what it is
    `likely` to be, most of it is verified several tokens at a time."""
    ids, cache = repetitive(4), sparse_cache(model, repetitive(4))
    texts = load_tokenizer(target_path())
    texts._eos_token_ids = set(stop_ids)
    decoder = Decoder(1, texts, sampling, lambda event: None)
    with pytest.MonkeyPatch.context() as patch:
        if likely is not None:
            patch.setattr("app.engine.turn.decode.CopyIndex", lambda _: CopyIndex(nearly(likely)))
        ended = decoder.run(
            model,
            holding(cache),
            ids,
            sampling.max_tokens,
            lambda: stop(decoder),
            gate=Always(),
        )
    return decoder, ended, int(flatten(cache)[0].offset) - len(ids)


def answered(model: Any, sampling: Sampling) -> list[int]:
    return decoded(model, replace(sampling, max_tokens=WRITTEN))[0].ids


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.MEMORY])
@pytest.mark.parametrize("after", range(1, 14))
def test_it_stops_in_the_middle_of_what_was_verified(
    after: int, reason: FinishReason, models: dict[str, Any]
) -> None:
    """As it does without proposals, and with everything cached that was written."""

    def stop(decoder: Decoder) -> FinishReason | None:
        return reason if len(decoder.ids) >= after else None

    model, sampling = models["llama"], Sampling(max_tokens=WRITTEN)
    plain, _, _ = decoded(model, replace(sampling, speculate=False))
    fast, ended, cached = decoded(model, sampling, stop, likely=plain.ids)
    assert (fast.ids, ended, cached) == (plain.ids[:after], reason, after)
    assert fast.proposed or after < 4


@pytest.mark.parametrize("length", range(1, 14))
def test_it_is_as_long_as_is_allowed(length: int, models: dict[str, Any]) -> None:
    model, sampling = models["llama"], Sampling(max_tokens=length)
    plain, *rest = decoded(model, replace(sampling, speculate=False))
    assert rest == [FinishReason.LENGTH, length]
    fast, *rest = decoded(model, sampling, likely=plain.ids)
    assert rest == [FinishReason.LENGTH, length]
    assert fast.ids == plain.ids


def test_it_ends_where_it_says_so(models: dict[str, Any]) -> None:
    """Also where what was verified goes on after that."""
    model, sampling = models["llama"], Sampling(max_tokens=WRITTEN)
    plain, _, _ = decoded(model, replace(sampling, speculate=False))
    assert plain.proposed == 0
    for last in sorted(set(plain.ids)):
        stops = frozenset({last})
        fast, ended, cached = decoded(model, sampling, stop_ids=stops, likely=plain.ids)
        assert ended is FinishReason.STOP
        assert fast.ids == plain.ids[: plain.ids.index(last) + 1]
        assert cached == len(fast.ids)


class Drafting(Gate):
    """Proposes what a draft wrote, whatever that costs."""

    def choose(self, kind: int, available: int) -> Choice:
        return Choice(2.0, min(available, 3)) if kind == DRAFTED else NOTHING


@pytest.mark.parametrize("twin", [True, False])
@pytest.mark.parametrize("stop_after", [1, 2, 3, 4, 5, 6, WRITTEN])
def test_what_a_draft_writes_changes_nothing(
    twin: bool, stop_after: int, models: dict[str, Any]
) -> None:
    """A draft that always agrees, and one that never does."""
    model, ids = models["llama"], repetitive(6)
    draft = model if twin else build("qwen3", seed=9)
    plain = write(stream(model, stock_cache(model, ids), None), ids)
    prefix = PrefixCache(lambda: make_stock_cache(draft))
    prefix.prefill_at(
        draft, ids, np.arange(len(ids), dtype=np.int32), StepSize(16), lambda done: None
    )
    assert DraftProposals.possible(prefix, ids)
    assert not DraftProposals.possible(prefix, ids[:-1])
    proposals = DraftProposals(pair(draft).target, prefix, ids, 0)
    target = holding(stock_cache(model, ids))
    source = TokenStream(model, target, Drafting(), draft=proposals)
    tokens = source.tokens(int(ids[-1]), WRITTEN)
    assert [next(tokens) for _ in range(stop_after)] == plain[:stop_after]
    tokens.close()
    proposals.close()
    if twin:
        assert source.accepted == source.proposed > 0
    else:
        assert source.accepted <= source.proposed / 4
    assert np.array_equal(prefix.ids, ids)
    assert find_mismatch(prefix) is None
    again = np.array([*ids, *plain[:3]], np.int32)
    prefix.prefill_at(
        draft, again, np.arange(len(ids), len(again), dtype=np.int32), StepSize(16), lambda d: None
    )


def test_a_draft_that_fails_is_left_alone(models: dict[str, Any]) -> None:
    model, ids = models["llama"], repetitive(6)
    plain = write(stream(model, stock_cache(model, ids), None), ids)
    prefix = PrefixCache(lambda: make_stock_cache(model))
    prefix.prefill_at(
        model, ids, np.arange(len(ids), dtype=np.int32), StepSize(16), lambda done: None
    )
    calls = 0

    def fails_later(tokens: mx.array, cache: Any) -> mx.array:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise MemoryError
        found: mx.array = model(tokens, cache=cache)
        return found

    draft = pair(model).target
    draft.model = fails_later
    proposals = DraftProposals(draft, prefix, ids, 0)
    target = holding(stock_cache(model, ids))
    source = TokenStream(model, target, Drafting(), draft=proposals)
    assert write(source, ids) == plain
    assert source.accepted == 3
    proposals.close()
    assert calls == 6
    assert len(prefix) == 0


def test_a_draft_may_know_more_tokens_than_the_target(models: dict[str, Any]) -> None:
    model, ids = models["llama"], repetitive(6)
    prefix = PrefixCache(lambda: make_stock_cache(model))
    prefix.prefill_at(
        model, ids, np.arange(len(ids), dtype=np.int32), StepSize(16), lambda done: None
    )
    draft = pair(model).target
    every = DraftProposals(draft, prefix, ids, 0).after([int(ids[0])], 8)
    assert len(every) == 8
    limited = DraftProposals(draft, prefix, ids, max(every)).after([int(ids[0])], 8)
    assert limited == every[: every.index(max(every))]


def test_how_tokens_are_chosen(models: dict[str, Any]) -> None:
    model = models["llama"]
    greedy = answered(model, Sampling())
    warm = Sampling(temperature=1.0, seed=2**64 - 1)
    assert answered(model, warm) == answered(model, warm) != greedy
    assert answered(model, replace(warm, seed=1)) != answered(model, warm)
    assert answered(model, replace(warm, top_k=1)) == greedy
    assert answered(model, replace(warm, min_p=1.0)) == greedy
    assert answered(model, replace(warm, top_k=10**6)) == answered(model, warm)
    penalised = answered(model, Sampling(repetition_penalty=2.0))
    assert len(set(penalised)) > len(set(greedy))
