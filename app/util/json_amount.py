"""Counts what JSON holds before it is parsed: as Python values, lists and objects that are mostly
empty take 30 times the memory of their text, and while they are made no other thread runs."""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def is_too_much(text: str, max_containers: int, max_values: int) -> bool:
    """Whether JSON has more lists and objects than `max_containers`, or more than `max_values`
    values in these."""
    if len(text) <= max_containers:
        return False
    if text.count("[") + text.count("{") <= max_containers and text.count(",") <= max_values:
        return False
    rest = _STRING.sub("", text)
    containers = rest.count("[") + rest.count("{")
    return containers > max_containers or rest.count(",") > max_values
