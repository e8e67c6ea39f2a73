"""Recognition of the text of pages that are pictures (OCR)."""

from __future__ import annotations

from typing import Any, Protocol

from app.extras import OCR


class Recogniser(Protocol):
    def text(self, page: Any) -> str:
        """The text in the picture of a page, which is a page of pypdfium2."""
        ...


class Recognition(Protocol):
    def package(self) -> str:
        """The package that recognises text here; empty if none is installed."""
        ...

    def install_command(self) -> str:
        """The shell command that installs one."""
        ...

    def load(self, package: str) -> Recogniser:
        """Load a package. From then on, this process cannot reach the network."""
        ...


def installed_recogniser() -> str:
    """The package that recognises text here; empty if none is installed."""
    return _recognition().package() if OCR.is_installed else ""


def install_advice() -> str:
    """A clause that says how to install one."""
    return f"run `{_recognition().install_command()}`" if OCR.is_installed else OCR.missing.advice


def load_recogniser(package: str) -> Recogniser:
    return _recognition().load(package)


def _recognition() -> Recognition:
    found: Recognition = OCR.open()
    return found
