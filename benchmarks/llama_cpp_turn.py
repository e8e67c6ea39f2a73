"""Times llama.cpp on a prompt, in a Python that has `llama-cpp-python`; prints JSON.

`python llama_cpp_turn.py MODEL.gguf WRITTEN <PROMPT`, where the prompt is a list of token ids, and
WRITTEN the number of tokens to write. `benchmarks/real_pair.py` runs it.
"""

from __future__ import annotations

import json
import os
import sys
import time

BATCH = 512


def main() -> None:
    from llama_cpp import Llama  # type: ignore[import-not-found, unused-ignore]

    path, written = sys.argv[1], int(sys.argv[2])
    ids = json.load(sys.stdin)
    threads = os.cpu_count() or 1
    model = Llama(
        path,
        n_ctx=len(ids) + written + 8,
        n_batch=BATCH,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    model.eval(ids[:8])  # warms up
    model.reset()
    started, cpu = time.perf_counter(), time.process_time()
    model.eval(ids)
    token = model.sample(temp=0.0)
    first = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    for _ in range(written - 1):
        model.eval([token])
        token = model.sample(temp=0.0)
    whole = {"whole": time.perf_counter() - started, "whole_cpu": time.process_time() - cpu}
    print(json.dumps(first | whole))


if __name__ == "__main__":
    main()
