"""The engine thread and its turns, with tiny random models of real architectures."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache

from app.engine.backend.device import CPU, GPU, Backend
from app.engine.cache import prefill, prefix_cache
from app.engine.engine import MlxEngine
from app.engine.model import loader
from app.engine.model.findings import Speed
from app.engine.scorers import attention
from app.engine.scorers.scorer import ScoringError
from app.engine.turn import preparation
from app.estimate import work
from app.protocol.commands import Ask, CachePolicy, Close, Load
from app.protocol.events import (
    CommandFailed,
    EngineWarning,
    Event,
    Failed,
    FellBackToDense,
    Finished,
    ImportanceMap,
    Loaded,
    PhaseProgress,
    Planned,
    Selected,
    Token,
)
from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Message, Role
from app.protocol.reasons import FailureKind, ReasonCode
from app.protocol.stats import FinishReason, Phase, Reading
from app.sandbox.process import Check, TextProcess
from tests import tiny
from tests.engine.driver import LIMIT, LONG_TEXT, TEXT, Driver, question
from tests.tables import slow, table

SHORT = TEXT[:550]
"""For tests in which it does not matter how much is read."""


def _phases(driver: Driver) -> list[Phase]:
    phases = [e.phase for e in driver.of(PhaseProgress)]
    return [p for i, p in enumerate(phases) if i == 0 or phases[i - 1] is not p]


# ------------------------------------------------------------------------------------ a turn


@pytest.mark.parametrize("mode", [Mode.SPARSE, slow(Mode.FULL)])
def test_a_turns_arrays_are_freed_without_the_garbage_collector(loaded: Driver, mode: Mode) -> None:
    """Python's collector counts objects, not bytes, so gigabytes could wait for it."""

    def caches() -> int:
        return sum(isinstance(each, KVCache) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(4):
            loaded.answer(replace(question(), mode=mode))
            counts.append(caches())
    finally:
        gc.enable()
    assert counts[0] > 0
    assert max(counts) <= 2 * counts[0]  # the last turn's may still be there


def test_a_sparse_turn_emits_all_events(loaded: Driver) -> None:
    finished = loaded.answer(question())
    assert _phases(loaded) == [Phase.SCORE, Phase.LOOKAHEAD, Phase.PREFILL, Phase.DECODE]
    for phase in (Phase.SCORE, Phase.PREFILL):
        progress = [e for e in loaded.of(PhaseProgress) if e.phase is phase]
        assert progress[0].done == 0
        assert progress[-1].finished
        assert [e.done for e in progress] == sorted(e.done for e in progress)
        assert all(e.eta is not None for e in progress[1:])
    (planned,) = loaded.of(Planned)
    (selected,) = loaded.of(Selected)
    assert planned.reading is Reading.SPARSE
    assert planned.prompt_tokens == len(planned.prompt_ids) == selected.prompt_tokens
    assert selected.selected_tokens == sum(s.end - s.start for s in selected.spans)
    for place in selected.texts:
        assert 0 <= place.start < place.end <= len(TEXT)
    maps = loaded.of(ImportanceMap)
    assert maps[-1].observed == maps[-1].to_observe
    assert max(maps[-1].buckets) == pytest.approx(1.0)
    statistics = finished.statistics
    assert statistics.read_tokens == selected.selected_tokens
    assert statistics.prompt_fraction == selected.selected_tokens / planned.prompt_tokens
    assert sum(p.seconds for p in statistics.phases) == pytest.approx(statistics.ttft, abs=0.02)
    assert statistics.peak_bytes > 0
    tokens = loaded.of(Token)
    assert "".join(t.text for t in tokens) == finished.text
    assert tuple(i for t in tokens for i in t.ids) == finished.generated_ids
    assert finished.finish_reason is FinishReason.LENGTH
    assert len(finished.generated_ids) == 12


def test_span_texts_match_their_tokens(loaded: Driver) -> None:
    loaded.answer(question())
    (planned,), (selected,) = loaded.of(Planned), loaded.of(Selected)
    document = next(s for s in planned.segments if s.document == 0)
    for place in selected.texts:
        span = selected.spans[place.span]
        start, end = max(span.start, document.start), min(span.end, document.end)
        assert len(TEXT[place.start : place.end].encode()) == end - start  # one token a byte


def test_full_reading_equals_plain_mlx_lm(loaded: Driver) -> None:
    finished = loaded.answer(question(mode=Mode.FULL))
    (planned,) = loaded.of(Planned)
    assert planned.reading is Reading.DENSE
    assert _phases(loaded) == [Phase.PREFILL, Phase.DECODE]
    model = tiny.build("qwen3", 0, vocabulary=tiny.BYTES)
    prompt = mx.array(planned.prompt_ids)
    plain = [t for t, _ in generate_step(prompt, model, max_tokens=12, prefill_step_size=64)]
    assert list(finished.generated_ids) == plain


def test_keeping_everything_equals_full_reading(loaded: Driver) -> None:
    everything = loaded.answer(question(keep=1.0))
    full = loaded.answer(question(Mode.FULL))
    assert everything.generated_ids == full.generated_ids
    assert everything.statistics.read_fraction == 1.0


def test_auto_reads_the_first_long_prompt_sparsely(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "DENSE_WITHIN_SECONDS", 0.0)  # tiny models are quick
    monkeypatch.setattr(work, "MIN_SAVING", 0.0)
    loaded.engine._loaded.pair.target.speed = Speed(0.01, 0.01)  # type: ignore[union-attr]
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF))
    finished = loaded.answer(question(mode=Mode.AUTO, text=LONG_TEXT))
    assert finished.statistics.reading is Reading.SPARSE
    assert finished.statistics.reasons[0].code is ReasonCode.FASTER


