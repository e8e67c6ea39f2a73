"""Auto takes the way that is expected to be the faster one, and turns teach what to expect."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.engine_session import EngineError, EngineSession
from app.engine import calibration, engine, memory
from app.engine.engine import MlxEngine
from app.engine.planner import PredictedTtft, plan
from app.engine.progress import TurnClock
from app.protocol.commands import Ask, CachePolicy, CalibrateCosts, Load
from app.protocol.cost_model import DENSE_BELOW_UNTIMED, FREE, AttentionWork, Costs, LinearCost
from app.protocol.events import CostsUpdated, Event, PhaseProgress, Planned
from app.protocol.options import BackgroundPolicy, Mode, Tuning
from app.protocol.prompt import Message, Role
from app.protocol.stats import Phase, Reading
from tests.engine.driver import LONG_TEXT, Driver, question
from tests.engine.scripted import ScriptedProbe

AUTO = Ask(1, (Message(Role.USER, "Where is it?"),), Mode.AUTO)


def decided(expected: PredictedTtft, new: int = 20_000, ask: Ask = AUTO) -> Reading:
    return plan(ask, new, 0, new - 50, None, expected).reading


def test_auto_takes_the_faster_way_whatever_the_length() -> None:
    assert decided(PredictedTtft(1.0, 2.0), new=1_600) is Reading.SPARSE
    assert decided(PredictedTtft(2.0, 1.0)) is Reading.DENSE
    assert decided(PredictedTtft(9.0, 10.0)) is Reading.DENSE  # nothing is left out for so little


def test_auto_reads_a_small_table_in_full_however_slow_the_pair() -> None:
    small = plan(AUTO, 150, 0, 100, None, PredictedTtft(4.1, 10.0))
    assert small.reading is Reading.DENSE
    assert small.reason == "Fewer than 1,024 tokens could be skipped, so everything is read."


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        (
            PredictedTtft(9.0, 10.0),
            "Sparse is expected in 9.0 s, full in 10 s: too little is saved",
        ),
        (PredictedTtft(0.1, 0.9), "Full reading is expected in 0.9 s: too quick"),
        (PredictedTtft(12.0, 10.0), "Sparse is expected in 12 s, full in 10 s."),
    ],
)
def test_ties_and_quick_readings_go_to_full_and_the_reason_is_true(
    expected: PredictedTtft, reason: str
) -> None:
    decision = plan(AUTO, 20_000, 0, 19_000, None, expected)
    assert decision.reading is Reading.DENSE
    assert decision.reason.startswith(reason)
    assert decision.reason.endswith((" to skip anything.", "10 s."))


def test_what_is_cached_already_is_the_reason_that_keep_saves_nothing() -> None:
    sparse = replace(AUTO, mode=Mode.SPARSE, keep_ratio=0.1)
    decision = plan(sparse, 40, 0, 0, None, cached=900)
    assert decision.reading is Reading.DENSE
    assert decision.show_selection
    assert decision.reason == (
        "Everything is already read and cached: keep 10% would save nothing."
    )
    automatic = plan(AUTO, 40, 0, 0, None, cached=900)
    assert automatic.reason == "Everything is already read and cached."
    assert not automatic.show_selection
    nothing = plan(sparse, 40, 0, 0, None)
    assert nothing.reason == "There is no document or history to skip."
    more = plan(sparse, 200, 0, 100, None, cached=900)
    assert more.reading is Reading.SPARSE
    assert "900 tokens were cached already" in more.reason


def test_what_is_expected_of_both_is_the_reason() -> None:
    reason = plan(AUTO, 20_000, 0, 19_000, None, PredictedTtft(3.14, 12.4)).reason
    assert reason == "Sparse is expected in 3.1 s, full in 12 s."


def test_before_both_were_timed_the_length_decides() -> None:
    for expected in (PredictedTtft(), PredictedTtft(None, 1.0), PredictedTtft(1.0, None)):
        assert decided(expected, DENSE_BELOW_UNTIMED - 1) is Reading.DENSE
        assert decided(expected, DENSE_BELOW_UNTIMED) is Reading.SPARSE


def test_a_tuning_that_names_a_length_and_the_guard_come_before_the_clock() -> None:
    sparse = replace(AUTO, tuning=Tuning(dense_below=0))
    assert decided(PredictedTtft(9.0, 1.0), ask=sparse) is Reading.SPARSE
    counting = replace(AUTO, messages=(Message(Role.USER, "How many are there?"),))
    assert decided(PredictedTtft(1.0, 9.0), ask=counting) is Reading.DENSE


# ------------------------------------------------------------------------------ the engine


def known(driver: Driver) -> Costs:
    """What the engine said last of the pair's costs."""
    event = driver.until(CostsUpdated)
    assert isinstance(event, CostsUpdated)
    return event.costs


