"""The report as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from benchmarks.quality.report import Study
from benchmarks.quality.settings import Settings


def as_json(study: Study) -> str:
    """Settings, machine, cells and records."""
    settings: dict[str, Any] = {f.name: getattr(study.settings, f.name) for f in fields(Settings)}
    settings["files"] = [document.name for document in study.settings.files]
    settings["tunings"] = [asdict(tuning) for tuning in study.settings.tunings]
    content = {
        "specchat": study.version,
        "command": study.command,
        "pair": study.pair,
        "machine": study.machine,
        "settings": settings,
        "skipped": study.skipped,
        "stale": study.stale,
        "cells": [asdict(cell) for cell in study.cells],
        "sparse_only": [asdict(cell) for cell in study.sparse_only],
        "cases": [asdict(cell) for cell in study.cases],
        "equal": [asdict(row) for row in study.equals],
        "keep_curve": [asdict(row) for row in study.keep_curve],
        "real": [asdict(cell) for cell in study.real],
        "guard": None if study.guard is None else asdict(study.guard),
        "records": [asdict(record) for record in study.records],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
