"""The help screen."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from textual.dom import DOMNode

Section = tuple[str, type[DOMNode]]
"""A heading, and the class whose bindings stand under it."""


@runtime_checkable
class HasHelp(Protocol):
    """A screen that has keys of its own to tell of."""

    def help_sections(self) -> tuple[Section, ...]: ...
