"""The cost model is fitted to timings of turns."""

from __future__ import annotations

import json
import math
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.engine_session import EngineError, EngineSession
from app.engine.backend import machine_record, memory
from app.engine.engine import MlxEngine
from app.engine.model.loader import ModelPair
from app.engine.pair_loader import load_pair
from app.engine.turn import calibration
from app.engine.turn.costs import ANSWERS, MIN_ANSWERS, PairCosts
from app.estimate.fitting import MAX_TIMINGS, fit_costs
from app.estimate.work import recalled_tokens, scoring_work, sparse_pays
from app.protocol.commands import CachePolicy, CalibrateCosts, Load
from app.protocol.cost_model import (
    FREE,
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
    ReadPlan,
    Timing,
)
from app.protocol.events import CostsUpdated, PhaseProgress, Planned
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.stats import Phase
from tests.engine.driver import LONG_TEXT, Driver, ScriptedProbe, question
from tests.tables import table

TRUE = LinearCost(0.05, 1e-3, 2e-7)


def clocked(lengths: list[int], noise: float = 0.0, line: LinearCost = TRUE) -> list[Timing]:
    chance = random.Random(0)
    works = [AttentionWork(tokens, index % 3 * 500) for index, tokens in enumerate(lengths)]
    return [
        Timing(CostTerm.TARGET, work, line.seconds(work) * math.exp(chance.gauss(0, noise)))
        for work in works
    ]


def target(rows: list[Timing], ratio: float = 0.0) -> LinearCost:
    line = fit_costs(rows, (ratio, ratio)).target
    assert line is not None
    return line


def test_attention_pairs_equal_the_sum_over_tokens() -> None:
    assert AttentionWork(3, 10).attention_pairs == 11 + 12 + 13
    assert LinearCost(1.0, 1.0, 1.0).seconds(AttentionWork(0, 50)) == 0.0


def test_timings_of_many_lengths_recover_the_costs() -> None:
    rows = clocked([200, 16_000, 900, 4_000, 300, 9_000, 2_000, 700], noise=0.05)
    line = target(rows)
    for work in (AttentionWork(500), AttentionWork(2_000, 6_000), AttentionWork(30_000)):
        assert line.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.12)


def test_slow_outliers_hardly_change_the_fit() -> None:
    rows = clocked([200, 16_000, 900, 4_000, 300, 9_000, 2_000, 700], noise=0.03)
    for index in (1, 4):
        rows[index] = Timing(CostTerm.TARGET, rows[index].work, 8 * rows[index].seconds)
    assert target(rows).seconds(AttentionWork(5_000)) == pytest.approx(
        TRUE.seconds(AttentionWork(5_000)), rel=0.12
    )


def test_with_one_length_the_attention_ratio_decides() -> None:
    line = target(clocked([4_000] * 3), TRUE.per_pair / TRUE.per_token)
    assert line.seconds(AttentionWork(4_000)) == pytest.approx(
        TRUE.seconds(AttentionWork(4_000)), rel=0.15
    )
    assert line.seconds(AttentionWork(32_000)) == pytest.approx(
        TRUE.seconds(AttentionWork(32_000)), rel=0.3
    )


def test_newer_timings_have_more_weight() -> None:
    slower = LinearCost(0.1, 2e-3, 4e-7)
    rows = clocked([1_000, 5_000] * 12) + clocked([1_000, 5_000] * 10, line=slower)
    assert target(rows).seconds(AttentionWork(3_000)) == pytest.approx(
        slower.seconds(AttentionWork(3_000)), rel=0.1
    )


@table("short", [[0.295, 0.288], [0.2, 0.4], [0.3] * 20])
def test_short_turns_do_not_change_the_costs_of_long_ones(short: list[float]) -> None:
    """Two short questions of 40 to 60 tokens come before the first one with a document."""
    first = Costs(*[LinearCost(0.05, 5e-3, 5e-7)] * 4)
    rows = [
        Timing(CostTerm.TARGET, AttentionWork(40 + 10 * (i % 3)), seconds)
        for i, seconds in enumerate(short)
    ]
    fitted = fit_costs(rows, (1e-4, 0.0), first).target
    for tokens in (1_000, 3_650, 20_000):
        work = AttentionWork(tokens)
        assert 0.3 < fitted.seconds(work) / first.target.seconds(work) < 3


def test_one_real_turn_outweighs_the_first_estimate() -> None:
    first = Costs(*[LinearCost(0.0, 5e-4)] * 4)
    rows = clocked([4_000])
    assert fit_costs([], first=first) == first
    fitted = fit_costs(rows, first=first)
    assert fitted.full == first.full, "not timed yet"
    assert fitted.target.seconds(rows[0].work) == pytest.approx(rows[0].seconds, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(1, 200_000), st.integers(0, 200_000), st.floats(1e-4, 1e4)),
        min_size=1,
        max_size=12,
    ),
    st.floats(0, 1e-2),
)
def test_costs_are_never_negative_or_infinite(
    rows: list[tuple[int, int, float]], ratio: float
) -> None:
    line = target([Timing(CostTerm.TARGET, AttentionWork(n, s), t) for n, s, t in rows], ratio)
    assert all(0 <= each < math.inf for each in (line.fixed, line.per_token, line.per_pair))
    assert line.seconds(AttentionWork(1_000)) >= 0


