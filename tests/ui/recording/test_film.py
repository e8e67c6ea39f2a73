"""An animated picture shows at every moment what stood on the screen then."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from rich.segment import Segment
from rich.style import Style

from tests.ui.pictures.svg import ROW
from tests.ui.recording.film import HOLD_SECONDS, Frame, film

RECORDING = Path(__file__).parents[3] / "assets" / "recording.svg"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 400_000
STYLE = Style.parse("#ffffff on #101010")


def frame(at: float, *rows: str) -> Frame:
    return Frame(at, tuple((Segment(row.ljust(8), STYLE),) for row in rows))


FRAMES = (
    frame(0.5, "ask", ""),
    frame(2.0, "read", "ask"),
    frame(2.5, "read", "answer"),
    frame(6.0, "ask", "answer"),
)


def shown(picture: str, seconds: float | None) -> list[str]:
    """The text of every row at a time; without one, where nothing is animated."""
    root = ElementTree.fromstring(picture)
    style = root.findtext(f"{SVG}style") or ""
    lines = {
        group.get("id"): "".join(group.itertext()).strip()
        for group in root.findall(f"{SVG}defs/{SVG}g")
    }
    rows = []
    for window in root.findall(f"{SVG}svg"):
        (strip,) = window
        height = re.findall(r"translate\(0,(-?\d+)\)", strip.get("transform") or "") or ["0"]
        if seconds is not None:
            height = _jumps(style, strip.get("id") or "", seconds) or height
        (place,) = (u for u in strip if int(u.get("y") or 0) == -int(height[0]))
        rows.append(lines[(place.get("href") or "")[1:]])
    return rows


def _jumps(style: str, name: str, seconds: float) -> list[str]:
    """Where the last jump before this time led."""
    whole = re.search(rf"#{name}\{{animation:k{name[1:]} ([\d.]+)s step-end infinite\}}", style)
    if whole is None:
        return []
    (steps,) = re.findall(rf"@keyframes k{name[1:]}\{{(.*)\}}", style)
    jumps = re.findall(r"([\d.]+)%\{transform:translateY\((-?\d+)px\)\}", steps)
    now = seconds / float(whole[1]) * 100
    return [height for at, height in jumps if float(at) <= now + 1e-3][-1:]


def test_every_moment_shows_its_frame() -> None:
    picture = film(FRAMES, 8, "A test.")
    assert shown(picture, 0.0) == ["ask", ""]
    assert shown(picture, 1.49) == ["ask", ""]
    assert shown(picture, 1.51) == ["read", "ask"]
    assert shown(picture, 2.1) == ["read", "answer"]
    assert shown(picture, 5.5 + HOLD_SECONDS - 0.01) == ["ask", "answer"]


def test_without_animation_the_last_frame_stands() -> None:
    picture = film(FRAMES, 8, "A test.")
    assert shown(picture, None) == ["ask", "answer"]
    assert "@media(prefers-reduced-motion:reduce)" in picture


def test_text_that_is_in_two_rows_is_drawn_once() -> None:
    picture = film(FRAMES, 8, "A test.")
    assert picture.count(">ask</text>") == 1
    assert f'y="{ROW}"' in picture


def test_the_recording_of_the_readme_plays_where_scripts_and_fonts_are_not_fetched() -> None:
    data = RECORDING.read_bytes()
    assert len(data) < MOST_BYTES
    picture = data.decode("utf-8")
    assert not re.search(r"<script|javascript:|@import|@font-face|url\(", picture)
    assert set(re.findall(r"https?://[^\"<]*", re.sub(r">[^<]*<", "><", picture))) == {
        "http://www.w3.org/2000/svg"
    }
    last = "\n".join(shown(picture, None))
    assert last.count("1 citation") == 2
    assert re.search(r"Read \d+% of gpl-3.0.pdf in [0-9.]+ s", last)
