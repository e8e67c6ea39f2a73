"""Our colours: ink on a page, dark or light, and one accent, the yellow of a highlighter.

Textual's own themes get the shades that they lack.
"""

from __future__ import annotations

from textual.color import Color
from textual.theme import Theme

FEW_COLOURS = "few-colours"
"""Class of the app where the terminal has 16 colours: shades need attributes there."""


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
