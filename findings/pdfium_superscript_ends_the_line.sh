#!/usr/bin/env bash
# Question: How does a raised exponent come out of PDFium's text?
# One would guess: as '10' and '6' on one line, perhaps without a sign that it is raised.
# What happens: the exponent joins the number before it, and what follows begins a new line,
#   although all stands on one: 'At most 106', then 'units'. The same small figure on the line's
#   own height ends no line.
# Versions: pypdfium2 5.15.2, reportlab 5.1.0, pillow 13.0.0; Python 3.11
# Why it matters: '106 units' is a wrong quantity, and a sentence is cut in two in every line
#   with a footnote mark.
# Output seen (28 November 2026):
#   pypdfium2 5.15.2 PDFium 159.0.8149.0@sourcebuild-toolchained
#   raised by 5 points: 'At most 106\r\n units a month.'
#   not raised: 'At most 106 units a month.'
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
seen = {}
for name, rise in (("raised by 5 points", 5), ("not raised", 0)):
    canvas = Canvas("line.pdf", invariant=True)
    line = canvas.beginText(72, 750)
    for text, size, up in (("At most 10", 12, 0), ("6", 7, rise), (" units a month.", 12, 0)):
        line.setFont("Helvetica", size)
        line.setRise(up)
        line.textOut(text)
    canvas.drawText(line)
    canvas.save()
    seen[rise] = pypdfium2.PdfDocument("line.pdf")[0].get_textpage().get_text_range()
    print(f"{name}: {seen[rise]!r}")
if seen != {5: "At most 106\r\n units a month.", 0: "At most 106 units a month."}:
    raise SystemExit("Changed: PDFium treats raised figures differently now.")
PY
