"""The conversations whose caches are in memory, and what becomes of them between turns."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator
from pathlib import Path

from app.engine import memory
from app.engine.background_prefill import BackgroundPrefill
from app.engine.conversation_cache import ConversationCache
from app.engine.loader import ModelPair
from app.engine.power import PowerProbe, SystemPower
from app.engine.prefill import OnStep
from app.engine.progress import TurnClock
from app.engine.snapshot import SnapshotError, Snapshots
from app.engine.snapshot_folder import disk_limit
from app.protocol.commands import CachePolicy
from app.protocol.events import (
    BackgroundProgress,
    EngineWarning,
    Event,
    SnapshotFailed,
    SnapshotProgress,
    SnapshotRestored,
)
from app.protocol.options import BackgroundPolicy
from app.protocol.stats import Phase

_log = logging.getLogger(__name__)


class CachePool:
    """Belongs to one loaded pair. All of it runs on the engine's thread. `stopped` says whether the
    turn that runs was cancelled: what is saved to make room for it then stops."""

    def __init__(
        self,
        pair: ModelPair,
        upkeep: CachePolicy,
        emit: Callable[[Event], None],
        power: PowerProbe | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pair, self._emit, self._upkeep = pair, emit, upkeep
        self._power, self._stopped = power or SystemPower(), stopped
        self._caches: OrderedDict[str, ConversationCache] = OrderedDict()
        """The one that was used last comes last."""
        self._unsaved: set[str] = set()
        self._background: tuple[str, BackgroundPrefill] | None = None
        self._failed_background: set[str] = set()
        """Those whose healing has failed since their last turn."""
        self._saving: tuple[str, Generator[tuple[int, int], None, None]] | None = None
        self._snapshots = None
        if upkeep.snapshot_folder is not None:
            identity = {"target": pair.target.fingerprint}
            if pair.draft is not None:
                identity["draft"] = pair.draft.fingerprint
            folder = Path(upkeep.snapshot_folder)
            weights = sum(m.info.weight_bytes for m in (pair.target, pair.draft) if m is not None)
            limit = disk_limit(upkeep.disk_budget, folder, weights)
            self._snapshots = Snapshots(folder, limit, identity)

    def get_or_restore(self, conversation: str | None, progress: TurnClock) -> ConversationCache:
        """What was read of a conversation, in memory or on disk; of one without a name, nothing.
        Raises Cancelled."""
        if conversation is None:
            return ConversationCache(self._pair)
        self._background = self._background if self._is_background(conversation) else None
        self._failed_background.discard(conversation)
        if self._is_saving(conversation):
            self._stop_saving()
        if conversation not in self._caches:
            self._caches[conversation] = self._restored(conversation, progress)
        self._caches.move_to_end(conversation)
        self._unsaved.add(conversation)
        return self._caches[conversation]

    def drop(self, conversation: str | None, on_disk: bool = False) -> None:
        """Forget what was read: it is of no use, or in a state that nobody knows."""
        if conversation is None:
            return
        self._caches.pop(conversation, None)
        self._unsaved.discard(conversation)
        self._failed_background.discard(conversation)
        if self._is_background(conversation):
            self._background = None
        if self._is_saving(conversation):
            self._stop_saving()
        if on_disk and self._snapshots is not None:
            self._snapshots.delete(conversation)

    def enforce_budget(self) -> None:
        """Keep to the budget: what was not used for longest goes to disk, or is forgotten. The one
        in use stays."""
        while len(self._caches) > 1 and self.nbytes > self._upkeep.memory_budget:
            oldest = next(iter(self._caches))
            self._save(oldest)
            self.drop(oldest)

    @property
    def nbytes(self) -> int:
        return (
            sum(remembered.nbytes for remembered in self._caches.values()) + self.background_bytes
        )

    @property
    def background_bytes(self) -> int:
        """Of what is being read while nothing else is to be done."""
        return self._background[1].nbytes if self._background is not None else 0

    @property
    def idle_bytes(self) -> int:
        """Of conversations other than the one that was used last, and of healing."""
        idle = tuple(self._caches.values())[:-1]
        return sum(remembered.nbytes for remembered in idle) + self.background_bytes

    def cancel_background(self) -> int:
        """Give up background reading; returns how many bytes it took."""
        freed, self._background = self.background_bytes, None
        return freed

    def evict_idle(self, include_current: bool) -> bool:
        """Save where that is to be, and let go of all but the one that was used last, or of that
        one, too. Whether they were saved. A turn that is cancelled leaves the rest as it is."""
        for conversation in tuple(self._caches)[: None if include_current else -1]:
            if not self._save(conversation, self._stopped):
                break
            self.drop(conversation)
        return self._snapshots is not None

    def step(self, background: bool = True) -> bool:
        """One step, of about half a second, of what can be done while nothing else is: heal the
        last conversation, save what is not saved. False when there is nothing left to do."""
        return (background and self._background_step()) or self._save_step()

    @property
    def idle_work_allowed(self) -> bool:
        """Whether something may be read that nobody asked for."""
        match self._upkeep.background:
            case BackgroundPolicy.ON_AC_POWER:
                return not self._power.on_battery()
            case policy:
                return policy is BackgroundPolicy.ALWAYS

    @property
    def has_waiting_work(self) -> bool:
        """Whether something is to be read once there is power or memory for it."""
        return self._background_candidate() is not None and self._pair.target.is_loaded

    def close(self) -> None:
        """Save what is not saved."""
        self._background = None
        for conversation in tuple(self._unsaved):
            self._save(conversation)
        self._stop_saving()
        self._caches.clear()

    # ------------------------------------------------------------------------------ inside

    def _restored(self, conversation: str, progress: TurnClock) -> ConversationCache:
        def fresh() -> ConversationCache:
            return ConversationCache(self._pair)

        def report(total: int) -> OnStep:
            return progress.report(Phase.RESTORE, total)

        if self._snapshots is None:
            return fresh()
        try:
            with progress.timed(Phase.RESTORE):
                loaded = self._snapshots.load(conversation, fresh, report)
        except SnapshotError as error:
            reason = f"What was read before cannot be used ({error}), so it is read again."
            self._emit(SnapshotRestored(progress.turn, 0, reason))
            return fresh()
        if loaded is None:
            return fresh()
        self._emit(SnapshotRestored(progress.turn, int(loaded.target.cached.sum())))
        return loaded

    def _is_background(self, conversation: str) -> bool:
        return self._background is not None and self._background[0] == conversation

    def _is_saving(self, conversation: str) -> bool:
        return self._saving is not None and self._saving[0] == conversation

    def _background_candidate(self) -> tuple[str, ConversationCache] | None:
        """The conversation used last, where the rest of it is to be read."""
        if (
            not self._caches
            or self._upkeep.background is BackgroundPolicy.OFF
            or self._pair.dense_only is not None
        ):
            return None
        conversation, remembered = next(reversed(self._caches.items()))
        if conversation in self._failed_background or not remembered.target.has_gaps:
            return None
        return conversation, remembered

    def _background_step(self) -> bool:
        if (sick := self._background_candidate()) is None:
            self._background = None
            return False
        if not self.idle_work_allowed or not self._pair.target.is_loaded:
            return False
        conversation, remembered = sick
        try:
            if not self._is_background(conversation):
                if self._drop_damaged(conversation):
                    return True
                if not self._fits_budget(
                    BackgroundPrefill.required_bytes(self._pair.target, remembered)
                ):
                    return False
                self._background = (conversation, BackgroundPrefill(self._pair.target, remembered))
            assert self._background is not None
            healing = self._background[1]
            healed = healing.step()
        except memory.NotEnoughMemory:
            return False
        except Exception as error:  # nobody asked for it: it costs what it has read, nothing else
            self._background_failed(conversation, error)
            return True
        if healed:
            self._background = None
            self._unsaved.add(conversation)
            if self._is_saving(conversation):
                self._stop_saving()  # which would save what was there before
        self._emit(BackgroundProgress(conversation, healing.done, healing.total))
        return True

    def _fits_budget(self, needed: float) -> bool:
        """Whether the budget has room for so much more, once what is on the disk is dropped."""
        for conversation in tuple(self._caches)[:-1]:
            if self.nbytes + needed <= self._upkeep.memory_budget:
                break
            if self._snapshots is not None and conversation not in self._unsaved:
                self.drop(conversation)
        return len(self._caches) == 1 or self.nbytes + needed <= self._upkeep.memory_budget

    def _background_failed(self, conversation: str, error: Exception) -> None:
        _log.warning("reading in the background failed", exc_info=error)
        self._background = None
        self._failed_background.add(conversation)
        why = memory.describe_error(error)
        sentence = f"Background reading stopped ({why}). It starts again after the next answer."
        self._emit(EngineWarning(sentence, conversation))

    def _drop_damaged(self, conversation: str) -> bool:
        if (found := self._caches[conversation].drop_damaged()) is None:
            return False
        self._emit(EngineWarning(found, conversation))
        return True

    def _save_step(self) -> bool:
        """Write one more file of a snapshot."""
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
        except Exception as error:  # MLX raises what it likes; it costs the snapshot, nothing else
            self._saving = None
            self._unsaved.discard(conversation)
            self._snapshots.delete(conversation)
            self._emit(SnapshotFailed(conversation, self._snapshots.save_error(error)))
            return True
        if done == total:
            self._saving = None
            self._unsaved.discard(conversation)
        self._emit(SnapshotProgress(conversation, done, total))
        return True

    def _start_saving(self, snapshots: Snapshots, conversation: str) -> None:
        self._stop_saving()
        self._drop_damaged(conversation)
        held = self._caches[conversation]
        if len(held.target):
            self._saving = conversation, snapshots.save(conversation, held)
        else:
            self._unsaved.discard(conversation)

    def _stop_saving(self) -> None:
        """What was written of a snapshot is deleted; the older one counts."""
        if self._saving is not None:
            self._saving[1].close()
            self._saving = None

    def _save(self, conversation: str, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Save what is not saved of it; False when it was `stopped` before that was done."""
        if self._snapshots is None or not len(self._caches[conversation].target):
            return True
        while conversation in self._unsaved:
            if stopped():
                self._stop_saving()
                return False
            if not self._is_saving(conversation):
                self._start_saving(self._snapshots, conversation)
            self._save_step()
        return True
