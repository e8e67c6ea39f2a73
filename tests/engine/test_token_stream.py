"""Answers with and without speculation are the same, token by token and in distribution."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load_tokenizer
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.cache.caches import Cache, PositionedCache, flatten
from app.engine.cache.kv_quantisation import Quantisation, quantise_cache
from app.engine.cache.prefill import (
    StepSize,
    make_positioned_cache,
    make_stock_cache,
    prefill,
    set_next_position,
)
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.model.speculation import (
    COPY_RETRY,
    DRAFT_RETRY,
    DRAFTED,
    MAX_PREDICTED,
    MIN_PLAIN_STEPS,
    NOTHING,
    PREDICTED,
    SIZES,
    SLOPE,
    STALE_AFTER,
    Gate,
    Proposal,
    expected,
    kind_of_copy,
)
from app.engine.model.token_stream import (
    MAX_MATCH,
    CopyIndex,
    DraftProposals,
    Match,
    Speculation,
    TokenStream,
)
from app.engine.turn.decode import Decoder
from app.models.embedded import target_path
from app.protocol.options import Sampling
from app.protocol.stats import FinishReason
from tests.engine.oracle import TOLERANCE, difference
from tests.engine.test_turns import pair
from tests.tables import slow, table
from tests.tiny import PURE, RECURRENT, SLIDING, VOCABULARY, architectures, build

WRITTEN = 48
mlx_patches.install()


class Always(Gate):
    """A gate that always proposes as many tokens as possible, to test exactness."""

    preferred = DRAFTED

    def choose(self, kind: int, available: int) -> Proposal:
        return Proposal(2.0 + (kind == self.preferred), min(available, 5))


def repetitive(seed: int, length: int = 120) -> NDArray[np.int32]:
    """A prompt (length,) with repeated passages."""
    rng = np.random.default_rng(seed)
    passages = rng.integers(0, VOCABULARY, (6, 7))
    ids = np.concatenate([passages[i] for i in rng.integers(0, 6, length // 7 + 1)])
    return ids[:length].astype(np.int32)


def sparse_cache(model: Any, ids: NDArray[np.int32]) -> Cache:
    """A cache as after a sparse prefill of about a third: with gaps, without the last token."""
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
    """An index that proposes from a text."""
    index = None if text is None else CopyIndex(text)
    return TokenStream(model, holding(cache), Speculation(Always(), index), **named)


def write(source: TokenStream, ids: NDArray[np.int32], count: int = WRITTEN) -> list[int]:
    return list(source.tokens(int(ids[-1]), count))


def nearly(answer: list[int]) -> NDArray[np.int32]:
    """A text that equals the answer except for every seventh token."""
    wrong = [(token + 1) % VOCABULARY if i % 7 == 6 else token for i, token in enumerate(answer)]
    return np.array(wrong, np.int32)


class Models(dict[str, Any]):
    """Models by architecture, built when a test asks for them."""

    def __missing__(self, name: str) -> Any:
        # "wide": wide enough to be quantised
        self[name] = build("llama", head_dim=32) if name == "wide" else build(name)
        return self[name]


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


def assert_same_or_tie(
    model: Any, ids: NDArray[np.int32], plain: list[int], fast: list[int]
) -> None:
    """If answers differ, both tokens are equally likely up to rounding."""
    if plain == fast:
        return
    at = next(i for i, (a, b) in enumerate(zip(plain, fast, strict=True)) if a != b)
    cache = sparse_cache(model, ids)
    logits = None
    for token in [int(ids[-1]), *plain[:at]]:
        logits = model(mx.array([[token]]), cache=cache)[0, -1]
    assert abs(float(logits[plain[at]] - logits[fast[at]])) < TOLERANCE


@pytest.mark.parametrize("name", architectures(*PURE, *RECURRENT))
def test_greedy_answers_are_the_same_with_speculation(name: str, models: dict[str, Any]) -> None:
    check_greedy(models[name], range(3), WRITTEN)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PURE, *RECURRENT])
def test_two_hundred_greedy_answers_are_the_same_with_speculation(
    name: str, models: dict[str, Any]
) -> None:
    check_greedy(models[name], range(200), 24)


def check_greedy(model: Any, seeds: range, count: int) -> None:
    accepted = 0
    for seed in seeds:
        ids = repetitive(seed)
        plain = write(stream(model, sparse_cache(model, ids), None), ids, count)
        fast = stream(model, sparse_cache(model, ids), nearly(plain))
        assert_same_or_tie(model, ids, plain, write(fast, ids, count))
        accepted += fast.accepted
    assert accepted > 0


def entries(cache: Cache) -> list[int]:
    layers = flatten(cache)
    return [c.size() if isinstance(c, PositionedCache) else c.offset for c in layers]


@pytest.mark.parametrize("make_cache", [stock_cache, quantised_cache, sparse_cache])
def test_rejected_tokens_leave_no_trace(
    make_cache: Callable[[Any, NDArray[np.int32]], Cache], models: dict[str, Any]
) -> None:
    """This holds if the consumer stops in the middle of accepted tokens."""
    model, ids = models["wide"], repetitive(1)
    plain = write(stream(model, make_cache(model, ids), None), ids)
    for stop_after in (1, 2, 9, 10, 11, 12, 13, WRITTEN):
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
        assert taken + more == plain, stop_after


@pytest.mark.parametrize("name", architectures(*RECURRENT, *SLIDING))
def test_rejected_tokens_leave_no_trace_in_layers_that_cannot_drop_them(
    name: str, models: dict[str, Any]
) -> None:
    """This holds if the consumer stops before, within or after accepted tokens."""
    make_cache = sparse_cache if name in RECURRENT else stock_cache
    model, ids = models[name], repetitive(1)
    plain = write(stream(model, make_cache(model, ids), None), ids, 16)
    reference = make_cache(model, ids)
    model(mx.array(ids[-1:])[None], cache=reference)
    for stop_after in range(1, 14):
        model(mx.array([plain[stop_after - 1 : stop_after]]), cache=reference)
        cache = make_cache(model, ids)
        tokens = stream(model, cache, nearly(plain)).tokens(int(ids[-1]), WRITTEN)
        assert [next(tokens) for _ in range(stop_after)] == plain[:stop_after]
        tokens.close()
        following = mx.array([[plain[stop_after]]])
        expected = model(following, cache=copy.deepcopy(reference))
        assert difference(model(following, cache=cache), expected) < TOLERANCE


def test_without_proposals_answers_equal_mlx_lm(models: dict[str, Any]) -> None:
    model, ids = models["llama"], repetitive(2)
    cache = stock_cache(model, ids)
    theirs = generate_step(
        mx.array(ids[-1:]), model, max_tokens=WRITTEN, prompt_cache=stock_cache(model, ids)
    )
    assert write(stream(model, cache, None), ids) == [int(token) for token, _ in theirs]


@pytest.mark.parametrize("settings", [slow({"temp": 0.7}), {"temp": 1.0, "top_p": 0.8, "top_k": 9}])
def test_a_seed_gives_the_same_answer_with_and_without_speculation(
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
    """A stream that accepts all proposals."""
    self.proposed += len(proposal.ids)
    chosen = self._feed(mx.array([token, *proposal.ids]))
    return type(chosen)(*(each[-1:] for each in chosen)), len(proposal.ids)


def test_the_seed_test_detects_a_wrong_acceptance_rule(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = models["llama"], repetitive(0)
    settled: dict[str, Any] = {"sampler": make_sampler(1.0), "seed": 0}
    plain = write(stream(model, sparse_cache(model, ids), None, **settled), ids)
    monkeypatch.setattr(TokenStream, "_verify", careless)
    fast = stream(model, sparse_cache(model, ids), nearly(plain), **settled)
    assert write(fast, ids) != plain


def test_log_probabilities_of_all_tokens_are_right(models: dict[str, Any]) -> None:
    """This includes accepted proposals, also if the stream is stopped after some of them."""
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
    """The second part continues the places of the first."""
    model, ids, sampler = models["llama"], repetitive(5), make_sampler(1.0)
    whole = stream(model, stock_cache(model, ids), ids, sampler=sampler, seed=3)
    expected = write(whole, ids, 20)
    part = np.array([*ids, *expected[:8]], np.int32)
    rest = stream(model, stock_cache(model, part), nearly(expected), sampler=sampler, seed=3)
    assert list(rest.tokens(int(part[-1]), 12, 8)) == expected[8:]


def test_a_processor_sees_accepted_tokens(models: dict[str, Any]) -> None:
    """A processor that forbids the last three tokens needs all of them in order."""
    model, ids = models["llama"], repetitive(3)

    def no_repeats(before: mx.array, logits: mx.array) -> mx.array:
        return mx.put_along_axis(logits, before[None, -3:], mx.array(-mx.inf), axis=-1)

    plain = write(stream(model, stock_cache(model, ids), None, processors=[no_repeats]), ids)
    fast = stream(model, stock_cache(model, ids), nearly(plain), processors=[no_repeats])
    assert write(fast, ids) == plain
    assert fast.accepted > WRITTEN / 3
    assert all(len(set(plain[i : i + 4])) == 4 for i in range(WRITTEN - 4))


class Coin:
    """A model with a vocabulary of four and constant logits; its cache only counts."""

    SHARES = (0.1, 0.2, 0.3, 0.4)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        for layer in cache:
            layer.update_and_fetch(*[mx.zeros((1, 1, ids.shape[1], 1))] * 2)
        return mx.broadcast_to(mx.log(mx.array(self.SHARES)), (1, ids.shape[1], 4))


def drawn(count: int, temperature: float = 1.0) -> NDArray[np.int64]:
    """Counts of each token, with proposals at every step."""
    ids = np.array([0, 1, 2, 3, 3, 2, 1, 0] * 40, np.int32)
    found = np.zeros(4, np.int64)
    for seed in range(count // 500):
        cache = [PositionedCache()]
        sampler = make_sampler(temperature)
        speculation = Speculation(Always(), CopyIndex(ids))
        source = TokenStream(Coin(), holding(cache), speculation, sampler, seed=seed)
        found += np.bincount(write(source, ids, 500), minlength=4)
        assert source.proposed > 300
    return found


def chi_square(found: NDArray[np.int64]) -> float:
    wanted = np.array(Coin.SHARES) * found.sum()
    return float(((found - wanted) ** 2 / wanted).sum())


CRITICAL_VALUE = 16.27
"""Critical value of chi-square with three degrees of freedom at p = 0.001."""


@pytest.mark.slow
def test_sampled_answers_have_the_models_distribution() -> None:
    assert chi_square(drawn(20_000)) < CRITICAL_VALUE


@pytest.mark.slow
def test_the_distribution_test_detects_a_wrong_acceptance_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All proposals are accepted."""

    monkeypatch.setattr(TokenStream, "_verify", careless)
    assert chi_square(drawn(20_000)) > CRITICAL_VALUE


