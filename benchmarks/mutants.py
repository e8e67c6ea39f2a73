"""Plants small faults in app/ one at a time, and tells which of them the tests find.

    make mutants                             the quick tests on each; app/ must have no changes
    python benchmarks/mutants.py plant       choose other faults (needs cosmic-ray, 8.7.0 was used)
    python benchmarks/mutants.py report      the table of benchmarks/results/mutants.md

A fault is first tried with the tests that name its module, then with those of its folder. What
these do not find is planted all together, and the whole tier runs: a test that fails then runs
again with each fault alone, until none is found any more. So a fault counts as missed if the whole
tier passes with it and all other missed ones. A fault with which tests do not end counts as found
if they end without it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutants"
FAULTS = RESULTS / "faults.json"
PARTS = ("engine", "ingest", "store", "extras", "chat", "ui", "models", "sandbox")
SEED, EACH = 58, 10
TIERS = {
    "quick": ["--dist=loadfile", "-m", "not slow and not benchmarks and not real"],
    "slow": [
        "--dist=worksteal",
        "--hypothesis-profile=slow",
        "-m",
        "(slow or hypothesis) and not benchmarks and not real",
    ],
}
"""How the Makefile runs them."""
NEED_NAMES = {"core/VariableInserter", "core/VariableReplacer"}
"""Operators of cosmic-ray that ask for names of variables."""
NEAR_LIMIT, TIER_LIMIT = 420, 3600
"""Seconds after which tests that still run count as stopped by the fault."""
STOPPED = "stopped"

Fault = dict[str, Any]


# ---------------------------------------------------------------------------- choosing


def unused_places(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a change has no effect: in annotations, which are not evaluated."""
    places = []
    for node in ast.walk(ast.parse(source)):
        for field in ("annotation", "returns"):
            if (part := getattr(node, field, None)) is not None:
                places.append(
                    ((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset))
                )
    return places


def possible(path: Path) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """The operators that can change each place of a file, with their occurrence there."""
    from cosmic_ray.ast import get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text(encoding="utf-8")
    unused = unused_places(source)
    nodes = list(walk(get_ast(source)))
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name in sorted(set(operator_names()) - NEED_NAMES):
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            if not any(first <= start < last for first, last in unused):
                found.setdefault(start, []).append((name, occurrence))
    return found


def walk(node: Any) -> Iterator[Any]:
    """In the order in which cosmic-ray counts occurrences."""
    yield node
    for child in getattr(node, "children", ()):
        yield from walk(child)


