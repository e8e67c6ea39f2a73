"""Colours: ours can be read, Textual's have what our screens need, and NO_COLOR takes them away."""

from __future__ import annotations

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from app.settings.definitions import ThemeName, find
from app.ui.app import SpecchatApp
from app.ui.terminal import background_is_dark
from app.ui.terminal_input import BackgroundReported
from app.ui.theme import ColoursToAttributes, contrast, ink_shades, our_themes
from tests.fakes import FakeEngine, Story
from tests.tables import slow, table
from tests.ui.helpers import DOCUMENT, SMALL, app_with, ask, paste, started, until, until_shown

AA_TEXT, AA_SHAPES = 4.5, 3.0
THEME = find("appearance.theme")


def test_contrast_is_computed_as_wcag_does() -> None:
    assert contrast(Color.parse("#000000"), Color.parse("#ffffff")) == pytest.approx(21)
    assert contrast(Color.parse("#777777"), Color.parse("#ffffff")) == pytest.approx(4.48, abs=0.01)


@table("theme", our_themes())
def test_our_text_has_the_contrast_of_wcag_aa(theme: Theme) -> None:
    named = theme.variables
    texts = [theme.foreground, theme.accent, theme.error, named["ink-dim"], named["ink-unread"]]
    for page in (theme.background, theme.panel, named["rule"]):
        for text in texts:
            assert text is not None
            assert page is not None
            assert contrast(Color.parse(text), Color.parse(page)) >= AA_TEXT, (text, page)
    faint, page = Color.parse(named["ink-faint"]), Color.parse(theme.background or "")
    assert contrast(faint, page) >= AA_SHAPES


def test_our_themes_and_those_with_a_background_can_be_chosen() -> None:
    painted = {name for name, theme in BUILTIN_THEMES.items() if not theme.ansi}
    assert set(ThemeName) == painted | {"auto", *(theme.name for theme in our_themes())}
    assert find("appearance.theme").default == "auto"
    assert {True, False} == {theme.dark for theme in our_themes()}


@table("theme", [t for t in BUILTIN_THEMES.values() if not t.ansi])
def test_others_get_our_shades_in_order(theme: Theme) -> None:
    page = Color.parse(theme.to_color_system().generate()["background"])
    shades = [contrast(Color.parse(colour), page) for colour in ink_shades(theme).values()]
    assert shades == sorted(shades, reverse=True)
    assert ink_shades(theme).keys() <= our_themes()[0].variables.keys()


@pytest.mark.slow
async def test_every_theme_is_applied_live() -> None:
    engine = FakeEngine()
    app = app_with(engine)
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "▸ Read 2")
        for name in ThemeName:
            app.settings.change(THEME, name)
            await pilot.pause()
            page = Color.parse(app.theme_variables["background"])
            await until(pilot, lambda page=page: app.screen.styles.background == page, name)
        assert app.theme == "tokyo-night"


@pytest.mark.parametrize(("variable", "plain"), [("1", True), slow(None, False)])
async def test_no_color_leaves_no_colour_but_attributes(
    variable: str | None, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if variable is not None:
        monkeypatch.setenv("NO_COLOR", variable)
    app = app_with(FakeEngine())
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        for key, shown in (("f2", "Settings"), ("escape", "ready"), ("f1", "Ten keys")):
            await pilot.press(key)
            await until_shown(pilot, shown)
            styles: list[Style] = []
            for strip in app.screen._compositor.render_strips():
                styles += [style for _, style, _ in strip if style]
            assert any(style.color or style.bgcolor for style in styles) != plain
            assert any(style.dim for style in styles) == plain
            assert any(style.reverse for style in styles) or not plain  # the cursor, the row


@table(
    "theme, colour, ground, attributes",
    [
        (theme, colour, ground, attributes)
        for theme in our_themes()
        for colour, ground, attributes in (
            (theme.foreground, theme.background, ""),
            (theme.foreground, theme.panel, ""),
            (theme.variables["ink-dim"], theme.background, "dim"),
            (theme.variables["ink-unread"], theme.panel, "dim"),
            (theme.accent, theme.background, ""),
            (theme.error, theme.background, ""),
            (theme.foreground, theme.variables["rule"], "reverse"),
            (theme.background, theme.foreground, "reverse"),
        )
    ],
)
def test_colours_become_attributes(theme: Theme, colour: str, ground: str, attributes: str) -> None:
    page, ink = Color.parse(theme.background or ""), Color.parse(theme.foreground or "")
    line_filter = ColoursToAttributes(lambda: (page, ink))
    (drawn,) = line_filter.apply([Segment("x", Style.parse(f"bold {colour} on {ground}"))], page)
    assert drawn.style is not None
    assert drawn.style.color is drawn.style.bgcolor is None
    found = [name for name in ("dim", "reverse") if getattr(drawn.style, name)]
    assert found == attributes.split()
    assert drawn.style.bold


async def test_auto_follows_the_terminals_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLORFGBG says it at first, the terminal's answer counts, and a theme that the user chose is
    kept."""
    monkeypatch.setenv("COLORFGBG", "0;default;15")
    app = app_with(FakeEngine())
    assert app.theme == "specchat-light"
    async with app.run_test(size=SMALL) as pilot:
        for is_dark, theme in ((True, "specchat"), (False, "specchat-light")):
            app.post_message(BackgroundReported(is_dark))
            await until(pilot, lambda theme=theme: app.theme == theme)
        app.settings.change(THEME, "nord")
        app.post_message(BackgroundReported(True))
        await pilot.pause()
        assert app.theme == "nord"
        app.settings.change(THEME, "auto")
        assert app.theme == "specchat"


@table(
    "said, is_dark",
    [("15;0", True), ("0;15", False), ("0;7", False), ("7;8", True), ("", True), ("x", True)],
)
def test_colours_of_the_environment(said: str, is_dark: bool) -> None:
    assert background_is_dark({"COLORFGBG": said}) == is_dark
    assert background_is_dark({})


async def test_with_16_colours_dim_text_has_the_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpecchatApp, "is_headless", False)
    for name, value in (("TERM", "xterm"), ("COLORTERM", "")):
        monkeypatch.setenv(name, value)
    engine = FakeEngine(Story(answer="Short."))
    async with started(engine) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await pilot.press("ctrl+s")
        await until_shown(pilot, "dim · not read")
        strips = pilot.app.screen._compositor.render_strips()
        parts = [part for strip in strips for part in strip if part.style and part.style.dim]
        assert "lazy dog" in parts[0].text
        assert parts[-1].text == "dim"
        app = pilot.app
        assert isinstance(app, SpecchatApp)
        app.settings.change(THEME, "specchat-light")
        # The nearest colour of the usual accent would be yellow on white.
        await until(pilot, lambda: app.theme_variables["accent"].lower() == "#0000c8")
