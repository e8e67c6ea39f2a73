"""What can be chosen for a turn: how it is read and sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

EMBEDDED = "embedded"
"""The name of the pair that ships with the program, whose target can only quote."""


class Mode(StrEnum):
    """How a message is to be read."""

    AUTO = "auto"
    SPARSE = "sparse"
    FULL = "full"


DEFAULT_KEEP_RATIO = 0.2
AUTO_KEEP = 0.0
"""A keep ratio that lets the scores decide, by the tuning's `keep_above`."""


def expected_keep(keep_ratio: float, before: float = 0.0) -> float:
    """The keep ratio, or what is assumed of AUTO_KEEP until the scores are known: what the scores
    of the turn `before` chose, if that is known and less than the default. (More would make the
    next turns read everything, and never score again.)"""
    if keep_ratio != AUTO_KEEP:
        return keep_ratio
    return min(before or DEFAULT_KEEP_RATIO, DEFAULT_KEEP_RATIO)


RETRIEVAL_SHARE = 0.5
"""The share of what is left of the context that is put before the model for a question, where not
all documents fit."""
MAX_RETRIEVED = 32_768
"""Tokens for one question: more is hardly about it, and takes long to read."""
MIN_SHARE, MIN_RETRIEVED = 0.125, 1_536
"""What one question gets at least: this share of the context for documents, and these tokens or a
fifth of a small context."""


def min_retrieved(context: int) -> int:
    """Tokens of a `context` for documents: if a question would get less, earlier ones lose
    theirs."""
    return max(int(MIN_SHARE * context), min(MIN_RETRIEVED, context // 5))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Keys per block, and the blocks that a block of queries attends to: the first `sinks`, the
    `recent` ones before its own, and the `top` ones between."""

    size: int = 128
    sinks: int = 1
    recent: int = 4
    top: int = 19

    @property
    def keys(self) -> int:
        """What a block of queries attends to at most, beside its own keys."""
        return self.size * (self.sinks + self.recent + self.top)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How tokens are selected from their importance, `chunk` of them together. `neighbours` is the
    share of a chunk's importance that each adjacent one gets as well, and at least the one after
    it. A later turn reads the skipped tokens it needs: at least `recall_share` of the keep ratio,
    more where earlier turns read less than it. While an answer is written, up to `read_on` times
    keep is read in addition, where it turns out to need it; 0 is nothing. At AUTO_KEEP those chunks
    are read whose importance is at least `keep_above` times as far above the middle one as the
    third highest. The defaults are what `docs/quality.md` found best."""

    chunk: int = 32
    neighbours: float = 0.5
    recall_share: float = 0.5
    read_on: float = 0.5
    keep_above: float = 0.3


TemplateValues = tuple[tuple[str, str | int | float | bool], ...]
"""Variables of a chat template, by name."""
PENALTY_TOKENS = 64
NO_ANSWER_LIMIT = 1_000_000
"""Maximum tokens of an answer that only the context limits."""


MODELS_OWN = -1
"""Stands for the value that the model's makers recommend, in settings and overrides."""


@dataclass(frozen=True, slots=True)
class ModelSampling:
    """The sampling that a model's makers recommend; greedy where they recommend nothing. `ignored`
    are the names of their values that cannot be used."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignored: tuple[str, ...] = ()


GREEDY = ModelSampling()
FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The fields of `Sampling` that a model's makers may recommend."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy. `seed` None draws a fresh one. With `stop_repeats` an answer ends
    where it only repeats itself. With `speculate`, what may be a copy is verified several tokens at
    a time, which changes nothing but the speed. Of the likeliest tokens `top_k` are chosen from, 0
    for all, and those that are at least `min_p` times as likely as the likeliest one. The logits of
    the last `penalty_tokens` are divided, or if negative multiplied, by `repetition_penalty`. The
    logit of a token loses `presence_penalty` once the answer has it, and `frequency_penalty` for
    each time that it has it; `logit_bias` adds to the logits of (token, bias). With probability
    `xtc_probability` a place excludes the likeliest of all tokens above `xtc_threshold`, but for
    the last of them. The answer also ends at one of `stop_ids`, and with `ignore_eos` not at the
    model's own end.
    `thinking` is what chat templates call `enable_thinking`; it ends after `thinking_budget`
    tokens, unless that is 0. `template_values` are further variables (name, value) of the chat
    template. The fields named in `from_model` are what the model's makers recommend: the engine
    puts them in."""

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_repeats: bool = False
    speculate: bool = True
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_tokens: int = PENALTY_TOKENS
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    thinking: bool = True
    thinking_budget: int = 0
    template_values: TemplateValues = ()
    from_model: tuple[str, ...] = ()

    def with_values(self, **values: Any) -> Sampling:
        """With these values instead of those that the model's makers recommend."""
        left = tuple(name for name in self.from_model if name not in values)
        return replace(self, **values, from_model=left)

    def resolved(self, model: ModelSampling) -> Sampling:
        """The sampling with the values that this model's makers recommend."""
        return self.with_values(**{name: getattr(model, name) for name in self.from_model})


DEFAULT_TUNING, DEFAULT_SAMPLING = Tuning(), Sampling()


class BackgroundPolicy(StrEnum):
    """When skipped tokens are prefilled in the background, while nothing else runs."""

    OFF = "off"
    ON_AC_POWER = "on AC power"
    """Not on battery, if the system reports that."""
    ALWAYS = "always"
