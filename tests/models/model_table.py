"""What is estimated for public models, as a table in benchmarks/results/models.md. This
command writes it:

    python -m tests.models.model_table

`public_configs.jsonl` has a model a line. `config` has the numbers of its config.json that mlx-lm
reads; where it is missing, `app/models/catalog.toml` has them. `published` are the bytes of its
files as public sources name them, `aside` those of them that mlx-lm does not load: towers for
pictures and sound, computed from their configurations or named in the model's card, and tokenizers.
`sources` says where both were found.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.architecture import Architecture, parse_architecture
from app.models.fit import ModelSize, bytes_per_token, fit, mac_with
from app.util.formatting import size
from app.util.tables import TextTable

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "benchmarks" / "results" / "models.md"
BEGIN, END = "<!-- models: begin -->\n", "<!-- models: end -->\n"
MACS = (8, 16, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)
"""Gigabytes that Macs are sold with."""
LENGTH = 65_536
"""Tokens of a long document."""


@dataclass(frozen=True, slots=True)
class PublicModel:
    """`published`: bytes of its files that are loaded, 0 if no public source names them."""

    name: str
    config: dict[str, Any]
    published: int
    sources: str

    def difference(self, shape: Architecture) -> float | None:
        """Of the computed weights, relative to the published ones."""
        return shape.weight_bytes / self.published - 1 if self.published else None


def public_models() -> list[PublicModel]:
    catalogue = tomllib.loads((ROOT / "app" / "models" / "catalog.toml").read_text("utf-8"))
    known = {model["name"]: model["config"] for model in catalogue["model"]}
    found = []
    for line in (Path(__file__).parent / "public_configs.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        config = row.get("config") or known[row["name"]]
        loaded = row.get("published", 0) - row.get("aside", 0)
        found.append(PublicModel(row["name"], config, max(loaded, 0), row["sources"]))
    return found


def cells(model: PublicModel, shape: Architecture) -> list[str]:
    difference = model.difference(shape)
    return [
        model.config["model_type"].removesuffix("_text"),
        model.name,
        size(shape.weight_bytes),
        "" if difference is None else size(model.published),
        "" if difference is None else f"{difference:+.2%}",
        f"{bytes_per_token(shape) / 1024:.0f} KB",
        size(state) if (state := sum(layer.state_bytes for layer in shape.layers)) else "",
        _smallest_mac(ModelSize(model.name, shape, shape.weight_bytes)),
    ]


def _smallest_mac(model: ModelSize) -> str:
    length = min(LENGTH, model.architecture.context or LENGTH)
    found = (mac for mac in MACS if fit(model, None, mac_with(mac << 30)).max_tokens >= length)
    mac = next(found, None)
    return f"{mac} GB" if mac else "more than one"


HEAD = (
    "architecture",
    "model",
    "weights",
    "published",
    "difference",
    "cache a token",
    "states",
    "64K tokens fit",
)


def main() -> None:
    rows = sorted(cells(model, parse_architecture(model.config)) for model in public_models())
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    text = f"{before}{BEGIN}{TextTable(HEAD, rows, texts=2).markdown()}\n{END}{rest.split(END)[1]}"
    PAGE.write_text(text, encoding="utf-8")


def rows_in_docs() -> list[list[str]]:
    """The cells of each row of the table, as it was last written."""
    table = PAGE.read_text("utf-8").split(BEGIN)[1].split(END)[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


if __name__ == "__main__":
    main()
