"""A first estimate of what a pair costs, and how turns correct it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat.engine_session import EngineError, EngineSession
from app.engine.backend import memory
from app.engine.engine import MlxEngine
from app.engine.pair_loader import load_pair
from app.engine.turn import calibration
from app.engine.turn.costs import CostStore
from app.protocol.commands import CachePolicy, CalibrateCosts, Load
from app.protocol.cost_model import FREE, AttentionWork, Costs
from app.protocol.events import CostsUpdated, PhaseProgress, Planned
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.stats import Phase
from tests.engine.driver import LONG_TEXT, Driver, question
from tests.engine.scripted import ScriptedProbe

WORK = AttentionWork(500)


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
