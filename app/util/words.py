"""Words of any language."""

from __future__ import annotations

import re

NO_SPACES = r"\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff"
"""Characters of scripts that do not separate words: Thai, Japanese and Chinese."""
WORD = re.compile(rf"[{NO_SPACES}]|(?:(?![{NO_SPACES}])[^\W_])+")
"""A word, or a character of a script without spaces."""
STEM = 5
"""Words are compared by this many first letters."""


def stems(text: str) -> set[str]:
    return {word[:STEM] for word in WORD.findall(text.casefold())}