@functools.cache
def demo_tokenizer() -> Any:
    return load_tokenizer(target_path())


def decoded(
    model: Any,
    sampling: Sampling,
    stop: Callable[[Decoder], FinishReason | None] = lambda decoder: None,
    stop_ids: frozenset[int] = frozenset(),  # a random model may write one
    likely: list[int] | None = None,
) -> tuple[Decoder, FinishReason, int]:
    """A decoder with its answer, the finish reason and the number of cached tokens. With a `likely`
    answer, most tokens are accepted proposals."""
    ids, cache = repetitive(4), sparse_cache(model, repetitive(4))
    texts = demo_tokenizer()
    texts._eos_token_ids = set(stop_ids)
    decoder = Decoder(1, texts, sampling, lambda event: None)
    with pytest.MonkeyPatch.context() as patch:
        if likely is not None:
            patch.setattr("app.engine.turn.decode.CopyIndex", lambda _: CopyIndex(nearly(likely)))
        ended = decoder.generate(
            model,
            holding(cache),
            ids,
            sampling.max_tokens,
            lambda: stop(decoder),
            speculation=Speculation(Always()),
        )
    return decoder, ended, int(flatten(cache)[0].offset) - len(ids)


def test_an_answer_can_stop_within_a_verified_step(models: dict[str, Any]) -> None:
    """It stops as without proposals, with all written tokens cached."""
    model, sampling = models["llama"], Sampling(max_tokens=WRITTEN)
    plain, _, _ = decoded(model, replace(sampling, speculate=False))
    for reason, after in product((FinishReason.CANCELLED, FinishReason.MEMORY), range(1, 14)):

        def stop(
            decoder: Decoder, reason: FinishReason = reason, after: int = after
        ) -> FinishReason | None:
            return reason if len(decoder.ids) >= after else None

        fast, ended, cached = decoded(model, sampling, stop, likely=plain.ids)
        assert (fast.ids, ended, cached) == (plain.ids[:after], reason, after)
        assert fast.proposed or after < 4


