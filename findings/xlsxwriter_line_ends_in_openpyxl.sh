#!/usr/bin/env bash
# Question: Does a cell with a Windows line end, written by XlsxWriter, read the same with
#   openpyxl?
# One would guess: yes, or at least as a plain line end, as XML would make of it.
# What happens: XlsxWriter writes the carriage return as the escape _x000D_, as the format
#   demands; openpyxl does not undo it, so the seven characters _x000D_ stand in the text. A
#   file that openpyxl wrote itself reads back with a plain line end.
# Versions: pandas 3.1.1, openpyxl 3.1.5, xlsxwriter 3.3.1, numpy 2.4.6; Python 3.11
# Why it matters: pandas writes with XlsxWriter by default where it is installed and reads with
#   openpyxl: text copied from Windows programs comes back with '_x000D_' at each line's end.
# Output seen (28 November 2026):
#   pandas 3.1.1 openpyxl 3.1.5 xlsxwriter 3.3.1
#   xlsxwriter: openpyxl reads 'Notice period:_x000D_\nsixty days', pandas 'Notice period:_x000D_\nsixty days'
#   openpyxl: openpyxl reads 'Notice period:\nsixty days', pandas 'Notice period:\nsixty days'
#   pandas's own choice of engine: 'Notice period:_x000D_\nsixty days'
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

import openpyxl
import pandas as pd

print(*(f"{name} {version(name)}" for name in ("pandas", "openpyxl", "xlsxwriter")))
text = "Notice period:\r\nsixty days"
frame = pd.DataFrame({"clause": [text]})
seen = {}
for engine in ("xlsxwriter", "openpyxl"):
    frame.to_excel("clauses.xlsx", index=False, engine=engine)
    cell = openpyxl.load_workbook("clauses.xlsx").active["A2"].value
    seen[engine] = cell
    print(f"{engine}: openpyxl reads {cell!r}, pandas {pd.read_excel('clauses.xlsx').clause[0]!r}")
frame.to_excel("clauses.xlsx", index=False)
default = openpyxl.load_workbook("clauses.xlsx").active["A2"].value
print("pandas's own choice of engine:", repr(default))
escaped = "Notice period:_x000D_\nsixty days"
if seen["xlsxwriter"] != escaped or default != escaped or "_x" in seen["openpyxl"]:
    raise SystemExit("Changed: carriage returns survive the way from XlsxWriter to openpyxl now.")
PY
