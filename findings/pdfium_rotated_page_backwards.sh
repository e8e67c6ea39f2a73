#!/usr/bin/env bash
# Question: Does a page's /Rotate entry change the order of its text in PDFium?
# One would guess: no: it turns the page for viewing; the text in the file is the same.
# What happens: with /Rotate 90 the same three lines are read from the last to the first. With
#   0, 180 and 270 they are in order.
# Versions: pypdfium2 5.15.2, reportlab 5.1.0, pillow 13.0.0; Python 3.11
# Why it matters: landscape tables and turned scans with a text layer read backwards, line by
#   line; setting the rotation to 0 before reading repairs it.
# Output seen (28 November 2026):
#   pypdfium2 5.15.2 PDFium 159.0.8149.0@sourcebuild-toolchained
#   /Rotate 0: ['First line.', 'Second line.', 'Third line.']
#   /Rotate 90: ['Third line.', 'Second line.', 'First line.']
#   /Rotate 180: ['First line.', 'Second line.', 'Third line.']
#   /Rotate 270: ['First line.', 'Second line.', 'Third line.']
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
LINES = ["First line.", "Second line.", "Third line."]
orders = {}
for rotation in (0, 90, 180, 270):
    canvas = Canvas("page.pdf", invariant=True)
    canvas.setPageRotation(rotation)
    for number, text in enumerate(LINES):
        canvas.drawString(72, 750 - 16 * number, text)
    canvas.save()
    page = pypdfium2.PdfDocument("page.pdf")[0]
    assert page.get_rotation() == rotation
    orders[rotation] = page.get_textpage().get_text_range().splitlines()
    print(f"/Rotate {rotation}:", orders[rotation])
if orders[90] != LINES[::-1] or any(orders[r] != LINES for r in (0, 180, 270)):
    raise SystemExit("Changed: PDFium reads turned pages in another order now.")
PY
