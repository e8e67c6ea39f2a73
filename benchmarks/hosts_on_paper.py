"""What two Macs would take to the first token of a target that is too big for one: predicted, not
measured."""

from __future__ import annotations

from collections.abc import Iterator

from app.models import across
from app.models.across import Connection
from app.models.architecture import parse_architecture
from app.models.fit import PREFILL_STEP, ModelSize
from app.models.speedup import OVERHEAD, token_cost
from benchmarks.harness import Row
from benchmarks.shapes import configs_of

MODELS = {
    "70B": "llama-70b+8b",
    "235B-A22B": "qwen3-235b-a22b+0.6b",
}
LINKS = {
    "Thunderbolt 5": Connection(0.3e-3, 5e9),
    "10 Gb Ethernet": Connection(0.3e-3, 1.17e9),
}
"""Assumed, for TCP: half of Thunderbolt 5's 80 Gb/s, 94 % of Ethernet's 10; 0.3 ms between Macs."""
TOKENS = 60_000
OPERATIONS = 0.6 * 27.2e12
"""A second, of each machine: an M2 Ultra's, of which a prefill gets about 60 %."""


def on_paper(keep: float) -> Iterator[Row]:
    """A row for each model, link and way to read: `one` and `two` machines, in seconds."""
    for model, shape_name in MODELS.items():
        shape = parse_architecture(configs_of(shape_name)["target"], bits=4)
        size = ModelSize(model, shape, shape.weight_bytes)
        dense = TOKENS * token_cost(size, TOKENS) / OPERATIONS
        for link_name, link in LINKS.items():
            for reading, share in (("in full", 1.0), ("sparse", keep)):
                read = round(TOKENS * share)
                target = read * token_cost(size, read) / OPERATIONS
                other = 0.0 if share == 1 else OVERHEAD * dense
                steps = across.steps_of(read, PREFILL_STEP)

                times = shape, target, other, steps
                yield Row(
                    {
                        "part": "paper",
                        "model": model,
                        "link": link_name,
                        "reading": reading,
                        "one": target + other,
                        "two": across.first_token_seconds(*times, 2, link),
                        "exchange": across.exchange_seconds(shape, steps, 2, link),
                        "bytes": across.exchange_bytes(shape, steps, 2),
                        "rate": across.break_even_rate(*times, 2, link.latency),
                        "weights": across.shard_size(size, 2).weight_bytes,
                        "weights_one": size.weight_bytes,
                    }
                )
