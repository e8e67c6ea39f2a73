"""Conversations that are not saved leave nothing behind, and other users cannot read them."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store.records import FIRST_UNSAVED_ID, StoreError
from app.store.store import Store, TemporaryStore
from tests.store.samples import answered, attach


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    assert list(path.iterdir()) == []


def test_its_folder_is_private_has_no_backup_and_goes_when_it_is_closed(folder: Path) -> None:
    with TemporaryStore() as store:
        answered(store)
        (path,) = folder.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert store._writer is not None
        store._writer.run(lambda _: None)  # after what a store does at first
        assert not (path / "backup.db").exists()


def test_it_goes_at_exit_though_nobody_closed_it(folder: Path) -> None:
    code = "from app.store.store import TemporaryStore; store = TemporaryStore()"
    subprocess.run([sys.executable, "-c", code], check=True, env={"TMPDIR": str(folder)})


def test_what_a_killed_program_left_goes_when_the_next_one_is_opened(folder: Path) -> None:
    with TemporaryStore() as living:
        (alive,) = folder.iterdir()
        code = "import os; from app.store.store import TemporaryStore"
        code += "; store = TemporaryStore(); os.kill(os.getpid(), 9)"
        subprocess.run([sys.executable, "-c", code], check=False, env={"TMPDIR": str(folder)})
        assert len(list(folder.iterdir())) == 2
        with TemporaryStore():
            assert len(list(folder.iterdir())) == 2
        assert list(folder.iterdir()) == [alive]
        living.create()


def test_a_copy_has_the_ids_branches_and_documents_of_the_original(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store, TemporaryStore(FIRST_UNSAVED_ID) as temporary:
        id = answered(store)
        question, answer = store.branch(id)
        store.edit(question.id, "Who else?")
        store.set_branch(answer.id)
        for _ in range(2):
            assert temporary.copy_from(store, id) == store.conversation(id)
        assert temporary.tree(id).messages == store.tree(id).messages
        assert temporary.read_map(answer.id) == store.read_map(answer.id)
        assert temporary.forks(id) == store.forks(id)
        assert temporary.text(question.attachments[0]) == store.text(question.attachments[0])
        added = temporary.add_message(id, Role.USER, "Since?", [attach(temporary, "new")])
        assert added.id >= FIRST_UNSAVED_ID
        assert temporary.create().id >= FIRST_UNSAVED_ID
        assert len(store.tree(id).messages) == 3


def test_a_conversation_whose_document_is_lost_is_copied_without_it(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store, TemporaryStore(FIRST_UNSAVED_ID) as temporary:
        id = answered(store)
        for path in (tmp_path / "store" / "attachments").rglob("*.gz"):
            path.unlink()
        temporary.copy_from(store, id)
        (document,) = temporary.branch(id)[0].attachments
        with pytest.raises(StoreError, match="attach it again"):
            temporary.text(document)


def test_where_no_folder_can_be_made_it_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    with pytest.raises(StoreError, match="check that it is a writable"):
        TemporaryStore()
