"""Stores to be damaged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store.store import Store
from tests.store.faults import DAY, JOURNAL, NEW
from tests.store.samples import answered, attach


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two folders: after a proper end, and as a crash leaves it, with the last message only in the
    journal."""
    work, ended, crashed = (tmp_path_factory.mktemp(name) for name in ("work", "ended", "crashed"))
    with pytest.MonkeyPatch.context() as patch:
        # Words of documents would be in the journal after the last message, or not yet.
        patch.setattr(Store, "_index_soon", lambda store: None)
        with Store(work, clock=lambda: DAY) as store:
            conversation = answered(store)
        with Store(work, clock=lambda: DAY + timedelta(days=1)) as store:
            store.add_message(conversation, Role.USER, NEW[0], [attach(store, "new", "new.txt")])
            shutil.copytree(work, crashed, dirs_exist_ok=True)
    shutil.copytree(work, ended, dirs_exist_ok=True)
    assert (crashed / JOURNAL).stat().st_size > 0
    assert not (ended / JOURNAL).exists()
    return {"ended": ended, "crashed": crashed}
