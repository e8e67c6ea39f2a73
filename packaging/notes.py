"""Prints a release's notes: the section of CHANGELOG.md about the version in pyproject.toml.

    python packaging/notes.py >notes.md

It fails if the version has no section, or one without the day of the release. It needs no packages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(changelog: str, version: str) -> str:
    """The text below the version's heading. Raises ValueError."""
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        if heading.startswith(f"[{version}]"):
            if not re.search(r" - \d{4}-\d{2}-\d{2}$", heading):
                raise ValueError(f"CHANGELOG.md has no date in '{heading}'")
            return text.strip() + "\n"
    raise ValueError(f"CHANGELOG.md has no section about {version}")


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        found = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), project["version"])
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
