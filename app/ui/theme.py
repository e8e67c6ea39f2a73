"""Our colours: ink on a page, dark or light, and one accent, the yellow of a highlighter.

Textual's own themes get the shades that they lack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

FEW_COLOURS = "few-colours"
"""Class of the app where the terminal has 16 colours: shades need attributes there."""


MARKED_CONTRAST = 1.25
"""Grounds with at least this contrast to the page are marks: the chosen row, a selection."""
FAINT_SHARE = 0.65
"""Grey text with less than this share of the contrast of ink is faint."""
GREY = 0.3
"""Maximum saturation of greys."""


def our_themes(few_colours: bool = False) -> tuple[Theme, Theme]:
    """`few_colours`: the terminal has 16."""
    dark = {
        "ink": "#d7dae0", "page": "#15171b", "panel": "#1d2026", "accent": "#f2c14e",
        "error": "#ef7b6c", "ink-dim": "#98a0ae", "ink-unread": "#9199a7",
        "ink-faint": "#676f7c", "rule": "#2b3038",
    }  # fmt: skip
    light = {
        "ink": "#23262c", "page": "#fbfaf7", "panel": "#f1efe9", "accent": "#805200",
        "error": "#ad2318", "ink-dim": "#565c67", "ink-unread": "#5d636e",
        "ink-faint": "#868b94", "rule": "#e2dfd6",
    }  # fmt: skip
    if few_colours:  # the nearest one would be yellow, which cannot be read on white
        light["accent"] = "#0000c8"
    return _theme("specchat", dark, dark=True), _theme("specchat-light", light, dark=False)


def ink_shades(theme: Theme) -> dict[str, str]:
    """Our shades for a theme that does not define them: for secondary text, skipped text, faint
    drawing, and for rules and the selected row."""
    colours = theme.to_color_system().generate()
    page, ink = Color.parse(colours["background"]), Color.parse(colours["foreground"])
    parts = {"ink-dim": 0.7, "ink-unread": 0.6, "ink-faint": 0.45, "rule": 0.15}
    return {name: page.blend(ink, part, alpha=1).hex for name, part in parts.items()}


def _theme(name: str, colours: dict[str, str], *, dark: bool) -> Theme:
    ink, page, accent = colours["ink"], colours["page"], colours["accent"]
    return Theme(
        name=name,
        primary=accent,
        secondary=colours["ink-dim"],
        accent=accent,
        warning=accent,
        error=colours["error"],
        success=ink,
        foreground=ink,
        background=page,
        surface=page,
        panel=colours["panel"],
        dark=dark,
        variables={
            **{each: colours[each] for each in ("ink-dim", "ink-unread", "ink-faint", "rule")},
            "footer-key-foreground": accent,
            "block-cursor-background": colours["rule"],
            "block-cursor-foreground": ink,
            "input-selection-background": f"{accent} 30%",
            "scrollbar": colours["rule"],
            "scrollbar-hover": colours["ink-faint"],
            "scrollbar-active": colours["ink-dim"],
            "scrollbar-background": page,
            "scrollbar-background-hover": page,
            "scrollbar-background-active": page,
        },
    )


class ColoursToAttributes(LineFilter):
    """Without colours: marked grounds become `reverse`, and faint greys `dim`."""

    def __init__(self, shades: Callable[[], tuple[Color, Color]]) -> None:
        """`shades` returns the colours of the page and of ink."""
        super().__init__()
        self._shades = shades

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        page, ink = self._shades()
        return [
            Segment(text, style and _as_attributes(style, page, ink), control)
            for text, style, control in segments
        ]


@lru_cache(1024)
def _as_attributes(style: Style, page: Color, ink: Color) -> Style:
    if style.color is None and style.bgcolor is None:
        return style
    front = ink if style.color is None else Color.from_rich_color(style.color)
    ground = page if style.bgcolor is None else Color.from_rich_color(style.bgcolor)
    if style.reverse:
        front, ground = ground, front
    is_marked = contrast(ground, page) >= MARKED_CONTRAST
    is_grey = front.hsv.s <= GREY
    faint = is_grey and contrast(front, ground) < FAINT_SHARE * contrast(ink, page)
    plain = style.without_color + Style(reverse=is_marked, dim=faint and not is_marked)
    return plain + Style.from_meta(style.meta) if style.meta else plain


def contrast(first: Color, second: Color) -> float:
    """The ratio of their luminances, from 1 to 21, as the WCAG defines it."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
