"""Predicts the time to the first token on several machines, for example for two Macs and a target
that does not fit on one.

After attention and after the MLP of every layer, partial hidden states are summed over all machines
(*ranks*) by MLX's ring (`mlx/distributed/ring/ring.cpp`, MLX 0.32). Its messages are simulated here
one by one. Times are in seconds, rates in bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.extras.hosts.across import shard_of, shard_size
from app.models.architecture import Architecture, parse_architecture
from app.models.fit import PREFILL_STEP, ModelSize
from app.models.speedup import OVERHEAD, token_cost
from benchmarks.harness import Row
from benchmarks.shapes import configs_of

SUMS_PER_LAYER = 2
ONE_WAY_FROM = 1 << 18
"""If a rank's part of a sum has at least this many bytes, the ring sends half in each direction."""
MIN_PACKET, MAX_PACKET = 1 << 15, 8 << 20
"""Minimum elements and maximum bytes of a packet. A part is sent in two packets if possible."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """A link between two machines: latency in seconds one way, bytes per second each way."""

    latency: float
    rate: float


MODELS = {
    "70B": "llama-70b+8b",
    "235B-A22B": "qwen3-235b-a22b+0.6b",
}
LINKS = {
    "Thunderbolt 5": LinkSpeed(0.3e-3, 5e9),
    "10 Gb Ethernet": LinkSpeed(0.3e-3, 1.17e9),
}
"""Assumptions for TCP: half of Thunderbolt 5's 80 Gb/s, 94 % of Ethernet's 10 Gb/s, 0.3 ms."""
TOKENS = 60_000
OPERATIONS = 0.6 * 27.2e12
"""Operations per second of a machine: 60 % of an M2 Ultra's, as a prefill reaches."""


def on_paper(keep: float) -> Iterator[Row]:
    """A row for each model, link and reading: seconds on `one` and `two` machines."""
    for model, shape_name in MODELS.items():
        shape = parse_architecture(configs_of(shape_name)["target"], bits=4)
        size = ModelSize(model, shape, shape.weight_bytes)
        dense = TOKENS * token_cost(size, TOKENS) / OPERATIONS
        for link_name, link in LINKS.items():
            for reading, share in (("in full", 1.0), ("sparse", keep)):
                read = round(TOKENS * share)
                target = read * token_cost(size, read) / OPERATIONS
                other = 0.0 if share == 1 else OVERHEAD * dense
                steps = steps_of(read, PREFILL_STEP)

                times = shape, target, other, steps
                yield Row(
                    {
                        "part": "paper",
                        "model": model,
                        "link": link_name,
                        "reading": reading,
                        "one": target + other,
                        "two": first_token_seconds(*times, 2, link),
                        "exchange": exchange_seconds(shape, steps, 2, link),
                        "bytes": exchange_bytes(shape, steps, 2),
                        "weights": shard_size(size, 2).weight_bytes,
                        "weights_one": size.weight_bytes,
                    }
                )


def sum_bytes(elements: int, element_bytes: int, ranks: int) -> int:
    """Bytes that each rank sends for one sum."""
    return 2 * (ranks - 1) * math.ceil(elements / ranks) * element_bytes if ranks > 1 else 0


def exchange_bytes(shape: Architecture, steps: Sequence[int], ranks: int) -> int:
    """Bytes that each rank sends until the first token."""
    sums = sums_of(shape, steps)
    return sum(count * sum_bytes(size, shape.element_bytes, ranks) for count, size in sums)


# ------------------------------------------------------------------------- time


def sum_seconds(elements: int, element_bytes: int, ranks: int, link: LinkSpeed) -> float:
    """Seconds for one sum of `elements` over all ranks. Each rank has a full-duplex line. The
    ranks first sum up their parts in ranks - 1 messages (reduce-scatter), then distribute the sums
    in as many (all-gather). A message is sent after the previous one was received; with two packets
    per message, after its first packet was."""
    if ranks < 2:
        return 0.0
    ways = max(min(2, elements * element_bytes // (ranks * ONE_WAY_FROM)), 1)
    part = math.ceil(math.ceil(elements / ways) / ranks)
    packet = max(MIN_PACKET, min(MAX_PACKET // element_bytes, part // 2))
    packets = [min(packet, part - start) for start in range(0, part, packet)]
    ahead = 1 if len(packets) > 1 else 0
    now = line_free = 0.0
    arrivals: list[float] = []
    for _ in range(2 * (ranks - 1)):
        for size in packets:
            line_free = max(line_free, now) + ways * size * element_bytes / link.rate
            arrivals.append(line_free + link.latency)
            if len(arrivals) > ahead:
                now = max(now, arrivals[-1 - ahead])
    return arrivals[-1]


def sums_of(shape: Architecture, steps: Sequence[int]) -> list[tuple[int, int]]:
    """(number of sums, elements per sum) until the first token. A prefill step ends at the last
    layer's attention."""
    filling = SUMS_PER_LAYER * (len(shape.layers) - 1)
    sums = [(filling, tokens * shape.hidden_size) for tokens in steps]
    return [*sums, (SUMS_PER_LAYER * len(shape.layers), shape.hidden_size)]


def exchange_seconds(
    shape: Architecture, steps: Sequence[int], ranks: int, link: LinkSpeed
) -> float:
    """Seconds for all sums until the first token, with a prefill in `steps` of tokens. Each forward
    needs a request to the ranks and a reply."""
    if ranks < 2:
        return 0.0
    rounds = (len(steps) + 1) * 2 * link.latency
    return rounds + sum(
        count * sum_seconds(size, shape.element_bytes, ranks, link)
        for count, size in sums_of(shape, steps)
    )


def compute_share(shape: Architecture, ranks: int) -> float:
    """Share of the layers' computation done by each rank."""
    return shard_of(shape, ranks).active_parameters / max(shape.active_parameters, 1)


def first_token_seconds(
    shape: Architecture,
    target_seconds: float,
    other_seconds: float,
    steps: Sequence[int],
    ranks: int = 1,
    link: LinkSpeed | None = None,
) -> float:
    """Seconds to the first token. On one machine, the target's layers take `target_seconds`, in
    `steps` of tokens, and everything else `other_seconds`, which is not divided among the ranks."""
    if ranks < 2 or link is None:
        return other_seconds + target_seconds
    divided = target_seconds * compute_share(shape, ranks)
    return other_seconds + divided + exchange_seconds(shape, steps, ranks, link)


def steps_of(tokens: int, step: int) -> list[int]:
    """Sizes of the steps that prefill all but the last of `tokens`."""
    whole, rest = divmod(max(tokens - 1, 0), step)
    return [step] * whole + [rest] * bool(rest)
