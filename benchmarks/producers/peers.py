"""Reads the files of the producers with other programs, for `compare.py --peers`.

    python peers.py FOLDER OUT.json

Runs in an environment of its own (`peers.txt`), without specchat. Each program is used as its
documentation says for Markdown. The texts are brought into one form: escapes are undone, and any
form of bullets, raised letters, notes and tables that a program writes counts.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

READERS: dict[str, Callable[[Path], str]] = {}
PACKAGES = ("xberg", "office-oxide", "docling-slim", "markitdown", "all2md", "pymupdf4llm")


def reader(function: Callable[[Path], str]) -> Callable[[Path], str]:
    READERS[function.__name__] = function
    return function


@reader
def xberg(path: Path) -> str:
    import xberg

    config = xberg.ExtractionConfig(output_format="markdown", disable_ocr=True, use_cache=False)
    found = xberg.extract(xberg.ExtractInput(kind="uri", uri=str(path)), config)
    result = asyncio.run(_awaited(found)) if asyncio.iscoroutine(found) else found
    return "\n".join(each.content for each in result.results)


async def _awaited(result: Any) -> Any:
    return await result


@reader
def office_oxide(path: Path) -> str:
    import office_oxide

    return str(office_oxide.to_markdown(str(path)))


@reader
def docling(path: Path) -> str:
    from docling.datamodel.base_models import InputFormat
    from docling.datamodel.document import InputDocument

    kinds = {
        "docx": (InputFormat.DOCX, "msword_backend", "MsWordDocumentBackend"),
        "xlsx": (InputFormat.XLSX, "msexcel_backend", "MsExcelDocumentBackend"),
        "pptx": (InputFormat.PPTX, "mspowerpoint_backend", "MsPowerpointDocumentBackend"),
        "html": (InputFormat.HTML, "html_backend", "HTMLDocumentBackend"),
    }
    kind, module, name = kinds[path.suffix[1:]]
    backend = getattr(__import__(f"docling.backend.{module}", fromlist=[name]), name)
    document = InputDocument(path_or_stream=path, format=kind, backend=backend)
    return str(document._backend.convert().export_to_markdown())


@reader
def markitdown(path: Path) -> str:
    from markitdown import MarkItDown

    return str(MarkItDown().convert(str(path)).text_content)


@reader
def all2md(path: Path) -> str:
    import all2md

    return str(all2md.to_markdown(str(path)))


@reader
def pandoc(path: Path) -> str:
    import pypandoc

    kinds = {"docx", "odt", "epub", "rtf", "html", "pptx", "xlsx", "ipynb"}
    if path.suffix[1:] not in kinds:
        raise KeyError(path.suffix)
    command = [pypandoc.get_pandoc_path(), "-t", "gfm+footnotes", "--wrap=none", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@reader
def pymupdf4llm(path: Path) -> str:
    import pymupdf4llm

    if path.suffix != ".pdf":
        raise KeyError(path.suffix)
    return str(pymupdf4llm.to_markdown(str(path)))


def in_one_form(text: str) -> str:
    """A text in the forms that `planted.json` expects."""
    text = re.sub(r"<sup>(.{1,9}?)</sup>|\^\{?(\w{1,9})\}?\^?|\$\^\{(\w{1,9})\}\$", _raised, text)
    for digit, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True):
        text = text.replace(digit, f"^{plain}")
    text = re.sub(r"<t[dh][^>]*>\s*(.*?)\s*</t[dh]>", r"| \1 ", text)
    text = re.sub(r"\s*</tr>", "|", text)
    text = re.sub(r"\\(\W)", r"\1", text).replace("**", "")
    text = re.sub(r"^([ \t]*)[*+•·] +", r"\1- ", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s*(?:-|\d+[.)])) +", r"\1 ", text, flags=re.MULTILINE)
    text = re.sub(r" {2,}\|", " |", re.sub(r"\| {2,}", "| ", text))
    text = re.sub(r"\|[ \t]*\|", "|  |", text)
    return html.unescape(text.replace("\r\n", "\n"))


def _raised(found: re.Match[str]) -> str:
    return "^" + next(filter(None, found.groups()))


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    files = [*json.loads((folder / "planted.json").read_text("utf-8"))["files"]]
    texts: dict[str, dict[str, str]] = {}
    for name, read in READERS.items():
        found = texts[name] = {}
        for file in files:
            try:
                found[file] = in_one_form(read(folder / file))
            except BaseException as error:  # a program may raise anything, or exit
                if isinstance(error, KeyboardInterrupt):
                    raise
                print(f"{name}: {file}: {type(error).__name__}", file=sys.stderr)
    versions = {name: version(name) for name in PACKAGES}
    out.write_text(json.dumps({"versions": versions, "texts": texts}, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
