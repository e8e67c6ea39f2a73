"""The table of extras."""

from __future__ import annotations

from pathlib import Path

import pytest

import app.extras
from app.errors import UserError
from app.extras import EXTRAS, Extra


def test_the_table_has_every_extra() -> None:
    folder = Path(app.extras.__file__).parent
    names = {each.stem for each in folder.iterdir()} - {"__init__", "__pycache__"}
    assert names == {each.name for each in EXTRAS}
    assert all(each.is_installed for each in EXTRAS)


def test_doors_open() -> None:
    assert [each.name for each in EXTRAS if each.door and each.open() is None] == []


def test_a_folder_that_has_only_compiled_files_left_is_no_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "left" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(app.extras, "__path__", [str(tmp_path)])
    extra = Extra("left", "do this", door="left:DOOR")
    assert not extra.is_installed
    with pytest.raises(UserError, match="cannot do this: install specchat with its extra `left`"):
        extra.open()
