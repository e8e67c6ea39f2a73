"""What was timed of a pair outlives the program, and damage costs no more than the figures."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.engine.backend import machine_record
from app.engine.model.loader import ModelPair
from app.engine.pair_loader import load_pair
from app.engine.turn.costs import ANSWERS, FEWEST_ANSWERS, MAX_TIMINGS, CostStore
from app.protocol.commands import Load
from app.protocol.cost_model import AttentionWork, Costs, CostTerm, Timing


@pytest.fixture(scope="module")
def pair(folders: dict[str, Path]) -> ModelPair:
    return load_pair(Load(str(folders["target"]), str(folders["draft"])))


def clocked(part: CostTerm = CostTerm.TARGET, tokens: int = 1_000, seconds: float = 2.0) -> Timing:
    return Timing(part, AttentionWork(tokens), seconds)


@pytest.fixture(scope="module")
def estimate(pair: ModelPair) -> Costs:
    """Before anything was timed."""
    return CostStore(pair, None).costs


def test_a_later_start_knows_what_was_timed(
    pair: ModelPair, estimate: Costs, tmp_path: Path
) -> None:
    first = CostStore(pair, tmp_path / "costs")
    assert first.costs == estimate
    first.add([clocked(), clocked(CostTerm.DRAFT, seconds=0.1)])
    later = CostStore(pair, tmp_path / "costs")
    assert later.costs == first.costs != estimate


def test_another_pair_knows_nothing_of_it(
    pair: ModelPair, folders: dict[str, Path], tmp_path: Path
) -> None:
    CostStore(pair, tmp_path).add([clocked()])
    other = load_pair(Load(str(folders["target"]), str(folders["target"])))
    assert CostStore(other, tmp_path).costs == CostStore(other, None).costs


@pytest.mark.parametrize(
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
def test_a_damaged_file_is_as_if_it_was_not_there(
    pair: ModelPair, estimate: Costs, tmp_path: Path, text: str
) -> None:
    CostStore(pair, tmp_path).add([clocked()])
    (file,) = tmp_path.glob("*.json")
    file.write_text(text)
    reopened = CostStore(pair, tmp_path)
    assert reopened.costs == estimate
    reopened.add([clocked()])
    assert CostStore(pair, tmp_path).costs == reopened.costs != estimate


def test_two_programs_write_the_same_file(pair: ModelPair, tmp_path: Path) -> None:
    watches = [CostStore(pair, tmp_path) for _ in range(2)]

    def note(watch: CostStore) -> None:
        for _ in range(20):
            watch.add([clocked()])

    with ThreadPoolExecutor(2) as both:
        list(both.map(note, watches))
    (file,) = tmp_path.iterdir()
    assert 20 <= len(json.loads(file.read_text())["timings"]) <= MAX_TIMINGS
    watches[0].add([clocked(CostTerm.DRAFT)])
    watches[1].add([clocked(CostTerm.FULL)])
    assert watches[1].costs.draft is not None, "what the other one has timed since counts, too"


def test_a_later_start_knows_how_sure_answers_usually_are(
    pair: ModelPair, estimate: Costs, tmp_path: Path
) -> None:
    first = CostStore(pair, tmp_path)
    for _ in range(FEWEST_ANSWERS - 1):
        first.add([], [0.5])
    assert first.usual_confidence is None, "too few to say"
    first.add([clocked()], [0.9])
    assert CostStore(pair, tmp_path).usual_confidence == first.usual_confidence == 0.5
    for _ in range(ANSWERS):
        first.add([], [0.8])
    later = CostStore(pair, tmp_path)
    assert later.usual_confidence == 0.8
    assert later.costs == first.costs != estimate
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text().replace("0.8", "1.8", 1))
    assert CostStore(pair, tmp_path).usual_confidence is None, "damaged"


def test_the_folder_and_its_files_stay_small(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_record, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.json").write_text("{}")
    CostStore(pair, tmp_path).add([clocked()] * 500)
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert max(file.stat().st_size for file in files) < 10_000


def test_a_folder_that_cannot_be_written_costs_nothing_else(
    pair: ModelPair, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    watch = CostStore(pair, tmp_path / "file" / "costs")
    watch.add([clocked()])
    watch.add([clocked(CostTerm.DRAFT)])
    assert watch.costs.target is not None
    assert watch.costs.draft is not None
