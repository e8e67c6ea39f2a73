"""Take the recording again, and save it where the README links to it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.ui.recording.camera import recorded
from tests.ui.recording.run import play

ROOT = Path(__file__).parents[3]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.ui.recording", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "assets" / "recording.svg")
    into = parser.parse_args().into
    picture = asyncio.run(recorded(play))
    into.write_text(picture, encoding="utf-8")
    sys.stdout.write(f"{into}: {len(picture.encode()) / 1000:.0f} KB\n")
