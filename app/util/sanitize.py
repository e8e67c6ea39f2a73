"""Makes text safe to show.

Pastes, files, model output, model names and errors are untrusted: escape sequences would control
the terminal, bidirectional overrides would disguise text, and tags would hide sentences that models
read. The model and the store get the original; only text on the screen is sanitised.
"""

from __future__ import annotations

import re
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
    0x034F: "CGJ",
    0x115F: "HCF",
    0x1160: "HJF",
    0x17B4: "KIVAQ",
    0x17B5: "KIVAA",
    0x180E: "MVS",
    0x200B: "ZWSP",
    0x2060: "WJ",
    0x2061: "FA",
    0x2062: "IT",
    0x2063: "IS",
    0x2064: "IP",
    0x206A: "ISS",
    0x206B: "ASS",
    0x206C: "IAFS",
    0x206D: "AAFS",
    0x206E: "NADS",
    0x206F: "NODS",
    0x3164: "HF",
    0xFEFF: "BOM",
    0xFFA0: "HWHF",
    0xFFF9: "IAA",
    0xFFFA: "IAS",
    0xFFFB: "IAT",
    **{0xFE00 + number: f"VS{number + 1}" for number in range(14)},
    **{0xE0100 + number: f"VS{number + 17}" for number in range(240)},
}
"""Characters of no width. Soft hyphens, joiners and the selectors of emoji stay, which words and
emoji need."""
TAGS: Final = range(0xE0000, 0xE0080)
"""Invisible copies of the ASCII characters."""
_NAMELESS = (
    *(0x2065, *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)),
    *(*range(0xE0080, 0xE0100), *range(0xE01F0, 0xE1000)),
)
"""Further invisible characters. They are shown by their numbers."""
_FLAG = "\U0001f3f4[\U000e0030-\U000e007a]{2,6}\U000e007f"
_LETTERS = r"\dA-Za-z\xc0-\u02ff\u0370-\u0590\u05d0-\u05ff\u0e00-\u0eff\u10a0-\u16ff\u1e00-\u1fff"
_LETTERS += r"\u3041-\ua4cf\uac00-\ud7a3\uff10-\uff9f"
"""Letters of scripts that are written without joiners; Arabic and Indic ones need them."""
_OTHERS = r"\s!-/:-@\[-`{-~\xa1-\xac\xae-\xbf\u2010-\u2027\u2030-\u205e\u3001-\u3020"
_JOINERS = r"\u034f\u180e\u200c\u200d\u2065\u206a-\u206f"
_DIVIDERS = r"\xad\u200b\u2060\ufeff"
_JOINED = f"[{_DIVIDERS}]*+[{_JOINERS}][{_JOINERS}{_DIVIDERS}]*+"
_HIDING = re.compile(
    f"({_FLAG})|[\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]+"
    "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}|(?<=[A-Za-z ])[\ufe0e\ufe0f]"
    "|(?<=[ -~\xa0-\u0fff])[\ufe00-\ufe0d\U000e0100-\U000e01ef]"
    "|[\u115f\u1160\u3164\uffa0]{2,}|[\xad\u034f\u180e\u200b-\u200d\u2060-\u206f\ufeff]{4,}"
    f"|(?<=[{_LETTERS}\u0300-\u036f]){_JOINED}(?=[{_LETTERS}{_OTHERS}])"
    f"|(?<=[{_OTHERS}]){_JOINED}(?=[{_LETTERS}])"
)
"""The flag of a region; or invisible characters that hide a text: tags, what no word and no emoji
has in a row, and joiners at letters that need none."""


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
    table |= {code: f"⟨{code:X}⟩" for code in _NAMELESS}
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


def without_hidden(text: str) -> tuple[str, int]:
    """A text without the invisible characters that hide another one, and how many these are."""
    if text.isascii():
        return text, 0
    shown = _HIDING.sub(lambda found: found[1] or "", text)
    return shown, len(text) - len(shown)
