#!/usr/bin/env bash
# Question: Does it matter for the text in a workbook whether lxml is installed beside openpyxl?
# One would guess: no: lxml is an optional accelerator; the same cells are stored.
# What happens: openpyxl writes with lxml when it can be imported, and then a carriage return is
#   stored as a character reference and survives; without lxml it is written bare and XML turns
#   it into a newline. The same two lines of code give other text.
# Versions: openpyxl 3.1.5, lxml 6.1.3; Python 3.11
# Why it matters: tests pass on one machine and fail on another because some unrelated package
#   brought lxml along.
# Output seen (28 November 2026):
#   openpyxl 3.1.5 lxml 6.1.3
#   with lxml:    'first\r\nsecond\rthird'
#   without lxml: 'first\nsecond\nthird'
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'openpyxl==3.1.5' \
    'lxml==6.1.3'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import os
import subprocess
import sys
from importlib.metadata import version

WRITE_AND_READ = """
import openpyxl
workbook = openpyxl.Workbook()
workbook.active["A1"] = "first\\r\\nsecond\\rthird"
workbook.save("cell.xlsx")
print(ascii(openpyxl.load_workbook("cell.xlsx").active["A1"].value))
"""
print("openpyxl", version("openpyxl"), "lxml", version("lxml"))
seen = {}
for lxml in ("True", "False"):  # openpyxl's own switch, the same as not having lxml
    seen[lxml] = subprocess.run(
        [sys.executable, "-c", WRITE_AND_READ],
        env={**os.environ, "OPENPYXL_LXML": lxml},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print("with lxml:   " if lxml == "True" else "without lxml:", seen[lxml])
if seen != {"True": r"'first\r\nsecond\rthird'", "False": r"'first\nsecond\nthird'"}:
    raise SystemExit("Changed: openpyxl stores carriage returns alike with and without lxml now.")
PY
