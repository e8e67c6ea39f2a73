"""What the app looks like is what was looked at: every picture is as it is kept.

After a change that is meant, `make pictures` takes them again; look at them before they are kept.
"""

from __future__ import annotations

import pytest

from tests.ui.pictures import album
from tests.ui.pictures.scenes import SCENES
from tests.ui.pictures.stage import Look

FAST = album.LOOKS[0]
VARIANTS = (
    "start-again", "start-trouble", "write-attach", "read-memory", "read-on", "read-trouble",
    "answer-long", "answer-thinking", "list-palette", "settings",
)  # fmt: skip
"""Scenes that only the slow tier plays: others show most of the same widgets."""
CHECKED = [
    pytest.param(
        scene,
        look,
        id=f"{scene}-{look.name}",
        marks=[pytest.mark.slow] if look is not FAST or scene in VARIANTS else [],
    )
    for look in album.LOOKS
    for scene in SCENES
]


@pytest.mark.parametrize(("scene", "look"), CHECKED)
async def test_it_looks_as_it_did(scene: str, look: Look) -> None:
    now, kept = await album.play(scene, look), album.kept(scene, look)
    assert now.keys() == kept.keys(), "other states than those kept: `make pictures`"
    changed = {name: album.difference(kept[name], now[name]) for name in now}
    told = [f"{look.name}/{name}\n{what}" for name, what in changed.items() if what]
    assert not told, "\n\n".join(("Is this meant? Then `make pictures`.", *told))


def test_every_state_is_kept_in_every_look() -> None:
    names = [{path.name for path in (album.KEPT / look.name).iterdir()} for look in album.LOOKS]
    assert len(names[0]) >= 30
    assert SCENES.keys() > {*VARIANTS}
    assert all(others == names[0] for others in names)
    assert {name.partition(".")[0] for name in names[0]} == SCENES.keys()
    assert {path.name for path in album.KEPT.iterdir()} == {look.name for look in album.LOOKS}


def test_the_pictures_of_the_docs_are_those_kept() -> None:
    page = album.PAGE.read_text(encoding="utf-8")
    assert {path.name for path in album.ASSETS.iterdir()} == album.SHOWN.keys()
    for name, source in album.SHOWN.items():
        assert (album.ASSETS / name).read_bytes() == (album.KEPT / source).read_bytes(), name
        assert f"(../assets/screens/{name})" in page


def test_a_difference_is_described_in_words() -> None:
    def picture(words: str, ink: str) -> str:
        return f'<svg>\n<desc>\n{words}\n</desc>\n<text fill="{ink}">{words}</text>\n</svg>\n'

    old = picture("Paste &amp; ask", "#ffffff")
    assert album.difference(old, old) == ""
    assert "-Paste & ask" in album.difference(old, picture("Paste, then ask", "#ffffff"))
    assert "+Paste, then ask" in album.difference(old, picture("Paste, then ask", "#ffffff"))
    assert "drawn otherwise" in album.difference(old, picture("Paste &amp; ask", "#ff0000"))
