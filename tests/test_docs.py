"""What docs/architecture.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:app|benchmarks|tests|assets|packaging|docs)/[\w./-]+)`", TEXT))
    assert len(named) > 40
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_files_of_a_room_that_is_named_before_are_there() -> None:
    rooms = ("engine", "protocol", "store", "chat", "ui", "models", "sandbox")
    for name in re.findall(r"`(\w+\.py)`", TEXT):
        assert any((ROOT / "app" / room / name).is_file() for room in rooms), name
    drawn = re.findall(r"\b(?:ui|chat|engine|store)/(?:\w+/)?\w+(?= |\n|,)", TEXT.split("```")[3])
    assert len(drawn) > 15
    for name in drawn:
        assert (ROOT / "app" / f"{name}.py").is_file() or (ROOT / "app" / name).is_dir(), name


def test_classes_and_functions_that_are_named_are_there() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "app").rglob("*.py"))
    for owner, name in re.findall(r"`(?:([A-Z]\w+)\.)?([A-Za-z]\w+)(?:\(\))?`", TEXT):
        for each in filter(None, (owner, name)):
            assert re.search(rf"\b{each}\b", code), each
