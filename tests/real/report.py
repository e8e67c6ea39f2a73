"""Measures real models on real documents, and writes benchmarks/results/real-models/*.md.

`make real-report` does it; it takes hours on two cores, and continues where it was stopped. With
names, only those tables.
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.quality.suites import OTHER_LANGUAGES, passage_suites
from tests.real.documents import FOLDER, fetch_documents
from tests.real.packages import CACHE, GEMMA3, MODELS, ROOT, SMOLLM2, exit_status, fetch

SMOL = f"--pair {SMOLLM2.repository} {SMOLLM2.repository}"
GEMMA = f"--pair {GEMMA3.repository} {GEMMA3.repository}"
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
}


def main() -> int:
    names = sys.argv[1:] or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        sys.stderr.write(f"There is no table {unknown[0]!r}: choose from {', '.join(TABLES)}.\n")
        return 2
    if status := exit_status(_fetch_all):
        return status
    (ROOT / "benchmarks" / "results" / "real-models").mkdir(exist_ok=True)
    for name in names:
        sys.stderr.write(f"── {name} ──\n")
        options = f"{TABLES[name]} --file {FOLDER.relative_to(ROOT)}"
        command = [sys.executable, "-m", "benchmarks", "quality", *options.split()]
        done = subprocess.run(
            [*command, "--report", f"benchmarks/results/real-models/{name}.md"],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_CACHE": str(CACHE.folder)},
            stdout=subprocess.DEVNULL,
        )
        if done.returncode:
            return done.returncode
    return 0


def _fetch_all() -> None:
    fetch_documents()
    for model in MODELS:
        fetch(model)


if __name__ == "__main__":
    sys.exit(main())
