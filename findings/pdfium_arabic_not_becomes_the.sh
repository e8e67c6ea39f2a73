#!/usr/bin/env bash
# Question: Does PDFium give Arabic text in reading order if a glyph stands for two letters?
# One would guess: yes. Fonts draw lam and alef as one glyph, and the file maps it to both letters,
#   in reading order, as it does for Latin ligatures.
# What happens: a line that is written to the left is turned round letter by letter, not glyph by
#   glyph. The two letters of the glyph come out as alef and lam: "la" (no, not) becomes "al"
#   (the). A Latin ligature in the same file keeps its order.
# Versions: pypdfium2 5.15.2 (its PDFium); Python 3.11
# Why it matters: "may not" becomes another word, so a search for it fails, and a model reads the
#   opposite. Both characters have the same origin, which is how a reader can tell.
# Output seen (28 November 2026):
#   pypdfium2 5.15.2
#   the glyph is mapped to U+0644 U+0627
#   PDFium's text: U+0627 U+0644 U+0020 U+064A U+062C U+0648 U+0632
#   both letters have the same origin: True
#   a Latin ligature: fi
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile 'pypdfium2==5.15.2'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import ctypes
from importlib.metadata import version

import pypdfium2
from pypdfium2 import raw

LETTERS = {"a": "06440627", "b": "064A", "c": "062C", "d": "0648", "e": "0632", "s": "0020"}
LATIN = {"f": "00660069"}


def page_text(shown, letters):
    """A page with one line, drawn from left to right, and the letters of each of its codes."""
    mapped = "\n".join(f"<{ord(code):02X}> <{text}>" for code, text in letters.items())
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /Own def"
        " /CMapType 2 def 1 begincodespacerange <00> <FF> endcodespacerange"
        f" {len(letters)} beginbfchar\n{mapped}\nendbfchar endcmap end end"
    )
    content = f"BT /F1 20 Tf 20 50 Td ({shown}) Tj ET"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Count 1/Kids[4 0 R]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 6 0 R>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Resources<</Font<</F1 3 0 R>>>>"
        "/Contents 5 0 R>>",
        *(f"<</Length {len(each)}>>\nstream\n{each}\nendstream" for each in (content, cmap)),
    ]
    out, places = "%PDF-1.7\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"trailer\n<</Size {len(places) + 1}/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF\n"
    data = f"{out}xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()
    document = pypdfium2.PdfDocument(data)
    page = document[0].get_textpage()
    origins = []
    for index in range(2):
        x, y = ctypes.c_double(), ctypes.c_double()
        raw.FPDFText_GetCharOrigin(page, index, x, y)
        origins.append((x.value, y.value))
    return page.get_text_range(), origins[0] == origins[1]


def codes(text):
    return " ".join(f"U+{ord(letter):04X}" for letter in text)


print("pypdfium2", version("pypdfium2"))
print("the glyph is mapped to U+0644 U+0627")
text, is_same = page_text("edcbsa", LETTERS)
print("PDFium's text:", codes(text))
print("both letters have the same origin:", is_same)
latin, _ = page_text("f", LATIN)
print("a Latin ligature:", latin)
if (text[:2], is_same, latin) != ("\u0627\u0644", True, "fi"):
    raise SystemExit("Changed: PDFium orders the letters of one glyph in another way now.")
PY
