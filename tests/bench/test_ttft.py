"""`specchat bench ttft` measures what it says. (How fast it is is no test's business.)"""

from __future__ import annotations

import io
import json

import pytest

from app.bench.shapes import random_pair, shapes
from app.bench.ttft import Asked, Row, ttft

ASKED = Asked("small", 0.2, None, (300,), (0.2, 1.0), runs=1)


def test_every_length_and_keep_is_measured_beside_plain_mlx_lm() -> None:
    out = io.StringIO()
    assert ttft(ASKED, True, out) == 0
    report = json.loads(out.getvalue())
    assert [(run["length"], run["keep"]) for run in report["runs"]] == [(300, 0.2), (300, 1.0)]
    some, all_of_it = report["runs"]
    assert 0.2 * 300 < some["kept"] < 0.5 * 300
    assert all_of_it["kept"] == 300
    for run in report["runs"]:
        assert sum(run["phases"].values()) == pytest.approx(run["ttft"], abs=0.01)
        assert min(run["plain"], run["dense"], run["peak"], run["dense_peak"]) > 0


def test_the_prediction_is_the_measured_shares() -> None:
    phases = {"score": 1.0, "prefill": 2.0, "lookahead": 0.5}
    row = Row(1000, 0.2, 200, 40.0, 10.0, 3.5, phases, 1, 2)
    assert (row.r, row.e) == pytest.approx((0.1, 0.05))
    assert row.predicted == pytest.approx(1 / (0.1 + 0.2 + 0.05))
    assert row.g == pytest.approx(row.predicted / (10.0 / 3.5)), (
        "how fast plain mlx-lm is, is not in"
    )
    assert row.engine == pytest.approx(4.0)


def test_the_table_has_a_line_for_each() -> None:
    out = io.StringIO()
    ttft(ASKED, False, out)
    lines = out.getvalue().splitlines()
    assert "small, 20% of the layers, random weights" in lines[0]
    assert [line.split()[:2] for line in lines if line.startswith("    300")] == [
        ["300", "0.20"],
        ["300", "1.00"],
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
