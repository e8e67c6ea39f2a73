#!/usr/bin/env bash
# Question: Does a text column with '=== Totals ===' survive DataFrame.to_excel() and
#   pandas.read_excel()?
# One would guess: yes: it is a string in the frame, so a string is written.
# What happens: '=' at the start makes it a formula. The openpyxl engine stores it without a
#   value, so it comes back as NaN; the xlsxwriter engine stores the value 0, so it comes back
#   as the number 0.
# Versions: pandas 3.1.1, openpyxl 3.1.5, xlsxwriter 3.3.1, numpy 2.4.6; Python 3.11
# Why it matters: headings, separators and quoted code in tables vanish or turn into zeros, and
#   which of the two depends on which engine happens to be installed.
# Output seen (28 November 2026):
#   pandas 3.1.1 openpyxl 3.1.5 xlsxwriter 3.3.1
#   written: ['Fees', '=== Totals ===', '=> see page 3', '- 4']
#   openpyxl: ['Fees', nan, nan, '- 4']
#   xlsxwriter: ['Fees', 0, 0, '- 4']
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'pandas==3.1.1' \
    'openpyxl==3.1.5' \
    'xlsxwriter==3.3.1' \
    'numpy==2.4.6'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
from importlib.metadata import version

import pandas as pd

print(*(f"{name} {version(name)}" for name in ("pandas", "openpyxl", "xlsxwriter")))
frame = pd.DataFrame({"line": ["Fees", "=== Totals ===", "=> see page 3", "- 4"]})
print("written:", frame["line"].tolist())
seen = {}
for engine in ("openpyxl", "xlsxwriter"):
    frame.to_excel("table.xlsx", index=False, engine=engine)
    seen[engine] = pd.read_excel("table.xlsx")["line"].tolist()
    print(f"{engine}:", seen[engine])
empty = [pd.isna(value) for value in seen["openpyxl"]]
if empty != [False, True, True, False] or seen["xlsxwriter"] != ["Fees", 0, 0, "- 4"]:
    raise SystemExit("Changed: text that begins with '=' is written or read differently now.")
PY
