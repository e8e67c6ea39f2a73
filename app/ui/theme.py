"""Our colours: ink on a page, dark or light, and one accent, the yellow of a highlighter.

Textual's own themes get the shades that they lack.
"""

from __future__ import annotations

from textual.color import Color
from textual.theme import Theme


def our_themes() -> tuple[Theme, Theme]:
    dark = _theme(
        "specchat",
        dark=True,
        ink="#d7dae0",
        page="#15171b",
        panel="#1d2026",
        accent="#f2c14e",
        error="#ef7b6c",
        shades=("#98a0ae", "#9199a7", "#676f7c", "#2b3038"),
    )
    light = _theme(
        "specchat-light",
        dark=False,
        ink="#23262c",
        page="#fbfaf7",
        panel="#f1efe9",
        accent="#805200",
        error="#ad2318",
        shades=("#565c67", "#5d636e", "#868b94", "#e2dfd6"),
    )
    return dark, light


def ink_shades(theme: Theme) -> dict[str, str]:
    """Our shades for a theme that does not define them: for secondary text, skipped text, faint
    drawing, and for rules and the selected row."""
    colours = theme.to_color_system().generate()
    page, ink = Color.parse(colours["background"]), Color.parse(colours["foreground"])
    parts = {"ink-dim": 0.7, "ink-unread": 0.6, "ink-faint": 0.45, "rule": 0.15}
    return {name: page.blend(ink, part, alpha=1).hex for name, part in parts.items()}


def _theme(
    name: str,
    *,
    dark: bool,
    ink: str,
    page: str,
    panel: str,
    accent: str,
    error: str,
    shades: tuple[str, str, str, str],
) -> Theme:
    """`shades` are those of `ink_shades`."""
    dim, unread, faint, rule = shades
    return Theme(
        name=name,
        primary=accent,
        secondary=dim,
        accent=accent,
        warning=accent,
        error=error,
        success=ink,
        foreground=ink,
        background=page,
        surface=page,
        panel=panel,
        dark=dark,
        variables={
            "ink-dim": dim,
            "ink-unread": unread,
            "ink-faint": faint,
            "rule": rule,
            "footer-key-foreground": accent,
            "block-cursor-background": rule,
            "block-cursor-foreground": ink,
            "input-selection-background": f"{accent} 30%",
            "scrollbar": rule,
            "scrollbar-hover": faint,
            "scrollbar-active": dim,
            "scrollbar-background": page,
            "scrollbar-background-hover": page,
            "scrollbar-background-active": page,
        },
    )
