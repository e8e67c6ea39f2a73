"""Processor time and memory for reading large documents, which are made here.

    python -m benchmarks.reading_speed [CHECKOUT ...]

Another checkout is read with its own code, in turns, so that ratios are comparable on a busy
machine. The time is that of this process and of the one that reads documents; medians of three.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
RUNS = 3
WORDS = [
    *("the", "party", "agrees", "that", "notice", "of", "termination"),
    *("shall", "be", "given", "in", "writing", "within", "days"),
]
COLUMNS = "BCDEFGHIJ"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
PACKAGE_TYPE = "application/vnd.openxmlformats-package.relationships+xml"
FORMATS = "application/vnd.openxmlformats-officedocument."
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
READ = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from app.ingest.reader import read
def seconds():
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
start = seconds()
read([sys.argv[2]])
print(seconds() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words)) + "."


def package(kinds: dict[str, str], members: dict[str, str]) -> bytes:
    """An Office file with these members. `kinds` are content types by the members' names; the first
    one is the main part."""
    out = io.BytesIO()
    types = "".join(
        f'<Override PartName="/{name}" ContentType="{FORMATS}{kind}+xml"/>'
        for name, kind in kinds.items()
    )
    types = f'<Default Extension="rels" ContentType="{PACKAGE_TYPE}"/>{types}'
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        names = "content-types"
        file.writestr("[Content_Types].xml", f'<Types xmlns="{PACKAGE}/{names}">{types}</Types>')
        file.writestr("_rels/.rels", relation("officeDocument", next(iter(kinds))))
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


def relation(kind: str, target: str) -> str:
    link = f'<Relationship Id="r1" Type="{OFFICE}/{kind}" Target="{target}"/>'
    return f'<Relationships xmlns="{PACKAGE}/relationships">{link}</Relationships>'


def word(rng: random.Random) -> bytes:
    """30,000 paragraphs."""
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    paragraph = '<w:p><w:pPr><w:spacing w:after="120"/></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>'
    body = "".join(paragraph.format(sentence(rng, 12)) for _ in range(30_000))
    document = f"<w:document {space}><w:body>{body}</w:body></w:document>"
    kinds = {"word/document.xml": "wordprocessingml.document.main"}
    return package(kinds, {"word/document.xml": document})


def sheet(rng: random.Random) -> bytes:
    """20,000 rows of 10 cells."""
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    rows = ""
    for n in range(1, 20_001):
        text = f'<c r="A{n}" t="inlineStr"><is><t>{sentence(rng, 3)}</t></is></c>'
        numbers = (f'<c r="{each}{n}"><v>{rng.randrange(10_000) / 8}</v></c>' for each in COLUMNS)
        rows += f'<row r="{n}">{text}{"".join(numbers)}</row>'
    sheets = '<sheets><sheet name="A" sheetId="1" r:id="r1"/></sheets>'
    members = {
        "xl/workbook.xml": f'<workbook {space} xmlns:r="{OFFICE}">{sheets}</workbook>',
        "xl/_rels/workbook.xml.rels": relation("worksheet", "worksheets/sheet1.xml"),
        "xl/worksheets/sheet1.xml": f"<worksheet {space}><sheetData>{rows}</sheetData></worksheet>",
    }
    kinds = {
        "xl/workbook.xml": "spreadsheetml.sheet.main",
        "xl/worksheets/sheet1.xml": "spreadsheetml.worksheet",
    }
    return package(kinds, members)


def pages(rng: random.Random) -> bytes:
    """500 pages of 45 lines."""
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count 500/Kids[{' '.join(f'{4 + 2 * n} 0 R' for n in range(500))}]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for n in range(500):
        lines = " ".join(f"({sentence(rng, 14)}) Tj T*" for _ in range(45))
        content = f"BT /F1 10 Tf 14 TL 60 760 Td {lines} ET"
        objects.append(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
            f"/Contents {5 + 2 * n} 0 R>>"
        )
        objects.append(f"<</Length {len(content)}>>\nstream\n{content}\nendstream")
    out, places = "%PDF-1.7\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(places) + 1
    end = f"trailer\n<</Size {size}/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF\n"
    return f"{out}xref\n0 {size}\n0000000000 65535 f \n{table}{end}".encode()


def main() -> None:
    checkouts = [ROOT, *map(Path, sys.argv[1:])]
    files = {"30,000 paragraphs.docx": word, "20,000 rows.xlsx": sheet, "500 pages.pdf": pages}
    print(f"| file | {' | '.join(f'{each.name}: s | MB' for each in checkouts)} |")
    print(f"|---|{'---:|---:|' * len(checkouts)}")
    for name, make in files.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(make(random.Random(1)))
            found: list[list[list[float]]] = [[] for _ in checkouts]
            for _ in range(RUNS):
                for checkout, runs in zip(checkouts, found, strict=True):
                    command = [sys.executable, "-c", READ, str(checkout), str(path)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    runs.append([*map(float, done.stdout.split())])
            medians = [[median(values) for values in zip(*runs, strict=True)] for runs in found]
            cells = (f"{seconds:.2f} | {kib / 1024:.0f}" for seconds, kib in medians)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
