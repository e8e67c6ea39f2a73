"""A new database gets all its tables, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.store import schema
from app.store.records import StoreError
from app.store.store import Store
from tests.store.samples import answered


@pytest.mark.parametrize("fault", ["no such SQL;", "INSERT INTO messages(id) VALUES (1);"])
def test_a_schema_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(schema, "SQL", schema.SQL + fault)
        with pytest.raises(StoreError, match="check their disk"):
            Store(tmp_path)
    with Store(tmp_path) as store:
        assert store.notices == []
        assert store.branch(answered(store))[0].text == "Who pays?"