@given(
    st.floats(0, 0.2),
    st.floats(1e-5, 1e-2),
    st.lists(st.integers(300, 30_000), min_size=6, max_size=20, unique=True),
)
def test_exact_timings_are_predicted(start: float, token: float, lengths: list[int]) -> None:
    line = LinearCost(start, token, token * 2e-4)
    found = target(clocked(lengths, line=line), 2e-4)
    middle = AttentionWork(sorted(lengths)[len(lengths) // 2])
    assert found.seconds(middle) == pytest.approx(line.seconds(middle), rel=0.1)


def test_a_prediction_is_the_sum_of_its_parts_or_unknown() -> None:
    costs = Costs(
        LinearCost(0.0, 1.0), LinearCost(0.0, 0.1), LinearCost(2.0, 0.0), LinearCost(3.0, 0.01)
    )
    assert costs.seconds(ReadPlan(100, AttentionWork(100))) == pytest.approx(102)
    sparse = ReadPlan(100, AttentionWork(20), AttentionWork(100))
    assert costs.seconds(sparse) == pytest.approx(20 + 10 + 3 + 1)
    assert Costs(costs.target, None, costs.full).seconds(sparse) is None
    assert Costs().seconds(ReadPlan(100, AttentionWork(100))) is None


def test_near_ties_are_read_in_full() -> None:
    assert sparse_pays(7.9, 10.0)
    assert not sparse_pays(8.1, 10.0), "not a fifth"


def test_prompts_that_take_under_a_second_are_read_in_full() -> None:
    assert not sparse_pays(0.1, 0.9)
    assert sparse_pays(0.1, 1.1)


def test_a_later_question_recalls_the_rest_of_keep_or_at_least_its_share() -> None:
    assert recalled_tokens(0.2, 0.5, 1_000, 800) == 100
    assert recalled_tokens(0.5, 0.5, 1_000, 800) == 300
    assert recalled_tokens(0.2, 0.5, 1_000, 30) == 30
    assert recalled_tokens(0.2, 0.0, 1_000, 800) == 0


def test_the_drafts_cost_per_token_does_not_grow_with_the_prompt() -> None:
    every, few = AttentionWork(10_000, 0, 0), AttentionWork(10_000, 0, 3_000)
    assert few.attention_pairs == 3_000 * 3_001 / 2 + 7_000 * 3_000 < every.attention_pairs
    assert AttentionWork(500, 9_500, 3_000).attention_pairs == 500 * 3_000
    assert AttentionWork(500, 0, 3_000).attention_pairs == AttentionWork(500).attention_pairs
    assert scoring_work(8_000, 0).attention_pairs == AttentionWork(8_000).attention_pairs
    assert (
        scoring_work(500, 20_000).attention_pairs < AttentionWork(500, 20_000).attention_pairs / 5
    )


@pytest.fixture(scope="module")
def pair(folders: dict[str, Path]) -> ModelPair:
    return load_pair(Load(str(folders["target"]), str(folders["draft"])))


def timing(part: CostTerm = CostTerm.TARGET, tokens: int = 1_000, seconds: float = 2.0) -> Timing:
    return Timing(part, AttentionWork(tokens), seconds)


@pytest.fixture(scope="module")
def estimate(pair: ModelPair) -> Costs:
    """Nothing was timed yet."""
    return PairCosts(pair, None).costs


def test_timings_survive_a_restart(pair: ModelPair, estimate: Costs, tmp_path: Path) -> None:
    first = PairCosts(pair, tmp_path / "costs")
    assert first.costs == estimate
    first.add([timing(), timing(CostTerm.DRAFT, seconds=0.1)])
    later = PairCosts(pair, tmp_path / "costs")
    assert later.costs == first.costs != estimate


def test_timings_belong_to_one_pair(
    pair: ModelPair, folders: dict[str, Path], tmp_path: Path
) -> None:
    PairCosts(pair, tmp_path).add([timing()])
    other = load_pair(Load(str(folders["target"]), str(folders["target"])))
    assert PairCosts(other, tmp_path).costs == PairCosts(other, None).costs


@table(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"timings": []}',
        '{"confidences": [], "timings": [["target", 5, 0, 0, -1.0]]}',
        '{"confidences": [], "timings": [["target", 5, 0, 0, NaN]]}',
        '{"confidences": [], "timings": [["nobody", 5, 0, 0, 1.0]]}',
        '{"confidences": [], "timings": [["target", "many", 0, 0, 1.0]]}',
        '{"confidences": [], "timings": [["target", Infinity, 0, 0, 1.0]]}',
        '{"confidences": [], "timings": [5]}',
    ],
)
def test_a_damaged_file_is_ignored(
    pair: ModelPair, estimate: Costs, tmp_path: Path, text: str
) -> None:
    PairCosts(pair, tmp_path).add([timing()])
    (file,) = tmp_path.glob("*.json")
    file.write_text(text)
    reopened = PairCosts(pair, tmp_path)
    assert reopened.costs == estimate
    reopened.add([timing()])
    assert PairCosts(pair, tmp_path).costs == reopened.costs != estimate


