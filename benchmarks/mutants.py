"""Plants small faults in app/ one at a time, and tells which of them the tests find.

    make mutants                             the quick tests on each; app/ must have no changes
    python benchmarks/mutants.py check       list the faults whose line is no longer in app/
    python benchmarks/mutants.py plant       choose others for these, or all if there is no list
                                             (needs cosmic-ray, 8.7.0 was used)
    python benchmarks/mutants.py report      the table of benchmarks/results/mutants.md

A fault is first tried with the tests that name its module, then with those of its folder. What
these do not find is planted all together, and the whole tier runs: a test that fails then runs
again with each fault alone, until none is found any more. So a fault counts as missed if the whole
tier passes with it and all other missed ones; `--nearby` leaves this step out. A fault with which
tests do not end counts as found if they end without it.
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
COLUMNS = ("before", "quick")
"""The results that the page compares."""
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
    """Choose a fault for each number that has none, or whose line has gone, and delete from earlier
    results what they say of these numbers."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    chance = random.Random(SEED)
    faults = {
        fault["number"]: fault
        for fault in (listed() if FAULTS.exists() else [])
        if line_of(fault, ROOT / fault["file"]) is not None
    }
    kept = set(faults)
    for index, part in enumerate(PARTS):
        paths = sorted((ROOT / "app" / part).rglob("*.py"))
        places = [
            (path, start, operators)
            for path in paths
            for start, operators in sorted(possible(path).items())
        ]
        chance.shuffle(places)
        numbers = range(index * EACH + 1, (index + 1) * EACH + 1)
        while free := [number for number in numbers if number not in faults]:
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
            fault = {
                "number": free[0],
                "file": str(path.relative_to(ROOT)),
                "line": start[0],
                "operator": name.removeprefix("core/"),
                "before": "\n".join(before[first : len(before) - last]),
                "after": "\n".join(after[first : len(after) - last]),
            }
            if all({**fault, "number": number} != other for number, other in faults.items()):
                faults[free[0]] = fault
    RESULTS.mkdir(parents=True, exist_ok=True)
    write(FAULTS, [faults[number] for number in sorted(faults)])
    for path in results():
        result = json.loads(path.read_text(encoding="utf-8"))
        result["found"] = {k: v for k, v in result["found"].items() if int(k) in kept}
        result["missed"] = [number for number in result["missed"] if number in kept]
        write(path, result)


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def results() -> list[Path]:
    return [path for name in COLUMNS if (path := RESULTS / f"{name}.json").exists()]


# ---------------------------------------------------------------------------- running


def listed() -> list[Fault]:
    return list(json.loads(FAULTS.read_text(encoding="utf-8")))


