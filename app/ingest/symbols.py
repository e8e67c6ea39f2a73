"""Characters of fonts whose letters are signs, such as Wingdings."""

from __future__ import annotations

_SYMBOL = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_"
    "‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
)
_SYMBOL_HIGH = (
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓"
    "◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\ufffd〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
"""The letters of the font Symbol from 0x20, and from 0xA0."""
_WINGDINGS = {
    0x4A: "☺", 0x4C: "☹", 0x6C: "●", 0x6E: "■", 0x6F: "☐", 0x70: "☐", 0x71: "☐", 0x72: "☐",
    0x74: "◆", 0x75: "◆", 0x77: "◆", 0x9E: "·", 0x9F: "•", 0xA7: "▪", 0xA8: "☐", 0xD8: "➢",
    0xDF: "←", 0xE0: "→", 0xE1: "↑", 0xE2: "↓", 0xE8: "➔", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒",
    0xFE: "☑", 0x22: "✂", 0x28: "☎", 0x2A: "✉",
}  # fmt: skip
_WINGDINGS_2 = {
    0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: "☑", 0x53: "☒", 0x54: "☒", 0xA3: "☐", 0x97: "•",
}  # fmt: skip


def symbol(font: str, code: int) -> str:
    """The character that a code shows in a font. Codes from F000 hold the font's own letters."""
    own, kind = code & 0xFF if 0xF000 <= code < 0xF100 else code, font.strip().lower()
    if kind == "symbol" and own < 0x100:
        if 0x20 <= own < 0x7F:
            return _SYMBOL[own - 0x20]
        at = own - 0xA0
        return _SYMBOL_HIGH[at] if 0 <= at < len(_SYMBOL_HIGH) else "\ufffd"
    for name, signs in (("wingdings 2", _WINGDINGS_2), ("wingdings", _WINGDINGS)):
        if kind == name and own < 0x100:
            return signs.get(own, "\ufffd")
    if 0xE000 <= code < 0xF900:
        return "\ufffd"
    return chr(code) if 0x20 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else ""
