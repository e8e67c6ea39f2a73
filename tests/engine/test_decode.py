"""The decoder: generated tokens, shown text, thinking, stop conditions and loops."""

from __future__ import annotations

import itertools
import json
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer
from numpy.typing import NDArray

from app.engine.cache.caches import flatten
from app.engine.cache.prefill import StepSize, make_stock_cache, prefill
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.prompt import PromptBuilder
from app.engine.turn.decode import (
    MAX_PERIOD,
    MIN_LOOP,
    MIN_REPEATS,
    MIN_SENTENCE_LOOP,
    Decoder,
    LoopDetector,
)
from app.models.embedded import target_path
from app.protocol.events import EngineWarning, Event, Finished, MemoryReport, Token
from app.protocol.options import FROM_MODEL, Mode, ModelSampling, Sampling
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import FinishReason
from tests import tiny
from tests.engine.driver import LIMIT, LONG_TEXT, Driver, question
from tests.tables import table

LIKED = {"a": 10.0, "b": 9.6, "c": 9.3}
LENGTH = 6


def ids_of(thinker: Any, text: str) -> list[int]:
    found: list[int] = thinker.encode(text, add_special_tokens=False)
    return found


class Scripted:
    """A model with given next tokens, or with given preferences at each place."""

    def __init__(self, vocabulary: int, script: list[int], liked: dict[int, float]) -> None:
        self._vocabulary, self._liked = vocabulary, liked
        self._script = itertools.chain(script, itertools.repeat(0))

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        rows = np.zeros((1, tokens.shape[1], self._vocabulary), np.float32)
        for row in rows[0]:
            for token, logit in (self._liked or {next(self._script): 20.0}).items():
                row[token] = logit
        return mx.array(rows)


def write(
    thinker: Any,
    sampling: Sampling,
    text: str = "",
    liked: dict[int, float] | None = None,
    prefix: tuple[int, ...] = (),
    asked: str = "?",
    **options: Any,
) -> tuple[Decoder, FinishReason, str]:
    """Runs a decoder; has its finish reason and the text of its events."""
    script = ids_of(thinker, text)
    model = Scripted(len(thinker), script[len(prefix) :], liked or {})
    events: list[Token] = []
    decoder = Decoder(1, thinker, sampling, events.append, **options)
    prompt = np.array([*ids_of(thinker, asked), *prefix], np.int32)
    ended = decoder.generate(
        model, PrefixCache(list), prompt, sampling.max_tokens, lambda: None, len(prefix)
    )
    return decoder, ended, "".join(event.text for event in events)


def like(thinker: Any, **more: float) -> dict[int, float]:
    return {ids_of(thinker, letter)[0]: logit for letter, logit in (LIKED | more).items()}


@table(
    "options, written",
    [
        ({}, "aaaaaa"),
        ({"presence_penalty": 1.0}, "abcaaa"),
        ({"presence_penalty": -1.0}, "aaaaaa"),
        ({"frequency_penalty": 0.5}, "abacba"),
        ({"repetition_penalty": 1.5}, "abcaaa"),
        ({"repetition_penalty": 1.5, "penalty_tokens": 1}, "ababab"),
        ({"temperature": 1.0, "top_p": 0.0}, "aaaaaa"),
        ({"temperature": 1.0, "top_p": 1e-46}, "aaaaaa"),
        ({"temperature": 1e-40}, "aaaaaa"),
        ({"temperature": 1.0, "min_p": 1.0}, "aaaaaa"),
        ({"temperature": 0.01, "top_k": 1}, "aaaaaa"),
        ({"temperature": 0.01, "top_k": 10**6}, "aaaaaa"),
        ({"temperature": 0.01, "xtc_probability": 1.0}, "cccccc"),
        ({"temperature": 0.01, "top_p": 0.0, "xtc_probability": 1.0}, "aaaaaa"),
    ],
)
def test_every_sampling_parameter_has_an_effect(
    thinker: Any, options: dict[str, Any], written: str
) -> None:
    sampling = Sampling(max_tokens=LENGTH, seed=1, **options)
    decoder, ended, shown = write(thinker, sampling, liked=like(thinker))
    assert (decoder.text, shown, ended) == (written, written, FinishReason.LENGTH)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_ignore_the_prompt(thinker: Any, penalty: str) -> None:
    (a,) = ids_of(thinker, "a")
    sampling = Sampling(max_tokens=2, **{penalty: 1.0})
    for prefix, written in (((), "ab"), ((a,), "abc")):
        decoder, _, _ = write(thinker, sampling, liked=like(thinker), prefix=prefix, asked="a")
        assert decoder.text == written


