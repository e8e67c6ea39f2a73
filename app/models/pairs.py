"""Recommends a model for a machine, and lists for each model its memory and its possible draft
models, which are smaller models with the same tokenizer.

The built-in scorer is the default for every target. A draft model is optional: its attention is
combined with the built-in scores. A text encoder is a draft for any target: the built-in
scorer uses it instead of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from app.models import speedup
from app.models.cache import ModelCache
from app.models.catalogue import CatalogueEntry, catalogue
from app.models.embedded import EMBEDDED
from app.models.errors import ModelError
from app.models.fit import Fit, Machine, fit, format_tokens, mac_with, peak_bytes
from app.models.library import ModelDetails, find_model, listed_size
from app.models.tokenizers import same_tokenizer
from app.protocol.options import DEFAULT_KEEP_RATIO, MULTILINGUAL_FROM
from app.util.formatting import size

UNSCORABLE = frozenset({"gemma2", "olmo", "phi3small"})
"""Architectures whose attention cannot be observed."""
MIN_SPEEDUP = 1.2
"""Minimum speedup for which a draft model is worthwhile."""


class RatioSource(StrEnum):
    """Where a cost ratio comes from."""

    MEASURED = "measured"
    """Measured on this machine."""
    PUBLISHED = "published"
    PREDICTED = "predicted"


MeasuredRatio = Callable[[str, str], float | None]
"""Returns the measured cost ratio of a target and a draft (named without their owners), or None."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A draft for a target. `cost_ratio` is its cost per token relative to the target's, known from
    `source`. `added_bytes` is the memory that it adds for a prompt of `added_at` tokens. `notes`
    are sentences about limitations."""

    draft: ModelDetails
    cost_ratio: float
    source: RatioSource
    fit: Fit
    added_bytes: int
    added_at: int
    notes: tuple[str, ...]

    def speedup(self, keep: float = DEFAULT_KEEP_RATIO) -> float:
        return speedup.speedup(self.cost_ratio, keep)

    @property
    def benefit(self) -> str:
        """A clause about what the draft adds to the built-in one, and its memory. (In no
        measurement did a pair find more with it.)"""
        if self.is_encoder:
            vocabulary = self.draft.size.architecture.vocab_size
            languages = " for many languages" if vocabulary >= MULTILINGUAL_FROM else ""
            memory = f"{size(self.added_bytes)} of memory"
            return f"a larger text encoder than the built-in one{languages}; needs {memory}"
        memory = f"{size(self.added_bytes)} of memory at {format_tokens(self.added_at)} tokens"
        return f"adds attention to the scores; needs {memory}"

    @property
    def is_encoder(self) -> bool:
        return self.draft.size.architecture.is_encoder

    @property
    def worthwhile(self) -> bool:
        return self.fit.max_tokens > 0 and self.speedup() >= MIN_SPEEDUP


def draft_candidates(
    target: ModelDetails,
    models: Iterable[ModelDetails],
    machine: Machine,
    measured: MeasuredRatio = lambda target, draft: None,
) -> list[DraftCandidate]:
    """Models that can draft for `target`, the smallest worthwhile one first; text encoders last."""
    found = [
        assess_draft(target, draft, machine, measured)
        for draft in models
        if draft.name != target.name and _is_cheaper(draft, target) and can_pair(target, draft)
    ]
    # Drafts that do not fit or are not worthwhile come last.
    return sorted(
        found,
        key=lambda c: (
            c.is_encoder,
            not c.worthwhile,
            speedup.token_cost(c.draft.size),
            not c.draft.installed,
        ),
    )


def best_draft(candidates: Iterable[DraftCandidate]) -> DraftCandidate | None:
    """The draft model to offer in addition to the built-in scorer, apart from text encoders. None
    if none fits and is fast enough."""
    return next((each for each in candidates if each.worthwhile and not each.is_encoder), None)


def can_pair(target: ModelDetails, draft: ModelDetails) -> bool:
    """Whether `draft` can score prompts for `target`. Tokenizers of installed models are compared
    by content, those of others by the families in the catalogue."""
    architecture = draft.size.architecture.model_type
    if draft.size.architecture.is_encoder:
        return draft.entry is not None or draft.installed
    attends = any(layer.heads and layer.window is None for layer in draft.size.architecture.layers)
    if architecture in UNSCORABLE or not attends:
        return False
    if target.folder is not None and draft.folder is not None:
        try:
            return same_tokenizer(target.folder, draft.folder)
        except (ModelError, OSError):
            return False
    words = [each.entry.tokenizer if each.entry else "" for each in (target, draft)]
    chosen = draft.entry is not None and (draft.entry.draft or draft.entry.custom)
    return bool(words[0]) and words[0] == words[1] and (chosen or draft.installed)


def _is_cheaper(draft: ModelDetails, target: ModelDetails) -> bool:
    """Whether the draft's prefill costs less. Active parameters are not compared, because a dense
    draft may have more of them than a mixture of experts and still be cheaper."""
    return speedup.cost_ratio(target.size, draft.size) < 1


def assess_draft(
    target: ModelDetails,
    draft: ModelDetails,
    machine: Machine,
    measured: MeasuredRatio = lambda target, draft: None,
) -> DraftCandidate:
    """Assess a draft for a target, without comparing their tokenizers."""
    ratio, source = _cost_ratio(target, draft, measured)
    pair_fit = fit(target.size, draft.size, machine)
    notes = []
    if not pair_fit.max_tokens:
        notes.append(
            f"Target and draft need more memory than this machine's {machine.total >> 30} GB."
        )
    elif speedup.speedup(ratio, DEFAULT_KEEP_RATIO) < MIN_SPEEDUP:
        notes.append(_too_slow(target, ratio, source))
    draft_context, context = draft.size.architecture.context, target.size.architecture.context
    if draft_context and draft_context < context:
        notes.append(
            f"Its context is {draft_context:,} tokens, the target's {context:,}: beyond that, check"
            " what was selected."
        )
    tokens = min(speedup.REFERENCE_TOKENS, pair_fit.tokens)
    added = peak_bytes(target.size, draft.size, tokens) - peak_bytes(target.size, None, tokens)
    return DraftCandidate(draft, ratio, source, pair_fit, added, tokens, tuple(notes))


def _cost_ratio(
    target: ModelDetails, draft: ModelDetails, measured: MeasuredRatio
) -> tuple[float, RatioSource]:
    if (ratio := measured(_short(target.name), _short(draft.name))) is not None:
        return ratio, RatioSource.MEASURED
    if (ratio := speedup.published_ratio(target.name, draft.name)) is not None:
        return ratio, RatioSource.PUBLISHED
    return speedup.cost_ratio(target.size, draft.size), RatioSource.PREDICTED


def _too_slow(target: ModelDetails, ratio: float, source: RatioSource) -> str:
    experts = any(layer.expert_share < 1 for layer in target.size.architecture.layers)
    text = (
        f"The draft costs {ratio:.0%} of the target per token ({source}), so reading with it is"
        f" only {speedup.speedup(ratio, DEFAULT_KEEP_RATIO):.1f}x as fast"
    )
    if source is RatioSource.PREDICTED and experts:
        text += "; the speed of experts varies between machines, so measure it"
    return f"{text}."


def _short(name: str) -> str:
    """A repository without its owner, or a folder without its path, as in saved statistics."""
    return name.rstrip("/").rpartition("/")[2] or name


# ------------------------------------------------------------------------- overviews


@dataclass(frozen=True, slots=True)
class ModelOverview:
    """A model, its memory with the built-in scorer, and its possible draft models, best first.
    `default_draft` is the draft used if none is chosen; None: the built-in one."""

    model: ModelDetails
    alone_fit: Fit
    drafts: tuple[DraftCandidate, ...]
    default_draft: DraftCandidate | None = None

    @property
    def best_draft(self) -> DraftCandidate | None:
        """The draft model to offer in addition to the default; None if none fits and is fast
        enough."""
        return None if self.default_draft else best_draft(self.drafts)

    @property
    def encoders(self) -> tuple[DraftCandidate, ...]:
        return tuple(each for each in self.drafts if each.is_encoder)

    def shown_drafts(self, count: int) -> tuple[DraftCandidate, ...]:
        """The best `count` draft models, and the text encoders."""
        others = tuple(each for each in self.drafts if not each.is_encoder)
        return others[:count] + self.encoders

    @property
    def fit(self) -> Fit:
        """The memory estimate with the default draft."""
        return self.default_draft.fit if self.default_draft else self.alone_fit


def overview(
    models: Iterable[ModelDetails],
    machine: Machine,
    measured: MeasuredRatio = lambda target, draft: None,
) -> list[ModelOverview]:
    """Overviews of `models`, any of which may be a draft of another. Reads the tokenizers of
    installed models, which takes about a second each the first time."""
    models = list(models)
    return [
        ModelOverview(
            target,
            fit(target.size, None, machine),
            tuple(draft_candidates(target, models, machine, measured)),
        )
        for target in models
        if not target.size.architecture.is_encoder
    ]


def embedded_pair(cache: ModelCache, machine: Machine) -> ModelOverview:
    """The overview of the demo model, whose default draft is its own. Raises ModelError if it is
    damaged."""
    target = find_model(EMBEDDED, cache, ())
    draft = assess_draft(target, find_model(EMBEDDED, cache, (), draft=True), machine)
    return ModelOverview(target, fit(target.size, None, machine), (draft,), draft)


# ------------------------------------------------------------- the recommended model


LONG_DOCUMENT_TOKENS = 32_768
"""A model that can read this many tokens is preferred to one that cannot."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommended target, for use with the built-in scorer, which needs no memory of its own."""

    target: ModelDetails
    fit: Fit


def recommend(entries: Iterable[CatalogueEntry], machine: Machine) -> Recommendation | None:
    """The model that the catalogue recommends for such a machine, if it can read a long document
    there; or else the model that can read the longest. The newest if there are several."""
    targets = [
        ModelDetails(size, None, entry)
        for entry in entries
        if (size := listed_size(entry)) is not None and not size.architecture.is_encoder
    ]
    found = [Recommendation(each, fit(each.size, None, machine)) for each in targets]

    def worth(each: Recommendation) -> tuple[int, int]:
        memory = each.target.entry.memory if each.target.entry is not None else 0
        return (
            min(each.fit.max_tokens, LONG_DOCUMENT_TOKENS),
            memory if memory << 30 <= machine.total else 0,
        )

    return max((each for each in found if each.fit.max_tokens), key=worth, default=None)


def recommend_for_this_machine() -> Recommendation | None:
    """The recommended model for this machine, as if it were a Mac. Does not read the disk."""
    import psutil  # a slow import

    return recommend(catalogue(), mac_with(psutil.virtual_memory().total))