def line_of(fault: Fault, path: Path) -> int | None:
    """The index of the fault's first line now, the one nearest to where it was; None: it has
    gone."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    before = fault["before"].splitlines()
    found = [at for at in range(len(lines)) if lines[at : at + len(before)] == before]
    return min(found, key=lambda at: abs(at + 1 - fault["line"]), default=None)


def check() -> None:
    """Refuses a list with faults that cannot be planted."""
    gone = [
        f"{fault['number']} ({fault['file']})"
        for fault in listed()
        if line_of(fault, ROOT / fault["file"]) is None
    ]
    if gone:
        raise SystemExit(
            f"The lines of these faults have gone, `plant` chooses others: {', '.join(gone)}"
        )


@contextmanager
def planted(faults: Iterable[Fault]) -> Iterator[None]:
    """The checkout with these faults. Lines are counted from the end of each file on, so that one
    fault does not move another."""
    paths: dict[Path, str] = {}
    try:
        for fault in sorted(faults, key=lambda each: -each["line"]):
            path = ROOT / fault["file"]
            at = line_of(fault, path)
            assert at is not None, f"{fault['number']}: another fault has changed this line"
            text = path.read_text(encoding="utf-8")
            paths.setdefault(path, text)
            lines = text.splitlines()
            lines[at : at + len(fault["before"].splitlines())] = fault["after"].splitlines()
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield
    finally:
        for path, text in paths.items():
            path.write_text(text, encoding="utf-8")


def failures(tests: list[str], tier: str, limit: float, stop: bool) -> list[str]:
    """The tests that fail; `[STOPPED]` if they do not end."""
    command = [sys.executable, "-m", "pytest", "-q", *TIERS[tier], "-p", "no:cacheprovider"]
    processes = "0" if len({test.split("::")[0] for test in tests}) == 1 else "2"
    command += ["-n", processes, "-rfE", "--tb=no", *(["-x"] if stop else []), *tests]
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


def found_by(test: str) -> list[list[str]]:
    """The test that found a fault earlier, with all its parameters, then its file; both wherever
    it is now."""
    file, _, name = test.split("[")[0].partition("::")
    for path in [ROOT / file, *sorted((ROOT / "tests").rglob(Path(file).name))]:
        if name and path.is_file() and f"def {name.split('::')[-1]}(" in path.read_text("utf-8"):
            now = str(path.relative_to(ROOT))
            return [[f"{now}::{name}"], [now]]
    return []


def say(*words: object) -> None:
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def run(tier: str, output: Path, known: Path | None, resume: bool, nearby: bool) -> None:
    """`known` is an earlier result: the test that found a fault there is tried first. With
    `nearby` the whole tier does not run."""
    check()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "app"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert not changed, "app/ has changes: commit them, or run in a fresh clone"
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    faults = listed()
    found: dict[int, str] = {}
    stopped: dict[int, list[str]] = {}
    """The tests that did not end with a fault."""
    if resume and output.exists():
        found = {int(k): v for k, v in json.loads(output.read_text("utf-8"))["found"].items()}
    earlier = {} if known is None else json.loads(known.read_text("utf-8"))["found"]

    def save() -> None:
        rows = {str(number): found[number] for number in sorted(found)}
        missed = [each["number"] for each in faults if each["number"] not in found]
        write(output, {"tier": tier, "commit": commit, "found": rows, "missed": missed})

    def note(fault: Fault, by: str) -> None:
        found[fault["number"]] = by
        save()
        say(fault["number"], fault["file"], "found by", by)

    for fault in faults:
        if fault["number"] in found:
            continue
        tries = found_by(earlier.get(str(fault["number"]), "")) + near(fault)
        with planted([fault]):
            for tests in tries:
                if tests and (failed := failures(tests, tier, NEAR_LIMIT, stop=True)):
                    if failed == [STOPPED]:
                        stopped[fault["number"]] = tests
                    note(fault, failed[0])
                    break
            else:
                say(fault["number"], fault["file"], "not found nearby")
    while missed := [each for each in faults if each["number"] not in found and not nearby]:
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
    faults = listed()
    columns = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in results()}
    lines = [
        "| | fault | " + " | ".join(columns) + " |",
        "|---:|---|" + "---|" * len(columns),
    ]
    for fault in faults:
        number = fault["number"]
        change = " -> ".join(" ".join(fault[side].split()) for side in ("before", "after"))
        place = f"{fault['file'].removeprefix('app/')}:{fault['line']}"
        code = change.replace("|", "\\|").replace("`", "'")
        cells = [
            "found"
            if str(number) in result["found"]
            else ("**missed**" if number in result["missed"] else "not tried")
            for result in columns.values()
        ]
        lines.append(f"| {number} | {place}: `{code}` | " + " | ".join(cells) + " |")
    counts = ", ".join(
        f"{name} {len(result['found'])} of {len(result['found']) + len(result['missed'])}"
        for name, result in columns.items()
    )
    return "\n".join([f"Found: {counts}.", "", *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant small faults in app/.")
    parser.add_argument("step", choices=("check", "plant", "run", "report"))
    parser.add_argument("--tier", choices=TIERS, default="quick")
    parser.add_argument("--output", type=Path, default=RESULTS / "quick.json")
    parser.add_argument("--known", type=Path, help="an earlier result: its tests come first")
    parser.add_argument("--resume", action="store_true", help="go on with the output")
    parser.add_argument("--nearby", action="store_true", help="do not run the whole tier")
    options = parser.parse_args()
    if options.step == "check":
        check()
    elif options.step == "plant":
        plant()
    elif options.step == "report":
        print(report(), end="")
    else:
        run(options.tier, options.output, options.known, options.resume, options.nearby)


if __name__ == "__main__":
    main()
