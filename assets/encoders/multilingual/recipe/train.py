"""Trains the encoder anew: `python assets/encoders/multilingual/recipe/train.py FOLDER [MINUTES]`.

FOLDER keeps what takes long (texts, the teacher's vectors, checkpoints), so that a run that was
stopped goes on. MINUTES are the encoder's processor time. Needs Debian, `make real-encoder`, and
torch besides specchat's own packages.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
    from corpus import write_corpus
    from distil import run

    from tests.real.encoder import fetch_encoder

    folder = Path(sys.argv[1])
    lines = write_corpus(folder).read_text(encoding="utf-8").splitlines()
    run(folder, fetch_encoder(), lines, float(sys.argv[2]) if len(sys.argv) > 2 else 55.0)


if __name__ == "__main__":
    main()
