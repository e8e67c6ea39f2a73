"""Predicts from the question whether it needs every token, so that sparse reading would fail.

A few phrases, then a linear model of the question's words, detect questions that count, rank, sum
up or follow chains. `docs/quality.md` has its accuracy on unseen wordings, and explains why the
draft's scores are not used. `assets/guard/train.py` computes the weights.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

QUOTED = re.compile(r'"[^"]*"|“[^“”]*”|«[^«»]*»|`[^`]*`')
"""Quoted text, which is ignored."""
WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?|\d+|[?]")
COUNTING_PHRASES = re.compile(
    r"""
    \b(?:count|tally)\s+(?:the|all|every|how)\b | \b(?:total|exact)\s+number\s+of\b
  | \b(?:most|least)\s+(?:common|frequent|often)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Phrases that decide without the model."""
THRESHOLD = -0.5
"""Questions with a higher logit need every token. Chosen by cross-validation on the training
questions: a wrong count is worse than a slow answer."""
STRONG = 0.8
"""Words that weigh at least this fraction of the heaviest ones may be shown as the reason; those
that stand first in the question are."""
MAX_WORDS = 60
"""Longer messages are judged by their first and last words."""


def features(question: str) -> set[str]:
    """Words, pairs of adjacent words, and prefixes of long words of a question."""
    words = [w.casefold() for w in WORD.findall(QUOTED.sub(" x ", question))]
    words = ["#" if w.isdigit() else w for w in words]
    if len(words) > MAX_WORDS:
        words = words[: MAX_WORDS // 2] + words[-MAX_WORDS // 2 :]
    pairs = {f"{a} {b}" for a, b in zip(["^", *words], [*words, "$"], strict=True)}
    stems = {f"{w[:5]}-" for w in words if len(w) > 5}
    return {*words, *pairs, *stems}


@cache
def _model() -> tuple[float, dict[str, float]]:
    stored = json.loads(Path(__file__).with_name("guard.json").read_text(encoding="utf-8"))
    return stored["bias"], stored["weights"]


def asks_for_every_token(question: str) -> str | None:
    """The words because of which a question needs every token, or None if it does not."""
    obvious = COUNTING_PHRASES.search(QUOTED.sub(" ", question))
    if obvious is not None:
        return " ".join(obvious[0].split())
    bias, weights = _model()
    found = features(question)
    shares = {name: weights.get(name, 0.0) for name in found}
    if bias + sum(shares.values()) / max(len(found), 1) ** 0.5 <= THRESHOLD:
        return None
    counts = {
        words: share * len(words.split())
        for name, share in shares.items()
        if "-" not in name and (words := name.strip("^$ "))
    }
    least = STRONG * max(counts.values())
    strong = [words for words, count in counts.items() if count >= least]
    asked = " ".join("#" if word.isdigit() else word for word in WORD.findall(question.casefold()))
    first = min(strong, key=lambda words: (f" {asked} ".find(f" {words} "), words))
    return first.replace("#", "…")
