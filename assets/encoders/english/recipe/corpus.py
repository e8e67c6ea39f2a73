"""Free English text out of Debian's packages, cut into passages and sentences: one a line."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.real.held_out import plain_text

PACKAGES = (
    "dict-devil",
    "dict-gcide",
    "dict-wn",
    "fortunes",
    "git-doc",
    "glibc-doc",
    "linux-doc-6.1",
    "postgresql-doc-15",
    "python3.11-doc",
    "sqlite3-doc",
)
"""Nothing of what evaluations ask about, and no FOLDOC, which has the Jargon File in it."""
MOST = 120_000
"""Lines of one package."""
LENGTHS = (12, 24, 40, 64)
"""Words of a passage."""
SENTENCE = re.compile(r"(?<=[.?!;])\s+|\n\s*\n")
MARKUP = re.compile(r"[{}\\^~]|\s\[[^\]]{0,20}\]|([-=_*.#|+])\1{2,}")


def write_corpus(folder: Path) -> Path:
    """`folder`/corpus.txt, which takes minutes."""
    file = folder / "corpus.txt"
    if file.exists():
        return file
    rng, lines = random.Random(0), list[str]()
    for package in PACKAGES:
        found = list(_pieces(_unpacked(package, folder), rng))
        rng.shuffle(found)
        lines += found[:MOST]
    guard = Path(__file__).resolve().parents[3] / "guard"
    for name in ("questions.tsv", "more.tsv"):
        rows = (guard / name).read_text(encoding="utf-8").splitlines()
        lines += [max(row.split("\t"), key=len) for row in rows]
    rng.shuffle(lines)
    kept = [line for line in dict.fromkeys(lines) if _is_english(line)]
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return file


def _unpacked(package: str, folder: Path) -> Path:
    place = folder / "packages" / package
    if not place.exists():
        place.mkdir(parents=True)
        subprocess.run(["apt-get", "download", "-qq", package], cwd=place, check=True)
        (archive,) = place.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, place], check=True)
    return place


def _pieces(place: Path, rng: random.Random) -> Iterator[str]:
    """Passages that start anywhere, and sentences."""
    for path in sorted(each for each in place.rglob("*") if each.is_file()):
        text = MARKUP.sub(" ", _text(path))
        words, at = text.split(), 0
        while at < len(words):
            count = rng.choice(LENGTHS)
            yield " ".join(words[at : at + count])[:700]
            at += count + rng.randint(0, count)
        for sentence in SENTENCE.split(text):
            if 4 <= len(sentence.split()) <= 22:
                yield " ".join(sentence.split())


def _text(path: Path) -> str:
    """Of a file of documentation; empty for any other."""
    name = path.name
    if path.is_symlink() or not name.endswith((".html", ".gz", ".dz", ".rst", ".txt")):
        is_fortune = "fortunes" in path.parts and "." not in name
        return path.read_text("utf-8", "replace").replace("\n%\n", "\n\n") if is_fortune else ""
    content = path.read_bytes()
    if name.endswith((".gz", ".dz")):
        content = gzip.decompress(content)
    text = content.decode("utf-8", "replace")
    return plain_text(text) if ".html" in name else text


def _is_english(line: str) -> bool:
    letters = sum(char.isalpha() or char == " " for char in line)
    return letters >= 0.7 * len(line) and sum(map(str.isascii, line)) > 0.9 * len(line)
