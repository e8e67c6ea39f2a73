"""The tier of benchmarks. A run that leaves it out does not even import its modules."""

from __future__ import annotations

from pathlib import Path

import pytest

QUICK = [Path(__file__).with_name(name) for name in ("test_report.py", "test_documents.py")]
"""Modules with quick tests: of the harness and the report, and of readers of documents."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_ours = collection_path.name.startswith("test_") and collection_path not in QUICK
    return True if is_ours and "not benchmarks" in config.option.markexpr else None