def test_an_unseeded_answer_reports_its_seed_and_can_be_repeated(loaded: Driver) -> None:
    ask = question(Mode.FULL, tokens=30, text=SHORT)

    def sampled(seed: int | None) -> Finished:
        sampling = Sampling(30, 1.0, seed=seed)
        return loaded.answer(replace(ask, sampling=sampling))

    sampled(7)
    first, second = sampled(None), sampled(None)
    assert first.generated_ids != second.generated_ids
    assert sampled(first.statistics.seed).generated_ids == first.generated_ids


def test_reselecting_uses_the_stored_scores(loaded: Driver) -> None:
    loaded.answer(question(keep=0.2))
    (first,) = loaded.of(Selected)
    for keep in (0.01, 0.5, 0.2):
        loaded.engine.reselect(loaded.turn, keep)
        selected = loaded.until(Selected)
        assert selected.keep_ratio == keep
        if keep == 0.2:
            assert selected.spans == first.spans
        else:
            assert (selected.selected_tokens > first.selected_tokens) == (keep > 0.2)


def test_the_same_prompt_is_scored_once_and_can_be_read_again_from_scratch(loaded: Driver) -> None:
    fresh = loaded.answer(replace(question(), keep_ratio=0.5))
    first_map = loaded.of(ImportanceMap)[-1]
    loaded.answer(replace(question(), conversation="x", keep_ratio=0.1))
    loaded.events.clear()
    again = replace(question(), conversation="x", keep_ratio=0.5, read_again=True)
    finished = loaded.answer(again)
    assert Phase.SCORE not in _phases(loaded)
    assert loaded.of(ImportanceMap)[-1].buckets == pytest.approx(first_map.buckets, abs=1e-3)
    assert finished.generated_ids == fresh.generated_ids
    assert finished.statistics.reused_tokens == 0
    assert finished.statistics.read_tokens == fresh.statistics.read_tokens
    other = replace(again.messages[-1], text="What is the code of gate 8?")
    loaded.answer(replace(again, messages=(other,)))
    assert Phase.SCORE in _phases(loaded)


@pytest.mark.slow
def test_without_a_draft_an_unpinned_passage_is_scored_as_if_never_pinned(
    driver: Driver, folders: dict[str, Path]
) -> None:
    driver.load(folders["target"])
    check_unpinned(driver)


def test_an_unpinned_passage_is_scored_as_if_never_pinned(loaded: Driver) -> None:
    check_unpinned(loaded)