@table("length", range(1, 14))
def test_the_answer_has_at_most_the_allowed_length(length: int, models: dict[str, Any]) -> None:
    model, sampling = models["llama"], Sampling(max_tokens=length)
    plain, *rest = decoded(model, replace(sampling, speculate=False))
    assert rest == [FinishReason.LENGTH, length]
    fast, *rest = decoded(model, sampling, likely=plain.ids)
    assert rest == [FinishReason.LENGTH, length]
    assert fast.ids == plain.ids


def test_stop_tokens_end_an_answer_within_a_verified_step(models: dict[str, Any]) -> None:
    """It ends there even if later tokens were verified, too."""
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
    """A gate that always uses the draft."""

    def choose(self, kind: int, available: int) -> Proposal:
        return Proposal(2.0, min(available, 3)) if kind == DRAFTED else NOTHING


def has_read(draft: Any, ids: NDArray[np.int32]) -> PrefixCache:
    prefix = PrefixCache(lambda: make_stock_cache(draft))
    prefix.prefill_at(
        draft, ids, np.arange(len(ids), dtype=np.int32), StepSize(16), lambda done: None
    )
    return prefix


@pytest.mark.parametrize("twin", [True, False])
def test_draft_proposals_do_not_change_the_answer(twin: bool, models: dict[str, Any]) -> None:
    """Drafts that always or never agree."""
    model, ids = models["llama"], repetitive(6)
    draft = model if twin else build("qwen3", seed=9)
    plain = write(stream(model, stock_cache(model, ids), None), ids)
    for stop_after in (1, 2, 3, 4, 5, 6, WRITTEN):
        check_draft(model, draft, ids, plain, stop_after)


