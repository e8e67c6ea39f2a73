"""Predicts, before the target runs, that sparse reading would lose the answer.

A few phrases, and a small linear model of the question's words for the rest: does it count, rank,
sum up, follow chains? How often it is right, on wordings it was not made from, is in
`docs/quality.md`; so is why the draft's scores are not asked as well. The weights come from
`assets/guard/train.py`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

QUOTED = re.compile(r'"[^"]*"|“[^“”]*”|«[^«»]*»|`[^`]*`')
"""Quoted text, which says nothing about the kind of question."""
WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?|\d+|[?]")
COUNTING_PHRASES = re.compile(
    r"""
    \b(?:count|tally)\s+(?:the|all|every|how)\b | \b(?:total|exact)\s+number\s+of\b
  | \b(?:most|least)\s+(?:common|frequent|often)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Needs no weighing."""
THRESHOLD = -0.5
"""Logit from which on words ask for every token. Chosen by cross-validation on the questions that
the weights come from: a missed count is worse than a slow answer."""
MAX_WORDS = 60
"""Limit of words; a long message is judged by its first and last ones."""


def features(question: str) -> set[str]:
    """Words, pairs of neighbours and word beginnings of a question (text)."""
    words = [w.casefold() for w in WORD.findall(QUOTED.sub(" x ", question))]
    words = ["#" if w.isdigit() else w for w in words]
    if len(words) > MAX_WORDS:
        words = words[: MAX_WORDS // 2] + words[-MAX_WORDS // 2 :]
    pairs = {f"{a} {b}" for a, b in zip(["^", *words], [*words, "$"], strict=True)}
    stems = {f"{w[:5]}-" for w in words if len(w) > 5}
    return {*words, *pairs, *stems}


@cache
def _model() -> tuple[float, dict[str, float]]:
    stored = json.loads(files("app.estimate").joinpath("guard.json").read_text(encoding="utf-8"))
    return stored["bias"], stored["weights"]


def asks_for_every_token(question: str) -> str | None:
    """The words for which this question (text) needs everything read, or None."""
    obvious = COUNTING_PHRASES.search(QUOTED.sub(" ", question))
    if obvious is not None:
        return " ".join(obvious[0].split())
    bias, weights = _model()
    found = features(question)
    shares = {name: weights.get(name, 0.0) for name in found}
    if bias + sum(shares.values()) / max(len(found), 1) ** 0.5 <= THRESHOLD:
        return None
    whole = {name: share for name, share in shares.items() if "-" not in name}
    strongest = max(whole, key=lambda name: whole[name] * len(name.strip("^$ ").split()))
    return strongest.strip("^$ ").replace("#", "…")
