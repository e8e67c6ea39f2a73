"""What prefill will cost a pair of which no turn was timed: from how fast each model ran while it
was loaded, and from the operations of what was not run."""

from __future__ import annotations

from app.engine.backend.blas import matrix_rate
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.text_encoder import ENCODER_OPERATIONS
from app.engine.turn.turn_estimate import scoring_of
from app.protocol.cost_model import FREE, Costs, LinearCost
from app.protocol.options import DEFAULT_TUNING, Scoring

TOKENISE_SECONDS = 1e-5
"""To tokenise a token, in the sandbox."""
SMALL_MATRICES = 2.0
"""How many times as long the encoder's operations take as a large model's (measured: 1.4 to 2)."""


def first_costs(pair: ModelPair) -> Costs:
    """The estimate of all costs."""
    target, draft = pair.target, pair.draft
    step, per_token = _speed(target)
    rate = 2 * target.info.parameters / per_token if target.info.parameters else matrix_rate()
    encoding = SMALL_MATRICES * ENCODER_OPERATIONS / rate
    full = LinearCost(step, TOKENISE_SECONDS + (encoding if pair.only_quotes else 0.0))
    read = LinearCost(0.0, per_token, per_token * attention_ratio(target))
    if draft is None:
        sparse = LinearCost(step, full.per_token + encoding)
        return Costs(read, FREE, full, sparse)
    draft_step, by_draft = _speed(draft)
    scoring = by_draft
    # The search for what to quote is timed as a part of scoring, too.
    if pair.only_quotes or scoring_of(pair, DEFAULT_TUNING, 0) is Scoring.JOINED:
        scoring += encoding
    sparse = LinearCost(step + DEFAULT_TUNING.lookahead * draft_step, TOKENISE_SECONDS)
    score = LinearCost(0.0, scoring, by_draft * attention_ratio(draft))
    return Costs(read, score, full, sparse)


def attention_ratio(model: LoadedModel) -> float:
    """Seconds of attending to one token, as a share of those of a token in the weights."""
    return model.attention_cost_ratio * model.step.backend.attention_slowdown


def _speed(model: LoadedModel) -> tuple[float, float]:
    """Seconds of a step of one token, and of each token of a longer one."""
    if model.speed is not None:
        return model.speed.step, model.speed.per_token
    parts = 1 if model.shards is None else int(model.shards.described["ranks"])
    per_token = 2 * max(model.info.parameters, 1) / parts / matrix_rate()
    return 10 * per_token, per_token