def test_logit_bias_makes_tokens_likely_or_impossible(thinker: Any) -> None:
    (a,), (b,), (z,) = (ids_of(thinker, letter) for letter in "abz")
    for bias, written in ((((a, -100.0),), "bbb"), (((z, 50.0), (b, -1.0)), "zzz")):
        sampling = Sampling(max_tokens=3, logit_bias=bias)
        assert write(thinker, sampling, liked=like(thinker))[0].text == written


def test_an_answer_ends_at_the_given_stop_tokens(thinker: Any) -> None:
    (stop,) = ids_of(thinker, "c")
    decoder, ended, shown = write(thinker, Sampling(stop_ids=(stop,)), "abcd")
    assert (decoder.text, shown, ended) == ("ab", "ab", FinishReason.STOP)


def test_the_end_of_text_can_be_ignored(thinker: Any) -> None:
    (end,) = thinker.eos_token_ids
    liked = like(thinker) | {end: 30.0}
    assert write(thinker, Sampling(), liked=liked)[1] is FinishReason.STOP
    decoder, ended, _ = write(thinker, Sampling(max_tokens=4, ignore_eos=True), liked=liked)
    assert (decoder.text, ended) == ("aaaa", FinishReason.LENGTH)


@pytest.mark.parametrize(("trim", "shown"), [(False, "  x"), (True, " x")])
def test_a_continued_text_keeps_its_leading_space(thinker: Any, trim: bool, shown: str) -> None:
    decoder, _, text = write(thinker, Sampling(max_tokens=3), "  x", trim_space=trim)
    assert (decoder.text, text) == (shown, shown)


TEXT = "a <b> < <think>no</think> ü < "


def test_a_truncated_answer_shows_all_its_text(thinker: Any) -> None:
    for text in ("a ", "a <", "a <thi", "x  ", "ü"):
        length = len(ids_of(thinker, text))
        decoder, ended, shown = write(thinker, Sampling(max_tokens=length), text)
        assert (decoder.text, shown, ended) == (text, text, FinishReason.LENGTH)
    assert write(thinker, Sampling(max_tokens=2), "aü")[2] == "a", "no half character"


def test_an_answer_truncated_anywhere_continues_to_the_same_text(thinker: Any) -> None:
    ids = ids_of(thinker, TEXT)
    whole, _, shown = write(thinker, Sampling(max_tokens=len(ids)), TEXT)
    assert whole.text == shown == "a <b> <  ü < "
    for cut in range(len(ids)):
        first = write(thinker, Sampling(max_tokens=cut), TEXT) if cut else None
        first_text = first[2] if first else ""
        rest = Sampling(max_tokens=len(ids) - cut)
        decoder, _, more = write(thinker, rest, TEXT, prefix=tuple(ids[:cut]))
        assert first_text + more == decoder.text == shown, cut


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def test_thinking_is_switched_off_if_the_template_supports_it(thinker: Any) -> None:
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
    return tiny.build("llama", vocabulary=320)  # all bytes, and the thinking tags


