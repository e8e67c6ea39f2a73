"""The pictures as they are kept, and what has changed since."""

from __future__ import annotations

import difflib
import re
import shutil
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ui.pictures.scenes import SCENES
from tests.ui.pictures.stage import Look, Stage, fixed

KEPT = Path(__file__).parent / "kept"
ROOT = Path(__file__).parents[3]
PAGE, ASSETS = ROOT / "docs" / "using.md", ROOT / "assets" / "screens"
SHOWN = {
    "reading.svg": "120x36/read.prefill.svg",
    "answer.svg": "80x24/read.opened.svg",
    "spans.svg": "80x24/spans.search.svg",
    "keep.svg": "light/read.keep-tried.svg",
}
"""The pictures of that page, and which of those kept they are."""
LOOKS = (
    Look("80x24", 80, 24),
    Look("120x36", 120, 36),
    Look("no-colour", 80, 24, colour=False),
    Look("light", 80, 24, light=True),
)
_TEXT = re.compile(r"<desc>\n(.*)\n</desc>", re.DOTALL)


async def play(scene: str, look: Look) -> dict[str, str]:
    """The pictures of a scene, by the names of their files."""
    with TemporaryDirectory(prefix="pictures-") as folder:
        stage = Stage(look, Path(folder).resolve() / "home")
        with fixed(look, stage.home):
            await SCENES[scene](stage)
    return {f"{scene}.{name}.svg": picture for name, picture in stage.pictures.items()}


def kept(scene: str, look: Look) -> dict[str, str]:
    paths = (KEPT / look.name).glob(f"{scene}.*.svg")
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def keep(scene: str, look: Look, pictures: dict[str, str], folder: Path = KEPT) -> None:
    """These, and no others of the scene."""
    (folder / look.name).mkdir(parents=True, exist_ok=True)
    for path in (folder / look.name).glob(f"{scene}.*.svg"):
        path.unlink()
    for name, picture in pictures.items():
        (folder / look.name / name).write_text(picture, encoding="utf-8")


def show() -> None:
    """Put those of the page where it finds them."""
    shutil.rmtree(ASSETS, ignore_errors=True)
    ASSETS.mkdir(parents=True)
    for name, source in SHOWN.items():
        shutil.copyfile(KEPT / source, ASSETS / name)


def difference(before: str, after: str) -> str:
    """What one would see: other words, or only other colours and where. Empty: nothing."""
    if before == after:
        return ""
    old, new = text(before).splitlines(), text(after).splitlines()
    if old != new:
        return "\n".join(difflib.unified_diff(old, new, "kept", "now", lineterm="", n=0))
    lines = zip(before.splitlines(), after.splitlines(), strict=False)
    first = next(((a, b) for a, b in lines if a != b), ("", ""))
    return f"the same words, drawn otherwise:\n- {first[0][:200]}\n+ {first[1][:200]}"


def text(picture: str) -> str:
    """What stands on the screen of a picture."""
    found = _TEXT.search(picture)
    return unescape(found[1]) if found else ""
