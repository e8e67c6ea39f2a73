from __future__ import annotations

import json

from app.util.json_amount import is_too_much
from tests.tables import table

NESTED = "[" * 9 + "]" * 9


@table(
    "text, expected",
    [
        (json.dumps([[]] * 9), False),
        (json.dumps([[]] * 10), True),
        (json.dumps([{}] * 10), True),
        (json.dumps(["[[[[[[[[[[{{{{{{,,,,,,,,,,,,,,,,,,,,,"] * 3), False),
        (json.dumps(['"[[[[[[[[[[[\\\\'] * 3), False),
        (json.dumps([0] * 20), False),
        (json.dumps([0] * 22), True),
        (NESTED, False),
        (f"[[{NESTED}]]", True),
        ('"' + "[" * 99, False),
        ("", False),
    ],
)
def test_json_of_many_values_is_too_much(text: str, expected: bool) -> None:
    assert is_too_much(text, 10, 20) is expected
