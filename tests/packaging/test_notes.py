"""A release's notes are its section of the changelog."""

from __future__ import annotations

import re
from pathlib import Path

import lock
import notes
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """\
# Changelog

## [Unreleased]

Not yet.

## [1.1.0] - 2027-01-31

Two.

### Added

- A thing.

## [1.0.0] - not released yet

One.
"""


def test_the_notes_are_the_text_below_the_heading() -> None:
    assert notes.notes(CHANGELOG, "1.1.0") == "Two.\n\n### Added\n\n- A thing.\n"


def test_a_version_without_a_date_or_a_section_has_no_notes() -> None:
    with pytest.raises(ValueError, match="no date in"):
        notes.notes(CHANGELOG, "1.0.0")
    with pytest.raises(ValueError, match="no section about 1"):
        notes.notes(CHANGELOG, "1.1")


def test_the_changelog_has_notes_of_the_version_that_say_it_never_ran_on_a_mac() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = changelog.replace(" - not released yet\n", " - 2027-01-31\n")
    text = notes.notes(dated, str(lock.project()["version"]))
    assert "has never run on one" in " ".join(text.split())
    assert "### Added" in text


def test_the_version_is_written_in_pyproject_alone() -> None:
    """At run time it is the installed distribution's."""
    written = re.compile(rf"(?<![\d.]){re.escape(str(lock.project()['version']))}(?![\d.])")
    files = [path for folder in ("app", "packaging") for path in (ROOT / folder).rglob("*")]
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in [*files, ROOT / "README.md", ROOT / "Makefile"]
        if path.suffix in (".py", ".toml", ".1", ".md", ".fish") or path.name == "Makefile"
    }
    assert len(texts) > 200
    assert [str(path) for path, text in texts.items() if written.search(text)] == []