def check_draft(
    model: Any, draft: Any, ids: NDArray[np.int32], plain: list[int], stop_after: int
) -> None:
    prefix = has_read(draft, ids)
    assert DraftProposals.is_possible(prefix, ids)
    assert not DraftProposals.is_possible(prefix, ids[:-1])
    proposals = DraftProposals(pair(draft).target, prefix, ids, 0)
    target = holding(stock_cache(model, ids))
    source = TokenStream(model, target, Speculation(Drafting(), draft=proposals))
    tokens = source.tokens(int(ids[-1]), WRITTEN)
    assert [next(tokens) for _ in range(stop_after)] == plain[:stop_after]
    tokens.close()
    proposals.close()
    if draft is model:
        assert source.accepted == source.proposed > 0
    else:
        assert source.accepted <= source.proposed / 4
    assert np.array_equal(prefix.ids, ids)
    assert find_mismatch(prefix) is None
    again = np.array([*ids, *plain[:3]], np.int32)
    prefix.prefill_at(
        draft, again, np.arange(len(ids), len(again), dtype=np.int32), StepSize(16), lambda d: None
    )


def test_a_draft_may_propose_for_a_hybrid(models: dict[str, Any]) -> None:
    model, draft, ids = models["qwen3_5"], models["llama"], repetitive(6)
    plain = write(stream(model, stock_cache(model, ids), None), ids)
    proposals = DraftProposals(pair(draft).target, has_read(draft, ids), ids, 0)
    target = holding(stock_cache(model, ids))
    source = TokenStream(model, target, Speculation(Drafting(), draft=proposals))
    assert write(source, ids) == plain
    assert source.proposed > source.accepted


