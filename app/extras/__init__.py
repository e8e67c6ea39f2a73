"""The table of the extras: parts of specchat that it runs without.

An extra is a module or a package in this folder. It may import all of the app. The app uses it
through its commands and its door, an object that implements a protocol of the app. Nothing of an
extra is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from app.errors import UserError


class Extra(NamedTuple):
    """`purpose` completes "specchat cannot". `commands` are the fields of a `Subcommand` by the
    command's name. `door` is `MODULE:NAME`; the module is in this folder."""

    name: str
    purpose: str
    commands: Mapping[str, tuple[str, str, bool]] = {}
    door: str = ""

    @property
    def is_installed(self) -> bool:
        spec = find_spec(f"{__name__}.{self.name}")
        return spec is not None and spec.has_location  # a folder without an __init__.py has none

    @property
    def missing(self) -> UserError:
        return UserError(
            f"This specchat cannot {self.purpose}",
            f"install specchat with its extra `{self.name}`",
        )

    def open(self) -> Any:
        """Import the door. Raises UserError if the extra is not installed."""
        if not self.is_installed:
            raise self.missing
        module, _, name = self.door.partition(":")
        return getattr(import_module(f"{__name__}.{module}"), name)


SERVE = Extra(
    "serve",
    "serve models to other programs",
    {
        "serve": (
            "app.extras.serve.command",
            "serve your models over OpenAI- and Anthropic-compatible APIs",
            True,
        )
    },
    door="serve.inner_server:InnerServer",
)
HOSTS = Extra(
    "hosts",
    "spread a model over several machines",
    {
        "worker": (
            "app.extras.hosts.worker_command",
            "run a worker that holds a shard of another machine's model",
            False,
        ),
        "hosts": (
            "app.extras.hosts.command",
            "show the machines of --hosts and their links",
            True,
        ),
    },
    door="hosts.spreading:SPREADING",
)
GGUF = Extra("gguf", "convert GGUF files", door="gguf.format:FORMAT")
OCR = Extra("ocr", "recognise text in pictures", door="ocr:RECOGNITION")
LAUNCHER = Extra(
    "launcher",
    "add itself to the applications menu",
    {"install-launcher": ("app.extras.launcher", "add specchat to the applications menu", False)},
)
EXTRAS = (SERVE, HOSTS, GGUF, OCR, LAUNCHER)
