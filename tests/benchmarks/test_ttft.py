"""Measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import pytest

from benchmarks import ttft
from benchmarks.harness import Options
from benchmarks.shapes import random_pair, shapes
from tests.benchmarks.measuring import measured, printed

OPTIONS = Options(1, (300,), (0.2, 1.0), ("small",), scale=0.2)


def test_every_length_and_keep_is_measured_beside_mlx_lm() -> None:
    sparse, everything = measured(ttft.BENCH, OPTIONS).rows
    assert [(row["length"], row["keep"]) for row in (sparse, everything)] == [(300, 0.2), (300, 1)]
    assert 0.2 * 300 < sparse["selected"] < 0.5 * 300
    assert everything["selected"] == 300
    for row in (sparse, everything):
        (run,) = row.runs
        phases = sum(run[name] for _, name in ttft.PHASES)
        assert 0 < phases < run["sparse"]
        assert min(run["plain"], run["dense"], run["peak"], run["memory"]) > 0


def test_the_prediction_is_of_the_measured_shares() -> None:
    phases = {"score": 1.0, "prefill": 2.0, "lookahead": 0.5}
    run = ttft.figures(0.2, 40.0, 10.0, 3.5, phases)
    assert (run["r"], run["e"]) == pytest.approx((0.1, 0.05))
    assert run["predicted"] == pytest.approx(1 / (0.1 + 0.2 + 0.05))
    assert run["g"] == pytest.approx(run["predicted"] / (10.0 / 3.5)), "mlx-lm's speed is not in it"
    assert run["engine"] == pytest.approx(4.0)


def test_the_table_has_a_line_for_each() -> None:
    lines = printed(ttft.BENCH, OPTIONS).splitlines()
    assert lines[0].startswith("small, 20% of the layers, random weights")
    assert [line.split()[:2] for line in lines if line.startswith("300 ")] == [
        ["300", "0.2"],
        ["300", "1"],
    ]


@pytest.mark.parametrize("shape", [name for name in shapes() if name != "small"])
def test_real_shapes_are_models_that_mlx_lm_builds(shape: str) -> None:
    """Without their weights, which take gigabytes."""
    from mlx_lm.utils import _get_classes

    for config in shapes()[shape].values():
        model, arguments = _get_classes(config)
        built = model(arguments.from_dict({**config, "num_hidden_layers": 1, "vocab_size": 64}))
        assert len(built.layers) == 1


def test_weights_can_be_quantised() -> None:
    target, _ = random_pair("small", 0.1, bits=4)
    assert target.layers[0].mlp.up_proj.bits == 4