def test_two_processes_can_write_the_same_file(pair: ModelPair, tmp_path: Path) -> None:
    watches = [PairCosts(pair, tmp_path) for _ in range(2)]

    def note(watch: PairCosts) -> None:
        for _ in range(20):
            watch.add([timing()])

    with ThreadPoolExecutor(2) as both:
        list(both.map(note, watches))
    (file,) = tmp_path.iterdir()
    # Each may overwrite what the other one has just added: the file is whole all the same.
    assert 0 < len(json.loads(file.read_text())["timings"]) <= MAX_TIMINGS
    watches[0].add([timing(CostTerm.DRAFT)])
    watches[1].add([timing(CostTerm.FULL)])
    assert watches[1].costs.draft is not None, "what the other one has timed since counts, too"


def test_the_usual_confidence_survives_a_restart(
    pair: ModelPair, estimate: Costs, tmp_path: Path
) -> None:
    first = PairCosts(pair, tmp_path)
    for _ in range(MIN_ANSWERS - 1):
        first.add([], 0.5)
    assert first.usual_confidence is None, "too few to say"
    first.add([timing()], 0.9)
    assert PairCosts(pair, tmp_path).usual_confidence == first.usual_confidence == 0.5
    for _ in range(ANSWERS):
        first.add([], 0.8)
    later = PairCosts(pair, tmp_path)
    assert later.usual_confidence == 0.8
    assert later.costs == first.costs != estimate
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text().replace("0.8", "1.8", 1))
    assert PairCosts(pair, tmp_path).usual_confidence is None, "damaged"


def test_the_folder_and_its_files_stay_small(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_record, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.json").write_text("{}")
    PairCosts(pair, tmp_path).add([timing()] * 500)
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert max(file.stat().st_size for file in files) < 10_000


def test_an_unwritable_folder_has_no_other_effect(pair: ModelPair, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    watch = PairCosts(pair, tmp_path / "file" / "costs")
    watch.add([timing()])
    watch.add([timing(CostTerm.DRAFT)])
    assert watch.costs.target is not None
    assert watch.costs.draft is not None


WORK = AttentionWork(500)


def known(driver: Driver) -> Costs:
    """The last costs that the engine reported."""
    event = driver.until(CostsUpdated)
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
    # Other processes know it from their start.
    for _ in range(2):
        other = Driver()
        other.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path / "costs")))
        other.load(*_folders(loaded))
        found = known(other)
        assert found.target.seconds(WORK) == pytest.approx(costs.target.seconds(WORK), rel=0.5)
        other.close()


def test_the_built_in_draft_and_an_untimed_draft_have_estimates(
    folders: dict[str, Path],
) -> None:
    alone = PairCosts(load_pair(Load(str(folders["target"]))), None).costs
    assert alone.draft == FREE
    assert alone.sparse.per_token > alone.full.per_token, "the encoder reads the text"
    both = load_pair(Load(str(folders["target"]), str(folders["draft"])))
    costs = PairCosts(both, None).costs
    assert costs.draft.per_token > 0
    both.target.speed = both.draft.speed = None  # as for a model in other processes
    guessed = PairCosts(both, None).costs
    assert guessed.target.per_token > 0


def _folders(driver: Driver) -> tuple[Path, Path]:
    pair = driver.engine._loaded.pair
    assert pair.target.folder is not None
    assert pair.draft.folder is not None
    return pair.target.folder, pair.draft.folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = ((Mode.SPARSE, 100), (Mode.FULL, 100), (Mode.SPARSE, 300))
    monkeypatch.setattr(calibration, "_RUNS", readings)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_pair_is_timed_on_request(folders: dict[str, Path], tmp_path: Path) -> None:
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
        assert costs.draft == FREE, "the built-in scorer is timed with the rest of the turn"
    assert len(list(tmp_path.glob("*.json"))) == 7, (
        "three pairs, their three models, and the encoder"
    )


def test_nothing_is_timed_if_it_does_not_fit(
    loaded: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path)))
    first = known(loaded)
    monkeypatch.setattr(memory, "free", lambda: 0.0)
    loaded.engine.send(CalibrateCosts())
    assert known(loaded) == first
