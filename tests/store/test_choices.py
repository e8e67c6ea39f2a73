"""What was chosen for one conversation alone is kept with it, and goes where it goes."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.chat.export import to_json, to_markdown
from app.store.importing import from_json
from app.store.records import Overrides, StoreError
from app.store.store import Store
from tests.store.samples import CHOICES, answered
from tests.tables import table


def exported(store: Store, id: int, how: Any = to_json) -> str:
    out = io.StringIO()
    how(store, id, out)
    return out.getvalue()


def test_they_are_kept_and_taken_back(store: Store, tmp_path: Path) -> None:
    id = store.create().id
    assert store.conversation(id).overrides == Overrides()
    store.set_overrides(id, CHOICES)
    store.close()
    with Store(tmp_path) as again:
        assert again.conversation(id).overrides == CHOICES
        again.set_overrides(id, Overrides(system=""))
        assert again.conversation(id).overrides == Overrides(system="")
        again.set_overrides(id, Overrides())
        assert again.conversations()[0].overrides == Overrides()


def test_a_copy_and_an_import_have_them(store: Store) -> None:
    id = answered(store)
    store.set_overrides(id, CHOICES)
    assert store.duplicate(id).overrides == CHOICES
    text = exported(store, id)
    assert from_json(store, io.StringIO(text)).overrides == CHOICES


def test_readers_of_an_export_see_them(store: Store) -> None:
    id = answered(store)
    store.set_overrides(
        id, Overrides(system="Be <brief>.", mode="sparse", keep=0.35, temperature=0.0)
    )
    markdown = exported(store, id, to_markdown)
    assert markdown.startswith(
        "# Who pays?\n\n*mode sparse · keep 35% · temperature 0.0*\n\n## System\n\nBe <brief>.\n"
    )


def test_an_export_of_a_later_version_may_have_more(store: Store) -> None:
    plain = json.loads(exported(store, answered(store)))
    plain["choices"] = {"keep": 1, "colour": "red"}
    assert from_json(store, io.StringIO(json.dumps(plain))).overrides == Overrides(keep=1.0)


@table("choices", [{"keep": "0.2"}, {"system": 7}, {"seed": 1.5}, [], "x", None])
def test_an_import_of_another_form_is_refused(store: Store, choices: object) -> None:
    plain = json.loads(exported(store, store.create().id)) | {"choices": choices}
    with pytest.raises(StoreError, match="not a complete conversation exported by specchat"):
        from_json(store, io.StringIO(json.dumps(plain)))


@table("damaged", ["", "[]", '{"keep": "a"}', "nonsense", "7"])
def test_damaged_ones_are_none(store: Store, tmp_path: Path, damaged: str) -> None:
    id = answered(store)
    with closing(sqlite3.connect(tmp_path / "conversations.db")) as connection, connection:
        connection.execute("UPDATE conversations SET choices = ?", (damaged,))
    assert store.conversation(id).overrides == Overrides()
    assert len(store.branch(id)) == 2


def test_a_prompt_that_is_no_text_is_refused(store: Store) -> None:
    with pytest.raises(StoreError):
        store.set_overrides(store.create().id, Overrides(system="\udc80"))


def test_a_conversation_that_is_gone_has_none(store: Store) -> None:
    with pytest.raises(StoreError, match="no longer exists"):
        store.set_overrides(7, CHOICES)
