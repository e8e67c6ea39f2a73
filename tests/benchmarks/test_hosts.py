"""The `hosts` benchmark: measurements and predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from benchmarks import hosts_on_paper as paper
from benchmarks.harness import Options, Result, Row
from benchmarks.hosts import BENCH
from benchmarks.hosts_on_paper import LinkSpeed
from benchmarks.machines import LOOP, MODES, ONE, SLOW, SLOWED, STEP, through
from benchmarks.relay import LOOPBACK
from tests.benchmarks.test_benches import measured
from tests.extras.hosts.test_across import SHAPE

pytestmark = pytest.mark.benchmarks


class FakeRelay:
    def __init__(self) -> None:
        self.opened: list[tuple[int, int, int]] = []

    def open(self, sender: int, receiver: int, port: int) -> int:
        self.opened.append((sender, receiver, port))
        return 100 + port


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_reaches_its_right_neighbour_through_the_relay(ranks: int) -> None:
    """A rank's own address is unchanged."""
    relay = FakeRelay()
    everyone = [f"{LOOPBACK}:{port}" for port in range(10, 10 + ranks)]
    for rank in range(ranks):
        found = through(relay, rank, everyone)  # type: ignore[arg-type]
        right = (rank + 1) % ranks
        assert found[right] == f"{LOOPBACK}:{110 + right}"
        assert [each for i, each in enumerate(found) if i != right] == [
            each for i, each in enumerate(everyone) if i != right
        ]
    assert relay.opened == [(r, (r + 1) % ranks, 10 + (r + 1) % ranks) for r in range(ranks)]


def test_on_paper_two_machines_halve_the_work_and_sparse_sends_a_fifth() -> None:
    rows = list(paper.on_paper(0.2))
    assert len(rows) == 8
    for full, sparse in zip(rows[::2], rows[1::2], strict=True):
        assert (full["reading"], sparse["reading"]) == ("in full", "sparse")
        assert full["two"] == pytest.approx(full["one"] / 2 + full["exchange"])
        assert sparse["bytes"] / full["bytes"] == pytest.approx(0.2, rel=1e-3)
        assert sparse["two"] < full["two"]
    # 70B: 59,999 tokens of 8,192 numbers of 2 bytes, twice in all layers but the last; and twice
    # one token in all layers.
    (first, *_) = rows
    assert first["bytes"] == (158 * 59_999 + 160) * 8192 * 2


def rows(error: float) -> Iterator[Row]:
    for mode in MODES:
        for name in (ONE, LOOP, SLOWED):
            run = {"seconds": 2.0, "target": 3.0, "other": 0.1, "prompt": 1024, "read": 1024}
            run |= {"ratio": 0.7, "bytes": 5e6, "sums": 100, "control": 9000}
            labels = {"part": "measured", "reading": mode, "machines": name}
            if name == SLOWED:
                run |= {"predicted": 2 * (1 + error), "error": error, "added": 0.3}
                run |= {"exchange": 0.25}
                labels |= {"latency": 1.1e-3, "rate": 120e6}
            yield Row(labels, [run])
    for name in (ONE, LOOP, SLOWED):
        run = {"seconds": 0.03, "bytes": 40_960.0, "sums": 20.0, "control": 300.0}
        yield Row({"part": "token", "machines": name}, [run])
    yield from paper.on_paper(0.2)


def test_the_table_has_a_line_for_everything() -> None:
    result = Result("2 cores", {"keeps": [0.2], "shapes": ["small"]}, list(rows(0.1)))
    text = BENCH.table(result, True).markdown()
    assert "| in full, two, loopback | 2.00 (2.00 to 2.00) | 0.70 (0.70 to 0.70) |" in text
    assert "0.30 (0.30 to 0.30), predicted 0.25" in text
    assert "| 235B-A22B (66 GB on each instead of 132), Thunderbolt 5, sparse | 92 |" in text
    assert "1.10 ms and 0.96 Gb/s" in BENCH.about(result)


@pytest.mark.parametrize(("error", "met"), [(0.15, True), (-0.15, True), (0.25, False)])
def test_predictions_are_judged(error: float, met: bool) -> None:
    found = list(BENCH.goals(Result("", {}, list(rows(error)))))
    assert [goal.met for goal in found] == [met, met]


