"""What docs/architecture.md and CONTRIBUTING.md name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CHANGES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Where to change what")[1]
TEXT = ARCHITECTURE + CHANGES.split("\n## ")[0]


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:app|benchmarks|tests|assets|packaging|docs)/[\w./-]+)`", TEXT))
    assert len(named) > 40
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_files_that_are_named_without_their_folder_are_there() -> None:
    for name in re.findall(r"`(\w+\.py)`", TEXT):
        assert any((ROOT / "app").rglob(name)), name


def test_it_stays_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 120


def test_classes_and_functions_that_are_named_are_there() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "app").rglob("*.py"))
    for owner, name in re.findall(r"`(?:([A-Z]\w+)\.)?([A-Za-z]\w+)(?:\(\))?`", TEXT):
        for each in filter(None, (owner, name)):
            assert re.search(rf"\b{each}\b", code), each
