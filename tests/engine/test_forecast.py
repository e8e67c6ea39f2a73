"""The predicted time to the first token while phases run faster or slower than predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest

from app.engine.progress import Forecast, ScoringPart, Step, TurnClock
from app.protocol.events import Event, PhaseProgress
from app.protocol.stats import Phase
from tests.tables import table

TICKS = 40
"""Number of progress reports per step."""

Slowness = Callable[[float], float]
"""(predicted seconds since the start) -> slowdown of the machine."""

PATHS: dict[str, list[Step]] = {
    "full": [Step(Phase.PREFILL, 60.0), Step(Phase.DECODE, 0.2)],
    "built-in scorer": [
        Step(Phase.SCORE, 3.0, ScoringPart.BUILT_IN),
        Step(Phase.PREFILL, 40.0),
        Step(Phase.DECODE, 0.2),
    ],
    "joined": [
        Step(Phase.SCORE, 4.0, ScoringPart.BUILT_IN),
        Step(Phase.SCORE, 12.0, ScoringPart.DRAFT),
        Step(Phase.LOOKAHEAD, 1.0),
        Step(Phase.PREFILL, 30.0),
        Step(Phase.DECODE, 0.2),
    ],
    "quotation": [
        Step(Phase.SCORE, 4.0, ScoringPart.QUOTATION),
        Step(Phase.SCORE, 6.0, ScoringPart.DRAFT),
        Step(Phase.LOOKAHEAD, 0.5),
        Step(Phase.PREFILL, 10.0),
        Step(Phase.DECODE, 0.1),
    ],
}


@dataclass
class Played:
    """A turn on a simulated clock: the shown and the true remaining seconds at each report."""

    etas: list[tuple[float, float]]
    shown: list[PhaseProgress]


def play(
    steps: list[Step],
    slowness: Slowness,
    monkeypatch: pytest.MonkeyPatch,
    forecast: list[Step] | None = None,
) -> Played:
    """Simulate these steps, with the prediction `forecast`."""
    now = [0.0]
    monkeypatch.setattr("app.engine.progress.time.perf_counter", lambda: now[0])
    events: list[Event] = []
    clock = TurnClock(1, events.append, lambda: False)
    clock.forecast = Forecast(steps if forecast is None else forecast)
    moments: list[float] = []
    predicted = 0.0
    for step in steps:
        if step.phase in (Phase.LOOKAHEAD, Phase.DECODE):  # they report nothing in between
            predicted += step.seconds
            now[0] += step.seconds * slowness(predicted)
            continue
        report = clock.report(step.phase, 1_000, step.part)
        moments.append(now[0])
        for tick in range(1, TICKS + 1):
            predicted += step.seconds / TICKS
            now[0] += step.seconds / TICKS * slowness(predicted)
            report(1_000 * tick // TICKS)
            moments.append(now[0])
    shown = [event for event in events if isinstance(event, PhaseProgress)]
    assert all(event.eta is not None for event in shown)
    pairs = [(event.eta or 0.0, now[0] - at) for event, at in zip(shown, moments, strict=True)]
    return Played(pairs, shown)


def share_within(played: Played, factor: float) -> float:
    """Share of the time in which the shown value is right up to this factor."""
    ends = [true for _, true in played.etas[1:]] + [0.0]
    good = whole = 0.0
    for (shown, true), end in zip(played.etas, ends, strict=True):
        whole += true - end
        if true / factor - 0.2 <= shown <= true * factor + 0.2:
            good += true - end
    return good / whole


@table("path, factor", product(PATHS, [1.0, 3.0, 1 / 3]))
def test_the_forecast_adapts_to_the_machines_speed(
    path: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(PATHS[path], lambda at: factor, monkeypatch)
    assert share_within(played, 3.1) == pytest.approx(1.0)
    assert share_within(played, 1.5) >= (0.6 if factor != 1.0 else 0.999)


@table("path, factor", product(["full", "built-in scorer", "joined"], [3.0, 1 / 3]))
def test_the_forecast_adapts_to_a_change_of_speed(
    path: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = sum(step.seconds for step in PATHS[path]) / 2
    played = play(PATHS[path], lambda at: factor if at > middle else 1.0, monkeypatch)
    assert share_within(played, 3.1) == pytest.approx(1.0)
    after = Played(played.etas[len(played.etas) * 3 // 4 :], [])
    assert share_within(after, 1.7) >= 0.7


@table("path", PATHS)
def test_the_forecast_never_stays_near_zero(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is ten times slower than predicted."""
    for shown, true in play(PATHS[path], lambda at: 10.0, monkeypatch).etas:
        assert shown >= true / 12 - 0.2
        assert shown > 1.0 or true < 5.0


def test_missing_and_unpredicted_steps_do_not_affect_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined = PATHS["joined"]
    without_encoder = [step for step in joined if step.part is not ScoringPart.BUILT_IN]
    played = play(without_encoder, lambda at: 1.0, monkeypatch, joined)
    assert share_within(played, 1.2) == pytest.approx(1.0)
    unpredicted = [step for step in joined if step.phase is not Phase.SCORE]
    etas = play(joined, lambda at: 1.0, monkeypatch, unpredicted).etas[1:]
    assert all(shown >= 30 for shown, true in etas if true > 31)


def test_a_repeated_phase_and_a_new_prediction_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("app.engine.progress.time.perf_counter", lambda: now[0])
    events: list[Event] = []
    clock = TurnClock(1, events.append, lambda: False)
    clock.forecast = Forecast(PATHS["joined"])

    def eta() -> float:
        last = events[-1]
        assert isinstance(last, PhaseProgress)
        assert last.eta is not None
        return last.eta

    clock.report(Phase.SCORE, 100, ScoringPart.BUILT_IN)
    assert eta() == pytest.approx(47.2)
    clock.forecast.expect(Phase.PREFILL, 10.0)
    clock.report(Phase.PREFILL, 100)
    assert eta() == pytest.approx(10.2)
    now[0] = 5.0
    clock.report(Phase.PREFILL, 100)
    assert eta() == pytest.approx(10.2), "from its start"
    clock.forecast = Forecast(PATHS["full"])  # sparse reading failed
    clock.report(Phase.PREFILL, 100)
    assert eta() == pytest.approx(60.2)
    clock.forecast = Forecast()
    clock.forecast.expect(Phase.PREFILL, 7.0)
    clock.report(Phase.PREFILL, 100)
    assert eta() == pytest.approx(7.0)


def test_a_slow_short_step_hardly_changes_the_forecast_of_a_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = PATHS["built-in scorer"]
    slow_scorer = [Step(Phase.SCORE, 15.0, ScoringPart.BUILT_IN), *path[1:]]
    for shown, _ in play(slow_scorer, lambda at: 1.0, monkeypatch, path).etas[TICKS + 2 :]:
        assert shown < 2.2 * 40, "not five times as much"


def test_two_scorers_are_one_phase_that_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(PATHS["joined"], lambda at: 1.0, monkeypatch)
    scored = [event for event in played.shown if event.phase is Phase.SCORE]
    done = [event.done for event in scored]
    assert done == sorted(done)
    assert [event.finished for event in scored].count(True) == 1
    assert scored[TICKS].done == pytest.approx(250, abs=1), "a quarter of its time"