def test_turns_teach_what_to_expect_of_the_next_ones(loaded: Driver, tmp_path: Path) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path / "costs")))
    assert known(loaded) == Costs()
    loaded.answer(question(1))
    assert loaded.of(Planned)[0].ttft is None
    costs = known(loaded)
    assert costs.target and costs.draft and costs.sparse  # noqa: PT018
    assert costs.full is None
    loaded.answer(question(2, Mode.AUTO, text=LONG_TEXT))
    planned = loaded.of(Planned)[0]
    assert planned.ttft is not None
    assert planned.ttft_alternative is not None
    assert " is expected in " in planned.reason
    known(loaded)
    loaded.answer(question(3))
    etas = [event.eta for event in loaded.of(PhaseProgress) if event.phase is Phase.SCORE]
    assert etas[0] is not None, "before anything of it was read"
    # Another program knows it from its start.
    other = Driver()
    other.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path / "costs")))
    other.load(*_folders(loaded))
    assert known(other).target is not None
    other.close()


def _folders(driver: Driver) -> tuple[Path, Path]:
    pair = driver.engine._loaded.pair
    assert pair is not None
    assert pair.draft is not None
    assert pair.target.folder is not None
    assert pair.draft.folder is not None
    return pair.target.folder, pair.draft.folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = ((Mode.SPARSE, 100), (Mode.FULL, 100), (Mode.SPARSE, 300))
    monkeypatch.setattr(calibration, "_RUNS", readings)
    monkeypatch.setattr(engine, "CALIBRATION_DELAY", 0.0)


@pytest.mark.usefixtures("quick")
def test_a_pair_that_was_never_timed_is_while_nothing_else_is_to_be_done(
    loaded: Driver, tmp_path: Path
) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.ALWAYS, costs_folder=str(tmp_path)))
    while known(loaded).full is None:
        pass
    while known(loaded).draft is None:
        pass
    assert not loaded.of(Planned), "nobody asked anything"
    statistics = loaded.answer(question(1, Mode.AUTO, text=LONG_TEXT)).statistics
    assert statistics is not None
    assert "is expected in" in statistics.reason
    assert statistics.reused_tokens == 0


