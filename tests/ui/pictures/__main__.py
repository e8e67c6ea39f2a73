"""Take all pictures again, and save them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.ui.pictures import album
from tests.ui.pictures.scenes import SCENES
from tests.ui.pictures.stage import Look


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ui.pictures", description=__doc__)
    parser.add_argument("scene", nargs="*", choices=[*SCENES, []], help="these scenes only")
    parser.add_argument("--size", metavar="WxH", help="only look: at this size, into --into")
    parser.add_argument("--into", type=Path, default=album.KEPT, metavar="FOLDER")
    options = parser.parse_args()
    looks = album.LOOKS
    if options.size:
        width, height = map(int, options.size.split("x"))
        looks = (Look(options.size, width, height),)
    for look in looks:
        for scene in options.scene or SCENES:
            pictures = await album.play(scene, look)
            album.keep(scene, look, pictures, options.into)
            sys.stdout.write(f"{look.name}: {', '.join(pictures)}\n")
    if options.into == album.KEPT:
        album.show()


asyncio.run(main())