@pytest.mark.slow
def test_the_measured_exchange_equals_the_predicted_one() -> None:
    result = measured(BENCH, Options(1, (600,), (0.2,), ("small",), scale=0.2))
    found = {
        (row["reading"], row["machines"]): row
        for row in result.rows
        if "machines" in row.labels and row["part"] == "measured"
    }
    for mode in MODES:
        for name in (LOOP, SLOWED):
            (run,) = found[mode, name].runs
            steps = paper.steps_of(run["read"], STEP)
            layers, hidden = 2, 512
            fills, forwards = (
                2 * (layers - 1),
                2 * 2 * layers,
            )  # end of prompt and token
            assert run["sums"] == fills * len(steps) + forwards
            assert run["bytes"] == (fills * sum(steps) + forwards) * hidden * 4
            assert 0 < run["control"] < 100_000
    full, sparse = (found[mode, LOOP].runs[0] for mode in MODES)
    assert sparse["bytes"] < 0.5 * full["bytes"]
    for row in result.rows:
        if row["part"] == "token" and row["machines"] != ONE:
            assert row.runs[0]["bytes"] == pytest.approx(2 * 2 * 512 * 4)


def test_each_rank_sends_its_part_of_every_sum() -> None:
    assert paper.exchange_bytes(SHAPE, [256, 100], 2) == (18 * 356 + 20) * 512 * 4


def test_a_sum_over_two_machines_takes_two_messages() -> None:
    """One token: 512 floats, of which each sends 256 to be added up, and 256 sums."""
    assert paper.sum_seconds(512, 4, 2, SLOW) == pytest.approx(2 * (1e-3 + 1024 / 125e6))
    assert paper.sum_seconds(512, 4, 1, SLOW) == 0


@pytest.mark.parametrize("ranks", [3, 4])
def test_more_machines_send_smaller_messages_one_after_another(ranks: int) -> None:
    message = 1e-3 + math.ceil(512 / ranks) * 4 / 125e6
    assert paper.sum_seconds(512, 4, ranks, SLOW) == pytest.approx(2 * (ranks - 1) * message)


def test_two_packets_share_the_line_and_hide_the_latency() -> None:
    """512 tokens: a part of 131,072 floats is sent in two packets of 2.1 ms. The third leaves right
    after the second, because the first has arrived by then: four packets and one latency."""
    packet = 65_536 * 4 / 125e6
    assert paper.sum_seconds(512 * 512, 4, 2, SLOW) == pytest.approx(4 * packet + 1e-3)
    # If the latency exceeds a packet's time, it counts twice, plus one packet.
    far = LinkSpeed(5e-3, 125e6)
    assert paper.sum_seconds(512 * 512, 4, 2, far) == pytest.approx(3 * packet + 2 * 5e-3)


def test_both_directions_of_a_large_sum_share_the_line() -> None:
    elements = 1 << 21
    whole = elements * 4 / 125e6
    assert paper.sum_seconds(elements, 4, 2, SLOW) == pytest.approx(whole + 1e-3, rel=1e-3)


def test_the_exchange_has_two_sums_per_layer() -> None:
    """A prefill step has no sums in the last layer; the first token needs one more forward."""
    steps = [256, 100]
    sums = 18 * paper.sum_seconds(256 * 512, 4, 2, SLOW)
    sums += 18 * paper.sum_seconds(100 * 512, 4, 2, SLOW)
    sums += 20 * paper.sum_seconds(512, 4, 2, SLOW)
    asked = (2 + 1) * 2 * 1e-3
    assert paper.exchange_seconds(SHAPE, steps, 2, SLOW) == pytest.approx(sums + asked)
    assert paper.exchange_seconds(SHAPE, steps, 1, SLOW) == 0


def test_the_first_token_is_the_divided_work_plus_the_exchange() -> None:
    steps = paper.steps_of(357, 256)
    assert steps == [256, 100]
    one = paper.first_token_seconds(SHAPE, 4.0, 0.5, steps)
    two = paper.first_token_seconds(SHAPE, 4.0, 0.5, steps, 2, SLOW)
    assert one == 4.5
    assert two == pytest.approx(0.5 + 2.0 + paper.exchange_seconds(SHAPE, steps, 2, SLOW))
