"""Makes text safe to show.

Pastes, files, model output, model names and errors are untrusted: escape sequences would control
the terminal, bidirectional overrides would disguise text, and tags would hide sentences that models
read. The model and the store get the original; only text on the screen is sanitised.
"""

from __future__ import annotations

from typing import Final

BIDI_NAMES: Final = {
    0x061C: "ALM",
    0x200E: "LRM",
    0x200F: "RLM",
    0x202A: "LRE",
    0x202B: "RLE",
    0x202C: "PDF",
    0x202D: "LRO",
    0x202E: "RLO",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
}
LINE_BREAK_NAMES: Final = {0x2028: "LS", 0x2029: "PS"}
INVISIBLE_NAMES: Final = {
    0x200B: "ZWSP",
    0x2060: "WJ",
    0x2061: "FA",
    0x2062: "IT",
    0x2063: "IS",
    0x2064: "IP",
    0xFEFF: "BOM",
    0xFFF9: "IAA",
    0xFFFA: "IAS",
    0xFFFB: "IAT",
}
"""Characters of no width. Soft hyphens and joiners stay, which words and emoji need."""
TAGS: Final = range(0xE0000, 0xE0080)
"""Invisible copies of the ASCII characters."""


def _replacements() -> dict[int, str]:
    """Replacement of each character. No replacement contains a character that is itself replaced,
    so sanitising is idempotent and works on pieces of a text."""
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    table[0x7F] = "\u2421"
    table |= {code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)}
    names = BIDI_NAMES | LINE_BREAK_NAMES | INVISIBLE_NAMES
    table |= {code: f"⟨{name}⟩" for code, name in names.items()}
    for code in TAGS:
        character = chr(code - TAGS.start)
        table[code] = f"⟨{character if character.isprintable() else f'{code:X}'}⟩"
    table |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
    return table


REPLACEMENTS: Final = _replacements()


def sanitize(text: str) -> str:
    """`text` with control characters (except newline and tab), bidirectional controls, invisible
    characters and lone surrogates made visible. Works character by character, so it can be applied
    to pieces."""
    return text.translate(REPLACEMENTS)


def sanitize_line(text: str) -> str:
    """Like `sanitize`, but on one line: newlines and tabs become visible too."""
    return sanitize(text).replace("\n", "␊").replace("\t", "␉")