def check_unpinned(driver: Driver) -> None:
    ask = question(keep=0.3)
    (message,) = ask.messages
    (document,) = message.documents
    pinned = replace(document, pinned=((0, len(TEXT) // 2),))
    found = []
    for each, name in [(pinned, "c"), (document, "c"), (document, "d")]:
        asked = replace(ask, conversation=name, read_again=True)
        driver.answer(replace(asked, messages=(replace(message, documents=(each,)),)))
        found.append(driver.of(Selected)[-1])
    _, unpinned, never = found
    assert replace(unpinned, turn=never.turn) == never


def on_backend(backend: Backend, folders: dict[str, Path]) -> tuple[Finished, Selected]:
    driver = Driver(None, backend=backend)
    try:
        driver.load(folders["target"], folders["draft"])
        finished = driver.answer(question())
        return finished, driver.of(Selected)[-1]
    finally:
        driver.close()


def test_a_turn_answers_the_same_on_either_backend(folders: dict[str, Path]) -> None:
    (on_cpu, chosen), (on_gpu, same) = (on_backend(backend, folders) for backend in (CPU, GPU))
    assert on_gpu.statistics.reading is Reading.SPARSE
    assert on_gpu.generated_ids == on_cpu.generated_ids
    assert [(s.start, s.end) for s in same.spans] == [(s.start, s.end) for s in chosen.spans]


# ------------------------------------------------------------------------------------ cancel

BORDERS = {
    "planned": lambda e: isinstance(e, Planned),
    "first scoring step": lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.SCORE,
    "later scoring step": lambda e: (
        isinstance(e, PhaseProgress) and e.phase is Phase.SCORE and e.done > 1000
    ),
    "lookahead": lambda e: isinstance(e, ImportanceMap),
    "selected": lambda e: isinstance(e, Selected),
    "first prefill step": lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.PREFILL,
    "later prefill step": lambda e: (
        isinstance(e, PhaseProgress) and e.phase is Phase.PREFILL and e.done > 100
    ),
    "decoding": lambda e: isinstance(e, Token),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["hybrid", "sliding"])
def test_a_cancel_at_any_step_does_not_affect_the_next_turn_of_any_target(
    driver: Driver, folders: dict[str, Path], target: str
) -> None:
    driver.load(folders[target], folders["draft"])
    check_cancels(driver, *BORDERS)


def test_a_cancel_while_a_hybrid_reads_does_not_affect_the_next_turn(
    driver: Driver, folders: dict[str, Path]
) -> None:
    driver.load(folders["hybrid"], folders["draft"])
    check_cancels(driver, "later prefill step", "decoding")


def test_a_cancel_at_any_step_does_not_affect_the_next_turn(loaded: Driver) -> None:
    check_cancels(loaded, *BORDERS)


def check_cancels(driver: Driver, *borders: str) -> None:
    fresh = driver.answer(question())
    for border in borders:
        driver.cancel_when(BORDERS[border])
        # The answer is long enough not to end before its first tokens are reported.
        tokens = 4000 if border == "decoding" else 12
        stopped = driver.answer(replace(question(tokens=tokens), conversation=border))
        driver.on_event = lambda event: None
        assert stopped.finish_reason is FinishReason.CANCELLED, border
        if border != "decoding":
            assert stopped.generated_ids == ()
        assert driver.engine._loaded.caches._caches[border].drop_damaged() is None, border
        assert driver.answer(question()).generated_ids == fresh.generated_ids, border


@pytest.mark.parametrize("target", ["target", "hybrid", slow("sliding")])
def test_a_cancel_within_a_long_step_leaves_the_steps_before_it(
    driver: Driver,
    folders: dict[str, Path],
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill, "PART_SECONDS", 1e-9)
    driver.load(folders[target], folders["draft"])
    driver.engine.send(CachePolicy(share_prefixes=False))
    fresh = driver.answer(question())
    for phase in (Phase.SCORE, Phase.PREFILL):
        ask = replace(question(), conversation=phase.name)
        driver.cancel_when(
            lambda event, phase=phase: (
                isinstance(event, PhaseProgress) and event.phase is phase and 0 < event.done < 64
            )
        )
        stopped = driver.answer(ask)
        driver.on_event = lambda event: None
        assert stopped.finish_reason is FinishReason.CANCELLED, phase
        assert stopped.statistics is None or stopped.statistics.read_tokens % 64 == 0, phase
        assert driver.answer(ask).generated_ids == fresh.generated_ids, phase
        assert driver.of(EngineWarning) == [], "nothing was damaged"


def test_tokenising_can_be_cancelled(loaded: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(self: TextProcess, pieces: object, check: Check) -> None:
        loaded.cancel()
        while True:
            check()

    with monkeypatch.context() as patch:
        patch.setattr(TextProcess, "encode", endless)
        stopped = loaded.answer(question(text=SHORT))
    assert stopped.finish_reason is FinishReason.CANCELLED
    assert loaded.answer(question(text=SHORT)).finish_reason is not FinishReason.CANCELLED


def test_a_queued_turn_can_be_cancelled(loaded: Driver) -> None:
    second = threading.Event()

    def cancel_the_second(event: Event) -> None:
        if isinstance(event, Planned):
            assert second.wait(LIMIT)
            loaded.cancel()

    loaded.on_event = cancel_the_second
    turn = loaded.ask(question(text=SHORT)).number
    loaded.ask(question(text=SHORT))
    second.set()
    first, last = loaded.until(Finished), loaded.until(Finished)
    assert (first.turn, first.finish_reason) == (turn, FinishReason.LENGTH)
    assert last == Finished(turn + 1, FinishReason.CANCELLED, "", (), None)


def test_a_cancelled_turn_reports_the_tokens_read_so_far(loaded: Driver) -> None:
    loaded.cancel_when(
        lambda e: isinstance(e, PhaseProgress) and e.phase is Phase.PREFILL and e.done >= 128
    )
    stopped = loaded.answer(question(Mode.FULL))
    assert stopped.statistics.read_tokens == 128
    assert stopped.statistics.ttft == 0.0


def test_a_turn_can_be_asked_again_from_its_last_event(loaded: Driver) -> None:
    """It is asked from within the listener, and its cancel is not lost."""
    asked = iter([question(text=SHORT), None])

    def ask_again(event: Event) -> None:
        if isinstance(event, Finished) and (command := next(asked, None)) is not None:
            loaded.ask(command)
            loaded.cancel()

    loaded.on_event = ask_again
    assert loaded.answer(question(text=SHORT)).finish_reason is FinishReason.LENGTH
    second = loaded.until(Finished)
    assert second.finish_reason is FinishReason.CANCELLED


def test_a_question_runs_before_queued_background_requests(loaded: Driver) -> None:
    """`make_ask` is called when the turn starts, and never if it was cancelled before."""
    made: list[str] = []

    def request(name: str) -> Callable[[], Ask]:
        def make() -> Ask:
            made.append(name)
            return question(tokens=1, text=SHORT)

        return make

    def ask_more(event: Event) -> None:
        if isinstance(event, Planned):
            loaded.on_event = lambda event: None
            loaded.engine.ask(request("gone"), loaded._take, background=True).cancel()
            loaded.engine.ask(request("waits"), loaded._take, background=True)
            loaded.engine.ask(question(tokens=1, text=SHORT), loaded._take)

    loaded.on_event = ask_more
    turn = loaded.answer(question(tokens=1, text=SHORT)).turn
    ended = [loaded.until(Finished) for _ in range(3)]
    assert [(event.turn - turn, event.finish_reason) for event in ended] == [
        (3, FinishReason.LENGTH),
        (1, FinishReason.CANCELLED),
        (2, FinishReason.LENGTH),
    ]
    assert made == ["waits"]


def test_a_late_cancel_has_no_effect(loaded: Driver) -> None:
    fresh = loaded.answer(question(text=SHORT))
    loaded.cancel()
    for _ in range(2):
        assert loaded.answer(question(text=SHORT)).generated_ids == fresh.generated_ids


def test_closing_stops_a_running_turn(folders: dict[str, Path]) -> None:
    driver = Driver()
    driver.load(folders["target"], folders["draft"])
    driver.ask(question(tokens=100_000, text=SHORT))
    driver.until(Token)
    driver.close()
    (finished,) = driver.of(Finished)
    assert finished.finish_reason is FinishReason.CANCELLED


# ------------------------------------------------------------------- what must not be touched


def _state(model: Any) -> list[tuple[str, Any]]:
    return [(name, np.array(a.astype(mx.float32))) for name, a in tree_flatten(model.parameters())]


@pytest.mark.parametrize("name", tiny.architectures(*tiny.ORACLE))
def test_the_model_is_never_modified(
    driver: Driver,
    tmp_path: Path,
    folders: dict[str, Path],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain mlx-lm on the engine's model gives the same logits before and after finished,
    cancelled, fallen back and failed turns."""
    driver.load(tiny.save(tmp_path / name, name, 5), folders["draft"])
    pair = driver.engine._loaded.pair
    model = pair.target.model
    ids = mx.array([[3, 1, 4, 1, 5, 9, 2, 6] * 5])
    logits: list[Any] = []

    def note(event: Event) -> None:
        if isinstance(event, Planned | FellBackToDense | Finished | Failed):
            logits.append(np.array(model(ids)))
        if isinstance(event, Selected) and event.turn == 2:
            driver.cancel()

    driver.on_event = note
    finished = driver.answer(question())
    assert finished.statistics.reading is Reading.SPARSE
    assert driver.answer(question()).finish_reason is FinishReason.CANCELLED
    original = prefix_cache.prefill

    def broken(model: Any, cache: Any, ids: Any, positions: Any, *rest: Any) -> None:
        original(model, cache, ids[:70], None if positions is None else positions[:70], *rest)
        raise ValueError("broken on purpose")

    monkeypatch.setattr(prefix_cache, "prefill", broken)
    assert isinstance(driver.run(question()), Failed)
    assert len(driver.of(FellBackToDense)) == 1
    monkeypatch.undo()
    driver.answer(question(Mode.FULL))
    assert len(logits) == 9
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])
    np.testing.assert_array_equal(
        logits[0], np.array(tiny.build(name, 5, vocabulary=tiny.BYTES)(ids))
    )


def test_a_bfloat16_model_keeps_bfloat16_caches(
    driver: Driver, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds after sparse prefill and until the end of decoding."""
    driver.load(folders["bf16"], folders["draft"])
    caches: list[Any] = []
    original = loader.make_positioned_cache
    monkeypatch.setattr(
        loader,
        "make_positioned_cache",
        lambda m: caches.append(original(m)) or caches[-1],
    )
    dtypes: list[set[mx.Dtype]] = []

    def note(event: Event) -> None:
        if isinstance(event, Token | Finished):
            layers = caches[-1]
            dtypes.append({a.dtype for c in layers for a in (c.keys, c.values)})

    driver.on_event = note
    finished = driver.answer(question(tokens=20))
    assert finished.statistics.reading is Reading.SPARSE
    assert len(caches) == 1
    assert dtypes
    assert all(d == {mx.bfloat16} for d in dtypes)


# ------------------------------------------------------------------------- when things fail


def test_a_failing_draft_falls_back_and_reports_it(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = loaded.answer(question(Mode.FULL))

    def broken(*_: Any, **__: Any) -> Any:
        raise ScoringError("its attention cannot be observed")

    monkeypatch.setattr(attention, "score_by_attention", broken)
    finished = loaded.answer(question())
    (fell_back,) = loaded.of(FellBackToDense)
    assert fell_back.reason.code is ReasonCode.SPARSE_FAILED
    assert fell_back.reason.data == {"error": "its attention cannot be observed"}
    assert finished.generated_ids == full.generated_ids
    assert finished.statistics.fallback == fell_back.reason
    assert finished.statistics.reading is Reading.DENSE
    assert finished.statistics.read_fraction == 1.0


def test_a_draft_with_hidden_attention_falls_back(driver: Driver, folders: dict[str, Path]) -> None:
    driver.load(folders["target"], folders["gemma2"])
    finished = driver.answer(question())
    assert "cannot be observed" in finished.statistics.fallback.data["error"]


@table("target, rereads", [("target", False), ("sliding", False), ("hybrid", True)])
def test_loading_reports_whether_recall_is_expensive(
    driver: Driver, folders: dict[str, Path], target: str, rereads: bool
) -> None:
    event = driver.load(folders[target], folders["draft"])
    assert event.recall_is_expensive is rereads


def test_a_model_with_learned_positions_reads_densely(
    driver: Driver, folders: dict[str, Path]
) -> None:
    event = driver.load(folders["gpt2"], folders["draft"])
    assert event.dense_only is not None
    ask = question(tokens=3)
    finished = driver.answer(replace(ask, messages=(Message(Role.USER, "hello " * 20),)))
    assert finished.statistics.reading is Reading.DENSE
    assert finished.statistics.reasons == (event.dense_only,)


def test_a_prompt_longer_than_the_context_is_refused(
    driver: Driver, folders: dict[str, Path]
) -> None:
    driver.load(folders["short"], folders["draft"])
    failed = driver.run(replace(question(), messages=(Message(Role.USER, "Why? " * 120),)))
    length, context = failed.failure.data["tokens"], failed.failure.data["context"]
    assert context == 500
    assert failed.excess_tokens == length - 500 + 1, "what has to go"
    assert not failed.predicted, "to insist would not help"


def test_asking_without_a_model_and_loading_nonsense_fail_cleanly(
    driver: Driver, tmp_path: Path, folders: dict[str, Path]
) -> None:
    failed = driver.run(question())
    assert failed.failure.kind is FailureKind.NO_MODEL
    event = driver.load(tmp_path)
    assert isinstance(event, CommandFailed)
    assert isinstance(driver.load(folders["target"]), Loaded), "the thread lives on"
    finished = driver.answer(question())
    assert finished.statistics.fallback is None
    assert finished.statistics.reading is Reading.SPARSE, "the built-in scorer chooses"


class PanicException(BaseException):
    """Tokenizers raise errors that are no `Exception`."""


@table("error", [ZeroDivisionError(), SystemExit(1), PanicException("a, b")])
def test_an_unexpected_error_does_not_end_the_thread(
    error: BaseException, loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(estimate: object, expected: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_plan", fail)
        failed = loaded.run(question(text=SHORT))
    assert failed.failure.data == {"error": f"{type(error).__name__} in fail, {error}"}
    loaded.answer(question(text=SHORT))


@table(
    "error, kind",
    [
        (SystemExit(1), FailureKind.PACKAGE_MISSING),
        (PanicException("a, b"), FailureKind.MODEL_NOT_LOADED),
    ],
)
def test_a_model_whose_module_exits_does_not_load(
    error: BaseException,
    kind: FailureKind,
    driver: Driver,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("app.engine.model.loader.load_model", fail)
        failed = driver.load(folders["target"])
    assert failed.failure.kind is kind
    assert failed.failure.data["folder"] == str(folders["target"])
    assert isinstance(driver.load(folders["target"]), Loaded)


def test_without_mlx_every_command_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "app.engine.backend.mlx_patches", None)
    monkeypatch.delattr("app.engine.backend.mlx_patches")
    driver = Driver()
    loading = driver.load(Path("anything"))
    assert loading.failure.kind is FailureKind.MLX_MISSING
    asking = driver.run(question())
    assert isinstance(asking, Failed)
    assert asking.turn == 1
    driver.close()


def test_time_before_a_fallback_counts_in_its_phase(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: Any, **__: Any) -> Any:
        time.sleep(0.5)
        raise ScoringError("broken on purpose")

    monkeypatch.setattr(attention, "score_by_attention", slow)
    finished = loaded.answer(question())
    phases = {part.phase: part.seconds for part in finished.statistics.phases}
    assert phases[Phase.SCORE] >= 0.5
    assert phases[Phase.DECODE] < 0.5


def test_a_newer_load_stops_the_previous_one(tmp_path: Path) -> None:
    """Each load is answered in order, and the last pair is loaded."""
    driver = Driver()
    first, second = (Load(str(tiny.save(tmp_path / name))) for name in ("first", "second"))
    both = threading.Event()
    start = driver.engine._start

    def wait() -> bool:
        both.wait(LIMIT)
        return start()

    driver.engine._start = wait  # type: ignore[method-assign]
    driver.engine.send(first)
    driver.engine.send(second)
    both.set()
    failed, loaded = driver.until(CommandFailed), driver.until(Loaded)
    assert failed.failure.kind is FailureKind.LOADING_STOPPED
    assert loaded.target.name == "second"
    driver.engine.send(Close())
    driver.engine.join(LIMIT)


def test_a_listener_that_fails_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def listen(event: Event) -> None:
        heard.append(event)
        raise KeyError(len(heard))

    engine = MlxEngine()
    engine.listen(listen)
    for _ in range(2):
        engine.ask(Ask((Message(Role.USER, "Who?"),)), listen)
    engine.send(Close())
    engine.join(LIMIT)
    assert [getattr(event, "turn", None) for event in heard] == [1, 2, None]
    assert "A listener failed" in caplog.text
