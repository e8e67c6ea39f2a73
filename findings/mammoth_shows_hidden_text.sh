#!/usr/bin/env bash
# Question: Does mammoth leave out text that is formatted as hidden in Word?
# One would guess: yes: it reads what the document shows; deleted text, for one, is left out.
# What happens: hidden runs come out as ordinary text, in the middle of the sentence, without a
#   style to map or a message.
# Versions: mammoth 1.13.0, python-docx 1.2.0, lxml 6.1.3; Python 3.11
# Why it matters: notes to oneself and remains of templates, which nobody sees in Word or in
#   print, are quoted as part of the contract.
# Output seen (28 November 2026):
#   mammoth 1.13.0 python-docx 1.2.0
#   '<p>The fee is 100 (we would take 80) per month.</p>' messages: []
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
paragraph = document.add_paragraph("The fee is 100")
paragraph.add_run(" (we would take 80)").font.hidden = True
paragraph.add_run(" per month.")
document.save("offer.docx")
with open("offer.docx", "rb") as file:
    result = mammoth.convert_to_html(file)
print(repr(result.value), "messages:", result.messages)
if result.value != "<p>The fee is 100 (we would take 80) per month.</p>" or result.messages:
    raise SystemExit("Changed: mammoth treats hidden text differently now.")
PY
