"""Our colours: ink on a dark page, and one accent, the yellow of a highlighter."""

from __future__ import annotations

from textual.theme import Theme

THEME_NAME = "specchat"


def specchat_theme() -> Theme:
    return Theme(
        name=THEME_NAME,
        primary="#f2c14e",
        secondary="#8b93a1",
        accent="#f2c14e",
        warning="#f2c14e",
        error="#ef7b6c",
        success="#d7dae0",
        foreground="#d7dae0",
        background="#15171b",
        surface="#15171b",
        panel="#1d2026",
        dark=True,
        variables={
            "ink-dim": "#8b93a1",
            "ink-faint": "#565d69",
            "rule": "#2b3038",
            "footer-key-foreground": "#f2c14e",
            "input-selection-background": "#f2c14e 30%",
            "scrollbar": "#2b3038",
            "scrollbar-hover": "#565d69",
            "scrollbar-active": "#8b93a1",
            "scrollbar-background": "#15171b",
            "scrollbar-background-hover": "#15171b",
            "scrollbar-background-active": "#15171b",
        },
    )
