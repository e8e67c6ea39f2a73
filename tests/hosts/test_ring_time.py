"""How long MLX's ring takes for a sum over a slow link is what `app/models/across.py` predicts: two
processes of MLX alone, and the relay between them.

The link is so slow that it does not matter what else runs on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.bench.relay import LOOPBACK, Relay
from app.cli.bench_machines import through
from app.hosts.shard_process import free_port
from app.models.across import Connection, sum_seconds

LINK = Connection(0.06, 1e6)
ELEMENTS = (512, 50_000, 131_072, 400_000)
"""Floats: small ones, one packet a part, two packets, and both directions."""
RUNS = (16, 6, 4, 4)
"""The quickest counts: what else runs only ever adds to it, most to what is short."""
SCRIPT = f"""
import json, time
import mlx.core as mx
group = mx.distributed.init(strict=True, backend="ring")
found = []
for elements, runs in zip({ELEMENTS}, {RUNS}):
    array = mx.ones(elements)
    mx.eval(array)
    seconds = []
    for _ in range(runs):
        mx.eval(mx.distributed.all_sum(mx.ones(1)))  # both start at once
        started_at = time.perf_counter()
        total = mx.distributed.all_sum(array)
        mx.eval(total)
        seconds.append(time.perf_counter() - started_at)
        assert mx.all(total == 2)
    found.append(min(seconds))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_sums_take_what_is_predicted(tmp_path: Path) -> None:
    everyone = json.dumps([[f"{LOOPBACK}:{free_port(LOOPBACK)}"] for _ in range(2)])
    with Relay(LINK.latency, LINK.rate) as relay:
        ranks = []
        for rank in range(2):
            hostfile = tmp_path / f"{rank}.json"
            hostfile.write_text(
                through(relay, rank, {"MLX_HOSTFILE": everyone})["MLX_HOSTFILE"], "utf-8"
            )
            variables = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)}
            command = [sys.executable, "-c", SCRIPT]
            pipe = subprocess.PIPE
            environment = os.environ | variables
            ranks.append(subprocess.Popen(command, env=environment, stdout=pipe, text=True))
        try:
            outputs = [each.communicate(timeout=120)[0] for each in ranks]
        finally:
            for each in ranks:
                each.kill()
    both = [json.loads(output) for output in outputs]
    for elements, *seconds in zip(ELEMENTS, *both, strict=True):
        predicted = sum_seconds(elements, 4, 2, LINK)
        assert max(seconds) == pytest.approx(predicted, rel=0.2), elements
