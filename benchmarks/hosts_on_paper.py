"""What two Macs would take to the first token of a target that is too big for one: predicted, not
measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from app.models import across
from app.models.across import LinkSpeed
from app.models.architecture import Architecture, parse_architecture
from app.models.fit import PREFILL_STEP, ModelSize
from app.models.speedup import OVERHEAD, token_cost
from benchmarks.harness import Row
from benchmarks.shapes import configs_of

MODELS = {
    "70B": "llama-70b+8b",
    "235B-A22B": "qwen3-235b-a22b+0.6b",
}
LINKS = {
    "Thunderbolt 5": LinkSpeed(0.3e-3, 5e9),
    "10 Gb Ethernet": LinkSpeed(0.3e-3, 1.17e9),
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
                        "bytes": exchange_bytes(shape, steps, 2),
                        "rate": break_even_rate(*times, 2, link.latency),
                        "weights": across.shard_size(size, 2).weight_bytes,
                        "weights_one": size.weight_bytes,
                    }
                )


def sum_bytes(elements: int, element_bytes: int, ranks: int) -> int:
    """What each rank sends for one sum."""
    return 2 * (ranks - 1) * math.ceil(elements / ranks) * element_bytes if ranks > 1 else 0


def exchange_bytes(shape: Architecture, steps: Sequence[int], ranks: int) -> int:
    """What each rank sends to others until the first token."""
    sums = across.sums_of(shape, steps)
    return sum(count * sum_bytes(size, shape.element_bytes, ranks) for count, size in sums)


def break_even_rate(
    shape: Architecture,
    target_seconds: float,
    other_seconds: float,
    steps: Sequence[int],
    ranks: int,
    latency: float,
) -> float | None:
    """The slowest link of this latency over which `ranks` machines are as fast as one; None where
    no rate is enough."""
    slowest, fastest = 1e3, 1e13

    def pays(rate: float) -> bool:
        link = LinkSpeed(latency, rate)
        args = (shape, target_seconds, other_seconds, steps)
        return across.first_token_seconds(*args, ranks, link) <= across.first_token_seconds(*args)

    if not pays(fastest):
        return None
    while fastest / slowest > 1.001:
        middle = math.sqrt(slowest * fastest)
        slowest, fastest = (slowest, middle) if pays(middle) else (middle, fastest)
    return fastest
