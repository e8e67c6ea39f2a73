"""Chat templates come with a model and are programs: transformers prepares what they are given, and
somebody else renders them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Render = Callable[[str, dict[str, Any]], str]
"""Makes a text of a template's source and its variables."""


class _RemoteTemplate:
    """A compiled template, as far as transformers uses one."""

    def __init__(self, render: Render, source: str) -> None:
        self._render, self._source = render, source

    def render(self, **variables: Any) -> str:
        return self._render(self._source, variables)


@contextmanager
def render_with(render: Render) -> Iterator[None]:
    """Whatever transformers renders meanwhile. For one thread."""
    from transformers.utils import chat_template_utils

    theirs = chat_template_utils._compile_jinja_template
    chat_template_utils._compile_jinja_template = lambda source: _RemoteTemplate(render, source)
    try:
        yield
    finally:
        chat_template_utils._compile_jinja_template = theirs
