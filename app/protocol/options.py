"""Options of a turn: how the prompt is read and how the answer is sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

ENCODERS = frozenset({"bert", "modernbert", "roberta", "xlm-roberta"})
"""Architectures (`model_type`) of text encoders that can replace the built-in one."""
MULTILINGUAL_FROM = 100_000
"""Tokens of an encoder's vocabulary that covers many languages: those of one language have 20,000
to 60,000, multilingual ones 119,547 (BERT), 180,000 (Granite) or 250,002 (XLM-R)."""
EMBEDDED = "embedded"
"""Name of the demo model, a pair that ships with specchat and can only quote."""
DEMO_MODEL, DEMO_DRAFT = "demo model", "demo draft"
"""What the target and the draft of the pair EMBEDDED are called where they are loaded."""


class Mode(StrEnum):
    """How a message is to be read."""

    AUTO = "auto"
    SPARSE = "sparse"
    FULL = "full"


DEFAULT_KEEP_RATIO = 0.2
AUTO_KEEP = 0.0
"""Keep ratio that stands for *auto*: the scores decide, by `Tuning.keep_above`."""


EXPECTED_TOKENS = 2_048
"""Most tokens that keep auto is expected to select: a few passages, however long the text is."""


def expected_keep(keep_ratio: float, before: float = 0.0, eligible: int = 0) -> float:
    """The keep ratio, or an assumption for AUTO_KEEP until the scores are known: the keep that the
    scores of the previous turn chose (`before`), if it is known and below the default. (A higher
    value would make the next turns read everything, without scoring again.) Else what is usual for
    a text with this number of `eligible` tokens."""
    if keep_ratio != AUTO_KEEP:
        return keep_ratio
    usual = min(DEFAULT_KEEP_RATIO, EXPECTED_TOKENS / max(eligible, 1))
    return min(before or usual, DEFAULT_KEEP_RATIO)


RETRIEVAL_SHARE = 0.5
"""Share of the remaining context that is filled for a question, if not all documents fit."""
MAX_RETRIEVED = 32_768
"""Maximum tokens for one question. More would hardly be relevant, and takes long to read."""
MIN_SHARE, MIN_RETRIEVED = 0.125, 1_536
"""Minimum for one question: this share of the context for documents, and this number of tokens or,
if the context is small, a fifth of it."""


def min_retrieved(context: int) -> int:
    """Minimum tokens for one question, where `context` tokens are available for documents. If a
    question would get fewer, parts of earlier questions are dropped."""
    return max(int(MIN_SHARE * context), min(MIN_RETRIEVED, context // 5))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block-sparse attention: keys per block, and the blocks that a block of queries attends to
    (the first `sinks`, the `recent` ones before its own, and the `top` ones between)."""

    size: int = 128
    sinks: int = 1
    recent: int = 4
    top: int = 19

    @property
    def keys(self) -> int:
        """Maximum keys that a block of queries attends to, without its own."""
        return self.size * (self.sinks + self.recent + self.top)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How tokens are selected from their importance, in chunks of `chunk` tokens. `neighbours` is
    the share of a chunk's importance that adjacent chunks (at least the next one) get as well. A
    later turn reads skipped tokens that it needs: at least `recall_share` of the keep ratio, and
    more if earlier turns read less. While an answer is written, up to `read_on` times keep is read
    in addition if the answer needs it (0: nothing). AUTO_KEEP reads chunks whose importance exceeds
    the median by at least `keep_above` times the excess of the third highest. The other defaults
    were best in `docs/quality.md`."""

    chunk: int = 32
    neighbours: float = 0.5
    recall_share: float = 0.5
    read_on: float = 0.5
    keep_above: float = 0.3


TemplateValues = tuple[tuple[str, str | int | float | bool], ...]
"""Variables of a chat template, by name."""
PENALTY_TOKENS = 64
NO_ANSWER_LIMIT = 1_000_000
"""Stands for an answer that only the context limits."""


MODELS_OWN = -1
"""In settings and overrides: use the value that the model's makers recommend."""


@dataclass(frozen=True, slots=True)
class ModelSampling:
    """The sampling that a model's makers recommend; greedy if they recommend nothing. `ignored`
    has the names of recommended values that cannot be used."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignored: tuple[str, ...] = ()


GREEDY = ModelSampling()
FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields of `Sampling` that a model's makers may recommend."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled.

    `temperature` 0 is greedy. `seed` None draws a random seed. Candidates are the `top_k` most
    likely tokens (0: all) that are at least `min_p` times as likely as the most likely one. With
    probability `xtc_probability`, all candidates above `xtc_threshold` but the least likely of them
    are excluded.

    The logits of the last `penalty_tokens` tokens are divided (negative ones multiplied) by
    `repetition_penalty`. A token's logit is reduced by `presence_penalty` if the answer has the
    token, and by `frequency_penalty` for each occurrence. `logit_bias` has pairs (token, bias) that
    are added to logits.

    The answer also ends at one of `stop_ids`. With `ignore_eos` it does not end at the model's own
    end token. With `stop_repeats` it ends if it only repeats itself, with `yield_repeats` only if
    other questions wait as well. With `speculate`, text that may be a copy is verified several
    tokens at a time, which changes only the speed.

    `thinking` is `enable_thinking` of chat templates. Thinking ends after `thinking_budget` tokens
    (0: unlimited). `template_values` are further variables (name, value) of the chat template. The
    engine sets the fields named in `from_model` to what the model's makers recommend."""

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
    yield_repeats: bool = False
    from_model: tuple[str, ...] = ()

    def with_values(self, **values: Any) -> Sampling:
        """A copy with these values, which replace recommended ones."""
        left = tuple(name for name in self.from_model if name not in values)
        return replace(self, **values, from_model=left)

    def resolved(self, model: ModelSampling) -> Sampling:
        """A copy in which fields of `from_model` have the model's recommended values."""
        return self.with_values(**{name: getattr(model, name) for name in self.from_model})


DEFAULT_TUNING, DEFAULT_SAMPLING = Tuning(), Sampling()


class BackgroundPolicy(StrEnum):
    """When skipped tokens are prefilled in the background, while nothing else runs."""

    OFF = "off"
    ON_AC_POWER = "on AC power"
    """Not on battery, if the system reports that."""
    ALWAYS = "always"
