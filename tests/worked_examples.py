"""Builds the examples of CONTRIBUTING.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()


def section(title: str) -> str:
    """The text below a heading."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def module_of(title: str, name: str, patch: pytest.MonkeyPatch) -> Any:
    """A module of the first block of code in a section."""
    found = re.search(r"^```python\n(.+?)^```", section(title), re.DOTALL | re.MULTILINE)
    assert found is not None
    module = ModuleType(name)
    patch.setitem(sys.modules, name, module)
    exec(compile(found[1], name, "exec"), module.__dict__)
    return module
