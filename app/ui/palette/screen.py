"""Textual's command palette, with our own commands in it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.command import CommandInput, CommandList, CommandPalette
from textual.containers import Horizontal, Vertical
from textual.widgets import LoadingIndicator, Static

from app.ui.palette.provider import PaletteProvider
from app.ui.safe_input import SafeInput


class PaletteInput(CommandInput, SafeInput):
    """What is pasted into it is shown and not obeyed."""


class PaletteScreen(CommandPalette):
    def __init__(self) -> None:
        super().__init__([PaletteProvider])

    def compose(self) -> ComposeResult:
        """As Textual's, with an input that is safe, and no picture that terminals draw in widths
        of their own."""
        with Vertical(id="--container"):
            with Horizontal(id="--input"):
                yield Static("❯", id="palette-prompt", markup=False)
                yield PaletteInput(placeholder="What to do?", select_on_focus=False)
            with Vertical(id="--results"):
                yield CommandList()
                yield LoadingIndicator()
