"""Which draft goes with a target: the same tokenizer, the smallest that is capable first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from app.models import speedup
from app.models.errors import ModelError
from app.models.fit import DEFAULT_KEEP, Fit, Machine, fit
from app.models.model_details import ModelDetails
from app.models.tokenizers import fingerprint

UNSCORABLE = frozenset({"gemma2", "olmo", "phi3small"})
"""Architectures whose attention cannot be watched while they run."""
MIN_SPEEDUP = 1.2
"""Times sooner from which on sparse reading is chosen by itself."""

MeasuredRatio = Callable[[str, str], float | None]
"""What the clock said of a target and a draft, by their names without the owners; or None."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A draft for a target. `ratio` is what it costs of the target, `by_clock` whether that was
    measured here; `notes` are sentences: what speaks for it or against it."""

    draft: ModelDetails
    cost_ratio: float
    measured: bool
    fit: Fit
    notes: tuple[str, ...]

    def speedup(self, keep: float = DEFAULT_KEEP) -> float:
        return speedup.speedup(self.cost_ratio, keep)

    @property
    def worthwhile(self) -> bool:
        return self.fit.max_tokens > 0 and self.speedup() >= MIN_SPEEDUP


class TokenizerCache:
    """Compares tokenizers by content; each is read once, since that takes about a second."""

    def __init__(self) -> None:
        self._known: dict[Path, str | None] = {}

    def same(self, a: Path, b: Path) -> bool:
        """Whether both can be read and are the same."""
        return self._of(a) is not None and self._of(a) == self._of(b)

    def _of(self, folder: Path) -> str | None:
        if folder not in self._known:
            try:
                self._known[folder] = fingerprint(folder)
            except (ModelError, OSError):
                self._known[folder] = None
        return self._known[folder]


def draft_candidates(
    target: ModelDetails,
    models: Iterable[ModelDetails],
    machine: Machine,
    measured: MeasuredRatio = lambda target, draft: None,
    tokenizers: TokenizerCache | None = None,
) -> list[DraftCandidate]:
    """Every model of `models` that can draft for `target`, the smallest capable one first. Who asks
    for many targets passes the same `tokenizers`."""
    tokenizers = tokenizers or TokenizerCache()
    found = [
        assess_draft(target, draft, machine, measured)
        for draft in models
        if draft.name != target.name
        and _is_cheaper(draft, target)
        and can_pair(target, draft, tokenizers)
    ]
    # What does not fit or does not pay comes last, however small it is.
    return sorted(
        found,
        key=lambda c: (not c.worthwhile, speedup.token_cost(c.draft.size), not c.draft.installed),
    )


def best_draft(found: Iterable[DraftCandidate]) -> DraftCandidate | None:
    """The one that would be taken, or None when reading everything is as good."""
    return next((each for each in found if each.worthwhile), None)


def can_pair(target: ModelDetails, draft: ModelDetails, tokenizers: TokenizerCache) -> bool:
    """Is this one made to score for that one? Tokenizers are compared by their content when both
    are here; before, by what the catalogue says."""
    architecture = draft.size.architecture.model_type
    attends = any(layer.heads and layer.window is None for layer in draft.size.architecture.layers)
    if architecture in UNSCORABLE or not attends:
        return False
    if target.folder is not None and draft.folder is not None:
        return tokenizers.same(target.folder, draft.folder)
    words = [each.entry.tokenizer if each.entry else "" for each in (target, draft)]
    chosen = draft.entry is not None and (draft.entry.draft or draft.entry.custom)
    return bool(words[0]) and words[0] == words[1] and (chosen or draft.installed)


def _is_cheaper(draft: ModelDetails, target: ModelDetails) -> bool:
    """By what prefill takes, not by active parameters: of these a dense draft may have more than a
    mixture of experts that it still pays for."""
    return speedup.cost_ratio(target.size, draft.size) < 1


def assess_draft(
    target: ModelDetails,
    draft: ModelDetails,
    machine: Machine,
    measured: MeasuredRatio = lambda target, draft: None,
) -> DraftCandidate:
    """What a draft is worth to a target, whether or not their tokenizers are the same."""
    clocked = measured(_short(target.name), _short(draft.name))
    ratio = speedup.cost_ratio(target.size, draft.size) if clocked is None else clocked
    together = fit(target.size, draft.size, machine)
    notes = [] if ratio <= speedup.MAX_RATIO else [_warning(target, draft, ratio, clocked)]
    if not together.max_tokens:
        notes.append(f"Both together need more than the {machine.total >> 30} GB of this machine.")
    reach, own = draft.size.architecture.context, target.size.architecture.context
    if reach and reach < own:
        notes.append(
            f"It was made for {reach:,} tokens, the target for {own:,}: past that, look at what"
            " was kept."
        )
    return DraftCandidate(draft, ratio, clocked is not None, together, tuple(notes))


def _warning(target: ModelDetails, draft: ModelDetails, ratio: float, clocked: float | None) -> str:
    experts = any(layer.expert_share < 1 for layer in target.size.architecture.layers)
    how = "as measured here" if clocked is not None else "predicted from their configurations"
    most = f"so that no keep makes it more than {1 / (ratio + speedup.OVERHEAD):.1f} times sooner"
    why = f"The draft costs {ratio:.0%} of the target for each token, {how}, {most}"
    if clocked is None and experts:
        why += "; how fast experts are read differs from machine to machine, so measure it"
    return f"{why}."


def _short(name: str) -> str:
    """As runs name a model: a repository without its owner, a folder without its path."""
    return name.rstrip("/").rpartition("/")[2] or name
