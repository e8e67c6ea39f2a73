"""Measures the models of the catalogue and the demo pair, so that the app need not.

    python packaging/shapes.py

Run it after a change of app/models/catalog.toml or of mlx-lm's version.
"""

from __future__ import annotations

import json
import sys
import tomllib
from typing import Any

import lock

sys.path.append(str(lock.ROOT))

from app.models.architecture import digest, measure
from app.models.check import is_encoder
from app.models.embedded import draft_path, target_path

MODELS = lock.ROOT / "app" / "models"


def configs() -> list[dict[str, Any]]:
    models = tomllib.loads((MODELS / "catalog.toml").read_text("utf-8"))["model"]
    embedded = [path / "config.json" for path in (target_path(), draft_path())]
    described = [model["config"] for model in models if "config" in model]
    return [
        *(config for config in described if not is_encoder(config)),
        *(json.loads(path.read_text("utf-8")) for path in embedded),
    ]


def main() -> int:
    lines = (f"{json.dumps(digest(each))}: {json.dumps(measure(each))}" for each in configs())
    text = "{\n" + ",\n".join(sorted(set(lines))) + "\n}\n"
    (MODELS / "shapes.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