def test_a_failed_draft_is_not_used_again(models: dict[str, Any]) -> None:
    model, ids = models["llama"], repetitive(6)
    plain = write(stream(model, stock_cache(model, ids), None), ids)
    prefix = has_read(model, ids)
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
    source = TokenStream(model, target, Speculation(Drafting(), draft=proposals))
    assert write(source, ids) == plain
    assert source.accepted == 3
    proposals.close()
    assert calls == 6
    assert len(prefix) == 0


def test_a_draft_may_have_a_larger_vocabulary(models: dict[str, Any]) -> None:
    model, ids = models["llama"], repetitive(6)
    prefix = has_read(model, ids)
    draft = pair(model).target
    every = DraftProposals(draft, prefix, ids, 0).after([int(ids[0])], 8)
    assert len(every) == 8
    limited = DraftProposals(draft, prefix, ids, max(every)).after([int(ids[0])], 8)
    assert limited == every[: every.index(max(every))]


PLAIN = 0.1
COPY = kind_of_copy(4)


def gate(
    slope: float,
    share: float,
    kind: int = COPY,
    steps: int = 200,
    draft_cost: float = 0.0,
    verifying: float = 0.0,
    busy: float = 0.0,
    seed: int = 0,
    feeds_again: bool = False,
) -> tuple[Gate, float]:
    """A gate after measuring a simulated machine, and the speedup it reached. There, a verified
    step costs `verifying` more than a plain one plus `slope` per token, a share `busy` of the steps
    is several times slower, and each proposed token is right with probability `share`. With
    `feeds_again`, the step after a rejection has the accepted tokens, too."""
    rng, found = np.random.default_rng(seed), Gate(slope=max(slope, SLOPE))
    found.begin(feeds_again)

    def waits() -> float:
        return 1 + 4 * rng.exponential() * (rng.random() < busy)

    for _ in range(MIN_PLAIN_STEPS):
        found.record_plain(PLAIN * waits())
    if kind >= DRAFTED:
        found.guess_draft_cost(kind, 0.1)
    available = MAX_PREDICTED if kind == PREDICTED else SIZES[-1]
    seconds, written, again = 0.0, 0, 0
    for _ in range(steps):
        count = found.choose(kind, available).count or int(found.wants_to_learn(kind))
        if not count:
            took, right = PLAIN * (1 + (verifying + slope * again) * (again > 0)) * waits(), 0
            if not again:
                found.record_plain(took)
            again = 0
        else:
            agree = [*(rng.random(count) < share), False]
            right = agree.index(False)
            took = PLAIN * (1 + verifying + slope * (count + again)) * waits()
            found.record_verified(kind, count + 1, right, took, again)
            again = 1 + right if feeds_again and right < count else 0
            if kind >= DRAFTED:
                found.record_drafted(kind, count, PLAIN * draft_cost * count)
                took += PLAIN * draft_cost * count
        seconds, written = seconds + took, written + 1 + right
    return found, written * PLAIN * (1 + 4 * busy) / seconds


def test_nothing_is_proposed_before_plain_steps_were_timed() -> None:
    found, _ = gate(0.1, 1.0)
    assert found.choose(COPY, 16).count > 0
    found.begin()
    assert found.choose(COPY, 16).count == 0
    assert found.plain_rate == 0
    assert not any(found.wants_to_learn(COPY) for _ in range(1000))
    for _ in range(MIN_PLAIN_STEPS):
        found.record_plain(2 * PLAIN)
    assert found.choose(COPY, 16).count > 0


@table("slope, share", product([0.02, 0.1, 0.5, 1.0], [0.0, 0.1, 0.5, 0.9, 1.0]))
def test_the_gate_never_makes_decoding_slower(slope: float, share: float) -> None:
    found, faster = gate(slope, share)
    possible = max((1 + expected(share, n - 1)) / (1 + slope * (n - 1)) for n in (1, *SIZES))
    assert faster > 0.97
    assert faster > 0.75 * possible
    count = found.choose(COPY, SIZES[-1]).count
    if share == 0 or slope == 1:
        assert count == 0
    if share == 1 and slope <= 0.5:
        assert count == SIZES[-1] - 1


