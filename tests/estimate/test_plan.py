"""Auto takes the way that is expected to be the faster one, and turns teach what to expect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.engine_session import EngineError, EngineSession
from app.engine.backend import memory
from app.engine.engine import MlxEngine
from app.engine.pair_loader import load_pair
from app.engine.turn import calibration
from app.engine.turn.cost_store import CostStore
from app.estimate.plan import PredictedTtft, plan
from app.protocol.commands import Ask, CachePolicy, CalibrateCosts, Load
from app.protocol.cost_model import FREE, MIN_SKIPPABLE, AttentionWork, Costs
from app.protocol.events import CostsUpdated, PhaseProgress, Planned
from app.protocol.options import BackgroundPolicy, Mode, Tuning
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase, Reading
from tests.engine.driver import LONG_TEXT, Driver, question
from tests.engine.scripted import ScriptedProbe

WORK = AttentionWork(500)
AUTO = Ask((Message(Role.USER, "Where is it?"),), Mode.AUTO)


def decided(expected: PredictedTtft, new: int = 20_000, ask: Ask = AUTO) -> Reading:
    return plan(ask, new, 0, new - 50, None, expected).reading


def test_auto_takes_the_faster_way_whatever_the_length() -> None:
    assert decided(PredictedTtft(1.0, 2.0), new=1_600) is Reading.SPARSE
    assert decided(PredictedTtft(2.0, 1.0)) is Reading.DENSE
    assert decided(PredictedTtft(9.0, 10.0)) is Reading.DENSE  # nothing is left out for so little


def test_auto_reads_a_small_table_in_full_however_slow_the_pair() -> None:
    small = plan(AUTO, 150, 0, 100, None, PredictedTtft(4.1, 10.0))
    assert small.reading is Reading.DENSE
    assert small.reasons == (Reason(ReasonCode.FEW_TO_SKIP, {"tokens": 1_024}),)


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        (PredictedTtft(9.0, 10.0), ReasonCode.LITTLE_SAVED),
        (PredictedTtft(0.1, 0.9), ReasonCode.QUICK_IN_FULL),
        (PredictedTtft(12.0, 10.0), ReasonCode.FASTER),
    ],
)
def test_ties_and_quick_readings_go_to_full_and_the_reason_is_true(
    expected: PredictedTtft, code: ReasonCode
) -> None:
    decision = plan(AUTO, 20_000, 0, 19_000, None, expected)
    assert decision.reading is Reading.DENSE
    seconds = {"sparse": expected.sparse, "full": expected.full}
    assert decision.reasons == (Reason(code, seconds),)


def test_what_is_cached_already_is_the_reason_that_keep_saves_nothing() -> None:
    sparse = replace(AUTO, mode=Mode.SPARSE, keep_ratio=0.1)
    decision = plan(sparse, 40, 0, 0, None, cached=900)
    assert decision.reading is Reading.DENSE
    assert decision.show_selection
    assert decision.reasons == (Reason(ReasonCode.SAVES_NOTHING, {"keep": 0.1}),)
    automatic = plan(AUTO, 40, 0, 0, None, cached=900)
    assert automatic.reasons == (Reason(ReasonCode.ALL_CACHED),)
    assert not automatic.show_selection
    nothing = plan(sparse, 40, 0, 0, None)
    assert nothing.reasons == (Reason(ReasonCode.NOTHING_TO_SKIP),)
    more = plan(sparse, 200, 0, 100, None, cached=900)
    assert more.reading is Reading.SPARSE
    assert more.reasons[1] == Reason(ReasonCode.CACHED_STAYS, {"tokens": 900})


def test_what_is_expected_of_both_is_the_reason() -> None:
    decision = plan(AUTO, 20_000, 0, 19_000, None, PredictedTtft(3.14, 12.4))
    assert decision.reasons == (Reason(ReasonCode.FASTER, {"sparse": 3.14, "full": 12.4}),)


def test_without_a_prediction_auto_is_sparse_as_soon_as_enough_could_be_skipped() -> None:
    for expected in (PredictedTtft(), PredictedTtft(None, 1.0), PredictedTtft(1.0, None)):
        assert plan(AUTO, 2_000, 0, MIN_SKIPPABLE - 1, None, expected).reading is Reading.DENSE
        assert plan(AUTO, 2_000, 0, MIN_SKIPPABLE, None, expected).reading is Reading.SPARSE


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


def test_the_first_question_is_planned_with_an_estimate_and_turns_correct_it(
    loaded: Driver, tmp_path: Path
) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path / "costs")))
    first = known(loaded)
    assert first.target and first.draft and first.full and first.sparse  # noqa: PT018
    loaded.answer(question(Mode.AUTO, text=LONG_TEXT))
    planned = loaded.of(Planned)[0]
    assert planned.ttft is not None
    assert planned.ttft_alternative is not None
    assert planned.reasons[0].data.keys() == {"sparse", "full"}
    assert known(loaded).target != first.target
    loaded.answer(question())
    etas = [event.eta for event in loaded.of(PhaseProgress) if event.phase is Phase.SCORE]
    assert etas[0] is not None, "before anything of it was read"
    costs = known(loaded)
    # Other programs know it from their start.
    for _ in range(2):
        other = Driver()
        other.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path / "costs")))
        other.load(*_folders(loaded))
        found = known(other)
        assert found.target is not None
        assert costs.target is not None
        assert found.target.seconds(WORK) == pytest.approx(costs.target.seconds(WORK), rel=0.5)
        other.close()


def test_the_built_in_draft_and_one_that_was_never_timed_have_an_estimate(
    folders: dict[str, Path],
) -> None:
    alone = CostStore(load_pair(Load(str(folders["target"]))), None).costs
    assert alone.draft == FREE
    assert alone.sparse is not None
    assert alone.full is not None
    assert alone.sparse.per_token > alone.full.per_token, "the encoder reads the text"
    both = load_pair(Load(str(folders["target"]), str(folders["draft"])))
    costs = CostStore(both, None).costs
    assert costs.draft is not None
    assert costs.draft.per_token > 0
    assert both.draft is not None
    both.target.speed = both.draft.speed = None  # as of a model in other processes
    guessed = CostStore(both, None).costs
    assert guessed.target is not None
    assert guessed.target.per_token > 0


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
        assert costs.draft is not None, "it reads only densely, and is estimated"
        session.load(Load(str(folders["target"])))
        costs = session.calibrate()
        assert costs.sparse is not None
        assert costs.draft == FREE, "the built-in draft is timed with the rest of the turn"
    assert len(list(tmp_path.glob("*.json"))) == 6, "three pairs, and their three models"


def test_nothing_is_timed_where_it_does_not_fit(
    loaded: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path)))
    first = known(loaded)
    monkeypatch.setattr(memory, "free", lambda: 0.0)
    loaded.engine.send(CalibrateCosts())
    assert known(loaded) == first
