"""Thinking: switched off in the prompt, and ended after its budget."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer
from numpy.typing import NDArray

from app.engine.cache.caches import flatten
from app.engine.cache.prefill import StepSize, make_stock_cache, prefill
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.prompt import PromptBuilder
from app.engine.turn.decode import Decoder
from app.protocol.events import Token
from app.protocol.options import Sampling
from app.protocol.prompt import Message, Role
from app.protocol.stats import FinishReason
from tests import tiny

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of a model that thinks."""
    folder = tmp_path_factory.mktemp("thinker")
    tiny.save(folder)
    backend = tiny.byte_tokenizer()
    backend.add_tokens(["<think>", "</think>"])
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(Path(folder))


def test_thinking_is_switched_off_where_the_template_can(thinker: Any) -> None:
    asked = (Message(Role.USER, "What?"),)

    def ends_with(thinking: bool) -> str:
        prompt = PromptBuilder(thinker).build(asked, thinking=thinking)
        return str(thinker.decode(prompt.ids.tolist()).split("What?")[-1])

    thinker.chat_template = TEMPLATE
    assert ends_with(thinking=True) == "[assistant]"
    assert ends_with(thinking=False) == "[assistant]<think>\n\n</think>\n\n"
    thinker.chat_template = TEMPLATE.split("{% if")[0]  # has no switch
    assert ends_with(thinking=False) == "[assistant]"


@cache
def model() -> Any:
    return tiny.build("llama", vocabulary=320)  # all bytes, and what opens and ends thinking


class Run:
    """A tiny model writes after a prompt that opens its thinking."""

    def __init__(self, thinker: Any, sampling: Sampling, stop_after: int = 10**6) -> None:
        self.model = model()
        opened = thinker.encode("What?\n<think>", add_special_tokens=False)
        self.prompt: NDArray[np.int32] = np.array(opened, np.int32)
        self.cache = make_stock_cache(self.model)
        self._read(self.prompt[:-1])
        self.events: list[Token] = []
        self.decoder = Decoder(1, thinker, sampling, self.events.append)

        def stop() -> FinishReason | None:
            return FinishReason.CANCELLED if len(self.decoder.ids) >= stop_after else None

        self.reason = self.decoder.run(
            self.model, self.prefix, self.prompt, sampling.max_tokens, stop
        )

    @property
    def prefix(self) -> PrefixCache:
        return PrefixCache(lambda: self.cache)

    def _read(self, ids: NDArray[np.int32]) -> None:
        places = np.arange(len(ids), dtype=np.int32)
        prefill(self.model, self.cache, ids, places, StepSize(64), lambda done: None)

    @property
    def thought(self) -> str:
        return "".join(event.thinking for event in self.events)

    @property
    def cached(self) -> int:
        return int(flatten(self.cache)[0].offset)


def closing_of(thinker: Any) -> list[int]:
    found: list[int] = thinker.encode("\n</think>\n\n", add_special_tokens=False)
    return found


def test_thinking_ends_after_its_budget_and_the_answer_goes_on(thinker: Any) -> None:
    closing = closing_of(thinker)
    budget, length = 12, 40
    run = Run(thinker, Sampling(max_tokens=length, thinking_budget=budget))
    ids = run.decoder.ids
    assert run.reason is FinishReason.LENGTH
    assert len(ids) == length
    free = Run(thinker, Sampling(max_tokens=length)).decoder.ids
    assert ids[:budget] == free[:budget]
    assert ids[budget : budget + len(closing)] == closing
    assert free[budget : budget + len(closing)] != closing
    assert run.cached == len(run.prompt) + length
    # From there on it is what the model writes after all that.
    continued = Run(thinker, Sampling(max_tokens=1))
    continued.prompt = np.array([*run.prompt, *ids[: budget + len(closing)]], np.int32)
    continued.cache = make_stock_cache(run.model)
    continued._read(continued.prompt[:-1])
    decoder = Decoder(1, thinker, Sampling(max_tokens=length), lambda event: None)
    rest = length - budget - len(closing)
    decoder.run(run.model, continued.prefix, continued.prompt, rest, lambda: None)
    assert ids[budget + len(closing) :] == decoder.ids


def test_stopped_while_its_thinking_is_ended_everything_written_is_cached(thinker: Any) -> None:
    budget = 5
    written = set()
    for stop_after in range(3, budget + len(closing_of(thinker)) + 3):
        run = Run(thinker, Sampling(max_tokens=40, thinking_budget=budget), stop_after)
        assert run.reason is FinishReason.CANCELLED
        assert run.cached == len(run.prompt) + len(run.decoder.ids)
        written.add(len(run.decoder.ids))
    assert len(written) > 3


def test_a_budget_that_leaves_no_room_for_an_answer_changes_nothing(thinker: Any) -> None:
    length = 8
    run = Run(thinker, Sampling(max_tokens=length, thinking_budget=6))
    assert run.decoder.ids == Run(thinker, Sampling(max_tokens=length)).decoder.ids


def test_what_was_thought_is_no_part_of_the_answer(thinker: Any) -> None:
    run = Run(thinker, Sampling(max_tokens=30, thinking_budget=6))
    answer = "".join(event.text for event in run.events)
    assert run.thought
    assert answer == run.decoder.text
    assert "think>" not in run.thought + answer
