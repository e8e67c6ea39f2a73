"""The scenes: each shows one part of the app in several states.

A scene is a function of a `Stage`. Its name and the name of a picture that it takes are the name
of the file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.ui.pictures.scenes import (
    answers,
    lists,
    memory,
    reading,
    settings,
    spans,
    starting,
    writing,
)
from tests.ui.pictures.stage import Stage

Scene = Callable[[Stage], Awaitable[None]]

SCENES: dict[str, Scene] = {
    "start": starting.first_start,
    "start-trouble": starting.trouble,
    "start-again": starting.again,
    "write": writing.question,
    "write-attach": writing.attaching,
    "read": reading.sparsely,
    "read-on": reading.reading_on,
    "read-trouble": reading.trouble,
    "read-memory": memory.tight,
    "answer": answers.chosen,
    "answer-thinking": answers.thinking,
    "answer-long": answers.long,
    "spans": spans.document,
    "list": lists.conversations,
    "list-palette": lists.palette,
    "settings": settings.all_of_them,
}
