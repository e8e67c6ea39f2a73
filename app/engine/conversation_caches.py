"""The conversations whose caches are in memory, and what becomes of them between turns."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator
from pathlib import Path

from app.engine import memory
from app.engine.background_prefill import Healing, is_sick
from app.engine.loader import Pair
from app.engine.power import PowerProbe, SystemPower
from app.engine.prefill import OnStep
from app.engine.progress import Progress
from app.engine.prompt_reader import Remembered
from app.engine.snapshot import SnapshotError, Snapshots
from app.engine.snapshot_folder import disk_limit
from app.protocol.commands import Upkeep
from app.protocol.events import EngineWarning, Event, Healed, NotSaved, Restored, Saved
from app.protocol.options import Heal
from app.protocol.stats import Phase

_log = logging.getLogger(__name__)


class Residents:
    """Belongs to one loaded pair. All of it runs on the engine's thread. `stopped` says whether the
    turn that runs was cancelled: what is saved to make room for it then stops."""

    def __init__(
        self,
        pair: Pair,
        upkeep: Upkeep,
        emit: Callable[[Event], None],
        power: PowerProbe | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pair, self._emit, self._upkeep = pair, emit, upkeep
        self._power, self._stopped = power or SystemPower(), stopped
        self._held: OrderedDict[str, Remembered] = OrderedDict()
        """The one that was used last comes last."""
        self._unsaved: set[str] = set()
        self._healing: tuple[str, Healing] | None = None
        self._failed: set[str] = set()
        """Those whose healing has failed since their last turn."""
        self._saving: tuple[str, Generator[tuple[int, int], None, None]] | None = None
        self._snapshots = None
        if upkeep.snapshots is not None:
            identity = {"target": pair.target.fingerprint}
            if pair.draft is not None:
                identity["draft"] = pair.draft.fingerprint
            folder = Path(upkeep.snapshots)
            weights = sum(m.info.bytes for m in (pair.target, pair.draft) if m is not None)
            limit = disk_limit(upkeep.disk_budget, folder, weights)
            self._snapshots = Snapshots(folder, limit, identity)

    def recall(self, conversation: str | None, progress: Progress) -> Remembered:
        """What was read of a conversation, in memory or on disk; of one without a name, nothing.
        Raises Cancelled."""
        if conversation is None:
            return Remembered(self._pair)
        self._healing = self._healing if self._is_healing(conversation) else None
        self._failed.discard(conversation)
        if self._is_saving(conversation):
            self._stop_saving()
        if conversation not in self._held:
            self._held[conversation] = self._restored(conversation, progress)
        self._held.move_to_end(conversation)
        self._unsaved.add(conversation)
        return self._held[conversation]

    def drop(self, conversation: str | None, on_disk: bool = False) -> None:
        """Forget what was read: it is of no use, or in a state that nobody knows."""
        if conversation is None:
            return
        self._held.pop(conversation, None)
        self._unsaved.discard(conversation)
        self._failed.discard(conversation)
        if self._is_healing(conversation):
            self._healing = None
        if self._is_saving(conversation):
            self._stop_saving()
        if on_disk and self._snapshots is not None:
            self._snapshots.forget(conversation)

    def make_room(self) -> None:
        """Keep to the budget: what was not used for longest goes to disk, or is forgotten. The one
        in use stays."""
        while len(self._held) > 1 and self.nbytes > self._upkeep.memory_budget:
            oldest = next(iter(self._held))
            self._save(oldest)
            self.drop(oldest)

    @property
    def nbytes(self) -> int:
        return sum(remembered.nbytes for remembered in self._held.values()) + self.healing_bytes

    @property
    def healing_bytes(self) -> int:
        """Of what is being read while nothing else is to be done."""
        return self._healing[1].nbytes if self._healing is not None else 0

    @property
    def idle_bytes(self) -> int:
        """Of conversations other than the one that was used last, and of healing."""
        idle = tuple(self._held.values())[:-1]
        return sum(remembered.nbytes for remembered in idle) + self.healing_bytes

    def drop_healing(self) -> int:
        """Give up background reading; returns how many bytes it took."""
        freed, self._healing = self.healing_bytes, None
        return freed

    def drop_idle(self, everything: bool) -> bool:
        """Save where that is to be, and let go of all but the one that was used last, or of that
        one, too. Whether they were saved. A turn that is cancelled leaves the rest as it is."""
        for conversation in tuple(self._held)[: None if everything else -1]:
            if not self._save(conversation, self._stopped):
                break
            self.drop(conversation)
        return self._snapshots is not None

    def step(self, heal: bool = True) -> bool:
        """One step, of about half a second, of what can be done while nothing else is: heal the
        last conversation, save what is not saved. False when there is nothing left to do."""
        return (heal and self._heal()) or self._save_on()

    @property
    def may_read(self) -> bool:
        """Whether something may be read that nobody asked for."""
        match self._upkeep.heal:
            case Heal.PLUGGED:
                return not self._power.on_battery()
            case heal:
                return heal is Heal.ALWAYS

    @property
    def waits(self) -> bool:
        """Whether something is to be read once there is power or memory for it."""
        return self._sick() is not None and self._pair.target.here

    def close(self) -> None:
        """Save what is not saved."""
        self._healing = None
        for conversation in tuple(self._unsaved):
            self._save(conversation)
        self._stop_saving()
        self._held.clear()

    # ------------------------------------------------------------------------------ inside

    def _restored(self, conversation: str, progress: Progress) -> Remembered:
        def fresh() -> Remembered:
            return Remembered(self._pair)

        def report(total: int) -> OnStep:
            return progress.report(Phase.RESTORE, total)

        if self._snapshots is None:
            return fresh()
        try:
            with progress.timed(Phase.RESTORE):
                loaded = self._snapshots.load(conversation, fresh, report)
        except SnapshotError as error:
            reason = f"What was read before cannot be used ({error}), so it is read again."
            self._emit(Restored(progress.turn, 0, reason))
            return fresh()
        if loaded is None:
            return fresh()
        self._emit(Restored(progress.turn, int(loaded.target.read.sum())))
        return loaded

    def _is_healing(self, conversation: str) -> bool:
        return self._healing is not None and self._healing[0] == conversation

    def _is_saving(self, conversation: str) -> bool:
        return self._saving is not None and self._saving[0] == conversation

    def _sick(self) -> tuple[str, Remembered] | None:
        """The conversation used last, where the rest of it is to be read."""
        if not self._held or self._upkeep.heal is Heal.NEVER or self._pair.dense_only is not None:
            return None
        conversation, remembered = next(reversed(self._held.items()))
        if conversation in self._failed or not is_sick(remembered):
            return None
        return conversation, remembered

    def _heal(self) -> bool:
        if (sick := self._sick()) is None:
            self._healing = None
            return False
        if not self.may_read or not self._pair.target.here:
            return False
        conversation, remembered = sick
        try:
            if not self._is_healing(conversation):
                if self._drop_damaged(conversation):
                    return True
                if not self._fits_budget(Healing.needed(self._pair.target, remembered)):
                    return False
                self._healing = (conversation, Healing(self._pair.target, remembered))
            assert self._healing is not None
            healing = self._healing[1]
            healed = healing.step()
        except memory.NotEnoughMemory:
            return False
        except Exception as error:  # nobody asked for it: it costs what it has read, nothing else
            self._give_up_healing(conversation, error)
            return True
        if healed:
            self._healing = None
            self._unsaved.add(conversation)
            if self._is_saving(conversation):
                self._stop_saving()  # which would save what was there before
        self._emit(Healed(conversation, healing.done, healing.total))
        return True

    def _fits_budget(self, needed: float) -> bool:
        """Whether the budget has room for so much more, once what is on the disk is dropped."""
        for conversation in tuple(self._held)[:-1]:
            if self.nbytes + needed <= self._upkeep.memory_budget:
                break
            if self._snapshots is not None and conversation not in self._unsaved:
                self.drop(conversation)
        return len(self._held) == 1 or self.nbytes + needed <= self._upkeep.memory_budget

    def _give_up_healing(self, conversation: str, error: Exception) -> None:
        _log.warning("reading in the background failed", exc_info=error)
        self._healing = None
        self._failed.add(conversation)
        why = memory.describe(error)
        sentence = f"Background reading stopped ({why}). It starts again after the next answer."
        self._emit(EngineWarning(sentence, conversation))

    def _drop_damaged(self, conversation: str) -> bool:
        if (found := self._held[conversation].drop_damaged()) is None:
            return False
        self._emit(EngineWarning(found, conversation))
        return True

    def _save_on(self) -> bool:
        """Write one more file of a snapshot."""
        if self._snapshots is None:
            return False
        if self._saving is None:
            conversation = next((c for c in self._unsaved if len(self._held[c].target)), None)
            if conversation is None:
                return False
            self._begin_saving(self._snapshots, conversation)
        if self._saving is None:
            return True
        conversation, saving = self._saving
        try:
            done, total = next(saving)
        except Exception as error:  # MLX raises what it likes; it costs the snapshot, nothing else
            self._saving = None
            self._unsaved.discard(conversation)
            self._snapshots.forget(conversation)
            self._emit(NotSaved(conversation, self._snapshots.unsaved(error)))
            return True
        if done == total:
            self._saving = None
            self._unsaved.discard(conversation)
        self._emit(Saved(conversation, done, total))
        return True

    def _begin_saving(self, snapshots: Snapshots, conversation: str) -> None:
        self._stop_saving()
        self._drop_damaged(conversation)
        held = self._held[conversation]
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
        if self._snapshots is None or not len(self._held[conversation].target):
            return True
        while conversation in self._unsaved:
            if stopped():
                self._stop_saving()
                return False
            if not self._is_saving(conversation):
                self._begin_saving(self._snapshots, conversation)
            self._save_on()
        return True
