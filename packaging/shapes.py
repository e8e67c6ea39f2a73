"""Measures the models of the catalogue, so that the app need not do it at its first start.

    python packaging/shapes.py

Run it after a change of app/models/catalog.toml or of mlx-lm's version.
"""

from __future__ import annotations

import json
import sys
import tomllib

import lock

MODELS = lock.ROOT / "app" / "models"


def configs() -> list[dict[str, object]]:
    models = tomllib.loads((MODELS / "catalog.toml").read_text("utf-8"))["model"]
    return [model["config"] for model in models if "config" in model]


def main() -> int:
    sys.path.append(str(lock.ROOT))
    from app.models.architecture import digest, measure

    lines = (f"{json.dumps(digest(each))}: {json.dumps(measure(each))}" for each in configs())
    text = "{\n" + ",\n".join(sorted(lines)) + "\n}\n"
    (MODELS / "shapes.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