class Run:
    """A tiny model continues a prompt that opens thinking."""

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

        self.reason = self.decoder.generate(
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


def test_thinking_ends_after_its_budget_and_the_answer_continues(thinker: Any) -> None:
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
    # From there on, the model continues after the closing tag.
    continued = Run(thinker, Sampling(max_tokens=1))
    continued.prompt = np.array([*run.prompt, *ids[: budget + len(closing)]], np.int32)
    continued.cache = make_stock_cache(run.model)
    continued._read(continued.prompt[:-1])
    decoder = Decoder(1, thinker, Sampling(max_tokens=length), lambda event: None)
    rest = length - budget - len(closing)
    decoder.generate(run.model, continued.prefix, continued.prompt, rest, lambda: None)
    assert ids[budget + len(closing) :] == decoder.ids


def test_an_answer_stopped_while_thinking_is_closed_is_cached_completely(thinker: Any) -> None:
    budget = 5
    written = set()
    for stop_after in range(3, budget + len(closing_of(thinker)) + 3):
        run = Run(thinker, Sampling(max_tokens=40, thinking_budget=budget), stop_after)
        assert run.reason is FinishReason.CANCELLED
        assert run.cached == len(run.prompt) + len(run.decoder.ids)
        written.add(len(run.decoder.ids))
    assert len(written) > 3


def test_a_thinking_budget_without_room_for_an_answer_has_no_effect(thinker: Any) -> None:
    length = 8
    run = Run(thinker, Sampling(max_tokens=length, thinking_budget=6))
    assert run.decoder.ids == Run(thinker, Sampling(max_tokens=length)).decoder.ids


def test_thinking_is_not_part_of_the_answer(thinker: Any) -> None:
    run = Run(thinker, Sampling(max_tokens=30, thinking_budget=6))
    answer = "".join(event.text for event in run.events)
    assert run.thought
    assert answer == run.decoder.text
    assert "think>" not in run.thought + answer


def stops_at(ids: list[int], encode: Any = None) -> int | None:
    """Number of tokens after which the detector stops, or None."""
    watch = LoopDetector() if encode is None else LoopDetector(encode.decode)
    return next((at for at, token in enumerate(ids, 1) if watch.advance(token)), None)


@table("period", [1, 2, 11, 12, 24, 25, MAX_PERIOD])
def test_a_loop_is_stopped_after_its_last_allowed_repeat(period: int) -> None:
    before, loop = list(range(500, 800)), list(range(period))
    stopped = stops_at(before + loop * 1_000)
    assert stopped is not None
    shortest = MIN_LOOP if period < 12 else MIN_SENTENCE_LOOP
    assert stopped - len(before) == max(shortest, MIN_REPEATS * period)


def test_inexact_repetition_is_not_stopped() -> None:
    loop = list(range(20))
    almost = [token for turn in range(100) for token in (*loop, 100 + turn % 7)]
    assert stops_at(almost) is None


@pytest.fixture(scope="module")
def encode() -> Any:
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
    "a list of flags": "[" + "true, false, " * 20 + "]",
    "a refrain": "Sing, my heart!\n" * 4 + "And then the day began.\n",
    "said twice": "Never walk on the ice of the lake. " * 2 + "I mean it.",
    "code that prints": "    print('The gate is open. Go on.')\n" * 6 + "    end()\n",
    "rows": "| The gate is open now. | yes |\n" * 6,
    "a chorus": ("And so we sing along the road,\n" * 4 + "the last one is another.\n") * 3,
}


@table("name", HONEST)
def test_lists_tables_code_and_data_are_not_stopped(name: str, encode: Any) -> None:
    ids = encode.encode(HONEST[name], add_special_tokens=False).ids
    assert stops_at(ids, encode) is None


LOOPS = {
    "a sentence": "The patent holder cannot sell the licence without consent. ",
    "two sentences": "The fee is due in May. It is paid to the office of the landlord. ",
    "a line": "The tenant shall pay for all repairs of the roof and of the windows.\n",
    "a phrase": "the grant of the patent, ",
}


@table("name", LOOPS)
def test_repeated_prose_is_stopped_at_its_second_repetition(name: str, encode: Any) -> None:
    start, passage = "I have read the text of the contract. ", LOOPS[name]
    ids = encode.encode(start + passage * 20, add_special_tokens=False).ids
    allowed = 3 if name != "a phrase" else 7
    longest = len(encode.encode(start + passage * allowed, add_special_tokens=False).ids)
    stopped = stops_at(ids, encode)
    assert stopped is not None
    assert stopped <= longest + 3
    assert encode.decode(ids[:stopped]).count(passage.strip()) >= 2


