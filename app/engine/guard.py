"""Foresees, before the target runs, that sparse reading would lose the answer.

Two signals: a small linear model of the question's words (does it count, rank, sum up, follow
chains?), and importance that is spread so evenly that nothing stands out. How often each is right,
on wordings they were not made from, is in `docs/quality.md`; the word weights come from
`assets/guard/train.py`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

CITED = re.compile(r'"[^"]*"|“[^”]*”|«[^»]*»|`[^`]*`')
"""What the user cites says nothing about what is asked."""
WORDS = re.compile(r"[^\W\d_]+(?:'[a-z]+)?|\d+|[?]")
THRESHOLD = -0.5
"""Logit from which on words ask for every token. Chosen by cross-validation on the questions that
the weights come from: a missed count is worse than a slow answer."""
MOST_WORDS = 60
"""Of a long message, its first and last words are looked at."""


def features(question: str) -> set[str]:
    """Words, pairs of neighbours and word beginnings of a question (text)."""
    words = [w.casefold() for w in WORDS.findall(CITED.sub(" x ", question))]
    words = ["#" if w.isdigit() else w for w in words]
    if len(words) > MOST_WORDS:
        words = words[: MOST_WORDS // 2] + words[-MOST_WORDS // 2 :]
    pairs = {f"{a} {b}" for a, b in zip(["^", *words], [*words, "$"], strict=True)}
    stems = {f"{w[:5]}-" for w in words if len(w) > 5}
    return {*words, *pairs, *stems}


@cache
def _model() -> tuple[float, dict[str, float]]:
    stored = json.loads(files("app.engine").joinpath("guard.json").read_text(encoding="utf-8"))
    return stored["bias"], stored["weights"]


def asks_for_every_token(question: str) -> str | None:
    """Why this question (text) needs everything read, as one sentence, or None."""
    bias, weights = _model()
    found = features(question)
    shares = {name: weights.get(name, 0.0) for name in found}
    if bias + sum(shares.values()) / max(len(found), 1) ** 0.5 <= THRESHOLD:
        return None
    whole = {name: share for name, share in shares.items() if "-" not in name}
    strongest = max(whole, key=lambda name: whole[name])
    words = strongest.strip("^$ ").replace("#", "…")
    return f"The question’s words (“{words}”) ask for every token, so everything is read."


def spread(importance: NDArray[np.float32], pinned: NDArray[np.bool_], chunk: int) -> float:
    """How evenly importance (M,) lies on the eligible chunks: 1 for all alike, near 0 for one.

    The exponential of the entropy of the chunks' shares, over their number.
    """
    eligible = importance[~pinned].astype(np.float64)
    if len(eligible) < 2 * chunk or eligible.sum() <= 0:
        return 0.0
    sums = np.add.reduceat(eligible, np.arange(0, len(eligible), chunk))
    shares = sums / sums.sum()
    entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum()
    return float(np.exp(entropy) / len(shares))
