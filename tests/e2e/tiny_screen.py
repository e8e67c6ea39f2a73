"""The screen on the real engine, with two tiny models of random weights: what it answers is noise,
control characters among it.

python tests/e2e/tiny_screen.py FOLDER
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.engine.engine import MlxEngine
from app.protocol.commands import Load
from app.protocol.options import Sampling
from app.settings.definitions import Answers, Settings
from app.settings.file import SettingsFile
from app.ui.app import SpecchatApp
from app.ui.start import Start
from tests import tiny


class Seeded(Settings):
    """The same noise every time."""

    def sampling(self) -> Sampling:
        return replace(super().sampling(), seed=1)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    target = tiny.save(folder / "target", "qwen3", 0, max_position_embeddings=200_000)
    draft = tiny.save(folder / "draft", "qwen3", 1, max_position_embeddings=200_000)
    pair = Load(str(target), str(draft))
    settings = SettingsFile(settings=Seeded(answers=Answers(max_tokens=200, temperature=1.0)))
    SpecchatApp(Start(MlxEngine(), pair, settings=settings)).run()
