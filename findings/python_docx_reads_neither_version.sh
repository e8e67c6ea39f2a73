#!/usr/bin/env bash
# Question: What does python-docx's paragraph.text give for a tracked change from '30' to '60'?
# One would guess: one of the versions, or both: '30', '60' or '3060'.
# What happens: neither. Deleted and inserted runs are both left out: 'The notice period is
#   days.' mammoth reads the accepted state, '60', from the same file.
# Versions: python-docx 1.2.0, mammoth 1.13.0, lxml 6.1.3; Python 3.11
# Why it matters: a contract under negotiation reads as a sentence with a hole exactly where the
#   parties changed something.
# Output seen (28 November 2026):
#   python-docx 1.2.0 mammoth 1.13.0
#   python-docx: 'The notice period is  days.'
#   mammoth:     'The notice period is 60 days.'
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'python-docx==1.2.0' \
    'mammoth==1.13.0' \
    'lxml==6.1.3'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
from importlib.metadata import version

import docx
import mammoth
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

print("python-docx", version("python-docx"), "mammoth", version("mammoth"))
BY = 'w:author="A" w:date="2026-01-05T09:00:00Z"'
document = docx.Document()
paragraph = document.add_paragraph("The notice period is ")
for change, text in (("del", "<w:delText>30</w:delText>"), ("ins", "<w:t>60</w:t>")):
    paragraph._p.append(
        parse_xml(f'<w:{change} {nsdecls("w")} w:id="1" {BY}><w:r>{text}</w:r></w:{change}>')
    )
paragraph.add_run(" days.")
document.save("contract.docx")

by_docx = docx.Document("contract.docx").paragraphs[0].text
with open("contract.docx", "rb") as file:
    by_mammoth = mammoth.extract_raw_text(file).value.strip()
print("python-docx:", repr(by_docx))
print("mammoth:    ", repr(by_mammoth))
if by_docx != "The notice period is  days." or by_mammoth != "The notice period is 60 days.":
    raise SystemExit("Changed: tracked changes are read differently now.")
PY