SHARES, SLOPES, VERIFYING = (0.0, 0.1, 0.3, 0.5, 0.9, 1.0), (0.02, 0.1, 0.5, 1.0), (0.0, 0.5)
FED_AGAIN = [*product(SHARES, SLOPES, VERIFYING)]
WITH_A_HEAD = [*product((0.0, 0.3, 0.5, 0.7, 0.9), SLOPES[:3], VERIFYING, (0.05, 0.3))]


@pytest.mark.parametrize("rows", [FED_AGAIN[::5], slow(FED_AGAIN)], ids=["some", "all"])
def test_the_gate_never_makes_decoding_slower_if_accepted_tokens_are_fed_again(
    rows: list[tuple[float, float, float]],
) -> None:
    for share, slope, verifying in rows:
        kind = kind_of_copy(9 if share > 0.5 else 4)
        found, faster = gate(slope, share, kind, 600, verifying=verifying, feeds_again=True)
        row = share, slope, verifying
        assert faster > 0.98, row
        count = found.choose(kind, SIZES[-1]).count
        if share == 0 or slope == 1:
            assert count == 0, row
        if share == 1 and slope + verifying <= 0.6:
            assert count == SIZES[-1] - 1, row


@pytest.mark.parametrize("rows", [WITH_A_HEAD[::7], slow(WITH_A_HEAD)], ids=["some", "all"])
def test_the_gate_never_makes_decoding_slower_with_an_mtp_head(
    rows: list[tuple[float, float, float, float]],
) -> None:
    for row, feeds_again in product(rows, (False, True)):
        share, slope, verifying, cost = row
        found, faster = gate(
            slope, share, PREDICTED, 600, cost, verifying, seed=1, feeds_again=feeds_again
        )
        assert faster > 0.98, row
        counts = range(1, MAX_PREDICTED + 1)
        possible = [(1 + expected(share, n)) / (1 + verifying + (slope + cost) * n) for n in counts]
        if max(possible) < 1:
            assert found.choose(PREDICTED, MAX_PREDICTED).count == 0, row
        if not feeds_again:
            assert faster > 0.75 * max(possible), row


@table("verifying, busy", product([0.5, 0.9, 1.2], [0.0, 0.3]))
def test_a_busy_machine_still_gets_long_proposals(verifying: float, busy: float) -> None:
    """On such a machine, steps are expensive and tokens within a step cheap."""
    possible = SIZES[-1] / (1 + verifying + 0.1 * (SIZES[-1] - 1))
    seeds = range(9 if busy else 1)
    found = [gate(0.1, 1.0, steps=400, verifying=verifying, busy=busy, seed=s)[1] for s in seeds]
    assert np.median(found) > 0.75 * possible


def test_tokens_that_are_known_to_be_expensive_are_only_tried_after_long_matches() -> None:
    found = Gate(slope=0.6)
    found.begin(feeds_again=True)
    for _ in range(MIN_PLAIN_STEPS):
        found.record_plain(PLAIN)
    assert [found.choose(kind, 15).count for kind in range(DRAFTED)] == [0, 0, 0, 1]


def test_stale_costs_are_measured_again() -> None:
    """The machine was busy while it was measured."""
    found = Gate()
    for _ in range(MIN_PLAIN_STEPS):
        found.record_plain(PLAIN)
    for _ in range(9):
        found.record_verified(COPY, 2, 1, 9 * PLAIN)
    assert found.choose(COPY, 15).count == 0
    for _ in range(STALE_AFTER + 1):
        found.record_plain(PLAIN)
    assert found.choose(COPY, 15).count > 0


def test_kinds_of_proposals_are_judged_separately() -> None:
    found, _ = gate(0.2, 0.0, kind_of_copy(2))
    assert found.choose(kind_of_copy(2), 15).count == 0
    assert found.choose(kind_of_copy(12), 15).count > 0
    assert found.choose(kind_of_copy(12), 15).gain > found.choose(kind_of_copy(4), 15).gain


