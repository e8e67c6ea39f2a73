"""Trains the encoder anew: `python assets/encoders/english/recipe/train.py FOLDER [MINUTES]`.

FOLDER keeps what takes long (texts, the teacher's vectors, checkpoints), so that a run that was
stopped goes on. Needs Debian, and the packages of specchat and `onnxruntime`.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
    from app.engine.backend.blas import load_openblas

    load_openblas()  # before MLX is imported
    from distil import run

    run(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 75.0)


if __name__ == "__main__":
    main()
