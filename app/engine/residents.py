"""The conversations whose caches are in memory, and what becomes of them between turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from app.engine import memory
from app.engine.healing import Healing, is_sick
from app.engine.loader import Pair
from app.engine.messages import Event, Heal, Healed, NotSaved, Phase, Restored, Saved, Upkeep
from app.engine.power import PowerProbe, SystemPower
from app.engine.prefill import OnStep
from app.engine.progress import Progress
from app.engine.reading import Remembered
from app.engine.snapshot import SnapshotError, Snapshots


class Residents:
    """Belongs to one loaded pair. All of it runs on the engine's thread."""

    def __init__(
        self,
        pair: Pair,
        upkeep: Upkeep,
        emit: Callable[[Event], None],
        power: PowerProbe | None = None,
    ) -> None:
        self._pair, self._emit, self._upkeep = pair, emit, upkeep
        self._power = power or SystemPower()
        self._held: OrderedDict[str, Remembered] = OrderedDict()
        """The one that was used last comes last."""
        self._unsaved: set[str] = set()
        self._healing: tuple[str, Healing] | None = None
        self._saving: tuple[str, Iterator[tuple[int, int]]] | None = None
        self._snapshots = None
        if upkeep.snapshots is not None:
            identity = {"target": pair.target.fingerprint}
            if pair.draft is not None:
                identity["draft"] = pair.draft.fingerprint
            self._snapshots = Snapshots(Path(upkeep.snapshots), upkeep.disk_budget, identity)

    def recall(self, conversation: str | None, progress: Progress) -> Remembered:
        """What was read of a conversation, in memory or on disk; of one without a name, nothing.
        Raises Cancelled."""
        if conversation is None:
            return Remembered(self._pair)
        self._healing = self._healing if self._is_healing(conversation) else None
        self._saving = None
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
        if self._is_healing(conversation):
            self._healing = None
        self._saving = None
        if on_disk and self._snapshots is not None:
            self._snapshots.forget(conversation)

    def drop_all(self) -> None:
        for conversation in tuple(self._held):
            self.drop(conversation)

    def make_room(self) -> None:
        """Keep to the budget: what was not used for longest goes to disk, or is forgotten. The one
        in use stays."""
        while len(self._held) > 1 and self.nbytes > self._upkeep.memory_budget:
            oldest = next(iter(self._held))
            self._save(oldest)
            self.drop(oldest)

    @property
    def nbytes(self) -> int:
        return sum(remembered.nbytes for remembered in self._held.values())

    @property
    def idle_bytes(self) -> int:
        """Of conversations other than the one that was used last."""
        return sum(remembered.nbytes for remembered in tuple(self._held.values())[:-1])

    def drop_idle(self, everything: bool) -> bool:
        """Save where that is to be, and let go of all but the one that was used last, or of that
        one, too. Whether they were saved."""
        for conversation in tuple(self._held)[: None if everything else -1]:
            self._save(conversation)
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

    def close(self) -> None:
        """Save what is not saved."""
        for conversation in tuple(self._unsaved):
            self._save(conversation)
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

    def _heal(self) -> bool:
        if not self._held or not self.may_read:
            return False
        conversation, remembered = next(reversed(self._held.items()))
        sick = is_sick(remembered) and self._pair.dense_only is None
        if not sick or not self._pair.target.here:
            return False
        if not self._is_healing(conversation):
            try:
                self._healing = (conversation, Healing(self._pair.target, remembered))
            except memory.NotEnoughMemory:
                return False
        assert self._healing is not None
        healing = self._healing[1]
        if healing.step():
            self._healing = self._saving = None  # which would save what was there before
            self._unsaved.add(conversation)
        self._emit(Healed(conversation, healing.done, healing.total))
        return True

    def _save_on(self) -> bool:
        """Write one more file of a snapshot."""
        if self._snapshots is None:
            return False
        if self._saving is None:
            conversation = next((c for c in self._unsaved if len(self._held[c].target)), None)
            if conversation is None:
                return False
            saving = self._snapshots.save(conversation, self._held[conversation])
            self._saving = (conversation, saving)
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

    def _save(self, conversation: str) -> None:
        held = self._held[conversation]
        if self._snapshots is None or conversation not in self._unsaved or not len(held.target):
            return
        self._saving = (conversation, self._snapshots.save(conversation, held))
        while self._saving is not None:
            self._save_on()
