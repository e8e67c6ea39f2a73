"""How a target is recovered that lost a machine: it is loaded on this machine alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.engine.recovery import Recovery, UnfinishedAnswer
from app.protocol.commands import Ask, Load
from app.protocol.events import Finished, HostsLost, LoadingAlone, PairLost
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Data, Failure, FailureKind
from app.protocol.stats import merge_statistics


@dataclass(frozen=True, slots=True)
class LoadAlone(Recovery):
    """`lost`: why the machine was lost. `target`: name of the model."""

    lost: Failure
    target: str

    @property
    def started(self) -> LoadingAlone:
        return LoadingAlone(self.lost)

    @property
    def done(self) -> HostsLost:
        return HostsLost(self.lost, self.target)

    def failed(self, cause: Data) -> PairLost:
        data = {"lost": self.lost.to_plain(), "model": self.target, **cause}
        return PairLost(Failure(FailureKind.NOT_LOADED_ALONE, data))

    def load(self, lost: Load) -> Load:
        return replace(lost, hosts=None)

    def rest(self, answer: UnfinishedAnswer) -> Ask:
        ask, written = answer.ask, answer.written
        if not written.generated_ids or written.statistics is None:
            return ask
        before = ask.messages[:-1] if ask.messages[-1].role is Role.ASSISTANT else ask.messages
        message = Message(Role.ASSISTANT, written.text, token_ids=written.generated_ids)
        left = ask.sampling.max_tokens - written.statistics.generated_tokens
        sampling = replace(ask.sampling, max_tokens=left, seed=written.statistics.seed)
        return replace(ask, messages=(*before, message), sampling=sampling)

    def whole(self, answer: UnfinishedAnswer, rest: Finished) -> Finished:
        written = answer.written
        if not rest.generated_ids:  # the turn ended before it could continue
            rest = replace(rest, text=written.text, generated_ids=written.generated_ids)
        first = written.statistics
        if first is not None and not first.generated_tokens:
            first = None
        return replace(rest, statistics=merge_statistics(first, rest.statistics))
