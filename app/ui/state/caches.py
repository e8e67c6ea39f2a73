"""Tells the engine how to keep caches, and which ones belong to conversations that are gone. No
widgets."""

from __future__ import annotations

from pathlib import Path

from app.protocol.commands import CachePolicy, DropConversation, PruneSnapshots
from app.protocol.engine import Engine
from app.settings.file import SettingsFile
from app.ui.state.repository import ChatRepository


class EngineCaches:
    def __init__(
        self,
        engine: Engine,
        repository: ChatRepository,
        settings_file: SettingsFile,
        snapshots: Path | None,
        costs: Path | None,
    ) -> None:
        """Caches are saved in the folder `snapshots`, measured speeds in the file `costs`."""
        self._engine, self._repository, self._settings_file = engine, repository, settings_file
        self._snapshots = None if snapshots is None else str(snapshots)
        self._costs = None if costs is None else str(costs)
        self._policy = CachePolicy()
        self._trashed: set[int] = set()
        """Conversations whose caches are dropped once they cannot be restored any more."""

    def start(self) -> None:
        """Say where measured speeds are stored. Call it before the first pair is loaded."""
        self._send_policy(None)

    def apply_policy(self) -> None:
        """Tell the engine how to cache and save what it has read, if that has changed."""
        if not self._repository.opening:
            self._send_policy(self._snapshots if self._repository.writable else None)

    def _send_policy(self, snapshots: str | None) -> None:
        policy = self._settings_file.settings.cache_policy(snapshots, self._costs)
        if policy != self._policy:
            self._policy = policy
            self._engine.send(policy)

    def prune(self) -> None:
        """Delete snapshots of conversations that are deleted or in the trash; a killed program
        leaves them. Call it before any question, which might start from one of them."""
        stored = self._repository.stored
        if self._snapshots is not None and self._repository.writable and stored is not None:
            self._engine.send(PruneSnapshots(self._snapshots, stored))

    def on_trashed(self, id: int, trashed: bool) -> None:
        """A conversation was moved to the trash, or restored."""
        (self._trashed.add if trashed else self._trashed.discard)(id)

    def drop_trashed(self) -> None:
        """Drop the caches of trashed conversations, once deleting them cannot be undone here."""
        for id in self._trashed:
            self._engine.send(DropConversation(str(id), self._snapshots))
        self._trashed.clear()