@pytest.mark.usefixtures("quick")
def test_who_has_just_come_is_not_slowed_by_the_timing(
    loaded: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CALIBRATION_DELAY", 0.5)
    begun: list[float] = []
    step = calibration.Calibration.step

    def noted(self: calibration.Calibration) -> object:
        begun.append(time.perf_counter())
        return step(self)

    monkeypatch.setattr(calibration.Calibration, "step", noted)
    asked = time.perf_counter()
    loaded.engine.send(CachePolicy(BackgroundPolicy.ALWAYS, costs_folder=str(tmp_path)))
    while known(loaded).full is None:
        pass
    assert begun[0] - asked >= engine.IDLE_DELAY + engine.CALIBRATION_DELAY


@pytest.mark.usefixtures("quick")
def test_a_question_ends_the_timing_at_its_next_step(
    loaded: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    step = calibration.Calibration.step

    def asking(self: calibration.Calibration) -> object:
        asked.append(1)
        if len(asked) == 1:
            loaded.engine.send(question(1))
        return step(self)

    monkeypatch.setattr(calibration.Calibration, "step", asking)
    stopped = _ends(monkeypatch)
    loaded.engine.send(CachePolicy(BackgroundPolicy.ALWAYS, costs_folder=str(tmp_path)))
    known(loaded)
    while not (costs := known(loaded)).target:
        pass
    assert costs.full is None, "the turn's figures come first"
    assert stopped[0] == []


def _ends(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What each timing came to."""
    found: list[object] = []
    timed: Callable[..., object] = calibration.Calibration._time

    def watched(*arguments: object) -> object:
        found.append(timed(*arguments))
        return found[-1]

    monkeypatch.setattr(calibration.Calibration, "_time", watched)
    return found


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "upkeep",
    [CachePolicy(BackgroundPolicy.OFF, costs_folder="here"), CachePolicy(BackgroundPolicy.ALWAYS)],
)
def test_nothing_is_timed_where_nothing_may_be_read_or_kept(
    loaded: Driver, upkeep: CachePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = _ends(monkeypatch)
    costs = None if upkeep.costs_folder is None else str(tmp_path)
    loaded.engine.send(replace(upkeep, costs_folder=costs))
    known(loaded)
    while loaded.engine._idle_step(calibrate=True):  # as the engine's thread would
        pass
    assert not stopped


@pytest.mark.usefixtures("quick")
def test_a_pair_is_timed_when_that_is_asked_for(folders: dict[str, Path], tmp_path: Path) -> None:
    engine = MlxEngine(64, ScriptedProbe())
    with EngineSession(
        engine, CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path))
    ) as session:
        with pytest.raises(EngineError, match="No model is loaded"):
            session.calibrate()
        session.load(Load(str(folders["target"]), str(folders["draft"])))
        costs = session.calibrate()
        assert costs.target and costs.draft and costs.full and costs.sparse  # noqa: PT018
        session.load(Load(str(folders["gpt2"]), str(folders["gpt2"])))
        costs = session.calibrate()
        assert costs.target is not None
        assert costs.draft is None, "it reads only densely"
        session.load(Load(str(folders["target"])))
        costs = session.calibrate()
        assert costs.sparse is not None
        assert costs.draft == FREE, "the built-in draft is timed with the rest of the turn"
    assert len(list(tmp_path.glob("*.json"))) == 3


@pytest.mark.usefixtures("quick")
def test_nothing_is_timed_where_it_does_not_fit(
    loaded: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free", lambda: 0.0)
    timed = _ends(monkeypatch)
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path)))
    known(loaded)
    loaded.engine.send(CalibrateCosts())
    assert known(loaded) == Costs()
    assert not timed


# ------------------------------------------------------------------------------- the ETA


def test_the_eta_is_what_is_expected_corrected_by_how_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("app.engine.progress.time.perf_counter", lambda: now[0])
    events: list[Event] = []
    progress = TurnClock(1, events.append, lambda: False)
    draft, target = LinearCost(0.0, 0.01), LinearCost(0.0, 0.1)
    progress.expect(Phase.SCORE, lambda done: draft.seconds(AttentionWork(done)), 1_000)
    progress.expect(Phase.PREFILL, lambda done: target.seconds(AttentionWork(done)), 200)
    report = progress.report(Phase.SCORE, 1_000)

    def eta() -> float:
        last = events[-1]
        assert isinstance(last, PhaseProgress)
        assert last.eta is not None
        return last.eta

    assert eta() == pytest.approx(10 + 20)
    now[0] = 5.0
    report(500)
    assert eta() == pytest.approx(5 + 20), "as expected"
    now[0] = 20.0
    report(1_000)
    assert 20 < eta() < 40, "it took twice as long, and so may what is left"
    report = progress.report(Phase.PREFILL, 200)
    before = eta()
    now[0] = 30.0
    report(100)
    assert eta() < before


def test_without_expectations_the_eta_is_the_phases_own(loaded: Driver) -> None:
    loaded.answer(question(1, Mode.FULL))
    etas = [event.eta for event in loaded.of(PhaseProgress) if event.phase is Phase.PREFILL]
    assert etas[0] is None
    assert etas[-1] == 0.0
