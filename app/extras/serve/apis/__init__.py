"""The APIs of the server. Each module in this folder is one.

It has the beginnings of its routes (`PATHS`), the requests that they take (`BODIES`), the body of
an error (`error`), and `add_routes`, which adds them to the application.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from app.extras.serve.formats import openai_error


@cache
def apis() -> tuple[Any, ...]:
    """The modules of this folder, in the order of their names."""
    return tuple(import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__))


def error_body(path: str, message: str, status: int, code: str | None = None) -> dict[str, Any]:
    """An error in the format that clients of this path expect."""
    make = next((api.error for api in apis() if path.startswith(api.PATHS)), openai_error)
    body: dict[str, Any] = make(message, status, code)
    return body
