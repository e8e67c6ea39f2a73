"""Reads what the producers wrote, and tells for each planted text how it was read.

    python -m benchmarks.producers.compare [FOLDER] [--show FILE] [--peers FILE]

A planted text is *right*, *wrong* (read, but not as the document shows it), *said* (missing, and a
sentence says that something was not read) or *silent* (missing without a word). docs/documents.md
has the table. `--peers` counts the right texts for each format and program in what `peers.py`
wrote; what a program leaves out because it is hidden counts as right there.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from app.ingest.reader import read
from app.ingest.records import IngestError

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "producers" / "files"
RIGHT, WRONG, SAID, SILENT = "right", "wrong", "said", "silent"


def texts(path: Path) -> tuple[str, str]:
    """The text of a file, and what was said about what was not read."""
    try:
        found = read([str(path)])
    except IngestError as error:
        return "", str(error)
    said = " ".join(each.sentence for each in found.skipped)
    return "".join(each.text for each in found.documents), said


def judge(text: str, said: str, right: list[str], word: str) -> str:
    if any(each in text for each in right):
        return RIGHT
    if word in text:
        return WRONG
    return SAID if said else SILENT


def show_peers(folder: Path, files: dict[str, Any], peers: dict[str, Any]) -> None:
    own = {name: texts(folder / name)[0] for name in files}
    readers = {"specchat": own} | peers["texts"]
    right: dict[tuple[str, str], list[bool]] = {}
    for name, (_, planted) in files.items():
        for reader, found in readers.items():
            if name not in found:
                continue
            for feature, wanted, word in planted:
                text = found[name]
                is_gone = feature == "hidden" and text.strip() != "" and word not in text
                is_right = is_gone or judge(text, "", wanted, word) == RIGHT
                for suffix in (Path(name).suffix[1:], "all"):
                    right.setdefault((suffix, reader), []).append(is_right)
    suffixes = [*dict.fromkeys(suffix for suffix, _ in right if suffix != "all"), "all"]
    print(f"| format | {' | '.join(readers)} |\n|---|{'---:|' * len(readers)}")
    for suffix in suffixes:
        cells = (right.get((suffix, each)) for each in readers)
        shown = (f"{sum(each)}/{len(each)}" if each else "-" for each in cells)
        print(f"| {suffix} | {' | '.join(shown)} |")
    print("\n" + ", ".join(f"{name} {version}" for name, version in peers["versions"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Read what the producers wrote.")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--show", help="print the text of one file")
    parser.add_argument("--peers", type=Path, help="compare with what peers.py wrote")
    options = parser.parse_args()
    if options.show:
        print(*texts(options.folder / options.show), sep="\n")
        return
    listed = json.loads((options.folder / "planted.json").read_text("utf-8"))
    if options.peers:
        show_peers(options.folder, listed["files"], json.loads(options.peers.read_text("utf-8")))
        return
    cells: dict[str, Counter[str]] = {}
    every: Counter[str] = Counter()
    for name, (producer, planted) in listed["files"].items():
        text, said = texts(options.folder / name)
        for feature, right, word in planted:
            state = judge(text, said, right, word)
            every[state] += 1
            cells.setdefault(feature, Counter())[state] += 1
            if state != RIGHT:
                print(f"{state}: {name} ({producer}), {feature}: {right[0]!r}")
    print()
    print("| feature | right | wrong | said | silent |")
    print("|---|---:|---:|---:|---:|")
    for feature, counts in [*sorted(cells.items()), ("**all**", every)]:
        shown = " | ".join(str(counts[each]) for each in (RIGHT, WRONG, SAID, SILENT))
        print(f"| {feature} | {shown} |")
    files, producers = len(listed["files"]), len({each[0] for each in listed["files"].values()})
    share = every[RIGHT] / every.total()
    print(f"\n{files} files of {producers} producers: {share:.1%} of {every.total()} texts right.")


if __name__ == "__main__":
    main()
