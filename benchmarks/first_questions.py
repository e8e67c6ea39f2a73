"""Asks the demo model the questions of three people's first day.

    python -m benchmarks.first_questions [--seen]

The questions of `more_questions.toml` were not used to improve anything. `--seen`: those of
`first_questions.toml`, which were.

`right`: the answer has the passage. `offered`: it is among the passages that are shown without an
answer. `wrong`: another passage is the answer. `missed`: other passages are shown, or none. The
texts are searched as in a turn, but not read, which changes no answer. Some of the documents are
fetched by `make real-texts`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from sysconfig import get_path

import numpy as np

from app.engine.backend.blas import load_openblas
from app.engine.model.prompt import Prompt, PromptText
from app.engine.turn.quotation import CANNOT_COUNT, NOTHING_FOUND, PASSAGES_FOUND, quote
from app.ingest.reader import read
from app.protocol.prompt import Document, Message, Role
from app.util.assets import assets_path
from app.util.tables import TextTable
from benchmarks.first_questions_data import generated

SEEN = Path(__file__).with_suffix(".toml")
UNSEEN = SEEN.with_stem("more_questions")
FOLDERS = {
    "package": Path(get_path("purelib")),
    "stdlib": Path(get_path("stdlib")),
    "text": Path(".cache/real/texts"),
    "asset": assets_path(),
}
HEDGES = NOTHING_FOUND, PASSAGES_FOUND, CANNOT_COUNT
KINDS = "right", "offered", "wrong", "missed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_questions")
    parser.add_argument("--seen", action="store_true", help="ask those that were tuned on")
    options = parser.parse_args()
    file = SEEN if options.seen else UNSEEN
    counts: dict[str, Counter[str]] = {}
    questions = tomllib.loads(file.read_text(encoding="utf-8"))["questions"]
    load_openblas()
    for each in questions:
        document = _document(each["kind"], each["document"])
        answer = _answer(document, each["question"])
        kind = _kind(answer, each["answer"])
        for group in (each["who"], f"words: {each['words']}", "all"):
            counts.setdefault(group, Counter())[kind] += 1
        shown = " ".join(answer.split())
        print(f"{kind:8} {each['question']}  ({document.name})\n         {shown}", flush=True)
    rows = [[who, *(str(of_it[kind]) for kind in KINDS)] for who, of_it in counts.items()]
    print(TextTable(["", *KINDS], rows).plain())
    return 0


def _document(kind: str, name: str) -> Document:
    """As it is read when it is attached."""
    if kind != "generated":
        return read([str(FOLDERS[kind] / name)]).documents[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(generated(name), encoding="utf-8")
        return read([str(file)]).documents[0]


def _answer(document: Document, question: str) -> str:
    length = len(document.text)
    text = PromptText(0, 0, False, 0, np.arange(length + 1), document.text)
    prompt = Prompt(np.zeros(length, np.int32), (), {}, texts=(text,))
    messages = (Message(Role.USER, question, (document,)),)
    return quote(prompt, messages, question, lambda done, total: None)[1]


def _kind(answer: str, expected: str) -> str:
    is_found = re.search(expected, answer, re.IGNORECASE) is not None
    if answer.startswith(HEDGES):
        return "offered" if is_found else "missed"
    return "right" if is_found else "wrong"


if __name__ == "__main__":
    sys.exit(main())
