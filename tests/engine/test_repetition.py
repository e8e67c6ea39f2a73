"""A model that repeats itself is stopped; what only looks like it is not."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from app.engine.turn.decode import (
    LONGEST_PERIOD,
    REPEATS,
    SENTENCE_LOOP,
    SHORTEST_LOOP,
    LoopDetector,
)
from app.models.embedded import target_path
from app.protocol.options import Sampling
from app.protocol.stats import FinishReason
from tests.engine.driver import LONG_TEXT, Driver, question


def stops_at(ids: list[int]) -> int | None:
    """After how many tokens."""
    watch = LoopDetector()
    return next((at for at, token in enumerate(ids, 1) if watch.advance(token)), None)


@pytest.mark.parametrize("period", [1, 2, 11, 12, 24, 25, LONGEST_PERIOD])
def test_a_loop_is_stopped_after_its_last_allowed_repeat(period: int) -> None:
    before, loop = list(range(500, 800)), list(range(period))
    stopped = stops_at(before + loop * 1_000)
    assert stopped is not None
    shortest = SHORTEST_LOOP if period < 12 else SENTENCE_LOOP
    assert stopped - len(before) == max(shortest, REPEATS * period)


def test_a_loop_that_is_never_exact_for_long_is_not_stopped() -> None:
    loop = list(range(20))
    almost = [token for turn in range(100) for token in (*loop, 100 + turn % 7)]
    assert stops_at(almost) is None


@pytest.fixture(scope="module")
def encode() -> object:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(target_path() / "tokenizer.json"))


TABLE = "| name | value |\n| --- | --- |\n" + "".join(
    f"| gate {n} | {n * 37 % 101} |\n" for n in range(200)
)
HONEST = {
    "a counting list": "\n".join(f"{n}. The gate." for n in range(1, 400)),
    "numbers": ", ".join(map(str, range(600))),
    "a table": TABLE,
    "a wide table's rule": "|" + " --- |" * 40 + "\n",
    "a row of zeros": json.dumps([0] * 80),
    "a matrix": json.dumps([[int(i == j) for i in range(24)] for j in range(24)]),
    "records": json.dumps([{"id": n, "open": True, "of": None} for n in range(200)]),
    "equal lines of code": "def test() -> None:\n" + "    queue.put(None)\n" * 8 + "    end()\n",
    "a rule": "-" * 200 + "\n",
    "a chorus": ("And so we sing along the road,\n" * 4 + "the last one is another.\n") * 3,
}


@pytest.mark.parametrize("name", HONEST)
def test_lists_tables_code_and_data_go_on(name: str, encode: object) -> None:
    ids = encode.encode(HONEST[name], add_special_tokens=False).ids  # type: ignore[attr-defined]
    assert stops_at(ids) is None


def test_watching_costs_little_beside_a_token() -> None:
    watch, began = LoopDetector(), time.process_time()
    for token in range(2_000):
        watch.advance(token)
    assert (time.process_time() - began) / 2_000 < 1e-3


def test_a_model_in_a_loop_is_stopped_and_only_where_that_is_wanted(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny random model that is greedy soon is in one."""
    monkeypatch.setattr("app.engine.turn.decode.SHORTEST_LOOP", 24)
    monkeypatch.setattr("app.engine.turn.decode.REPEATS", 3)
    asked = question(tokens=120, text=LONG_TEXT)
    free = loaded.answer(asked)
    guarded = Sampling(max_tokens=120, stop_repeats=True)
    finished = loaded.answer(replace(asked, sampling=guarded))
    assert finished.finish_reason is FinishReason.REPEATED
    assert 24 <= len(finished.generated_ids) < len(free.generated_ids)
    assert free.generated_ids[: len(finished.generated_ids)] == finished.generated_ids
    assert free.text.startswith(finished.text)