def plant() -> None:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    chance = random.Random(SEED)
    faults: list[Fault] = []
    for part in PARTS:
        paths = sorted((ROOT / "app" / part).rglob("*.py"))
        places = [
            (path, start, operators)
            for path in paths
            for start, operators in sorted(possible(path).items())
        ]
        chance.shuffle(places)
        planned = len(faults) + EACH
        while len(faults) < planned:
            path, start, operators = places.pop()
            name, occurrence = chance.choice(operators)
            source = path.read_text(encoding="utf-8")
            changed = mutate_code(source, get_operator(name)(), occurrence)
            try:
                ast.parse(changed)
            except SyntaxError:
                continue
            before, after = source.splitlines(), changed.splitlines()
            first = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
            last = 0
            while before[-1 - last] == after[-1 - last] and len(before) - last - 1 > first:
                last += 1
            faults.append(
                {
                    "number": len(faults) + 1,
                    "file": str(path.relative_to(ROOT)),
                    "line": start[0],
                    "operator": name.removeprefix("core/"),
                    "before": "\n".join(before[first : len(before) - last]),
                    "after": "\n".join(after[first : len(after) - last]),
                }
            )
    RESULTS.mkdir(parents=True, exist_ok=True)
    FAULTS.write_text(json.dumps(faults, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------- running


@contextmanager
def planted(faults: Iterable[Fault]) -> Iterator[None]:
    """The checkout with these faults. Lines are counted from the end of each file on, so that one
    fault does not move another."""
    paths: dict[Path, str] = {}
    try:
        for fault in sorted(faults, key=lambda each: -each["line"]):
            path = ROOT / fault["file"]
            text = path.read_text(encoding="utf-8")
            paths.setdefault(path, text)
            lines = text.splitlines()
            before = fault["before"].splitlines()
            near = [
                at for at in range(len(lines)) if lines[at : at + len(before)] == before
            ]  # unchanged code may have moved
            assert near, f"{fault['number']}: {fault['file']} no longer has this line"
            at = min(near, key=lambda each: abs(each + 1 - fault["line"]))
            lines[at : at + len(before)] = fault["after"].splitlines()
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield
    finally:
        for path, text in paths.items():
            path.write_text(text, encoding="utf-8")


def failures(tests: list[str], tier: str, limit: float, stop: bool) -> list[str]:
    """The tests that fail; `[STOPPED]` if they do not end."""
    command = [sys.executable, "-m", "pytest", "-q", *TIERS[tier], "-p", "no:cacheprovider"]
    command += ["-n", "3", "-rfE", "--tb=no", *(["-x"] if stop else []), *tests]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles every file
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            output, _ = run.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return [STOPPED]
    if run.returncode in (0, 5):  # 5: the tier has none of them
        return []
    found = [
        line.split(" ", 1)[1].split(" - ")[0]
        for line in output.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    return found or [f"exit {run.returncode}: {output.strip().splitlines()[-1][:200]}"]


def near(fault: Fault) -> list[list[str]]:
    """Files of tests: those that name the module or bear its name, then those of its folder."""
    path = Path(fault["file"])
    module = ".".join(path.with_suffix("").parts)
    folder = ROOT.joinpath("tests", *path.parts[1 : 3 if path.parts[1] == "extras" else 2])
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    texts = {each: each.read_text(encoding="utf-8") for each in tests}
    naming = [
        each for each, text in texts.items() if module in text or each.stem == f"test_{path.stem}"
    ]
    naming.sort(
        key=lambda each: (
            path.stem not in each.stem,
            texts[each].count("import app.") + texts[each].count("from app."),
        )
    )
    rest = [each for each in tests if folder in each.parents and each not in naming]
    if path.parts[1] == "engine":  # the whole tier comes anyway
        rest = []
    some = (naming[:2], naming[2:], rest)
    return [[str(each.relative_to(ROOT)) for each in files] for files in some]


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return False
    return f"def {name.split('::')[-1].split('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def say(*words: object) -> None:
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def run(tier: str, output: Path, known: Path | None, resume: bool) -> None:
    """`known` is an earlier result: the test that found a fault there is tried first."""
    changed = subprocess.run(
        ["git", "status", "--porcelain", "app"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert not changed, "app/ has changes: commit them, or run in a fresh clone"
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    faults = json.loads(FAULTS.read_text(encoding="utf-8"))
    found: dict[int, str] = {}
    stopped: dict[int, list[str]] = {}
    """The tests that did not end with a fault."""
    if resume and output.exists():
        found = {int(k): v for k, v in json.loads(output.read_text("utf-8"))["found"].items()}
    earlier = {} if known is None else json.loads(known.read_text("utf-8"))["found"]

    def save() -> None:
        rows = {str(number): found[number] for number in sorted(found)}
        missed = [each["number"] for each in faults if each["number"] not in found]
        result = {"tier": tier, "commit": commit, "found": rows, "missed": missed}
        output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def note(fault: Fault, by: str) -> None:
        found[fault["number"]] = by
        save()
        say(fault["number"], fault["file"], "found by", by)

    for fault in faults:
        if fault["number"] in found:
            continue
        tries = near(fault)
        if (by := earlier.get(str(fault["number"]))) and exists(by):
            # With its parameters gone, the whole file.
            tries.insert(0, [by.split("::")[0]])
        with planted([fault]):
            for tests in tries:
                if tests and (failed := failures(tests, tier, NEAR_LIMIT, stop=True)):
                    if failed == [STOPPED]:
                        stopped[fault["number"]] = tests
                    note(fault, failed[0])
                    break
            else:
                say(fault["number"], fault["file"], "not found nearby")
    while missed := [each for each in faults if each["number"] not in found]:
        say(len(missed), "faults together")
        with planted(missed):
            failed = failures([], tier, TIER_LIMIT, stop=False)
        say(failed)
        tests = [each for each in failed if "::" in each]
        before = len(found)
        for fault in missed if tests else []:
            with planted([fault]):
                if alone := failures(tests, tier, NEAR_LIMIT, stop=True):
                    note(fault, alone[0])
        if len(found) == before:
            break
    # What fails without a fault found nothing.
    tests = sorted({each for each in found.values() if "::" in each})
    flaky = set(failures(tests, tier, TIER_LIMIT, stop=False))
    for number in [number for number, by in found.items() if by in flaky]:
        say(number, "is not found:", found.pop(number), "fails without it too")
    for number, tests in stopped.items():
        if failures(tests, tier, NEAR_LIMIT, stop=True):
            say(number, "is not found:", found.pop(number), "without it too")
    say(len(found), "of", len(faults), "found by the tier", tier)
    save()


def report() -> str:
    """The page: what the tests found before and after a change of them."""
    faults = json.loads(FAULTS.read_text(encoding="utf-8"))
    results = {
        name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["found"]
        for name in ("before", "quick")
        if (RESULTS / f"{name}.json").exists()
    }
    lines = [
        "| | fault | " + " | ".join(results) + " |",
        "|---:|---|" + "---|" * len(results),
    ]
    for fault in faults:
        number = str(fault["number"])
        change = " -> ".join(" ".join(fault[side].split()) for side in ("before", "after"))
        place = f"{fault['file'].removeprefix('app/')}:{fault['line']}"
        code = change.replace("|", "\\|").replace("`", "'")
        cells = ["found" if number in found else "**missed**" for found in results.values()]
        lines.append(f"| {number} | {place}: `{code}` | " + " | ".join(cells) + " |")
    counts = ", ".join(f"{name} {len(found)}" for name, found in results.items())
    return "\n".join([f"Found of {len(faults)}: {counts}.", "", *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant small faults in app/.")
    parser.add_argument("step", choices=("plant", "run", "report"))
    parser.add_argument("--tier", choices=TIERS, default="quick")
    parser.add_argument("--output", type=Path, default=RESULTS / "quick.json")
    parser.add_argument("--known", type=Path, help="an earlier result: its tests come first")
    parser.add_argument("--resume", action="store_true", help="go on with the output")
    options = parser.parse_args()
    if options.step == "plant":
        plant()
    elif options.step == "report":
        print(report(), end="")
    else:
        run(options.tier, options.output, options.known, options.resume)


if __name__ == "__main__":
    main()
