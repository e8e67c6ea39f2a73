"""What every turn works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import Forecast, TurnClock
from app.engine.scorers.choice import ChooseScorer, choose_scorer
from app.engine.turn.turn_estimate import TurnEstimate
from app.protocol.commands import Ask
from app.protocol.cost_model import UNKNOWN_COSTS, Costs
from app.protocol.reasons import Reason
from app.protocol.stats import Reading


class TurnCaches(Protocol):
    """The caches of conversations; see `CachePool`."""

    def get_or_restore(
        self, conversation: str | None, clock: TurnClock, on_disk: bool
    ) -> ConversationCache: ...

    def check_and_share(
        self, cache: ConversationCache, ask: Ask, prompt: Prompt, clock: TurnClock
    ) -> Reason | None: ...

    def keep_scores(self, conversation: str | None, cache: ConversationCache) -> None: ...


@dataclass(frozen=True, slots=True)
class OneConversation:
    """The caches of a turn that is timed without an engine."""

    cache: ConversationCache

    def get_or_restore(
        self, conversation: str | None, clock: TurnClock, on_disk: bool
    ) -> ConversationCache:
        return self.cache

    def check_and_share(
        self, cache: ConversationCache, ask: Ask, prompt: Prompt, clock: TurnClock
    ) -> Reason | None:
        return None

    def keep_scores(self, conversation: str | None, cache: ConversationCache) -> None: ...


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A loaded pair with its caches, memory and costs, and the clock that times one turn, reports
    its events and stops it. `usual_confidence`: 0..1, None if unknown."""

    pair: ModelPair
    clock: TurnClock
    caches: TurnCaches
    memory: MemoryManager
    costs: Costs = UNKNOWN_COSTS
    usual_confidence: float | None = None
    choose_scorer: ChooseScorer = choose_scorer

    def forecast(self, estimate: TurnEstimate, reading: Reading) -> None:
        """Predict the first token of a turn that reads this way."""
        steps = estimate.steps(self.costs, reading, self.clock.seconds_spent)
        self.clock.forecast = Forecast(steps)
