"""What was written and not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store.records import Attachment, ConversationSize, Draft, StoreError
from app.store.store import Store
from tests.store.samples import DOCUMENT, answered, attach


def test_each_conversation_has_its_draft_and_a_new_one_too(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        id = answered(store)
        assert store.last_draft() is None
        assert store.draft(id) == Draft(id)
        written = Draft(
            id, "And who\npays?", (attach(store, "new", "new.txt"),), "sparse", 0.3, "{}"
        )
        store.save_draft(Draft(id, "And"))
        store.save_draft(Draft(None, "New"))
        store.save_draft(written)
    with Store(tmp_path) as store:
        assert (store.draft(id), store.draft(None)) == (written, Draft(None, "New"))
        assert store.last_draft() == written
        assert store.text(written.attachments[0]) == "new", "its document survives a start"
        store.save_draft(Draft(None))
        assert store.last_draft() == Draft(None)


def test_a_document_goes_with_the_last_draft_that_has_it(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        attachment = attach(store, "new")
        store.save_draft(Draft(None, "", (attachment,)))
        store.save_draft(Draft(None))
    with Store(tmp_path) as store, pytest.raises(StoreError):
        store.text(attachment)


def test_a_draft_goes_with_its_conversation(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        id = answered(store)
        store.save_draft(Draft(id, "And?"))
        store.trash(id)
        assert store.last_draft() is None
        store.restore(id)
        assert store.last_draft() == Draft(id, "And?")
        store.trash(id)
        store.empty_trash()
        assert store.last_draft() is None
        with pytest.raises(StoreError):
            store.save_draft(Draft(id, "And?"))


def test_a_draft_without_its_document_is_not_kept(tmp_path: Path) -> None:
    with Store(tmp_path) as store, pytest.raises(StoreError, match="attach it again"):
        store.save_draft(Draft(None, "", (Attachment("0" * 64, "gone.txt", 3),)))


def test_sizes(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        first, second = answered(store), answered(store)
        store.create()
        store.add_message(first, Role.USER, "Two?", [attach(store, "12345"), attach(store, "1")])
        document = len(DOCUMENT.encode())
        assert store.sizes() == {
            first: ConversationSize(2, document + 6),
            second: ConversationSize(1, document),
        }
