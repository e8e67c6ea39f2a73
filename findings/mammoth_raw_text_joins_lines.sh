#!/usr/bin/env bash
# Question: What does mammoth.extract_raw_text() make of a line break inside a paragraph?
# One would guess: a new line, as paragraphs get one, or at least a space.
# What happens: nothing: 'Main Street 1' and '20 Springfield' become 'Main Street 120
#   Springfield'. convert_to_html() keeps the break as <br />, and no message is given.
# Versions: mammoth 1.13.0, python-docx 1.2.0, lxml 6.1.3; Python 3.11
# Why it matters: addresses, signatures and verses, typed with Shift+Enter, run together;
#   numbers at the seam become other numbers.
# Output seen (28 November 2026):
#   mammoth 1.13.0 python-docx 1.2.0
#   python-docx:      'Main Street 1\n20 Springfield'
#   convert_to_html:  '<p>Main Street 1<br />20 Springfield</p>'
#   extract_raw_text: 'Main Street 120 Springfield\n\n' messages: []
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'mammoth==1.13.0' \
    'python-docx==1.2.0' \
    'lxml==6.1.3'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
from importlib.metadata import version

import docx
import mammoth

print("mammoth", version("mammoth"), "python-docx", version("python-docx"))
document = docx.Document()
document.add_paragraph("Main Street 1\n20 Springfield")  # python-docx writes the \n as a line break
document.save("letter.docx")
with open("letter.docx", "rb") as file:
    html = mammoth.convert_to_html(file)
with open("letter.docx", "rb") as file:
    raw = mammoth.extract_raw_text(file)
print("python-docx:     ", repr(docx.Document("letter.docx").paragraphs[0].text))
print("convert_to_html: ", repr(html.value))
print("extract_raw_text:", repr(raw.value), "messages:", raw.messages)
if raw.value.strip() != "Main Street 120 Springfield" or "<br />" not in html.value or raw.messages:
    raise SystemExit("Changed: mammoth's raw text treats line breaks differently now.")
PY