@table("cost, share", product([0.02, 0.2, 1.0], [0.0, 0.5, 0.9]))
def test_the_draft_is_used_if_that_is_faster(cost: float, share: float) -> None:
    found, faster = gate(0.05, share, DRAFTED, 400, cost)
    sizes = [n - 1 for n in (1, *SIZES)]
    possible = max((1 + expected(share, n)) / (1 + (0.05 + cost) * n) for n in sizes)
    assert faster > 0.97
    assert faster > 0.75 * possible
    if possible == 1:
        assert found.choose(DRAFTED, 15).count == 0


def test_rejected_kinds_are_tried_again_occasionally() -> None:
    found, _ = gate(0.2, 0.0)
    tried = sum(found.wants_to_learn(COPY) for _ in range(10 * COPY_RETRY))
    assert tried == 10
    tried = sum(found.wants_to_learn(DRAFTED) for _ in range(10 * DRAFT_RETRY))
    assert tried == 10


def test_pauses_between_tokens_are_not_measured() -> None:
    """This holds for a pause in a plain step and in the first verified one."""
    found = Gate()
    for seconds in (PLAIN, 3600.0, PLAIN, PLAIN, PLAIN):
        found.record_plain(seconds)
    assert found.plain_rate == pytest.approx(1 / PLAIN)
    for seconds in (PLAIN, 3600.0, 1.1 * PLAIN):
        found.record_verified(COPY, 2, 1, seconds)
    assert found.cost(2) == pytest.approx(1.1)
    assert found.choose(COPY, 15).count > 0


def test_the_expected_number_of_accepted_tokens_is_right() -> None:
    assert expected(1.0, 5) == 5
    assert expected(0.0, 5) == 0
    assert expected(0.5, 2) == pytest.approx(0.75)


def index(prompt: Iterable[int], answer: Iterable[int] = ()) -> CopyIndex:
    found = CopyIndex(np.array(list(prompt), np.int32))
    for token in answer:
        found.append(token)
    return found


def test_the_continuation_of_an_earlier_occurrence_is_found() -> None:
    assert index([1, 2, 3, 4, 5, 6, 9], [2, 3, 4]).find(2) == Match((5, 6), 4, 3)
    assert index([1, 2, 3, 4, 5, 6, 9], [3, 4]).find(9) == Match((5, 6, 9, 3, 4, 5, 6, 9, 3), 4, 2)


def test_without_a_match_nothing_is_found() -> None:
    assert index([1, 2, 3, 4], [9, 8]).find(4) is None
    assert index([1], []).find(4) is None
    assert index([1, 2, 1, 2, 3], [1, 2]).find(0) is None
    assert index([1, 2], []).find(3) is None, "nothing follows the last tokens"


def test_the_last_one_of_the_longest_matches_wins() -> None:
    one, other = [1, 2, 3, 4, 50], [7, 2, 3, 4, 60]
    assert index([*one, *other], [1, 2, 3, 4]).find(1) == Match((50,), 4, 4)
    assert index([*one, *other, *one], [1, 2, 3, 4]).find(1) == Match((50,), 14, 4)
    assert index([*one, *other], [9, 3, 4]).find(1) == Match((60,), 9, 2)


def test_matches_in_the_answer_are_found_too() -> None:
    found = index([9], [5, 6, 7, 8, 5, 6, 7])
    assert found.find(1) == Match((8,), 4, 3)
    assert index([9], [5, 6, 5, 6, 5, 6]).find(5) == Match((5, 6, 5, 6, 5), 5, 4)


def test_the_index_finds_the_same_as_a_plain_search() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 5, 300).tolist()
    found = CopyIndex(np.array(prompt, np.int32))
    text = list(prompt)
    for token in rng.integers(0, 5, 400).tolist():
        match = found.find(1)
        wanted = longest(text)
        assert (match.length if match else 0) >= min(wanted, 3), text[-6:]
        if match:
            assert tuple(text[match.start : match.start + 1]) == match.ids
            assert text[match.start - match.length : match.start] == text[-match.length :]
        found.append(token)
        text.append(token)


def longest(text: list[int]) -> int:
    """The best match of at least two tokens by exhaustive search."""
    best = 0
    for end in range(2, len(text)):
        length = 0
        while length < min(end, MAX_MATCH) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        best = max(best, length)
    return best if best >= 2 else 0
