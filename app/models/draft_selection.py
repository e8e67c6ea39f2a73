"""Which draft goes with a target: the same tokenizer, the smallest that is capable first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from app.models import speedup
from app.models.errors import ModelError
from app.models.fit import KEEP, Fit, Machine, fit
from app.models.model_info import Described
from app.models.tokenizers import fingerprint

NOT_SCORABLE = frozenset({"gemma2", "olmo", "phi3small"})
"""Architectures whose attention cannot be watched while they run."""
WORTH = 1.2
"""Times sooner from which on sparse reading is chosen by itself."""

Measured = Callable[[str, str], float | None]
"""What the clock said of a target and a draft, by their names without the owners; or None."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft for a target. `ratio` is what it costs of the target, `by_clock` whether that was
    measured here; `notes` are sentences: what speaks for it or against it."""

    draft: Described
    ratio: float
    by_clock: bool
    fit: Fit
    notes: tuple[str, ...]

    def speedup(self, keep: float = KEEP) -> float:
        return speedup.speedup(self.ratio, keep)

    @property
    def worth(self) -> bool:
        return self.fit.longest > 0 and self.speedup() >= WORTH


class Tokenizers:
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


def candidates(
    target: Described,
    models: Iterable[Described],
    machine: Machine,
    measured: Measured = lambda target, draft: None,
    tokenizers: Tokenizers | None = None,
) -> list[Candidate]:
    """Every model of `models` that can draft for `target`, the smallest capable one first. Who asks
    for many targets passes the same `tokenizers`."""
    tokenizers = tokenizers or Tokenizers()
    found = [
        candidate(target, draft, machine, measured)
        for draft in models
        if draft.name != target.name
        and _is_cheaper(draft, target)
        and can_pair(target, draft, tokenizers)
    ]
    # What does not fit or does not pay comes last, however small it is.
    return sorted(found, key=lambda c: (not c.worth, speedup.cost(c.draft.sized), not c.draft.here))


def choice(found: Iterable[Candidate]) -> Candidate | None:
    """The one that would be taken, or None when reading everything is as good."""
    return next((each for each in found if each.worth), None)


def can_pair(target: Described, draft: Described, tokenizers: Tokenizers) -> bool:
    """Is this one made to score for that one? Tokenizers are compared by their content when both
    are here; before, by what the catalogue says."""
    architecture = draft.sized.shape.architecture
    attends = any(layer.heads and layer.window is None for layer in draft.sized.shape.layers)
    if architecture in NOT_SCORABLE or not attends:
        return False
    if target.folder is not None and draft.folder is not None:
        return tokenizers.same(target.folder, draft.folder)
    words = [each.entry.tokenizer if each.entry else "" for each in (target, draft)]
    chosen = draft.entry is not None and (draft.entry.draft or draft.entry.own)
    return bool(words[0]) and words[0] == words[1] and (chosen or draft.here)


def _is_cheaper(draft: Described, target: Described) -> bool:
    """By what prefill takes, not by active parameters: of these a dense draft may have more than a
    mixture of experts that it still pays for."""
    return speedup.ratio(target.sized, draft.sized) < 1


def candidate(
    target: Described,
    draft: Described,
    machine: Machine,
    measured: Measured = lambda target, draft: None,
) -> Candidate:
    """What a draft is worth to a target, whether or not their tokenizers are the same."""
    clocked = measured(_short(target.name), _short(draft.name))
    ratio = speedup.ratio(target.sized, draft.sized) if clocked is None else clocked
    together = fit(target.sized, draft.sized, machine)
    notes = [] if ratio <= speedup.MOST_RATIO else [_warning(target, draft, ratio, clocked)]
    if not together.longest:
        notes.append(f"Both together need more than the {machine.total >> 30} GB of this machine.")
    reach, own = draft.sized.shape.context, target.sized.shape.context
    if reach and reach < own:
        notes.append(
            f"It was made for {reach:,} tokens, the target for {own:,}: past that, look at what"
            " was kept."
        )
    return Candidate(draft, ratio, clocked is not None, together, tuple(notes))


def _warning(target: Described, draft: Described, ratio: float, clocked: float | None) -> str:
    experts = any(layer.share < 1 for layer in target.sized.shape.layers)
    how = "as measured here" if clocked is not None else "predicted from their configurations"
    most = f"so that no keep makes it more than {1 / (ratio + speedup.OVERHEAD):.1f} times sooner"
    why = f"The draft costs {ratio:.0%} of the target for each token, {how}, {most}"
    if clocked is None and experts:
        why += "; how fast experts are read differs from machine to machine, so measure it"
    return f"{why}."


def _short(name: str) -> str:
    """As runs name a model: a repository without its owner, a folder without its path."""
    return name.rstrip("/").rpartition("/")[2] or name
