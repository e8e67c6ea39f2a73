"""Each benchmark measures what it describes; tests do not judge the speed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.chat.sample import sample
from app.engine.backend import block_sparse
from app.engine.backend import memory as engine_memory
from app.engine.turn import calibration
from app.errors import UserError
from app.protocol.cost_model import Costs, LinearCost
from app.protocol.options import Mode
from app.protocol.prompt import Document
from app.protocol.stats import Reading
from benchmarks import (
    built_in,
    copying,
    decode,
    draft,
    memory,
    overhead,
    planner,
    published,
    serve,
    shapes,
    snapshot,
    store,
    ttft,
    turns,
    ui,
)
from benchmarks.__main__ import parser
from benchmarks.harness import Bench, Options, Progress, Result, Row, Run, run
from benchmarks.token_turn import check_fits, loaded

pytestmark = pytest.mark.benchmarks


def measured(bench: Bench, options: Options) -> Result:
    """Run a benchmark, parse its JSON, and check its tables and goals."""
    out = io.StringIO()
    assert run(bench, options, True, out) == 0
    result = Result.from_json(json.loads(out.getvalue()))
    for in_report in (True, False):
        table = bench.table(result, in_report)
        assert len(table.rows) >= len(result.rows)
        assert {len(row) for row in table.rows} == {len(table.head)}
        assert all(any(row[1:]) or row[0].startswith("**") for row in table.rows)
    assert " cores, " in result.machine
    assert bench.about(result)
    assert all(goal.measured for goal in bench.goals(result))
    return result


def only_run(row: Row) -> Run:
    (found,) = row.runs
    return found


@pytest.mark.parametrize("bench", [built_in.BENCH, copying.BENCH, draft.BENCH])
def test_an_unknown_shape_is_refused(bench: Bench) -> None:
    with pytest.raises(UserError, match="no shape 'huge'"):
        measured(bench, Options(1, (1024,), shapes=("huge",)))


def test_the_built_in_draft_uses_memory_only_for_its_encoder() -> None:
    result = measured(built_in.BENCH, Options(1, (256, 2048), shapes=("small",)))
    rows = result.rows
    assert [row["length"] for row in rows] == [256, 2048]
    for found in map(only_run, rows):
        assert 0 < found["words"] < found["later"]
        assert found["megabytes"] > 30, "the encoder's weights"
        assert found["operations"] == pytest.approx(2 * 3 * 12 * 256**2 * 50 / 32)
    (goal,) = built_in.goals(result)
    assert goal.met


@pytest.mark.slow
def test_copying_measures_steps_and_equal_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample()
    question = Document(whole.name, whole.text[-6000:]), copying.QUESTION
    monkeypatch.setattr(copying, "tasks", lambda target: {"quoting": [question]})
    options = Options(1, (256,), shapes=("quick",), tokens=24)
    steps, *forced, answer = measured(copying.BENCH, options).rows
    assert [row["what"] for row in forced] == list(copying.FORCED)
    assert all(row.median("same") == 1 for row in forced)
    found = only_run(steps)
    assert found["gain_0.9"] > found["gain_0.5"] >= 1
    assert all(found[f"cost_{size}"] > 0 for size in (2, 4, 8, 16))
    found = only_run(answer)
    assert (answer["what"], found["same"]) == ("quoting", 1.0)
    assert found["faster"] == pytest.approx(found["fast"] / found["plain"])
    assert found["length"] > 1000


def test_decoding_is_compared_with_mlx_lm_over_n_and_m_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uses a narrow windowed shape, whose window is smaller than the selection."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 4096}
    config = {**shapes.shapes()["windowed"]["target"], **sizes, "sliding_window": 48}
    narrow = {"target": config | {"sliding_window_pattern": 2}, "draft": config}
    monkeypatch.setitem(shapes.shapes(), "windowed", narrow)
    options = Options(2, (320,), (0.5,), ("windowed",), tokens=6)
    (row,) = measured(decode.BENCH, options).rows
    assert (row["length"], row["selected"]) == (320, 160)
    assert len(row.runs) == 2
    for found in row.runs:
        for plain in ("plain_selected", "plain_all"):
            assert found[f"of_{plain}"] == pytest.approx(found["ours"] / found[plain])


def test_the_selection_for_decoding_has_whole_chunks_before_the_last_token() -> None:
    selected = decode._random_chunks(1000, 0.2)
    assert selected[-1] < 999
    assert np.isin(np.diff(selected), [1, *range(33, 1000, 32)]).all()
    assert len(selected) == pytest.approx(200, abs=32)


def test_the_draft_is_measured_densely_and_block_sparsely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attended: list[int] = []
    original = block_sparse.attend

    def attend(*arguments: Any, **named: Any) -> Any:
        attended.append(1)
        return original(*arguments, **named)

    monkeypatch.setattr(block_sparse, "attend", attend)
    rows = measured(draft.BENCH, Options(1, (1024, 4096), shapes=("embedded",))).rows
    assert [row["length"] for row in rows] == [1024, 4096]
    for found in map(only_run, rows):
        assert found["of_dense"] == pytest.approx(found["sparse"] / found["dense"])
        assert found["of_prefill"] == pytest.approx(found["sparse_prefill"] / found["prefill"])
    layers = 2 - 1  # the last one's attention is not needed
    assert len(attended) == 2 * (1 + layers), "of 4,096 tokens the last two steps"


def test_invalid_options_are_refused() -> None:
    with pytest.raises(UserError, match="512 tokens is attended to densely"):
        measured(draft.BENCH, Options(1, (512,), shapes=("embedded",)))
    with pytest.raises(UserError, match="A draft needs a target"):
        measured(ttft.BENCH, Options(1, (512,), draft="embedded"))
    for words in (["draft", "--length", "12"], ["ttft", "--keep", "2"], ["store", "--runs", "0"]):
        with pytest.raises(UserError, match="is not a valid"):
            parser().parse_args(words)


def test_peak_memory_is_measured_and_predicted() -> None:
    (row,) = measured(memory.BENCH, Options(1, (300,), (0.2,), ("small",))).rows
    found = only_run(row)
    assert 0.2 * 300 < row["selected"] < 0.5 * 300
    assert found["ratio"] == pytest.approx(found["sparse"] / found["plain"])
    for name in ("dense", "sparse"):
        assert found[f"predicted_{name}"] == pytest.approx(found[name], rel=0.5)


def test_prompts_that_do_not_fit_are_refused_with_the_longest_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, _ = shapes.random_pair("small", 0.2)
    model = loaded(target, shapes.shapes()["small"]["target"], 512)
    check_fits(model, (1024,), 512)
    monkeypatch.setattr(engine_memory, "free", lambda: 10e9)
    with pytest.raises(UserError, match=r"of 4,194,304 tokens needs about .* up to \d"):
        check_fits(model, (1024, 4 << 20), 512)
    monkeypatch.setattr(engine_memory, "free", lambda: 1e6)
    with pytest.raises(UserError, match="lower --scale"):
        shapes.random_pair("small")


@pytest.mark.slow
def test_overhead_and_speedup_are_ratios_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"building": 0.01, "ttft": 0.5, "share": 0.02}
    prompt = Row({"part": "prompt", "tokens": 301}, [figures])
    monkeypatch.setattr(overhead, "STEP", 64)
    monkeypatch.setattr(overhead, "DENSE_UP_TO", 128)
    monkeypatch.setattr(overhead, "prompts", lambda *_: iter([prompt]))
    few, many, _, selection = measured(overhead.BENCH, Options(1, (128, 160))).rows
    assert [few["tokens"], many["tokens"]] == [128, 160]
    for row in (few, many):
        found = only_run(row)
        assert 0.2 * row["tokens"] < row["selected"] < 0.7 * row["tokens"]
        phases = ("wait", "score", "lookahead", "select", "prefill", "decode")
        assert sum(found[phase] for phase in phases) == pytest.approx(found["sparse"], abs=0.01)
        assert min(found["plain_draft"], found["plain_target"]) > 0
        both = found["plain_draft"] + found["plain_target"]
        assert found["ratio"] == pytest.approx(both / found["sparse"])
    found = only_run(few)
    assert found["speedup"] == pytest.approx(found["dense"] / found["sparse"])
    assert found["engine"] == pytest.approx(found["plain_dense"] / found["dense"])
    assert many.values("speedup") == many.values("engine") == []
    assert selection["tokens"] == overhead.SELECTION_TOKENS
    assert selection.median("seconds") > 0


def test_building_a_prompt_is_measured_in_real_turns() -> None:
    (row,) = overhead.prompts((80,), Progress(1))
    found = only_run(row)
    assert 80 < row["tokens"] < 160, "with the template's and the question's"
    assert 0 < found["building"] < found["ttft"]
    assert found["share"] == pytest.approx(found["building"] / found["ttft"])


def test_every_planned_turn_is_predicted_and_measured_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, tokens in (("MIN_TOKENS", 64), ("MAX_TOKENS", 128), ("MAX_LATER_TOKENS", 96)):
        monkeypatch.setattr(planner, name, tokens)
    monkeypatch.setattr(calibration, "_RUNS", ((Mode.SPARSE, 64), (Mode.FULL, 128)))
    *pairs, every = measured(planner.BENCH, Options(1, turns=10)).rows
    assert [row["pair"] for row in pairs] == list(planner.SHAPES)
    assert len(every.runs) == sum(len(row.runs) for row in pairs) == 10
    for found in every.runs:
        assert min(found["predicted"], found["predicted_other"], found["auto"]) > 0
        assert found["regret"] >= 1
        assert (found["error"] is None) == (found["known"] < planner.JUDGED_AFTER)
    assert every.median("error") > 0


def test_auto_may_be_slower_by_the_minimum_saving() -> None:
    def near(sparse: float, full: float) -> float:
        return planner.judged(3, Reading.DENSE, 1.0, 1.0, 1.0, sparse, full)["near"]

    assert near(8.1, 10.0)
    assert not near(7.0, 10.0)
    assert near(0.1, 0.9)


def test_the_crossing_is_where_both_modes_take_the_same_time() -> None:
    other_costs = LinearCost(0.0, 0.0), LinearCost(0.7, 0.0)
    costs = Costs(LinearCost(0.0, 1e-3), LinearCost(0.0, 1e-4), *other_costs)
    crossing = planner.crossing(costs, 0.2)
    assert crossing is not None
    assert 1_400 <= crossing < 1_800  # 0.3 n and 0.7 s are 0.8 n
    assert planner.crossing(Costs(LinearCost(0, 1), LinearCost(0, 1), *other_costs), 0.2) is None
    assert planner.crossing(Costs(), 0.2) is None


def test_published_speedups_are_in_order_and_on_the_quality_page() -> None:
    result = measured(published.BENCH, Options())
    table = published.table(result, True).markdown()
    head, _, first, *rest = table.splitlines()
    assert "| 8K | 16K | 32K | 64K | 128K | predicted, 16K |" in head
    assert "| 3.71 | 4.11 | 4.23 | 4.50 | 5.45 |" in first
    assert len(rest) == 4
    assert [goal.met for goal in published.goals(result)] == [True]
    backwards = Result(result.machine, result.options, result.rows[::-1])
    assert [goal.met for goal in published.goals(backwards)] == [False]
    page = Path(__file__).parents[2] / "benchmarks/results/quality.md"
    assert table in page.read_text("utf-8")


def test_saving_and_loading_are_compared_with_the_disk() -> None:
    rows = measured(snapshot.BENCH, Options(2, megabytes=10)).rows
    assert [row["operation"] for row in rows] == ["save", "disk write", "load", "disk read"]
    for row in rows:
        assert 9.9 < row["megabytes"] < 11
        assert len(row.runs) == 2
        assert min(row.values("rate")) > 0
    save, disk_write, *_ = rows
    assert save.runs[0]["share"] == save.runs[0]["rate"] / disk_write.runs[0]["rate"]


def test_the_store_is_measured_in_nine_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONVERSATIONS", "MESSAGES"):
        monkeypatch.setattr(store, name, 2)
    for name in ("DOCUMENT", "LARGE"):
        monkeypatch.setattr(store, name, 1000)
    rows = measured(store.BENCH, Options(2)).rows
    assert all(row.median("ms") > 0 for row in rows)
    assert [len(row.runs) for row in rows] == [2, 2, 2, 2, 2, 2, 1, 1, 2]


def test_the_first_token_is_measured_at_every_length_and_keep() -> None:
    options = Options(1, (300,), (0.2, 1.0), ("small",), scale=0.2)
    rows = measured(ttft.BENCH, options).rows
    assert [(row["length"], row["keep"]) for row in rows] == [(300, 0.2), (300, 1)]
    sparse, everything = rows
    assert 0.2 * 300 < sparse["selected"] < 0.5 * 300
    assert everything["selected"] == 300
    for found in map(only_run, rows):
        phases = sum(found[name] for _, name in ttft.PHASES)
        assert 0 < phases < found["sparse"]
        assert min(found["plain"], found["dense"], found["peak"], found["memory"]) > 0


def test_the_predicted_speedup_uses_the_measured_shares() -> None:
    phases = {"score": 1.0, "prefill": 2.0, "lookahead": 0.5}
    found = ttft.figures(0.2, 40.0, 10.0, 3.5, phases)
    assert (found["r"], found["e"]) == pytest.approx((0.1, 0.05))
    assert found["predicted"] == pytest.approx(1 / (0.1 + 0.2 + 0.05))
    assert found["g"] == pytest.approx(found["predicted"] / (10.0 / 3.5)), "without mlx-lm's speed"
    assert found["engine"] == pytest.approx(4.0)


@pytest.mark.parametrize("shape", [name for name in shapes.shapes() if name != "small"])
def test_real_shapes_are_models_that_mlx_lm_builds(shape: str) -> None:
    """Weights are not evaluated; they would take gigabytes."""
    from mlx_lm.utils import _get_classes

    for config in shapes.shapes()[shape].values():
        model, arguments = _get_classes(config)
        built = model(arguments.from_dict({**config, "num_hidden_layers": 1, "vocab_size": 64}))
        assert len(built.layers) == 1


def test_weights_can_be_quantised() -> None:
    target, _ = shapes.random_pair("small", 0.1, bits=4)
    assert target.layers[0].mlp.up_proj.bits == 4


@pytest.mark.slow
def test_both_ways_of_asking_read_and_reuse_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "MODES", {"sparse": True})
    rows = list(serve.measure(Options(1), Progress(1)))
    assert [row["turn"] for row in rows] == ["sparse, turn 1", "sparse, turn 2"]
    first, second = rows
    assert first.median("cached") == 0, "neither starts from what the other one has read"
    assert second.median("cached") > 100
    for row in rows:
        assert 0 < row.median("app") < 60
        assert row.median("ratio") == pytest.approx(row.median("http") / row.median("app"))


@pytest.mark.slow
def test_later_turns_reuse_tokens_and_ratios_are_within_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Document("part.txt", sample().text[:6000])
    monkeypatch.setattr(turns, "sample", lambda: small)
    rows = measured(turns.BENCH, Options(1)).rows
    assert [row["turn"] for row in rows] == [f"{m}, {t}" for m in turns.MODES for t in turns.TURNS]
    half = len(turns.TURNS)
    for name, some in (("sparse", rows[:half]), ("full", rows[half:])):
        first, second, restarted, *others = map(only_run, some)
        assert second["ratio"] == second["seconds"] / first["seconds"]
        assert first["reused"] == 0
        assert second["reused"] == restarted["reused"] > 0
        assert (second["recalled"] > 0) == (name == "sparse")
        for other in others:
            assert other["reused"] > 0
            assert "fresh" not in other
        assert 1 <= others[-1]["memory"] < 10


@pytest.mark.slow
def test_later_turns_of_a_hybrid_model_are_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "CHATS", 5)
    options = Options(1, lengths=(300,), shapes=("hybrid",), scale=0.5)
    rows = {row["turn"]: row for row in measured(turns.BENCH, options).rows}
    assert rows["full, turn 2"].median("reused") > 300
    assert rows["sparse, turn 2"].median("recalled") > 0
    assert rows["sparse, turn 2 after a restart"].median("snapshot") > 0
    assert rows["full, turn 1"].median("cache") > rows["sparse, turn 1"].median("cache")


def test_the_document_of_later_turns_is_long_and_has_every_passage() -> None:
    text = sample().text
    assert len(text) > 4 * 4096
    for question in turns.QUESTIONS:
        assert question.split('"')[1] in text


@pytest.mark.slow
def test_the_screen_is_measured_in_a_terminal() -> None:
    rows = measured(ui.BENCH, Options(1)).rows
    assert [row["what"] for row in rows] == list(ui.GOALS)
    times = [row.median("ms") for row in rows]
    assert all(0 < ms < 60_000 for ms in times)
    assert times[3] <= times[4], "median and 95th percentile of the keys"


async def test_frames_of_the_spans_view_are_drawn_and_timed() -> None:
    seconds = await ui.span_frames()
    assert len(seconds) == ui.FRAMES
    assert min(seconds) > 0


def test_percentiles_are_interpolated() -> None:
    assert ui.percentile([*range(101)], 95) == 95