@table("name", LOOPS)
def test_the_repetitions_of_a_loop_are_not_written(
    name: str, thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.engine.turn.decode.MAX_PERIOD", 128)  # a token is a byte
    start, passage = "I have read the text. ", LOOPS[name]
    sampling = Sampling(max_tokens=2_000, stop_repeats=True, speculate=False)
    decoder, ended, shown = write(thinker, sampling, start + passage * 30)
    assert ended is FinishReason.REPEATED
    assert shown == decoder.text == thinker.decode(decoder.ids)
    assert decoder.text.strip() == f"{start}{passage}".strip()
    written = [*decoder.ids, *decoder.dropped]
    assert ids_of(thinker, start + passage * 30)[: len(written)] == written


def test_loop_detection_is_fast_compared_with_a_token() -> None:
    watch, began = LoopDetector(), time.process_time()
    for token in range(2_000):
        watch.advance(token)
    assert (time.process_time() - began) / 2_000 < 1e-3


def test_a_looping_model_is_stopped_only_if_requested(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny random model with greedy decoding soon loops."""
    monkeypatch.setattr("app.engine.turn.decode.MIN_LOOP", 24)
    monkeypatch.setattr("app.engine.turn.decode.MIN_REPEATS", 3)
    asked = question(tokens=120, text=LONG_TEXT)
    free = loaded.answer(asked)
    guarded = Sampling(max_tokens=120, stop_repeats=True)
    finished = loaded.answer(replace(asked, sampling=guarded))
    assert finished.finish_reason is FinishReason.REPEATED
    assert 0 < len(finished.generated_ids) < len(free.generated_ids)
    assert free.generated_ids[: len(finished.generated_ids)] == finished.generated_ids
    assert free.text.startswith(finished.text)


@pytest.mark.slow
def test_a_loop_ends_for_others_only_while_others_wait(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.engine.turn.decode.MIN_LOOP", 24)
    monkeypatch.setattr("app.engine.turn.decode.MIN_REPEATS", 3)
    patient = replace(
        question(tokens=200, text=LONG_TEXT), sampling=Sampling(max_tokens=200, yield_repeats=True)
    )
    alone = loaded.answer(patient)
    assert alone.finish_reason is FinishReason.LENGTH
    events: list[Finished] = []
    ends = threading.Semaphore(0)

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            events.append(event)
            ends.release()

    for background in (True, False):  # a question typed in the app is one of the others
        loaded.engine.ask(replace(patient, conversation="a"), listen, background=True)
        other = replace(question(tokens=1), conversation="b")
        loaded.engine.ask(other, listen, background=background)
        for _ in range(2):
            assert ends.acquire(timeout=LIMIT)
    looped = next(each for each in events if each.finish_reason is FinishReason.REPEATED)
    assert len(looped.generated_ids) < len(alone.generated_ids)


TAGS = {
    "Qwen": "<tool_call>{{ tool_call.name }}",
    "Qwen Coder": "<tool_call>\n<function=",
    "Mistral": "[TOOL_CALLS]",
    "GLM": "<arg_key>",
    "LFM": "<|tool_call_start|>",
    "Gemma 4": "<|tool_call><tool_call|>",
    "Kimi": "<|tool_calls_section_begin|>",
    "MiniMax": "<minimax:tool_call>",
}


@table("name, thinks", itertools.product(TAGS, [False, True]))
def test_the_tags_of_tool_calls_stay_in_the_text(name: str, thinks: bool, tmp_path: Path) -> None:
    folder, tags = tiny.save(tmp_path / "m"), "<think></think> " if thinks else ""
    backend = tiny.byte_tokenizer()
    backend.add_tokens(["<think>", "</think>"])
    backend.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = f"{config['chat_template']}{{# {tags}{TAGS[name]} #}}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    start, end = tokenizer.tool_call_start, tokenizer.tool_call_end or ""
    assert start
    said = f'{start}{{"name": "w"}}{end}'
    thought = f"<think>It is {start}.</think>" if thinks else ""
    text = f"{thought}Write {said} to call."
    limit = len(ids_of(tokenizer, text))
    decoder, _, shown = write(tokenizer, Sampling(max_tokens=limit, speculate=False), text)
    assert shown == decoder.text == f"Write {said} to call."


RECOMMENDED = {"do_sample": True, "temperature": 1.5, "top_k": 40, "repetition_penalty": 1.3}


def test_unset_sampling_parameters_come_from_the_model(tmp_path: Path, driver: Driver) -> None:
    folder = tiny.save(tmp_path / "m")
    config = RECOMMENDED | {"top_p": 40}
    (folder / "generation_config.json").write_text(json.dumps(config))
    loaded = driver.load(folder)
    assert loaded.target.sampling == ModelSampling(1.5, 1.0, 40, 0.0, 1.3, ("top_p",))
    driver.until(MemoryReport)
    (warning,) = driver.of(EngineWarning)
    assert warning.reason == Reason(ReasonCode.SAMPLING_IGNORED, {"names": ["top_p"]})

    def answer(sampling: Sampling) -> tuple[int, ...]:
        ask = replace(question(Mode.FULL, text="The gate is 7."), conversation=None)
        return driver.answer(replace(ask, sampling=sampling)).generated_ids

    base = Sampling(max_tokens=12, seed=7)
    own = answer(replace(base, from_model=FROM_MODEL))
    assert own == answer(base.with_values(temperature=1.5, top_k=40, repetition_penalty=1.3))
    greedy = answer(base)
    assert own != greedy
    chosen = replace(base, from_model=FROM_MODEL).with_values(
        temperature=0.0, repetition_penalty=1.0
    )
    assert answer(chosen) == greedy
