#!/usr/bin/env bash
# Question: Can a word that is divided at a line's end be found in PDFium's text?
# One would guess: yes, as 'termination' or at least as it is printed, 'termi-' and 'nation' on
#   two lines.
# What happens: the hyphen and the line end together become one character that is no hyphen:
#   U+FFFE from get_text_range(), U+0002 from get_text_bounded(). PDFium's own search finds
#   neither 'termination' nor 'termi-'; 'COVID-19', divided after its own hyphen, is lost as
#   well.
# Versions: pypdfium2 5.15.2, reportlab 5.1.0, pillow 13.0.0; Python 3.11
# Why it matters: search and quotation miss a good part of justified text, and the stray
#   characters reach whatever reads the text.
# Output seen (28 November 2026):
#   pypdfium2 5.15.2 PDFium 159.0.8149.0@sourcebuild-toolchained
#   get_text_range():   'Notice of termi\ufffenation under COVID\ufffe19 rules'
#   get_text_bounded(): 'Notice of termi\x02nation under COVID\x0219 rules'
#   found by PDFium: {'Notice': True, 'termination': False, 'termi-': False, 'COVID-19': False, 'rules': True}
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'pypdfium2==5.15.2' \
    'reportlab==5.1.0' \
    'pillow==13.0.0'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import pypdfium2
from reportlab.pdfgen.canvas import Canvas

print("pypdfium2", pypdfium2.PYPDFIUM_INFO, "PDFium", pypdfium2.PDFIUM_INFO)
canvas = Canvas("notice.pdf", invariant=True)
for line, text in enumerate(("Notice of termi-", "nation under COVID-", "19 rules")):
    canvas.drawString(72, 750 - 16 * line, text)
canvas.save()

page = pypdfium2.PdfDocument("notice.pdf")[0].get_textpage()
whole, bounded = page.get_text_range(), page.get_text_bounded()
print("get_text_range():  ", ascii(whole))
print("get_text_bounded():", ascii(bounded))
found = {}
for word in ("Notice", "termination", "termi-", "COVID-19", "rules"):
    found[word] = page.search(word).get_next() is not None
print("found by PDFium:", found)
expected = {"Notice": True, "termination": False, "termi-": False, "COVID-19": False, "rules": True}
if "termi\ufffenation" not in whole or "termi\x02nation" not in bounded or found != expected:
    raise SystemExit("Changed: PDFium treats hyphens at the end of lines differently now.")
PY
