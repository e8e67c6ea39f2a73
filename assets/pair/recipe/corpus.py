"""Free text found on any Debian machine with Python, and the held-out part of it."""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from functools import cache
from pathlib import Path

LICENCES = Path("/usr/share/common-licenses")
HELD_OUT_LICENCES = ("GPL-3", "LGPL-3")
HELD_OUT_MODULES = (
    "argparse", "bisect", "calendar", "difflib", "doctest", "fractions", "graphlib", "heapq",
    "mailbox", "pathlib", "pdb", "random", "sched", "shelve", "statistics", "textwrap", "turtle",
)  # fmt: skip
MIN_CHARS = 1500


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@cache
def stdlib() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def licences(folder: Path = LICENCES) -> list[str]:
    """Debian's common licences without the held-out ones."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.is_symlink())
    return [_read(p) for p in files if p.name not in HELD_OUT_LICENCES]


def python_topics() -> list[str]:
    """The language reference as shipped in `pydoc_data.topics`."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    if spec is None or spec.loader is None:
        raise FileNotFoundError("this Python ships no pydoc_data.topics")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [text for text in module.topics.values() if len(text) >= MIN_CHARS]


def python_sources() -> list[str]:
    """Top-level stdlib modules and the larger packages, tests and held-out modules excluded."""
    names = ("*.py", "asyncio/*.py", "email/*.py", "http/*.py", "json/*.py", "logging/*.py",
             "unittest/*.py", "xml/*/*.py", "concurrent/*/*.py", "importlib/*.py")  # fmt: skip
    files = sorted({p for name in names for p in stdlib().glob(name)})
    included = [p for p in files if p.stem not in HELD_OUT_MODULES]
    texts = [_read(p) for p in included]
    return [text for text in texts if len(text) >= MIN_CHARS]


def docstrings(sources: list[str]) -> list[str]:
    """Each source's docstrings, joined by blank lines: prose without the code around it."""
    found = []
    for source in sources:
        nodes = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        text = "\n\n".join(doc for node in nodes if (doc := ast.get_docstring(node)))
        if len(text) >= MIN_CHARS:
            found.append(text)
    return found


def training_texts(folder: Path = LICENCES) -> dict[str, list[str]]:
    """All training text by kind: licences, topics, docstrings, code."""
    sources = python_sources()
    return {
        "licences": licences(folder),
        "topics": python_topics(),
        "docstrings": docstrings(sources),
        "code": sources,
    }
