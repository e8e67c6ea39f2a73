"""The caches of all conversations in memory, and the idle work on them: saving snapshots, and
background prefill of skipped tokens."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np

from app.engine.backend import memory
from app.engine.backend.memory_probes import PowerProbe
from app.engine.cache.prefill import OnStep
from app.engine.cache.prefix_cache import find_mismatch
from app.engine.cache.shared_rows import MIN_SHARED
from app.engine.cache.snapshot import SnapshotError, Snapshots, Wanted
from app.engine.cache.snapshot_folder import disk_limit
from app.engine.memory.conversation_cache import ConversationCache, ScoredPrompt
from app.engine.memory.prefix_sharing import PrefixSharing
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import TurnCancelled, TurnClock
from app.engine.recovery import TargetLost
from app.estimate.memory import MIN_CHECKPOINTS
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import (
    BackgroundProgress,
    EngineWarning,
    Event,
    Selected,
    SnapshotFailed,
    SnapshotProgress,
    SnapshotRestored,
)
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase


class BackgroundPrefill:
    """Reads the tokens that a sparse prefill of one conversation skipped, step by step.

    It extends a fork of the conversation's cache from the first skipped token on, and replaces the
    cache when everything is read. Until then it only uses memory, so it is dropped first when
    memory is tight.
    """

    def __init__(self, target: LoadedModel, conversation: ConversationCache) -> None:
        """Raises NotEnoughMemory."""
        self._target, self._conversation = target, conversation
        needed = self.required_bytes(target, conversation)
        if needed > (free := target.free_memory()):
            raise memory.NotEnoughMemory({"reading": self.total}, needed, free)
        self._fork = conversation.target.fork()
        self._started = False
        self._fork.rewind(self._fork.dense_prefix_len)
        self._fork.set_retain_all(False)

    @staticmethod
    def required_bytes(target: LoadedModel, conversation: ConversationCache) -> float:
        """Bytes of the finished fork. The first step copies the arrays that it shares."""
        size, sparse = target.cache_size, conversation.target
        return size.bytes(len(sparse)) + len(sparse.checkpoints) * size.state_bytes

    @property
    def nbytes(self) -> int:
        """Bytes used now."""
        return self._fork.nbytes if self._started else 0

    @property
    def done(self) -> int:
        return len(self._fork)

    @property
    def total(self) -> int:
        return len(self._conversation.target)

    def step(self, check_stop: Callable[[], None] = lambda: None) -> bool:
        """Read one step. Returns True when everything is read and the cache is replaced.
        `check_stop` is called about twice a second; it raises to abandon a long step."""
        sparse, fork = self._conversation.target, self._fork
        self._started = True
        fork.rewind(fork.common_prefix_len(sparse.ids))
        model, step = self._target.model, self._target.step
        later = [point for point in sparse.checkpoints if point.position > len(fork)]
        end = min([len(fork) + step.tokens, len(sparse), *(point.position for point in later)])
        positions = np.arange(len(fork), end, dtype=np.int32)
        if len(positions):
            with fork.reserved(len(sparse) - len(fork)):
                fork.prefill_at(
                    model,
                    sparse.ids,
                    positions,
                    step,
                    lambda done: None,
                    lambda done: check_stop(),
                )
        if later and len(fork) == later[0].position:
            limit = max(len(sparse.checkpoints), MIN_CHECKPOINTS)
            fork.add_checkpoint(limit, later[0].lasting)
        if len(fork) < len(sparse):
            return False
        if (problem := find_mismatch(fork)) is not None:
            raise RuntimeError(f"its cache was damaged, {problem}")
        self._conversation.replace_target(fork)
        return True


_log = logging.getLogger(__name__)
MAX_CONVERSATIONS = 64
"""Maximum number of conversations in memory; each slows down prefix search a little. Scores are
a few bytes per token, and the text."""


Scores = dict[str | None, ScoredPrompt]
"""Scores of each conversation's last turn, from which another keep can be selected, even after its
caches were evicted. Turns without a conversation share one entry."""


class CachePool:
    """The caches of one loaded pair; used on the engine thread. `stopped`: whether the running turn
    was cancelled, so that saving for its sake stops. `has_pending`: whether a command is queued, so
    that a long step of background prefill stops."""

    def __init__(
        self,
        pair: ModelPair,
        policy: CachePolicy,
        emit: Callable[[Event], None],
        power: PowerProbe | None = None,
        stopped: Callable[[], bool] = lambda: False,
        has_pending: Callable[[], bool] = lambda: False,
        scored: Scores | None = None,
    ) -> None:
        self._pair, self._emit, self._policy = pair, emit, policy
        self._has_pending = has_pending
        self._power, self._stopped = power or PowerProbe(), stopped
        self._caches: OrderedDict[str, ConversationCache] = OrderedDict()
        """By conversation, most recently used last."""
        self._sharing = PrefixSharing(self._caches)
        self._unsaved: dict[str, None] = {}
        """Conversations that changed since they were saved, in the order of change."""
        self._memory_only: set[str] = set()
        """Conversations that are never saved."""
        self._background: tuple[str, BackgroundPrefill] | None = None
        self._failed_background: set[str] = set()
        """Conversations whose background prefill failed since their last turn."""
        self._saving: tuple[str, Generator[tuple[int, int], None, None]] | None = None
        self.scored: Scores = {} if scored is None else scored
        self._snapshots: Snapshots | None = None
        if policy.snapshot_folder is not None:
            models = {"target": pair.target, "draft": pair.draft}
            loaded = {name: model for name, model in models.items() if model is not None}
            folder = Path(policy.snapshot_folder)
            weights = sum(model.info.weight_bytes for model in loaded.values())
            limit = disk_limit(policy.disk_budget, folder, weights)
            identity = {name: model.fingerprint for name, model in loaded.items()}
            self._snapshots = pair.target.make_snapshots(folder, limit, identity)

    def check_and_share(
        self, cache: ConversationCache, ask: Ask, prompt: Prompt, clock: TurnClock
    ) -> Reason | None:
        """Let the cache of the conversation of `ask` have as much of `prompt` as any conversation
        has read. Returns what cannot be shared, if anything. Raises TurnCancelled."""
        if (damage := cache.drop_damaged()) is not None:
            self._emit(EngineWarning(damage, ask.conversation))
        if ask.read_again:
            cache.target.clear()
            return None
        return self.start_from_longest(ask, prompt, clock)

    def keep_scores(self, conversation: str | None, cache: ConversationCache) -> None:
        """Keep the scores of the conversation's last turn, from which another keep can be
        selected."""
        self.scored.pop(conversation, None)
        if cache.scored is not None:
            self.scored[conversation] = cache.scored
        while len(self.scored) > MAX_CONVERSATIONS:
            del self.scored[next(iter(self.scored))]

    def select(self, turn: int, keep_ratio: float) -> Selected | None:
        """The selection from a turn's scores with another keep; None if they are not stored."""
        scored = [each for each in self.scored.values() if each.turn == turn]
        return scored[0].select(keep_ratio)[1] if scored else None

    def get_or_restore(
        self, conversation: str | None, clock: TurnClock, on_disk: bool = True
    ) -> ConversationCache:
        """A conversation's cache from memory or disk, or an empty one (always for None). With
        `on_disk` False, it is never saved. Raises TurnCancelled."""
        if conversation is None:
            return ConversationCache(self._pair)
        if not self._is_background(conversation):
            self._background = None
        self._failed_background.discard(conversation)
        self._stop_saving(conversation)
        if not on_disk:
            self._memory_only.add(conversation)
        if conversation not in self._caches:
            self._add(conversation, self._restored(conversation, clock))
        self._caches.move_to_end(conversation)
        self._mark_unsaved(conversation)
        for prefix in self._caches[conversation].prefixes:
            self._sharing.complete_or_clear(prefix)
        self._sharing.release_in_others(self._caches[conversation])
        return self._caches[conversation]

    def start_from_longest(self, ask: Ask, prompt: Prompt, progress: TurnClock) -> Reason | None:
        """Let the current conversation reuse the longest prefix of its prompt that another one has
        in memory or on disk. Returns what cannot be shared, if anything. Raises TurnCancelled."""
        if ask.conversation is None or not self._policy.share_prefixes:
            return None
        cache, dense = self._caches[ask.conversation], ask.mode is Mode.FULL
        lenders: list[ConversationCache] = []
        if self._snapshots is not None:
            ids = prompt.ids[:-1]
            known = max(each.target.common_prefix_len(ids) for each in self._caches.values())
            name, length = self._snapshots.index.find_longest(ids, dense)
            if length >= known + MIN_SHARED and name not in self._caches:
                begins = {"target": ids, "draft": prompt.draft_prompt.ids}
                restored = self._restored(
                    name, progress, lambda model, prefix: prefix.common_prefix_len(begins[model])
                )
                if len(restored.target):
                    lenders.append(restored)
        self._sharing.start_from_longest(cache, prompt, dense, lenders)
        return self._sharing.read_elsewhere(cache, prompt, ask.messages)

    def _mark_unsaved(self, conversation: str) -> None:
        if conversation not in self._memory_only:
            self._unsaved[conversation] = None

    def _add(self, conversation: str, cache: ConversationCache) -> None:
        cache.announce_drops(self._sharing.rescue)
        self._caches[conversation] = cache

    def _complete(self, conversation: str) -> None:
        """Fetch all absent rows of a conversation's caches. Raises what MLX raises; no row is lost
        then."""
        for prefix in self._caches[conversation].prefixes:
            self._sharing.complete(prefix)

    def drop(self, conversation: str | None, on_disk: bool = False) -> None:
        """Drop a conversation's cache, and if `on_disk` its snapshot and its scores."""
        if conversation is None:
            return
        if (dropped := self._caches.pop(conversation, None)) is not None:
            for prefix in dropped.prefixes:
                prefix.clear()  # first lets others copy the rows that only it holds
        self._unsaved.pop(conversation, None)
        self._memory_only.discard(conversation)
        self._failed_background.discard(conversation)
        if self._is_background(conversation):
            self._background = None
        self._stop_saving(conversation)
        if not on_disk:
            return
        self.scored.pop(conversation, None)
        if self._snapshots is not None:
            self._snapshots.delete(conversation)
        else:  # snapshots are off now, but shards may have older ones
            self._pair.target.delete_snapshots_elsewhere(conversation)

    def enforce_budget(self) -> None:
        """Save and drop the least recently used caches until the rest fits into the memory budget.
        The current one always stays."""
        while len(self._caches) > 1 and (
            self.nbytes > self._policy.memory_budget or len(self._caches) > MAX_CONVERSATIONS
        ):
            oldest = next(iter(self._caches))
            self._save(oldest)
            self.drop(oldest)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches.values()) + self.background_bytes

    @property
    def background_bytes(self) -> int:
        return self._background[1].nbytes if self._background is not None else 0

    @property
    def idle_bytes(self) -> int:
        """Bytes of all conversations except the most recently used, and of background prefill."""
        idle = tuple(self._caches.values())[:-1]
        return sum(cache.nbytes for cache in idle) + self.background_bytes

    def cancel_background(self) -> int:
        """Drop the background prefill. Returns the bytes freed."""
        freed, self._background = self.background_bytes, None
        return freed

    def evict_idle(self, include_current: bool) -> bool:
        """Save and drop all caches, the most recently used one only if `include_current`. Stops if
        the turn is cancelled. Returns whether snapshots are on."""
        for conversation in tuple(self._caches)[: None if include_current else -1]:
            if not self._save(conversation, self._stopped):
                break
            self.drop(conversation)
        return self._snapshots is not None

    def step(self, background: bool = True) -> bool:
        """Do one step of idle work: background prefill of the last conversation, then saving. It
        ends within about half a second of a new command. Returns False if nothing is left."""
        return (background and self._background_step()) or self._save_step()

    @property
    def idle_work_allowed(self) -> bool:
        """Whether models may run without a request."""
        match self._policy.background:
            case BackgroundPolicy.ON_AC_POWER:
                return not self._power.on_battery()
            case policy:
                return policy is BackgroundPolicy.ALWAYS

    @property
    def has_waiting_work(self) -> bool:
        """Whether background prefill is left to do, perhaps waiting for power or memory."""
        return self._background_candidate() is not None and self._pair.target.is_loaded

    def close(self) -> None:
        """Save everything unsaved and drop all caches."""
        self._background = None
        for conversation in tuple(self._unsaved):
            self._save(conversation)
        self._stop_saving()
        self._caches.clear()

    def abandon(self) -> None:
        """Drop everything without saving, after the GPU was lost."""
        self._background = self._saving = None
        self._unsaved.clear()
        self._caches.clear()

    # ------------------------------------------------------------------------- restoring

    def _restored(
        self, conversation: str, progress: TurnClock, wanted: Wanted | None = None
    ) -> ConversationCache:
        """A conversation's cache from disk (or as much as `wanted`); empty if there is none."""

        def fresh() -> ConversationCache:
            return ConversationCache(self._pair)

        def report(total: int) -> OnStep:
            return progress.report(Phase.RESTORE, total)

        if self._snapshots is None:
            return fresh()
        try:
            with progress.timed(Phase.RESTORE):
                loaded = self._snapshots.load(conversation, fresh, report, wanted)
        except SnapshotError as error:
            reason = Reason(ReasonCode.SNAPSHOT_UNUSABLE, {"error": str(error)})
            self._emit(SnapshotRestored(progress.turn, 0, reason))
            return fresh()
        if loaded is None:
            return fresh()
        self._emit(SnapshotRestored(progress.turn, int(loaded.target.cached.sum())))
        return loaded

    def _drop_damaged(self, conversation: str) -> bool:
        if (warning := self._caches[conversation].drop_damaged()) is None:
            return False
        self._emit(EngineWarning(warning, conversation))
        return True

    # ------------------------------------------------------------------------- background prefill

    def _is_background(self, conversation: str) -> bool:
        return self._background is not None and self._background[0] == conversation

    def _background_candidate(self) -> tuple[str, ConversationCache] | None:
        """The most recently used conversation, if its cache has gaps."""
        if (
            not self._caches
            or self._policy.background is BackgroundPolicy.OFF
            or self._pair.dense_only is not None
        ):
            return None
        conversation, cache = next(reversed(self._caches.items()))
        if conversation in self._failed_background or not cache.target.has_gaps:
            return None
        return conversation, cache

    def _background_step(self) -> bool:
        if (candidate := self._background_candidate()) is None:
            self._background = None
            return False
        if not self.idle_work_allowed or not self._pair.target.is_loaded:
            return False
        conversation, cache = candidate
        try:
            if self._background is None or self._background[0] != conversation:
                self._complete(conversation)  # a later conversation may have been deleted
                self._sharing.release_in_others(cache)
                if self._drop_damaged(conversation):
                    return True
                target = self._pair.target
                if not self._fits_budget(BackgroundPrefill.required_bytes(target, cache)):
                    return False
                self._background = conversation, BackgroundPrefill(target, cache)
            prefill = self._background[1]
            finished = prefill.step(self._check_pending)
        except memory.NotEnoughMemory:
            return False
        except TurnCancelled:
            return True
        except Exception as error:  # only the progress is lost
            memory.reraise_gpu_lost(error)
            _log.warning("reading in the background failed", exc_info=error)
            self._background = None
            self._failed_background.add(conversation)
            reason = Reason(ReasonCode.BACKGROUND_STOPPED, memory.cause_of(error))
            self._emit(EngineWarning(reason, conversation))
            return True
        if finished:
            self._background = None
            self._mark_unsaved(conversation)
            self._stop_saving(conversation)  # it would save the sparse cache
        self._emit(BackgroundProgress(conversation, prefill.done, prefill.total))
        return True

    def _check_pending(self) -> None:
        if self._has_pending():
            raise TurnCancelled

    def _fits_budget(self, needed: float) -> bool:
        """Whether `needed` bytes fit into the memory budget; drops saved caches to make room."""
        for conversation in tuple(self._caches)[:-1]:
            if self.nbytes + needed <= self._policy.memory_budget:
                break
            if self._is_saved(conversation):
                self.drop(conversation)
        return len(self._caches) == 1 or self.nbytes + needed <= self._policy.memory_budget

    # ------------------------------------------------------------------------- saving

    def _is_saved(self, conversation: str) -> bool:
        """Whether the conversation's snapshot is up to date."""
        changed = conversation in self._unsaved or conversation in self._memory_only
        return not changed and self._snapshots is not None and self._snapshots.has(conversation)

    def _save_step(self) -> bool:
        """Write the next file of a snapshot. Returns False if everything is saved."""
        if self._snapshots is None:
            return False
        if self._saving is None:
            conversation = next((c for c in self._unsaved if len(self._caches[c].target)), None)
            if conversation is None:
                return False
            self._start_saving(self._snapshots, conversation)
        if self._saving is None:
            return True
        conversation, saving = self._saving
        try:
            done, total = next(saving)
        except Exception as error:  # MLX raises any type; only the snapshot is lost
            memory.reraise_gpu_lost(error)
            self._saving = None
            self._on_save_failed(self._snapshots, conversation, error)
            return True
        if done == total:
            self._saving = None
            self._unsaved.pop(conversation, None)
            self._share_again(conversation)
        self._emit(SnapshotProgress(conversation, done, total))
        return True

    def _start_saving(self, snapshots: Snapshots, conversation: str) -> None:
        self._stop_saving()
        try:
            self._complete(conversation)
            self._drop_damaged(conversation)
        except Exception as error:
            memory.reraise_gpu_lost(error)
            self._on_save_failed(snapshots, conversation, error)
            return
        cache = self._caches[conversation]
        if len(cache.target):
            self._saving = conversation, snapshots.save(conversation, cache)
            self._sharing.saving = cache
        else:
            self._unsaved.pop(conversation, None)

    def _on_save_failed(self, snapshots: Snapshots, conversation: str, error: Exception) -> None:
        """Report the failure. The cache stays in memory and is saved after its next turn."""
        self._unsaved.pop(conversation, None)
        if not isinstance(error, TargetLost):  # in that case the older snapshot is still good
            snapshots.discard(conversation)
            self._emit(SnapshotFailed(conversation, snapshots.save_error(error)))
        self._share_again(conversation)

    def _stop_saving(self, conversation: str | None = None) -> None:
        """Cancel saving this conversation (None: any). The older snapshot stays valid."""
        if self._saving is not None and conversation in (None, self._saving[0]):
            (name, saving), self._saving = self._saving, None
            saving.close()
            self._share_again(name)

    def _share_again(self, conversation: str) -> None:
        """Share the rows again that a conversation fetched to be saved. The most recently used
        conversation holds them, else the others."""
        self._sharing.saving = None
        if (cache := self._caches.get(conversation)) is None:
            return
        is_last = conversation == next(reversed(self._caches))
        try:
            (self._sharing.release_in_others if is_last else self._sharing.release_in)(cache)
        except Exception as error:  # out of memory; lazy rows are evaluated at the next use
            memory.reraise_gpu_lost(error)
            _log.warning("sharing what was saved failed", exc_info=error)

    def _save(self, conversation: str, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Save a conversation's cache if it changed. Returns False if it was `stopped`."""
        if self._snapshots is None or not len(self._caches[conversation].target):
            return True
        while conversation in self._unsaved:
            if stopped():
                self._stop_saving()
                return False
            if self._saving is None or self._saving[0] != conversation:
                self._start_saving(self._snapshots, conversation)
            if self._saving is not None:
                self._save_step()
        return True
