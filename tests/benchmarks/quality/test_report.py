"""Tables and reports are narrow enough, well formed, reproducible and complete."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from app.protocol.options import Mode
from app.protocol.prompt import Document
from app.protocol.stats import Reading
from benchmarks.quality.report import Study, as_json, markdown, table
from benchmarks.quality.results import confidence_note
from benchmarks.quality.results_log import Record
from benchmarks.quality.settings import Scoring, Settings
from benchmarks.quality.suites import DEFAULT, SUITES
from tests.benchmarks.quality.test_results import record

pytestmark = pytest.mark.benchmarks

KEEPS = (0.05, 0.2, 1.0)


def records(
    suites: tuple[str, ...] = DEFAULT,
    lengths: tuple[int, ...] = (1024, 4096),
    scorings: tuple[str, ...] = ("both", "random"),
    n: int = 8,
) -> tuple[Record, ...]:
    """Records in which every third item is lost at a small keep, and one suite is always wrong."""
    found = []
    for length in lengths:
        for suite in suites:
            cases = SUITES[suite].cases
            for i in range(n):
                more = {"length": length, "case": cases[i % len(cases)].name if cases else ""}
                item = f"{suite}/{length}/{i}"
                good = suite != "cwe"
                found.append(record(item, Mode.FULL, good, **more))
                for scoring in scorings:
                    for keep in KEEPS:
                        right = good and (keep == 1.0 or i % 3 > 0)
                        ways = more | {"scoring": scoring, "keep": keep}
                        found.append(record(item, Mode.SPARSE, right, **ways))
                auto = more | {"guard": "It counts." if suite == "count" else None}
                found.append(record(item, Mode.AUTO, good, **auto))
    return tuple(found)


SETTINGS = Settings(DEFAULT, (1024, 4096), KEEPS, (Scoring.BOTH, Scoring.RANDOM), n=8, auto=True)


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(
        SETTINGS,
        ("target", "a draft"),
        "0.1.0",
        "a machine",
        "python -m benchmarks quality",
        records(),
    )


def test_the_table_fits_80_columns_and_has_every_cell(study: Study) -> None:
    long = "Reading 32,768 tokens needs more memory than there is on this machine: lower keep."
    failing = record("vt/1024/0", Mode.SPARSE, False, failed=long, keep=0.7, ttft=0.0)
    text = table(replace(study, records=(*study.records, failing), skipped=(long,), stale=3))
    assert max(len(line) for line in text.splitlines()) <= 80
    rows = re.findall(r"^([a-z0-9-]+) +([\d.]+) +8 ", text, re.M)
    assert len(rows) == len(DEFAULT) * len(KEEPS) * 2 * 2
    assert {suite for suite, _ in rows} == set(DEFAULT)
    for part in ("1,024 tokens, scoring both", "4,096 tokens, scoring random"):
        assert part in text
    assert " ".join(long.split()) in " ".join(text.split())
    assert "with --fresh all are" in " ".join(text.split())


def test_a_row_has_the_losses(study: Study) -> None:
    text = table(study).split("4,096 tokens, scoring both")[1]
    row = next(line for line in text.splitlines() if line.startswith("quote") and " 0.05" in line)
    assert row.split() == ["quote", "0.05", "8", "100%", "62%", "31–86", "3", "0", "25%", "4.0x"]


def test_the_notes_report_failures_and_stale_runs(study: Study) -> None:
    assert (
        f"At keep 1, all {len(DEFAULT) * 2 * 2 * 8} answers equal the dense ones." in study.notes()
    )
    changed = [
        replace(r, tokens="other") if r.keep == 1.0 and r.suite == "quote" and r.scoring else r
        for r in study.records
    ]
    notes = replace(study, records=tuple(changed)).notes()
    assert "quote at 4,096 tokens, scoring both: 8 of 8 differ from dense at keep 1." in notes
    assert not any(note.startswith("At keep 1, all") for note in notes)
    unsaid = record("vt/1024/0", Mode.SPARSE, True, reading=str(Reading.DENSE))
    notes = replace(study, records=(*study.records, unsaid)).notes()
    assert "1 turns should have been read sparsely, and were read in full." in notes


def test_empty_answers_are_reported() -> None:
    records = (
        record("vt/1024/0", Mode.FULL, True, answer="four"),
        record("vt/1024/0", Mode.SPARSE, False, ended="length", answer=" "),
    )
    (note,) = Study(SETTINGS, ("t", None), "", "", "", records).notes()
    assert note.startswith("1 of 2 answers were cut off before their first word")


def test_the_report_has_all_tables_and_the_command(study: Study) -> None:
    text = markdown(study)
    assert text.startswith("# Sparse reading against dense: target with a draft\n")
    for part in (
        "```sh\npython -m benchmarks quality\n```",
        "a machine",
        "seed 0",
        "chunk 32",
        "### 4,096 tokens",
        "| needle-single | both | 100.0 | 62.5 | 62.5 | 100.0 |",
        "## Equal answers",
        "| 4,096 | both | 1 | 80 | 100.0 | 100.0 | 4.00x | 1.00x |",
        "## The guard",
        "| count | unsafe | 16 | 16 |",
        "recall 25% (16–37) of 64 unsafe items",
        "- At keep 1,",
    ):
        assert part in text, part
    for case in SUITES["adversarial"].cases:
        assert f"| {case.name} | both | 1,024 | 0.2 | 1 |" in text


def test_every_table_of_the_report_is_well_formed(study: Study) -> None:
    blocks = re.findall(r"(?:^\|.*\n?)+", markdown(study), re.M)
    assert len(blocks) == 3 + len(DEFAULT) + 1
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_text_from_outside_is_escaped_in_the_report(study: Study) -> None:
    failing = record("vt/1024/0", Mode.SPARSE, False, failed="a | b <script> [c](d)", keep=0.7)
    text = markdown(replace(study, records=(*study.records, failing)))
    assert r"a \| b \<script\> \[c\](d)" in text


def test_the_same_results_make_the_same_texts(study: Study) -> None:
    again = replace(study, records=tuple(reversed(study.records)))
    assert markdown(again) == markdown(study)
    assert table(again) == table(study)


def test_the_json_has_settings_cells_and_records(study: Study) -> None:
    files = (Document("a.txt", "long text"),)
    content = json.loads(as_json(replace(study, settings=replace(SETTINGS, files=files))))
    assert content["settings"]["files"] == ["a.txt"]
    assert content["settings"]["keeps"] == list(KEEPS)
    assert [tuning["chunk"] for tuning in content["settings"]["tunings"]] == [32]
    assert len(content["records"]) == len(study.records)
    assert len(content["cells"]) == len(DEFAULT) * 2 * 2 * len(KEEPS)
    assert content["guard"]["recall"]["share"] == pytest.approx(16 / 64)
    cell = next(c for c in content["cells"] if c["suite"] == "quote" and c["keep"] == 0.05)
    assert (cell["n"], cell["right"], cell["regressions"]) == (8, 5, 3)


def test_the_answers_about_real_documents_have_a_table_with_totals() -> None:
    found = records(("answer-tables", "answer-english-reworded"), (1024,), n=6)
    settings = replace(SETTINGS, suites=("answers",))
    study = Study(settings, ("target", "a draft"), "1", "a machine", "command", found)
    text = table(study)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "1,024 tokens, scoring random" in text
    both = text.split("Answers, 1,024 tokens, scoring both")[1]
    totals = re.findall(r"^all +(.+)", both, re.M)
    assert totals[1].split() == ["0.2", "12", "100%", "67%", "67%", "39–86", "0", "25%", "0"]
    assert totals[3].startswith("--auto")
    assert re.search(r"^other words +0\.2 +12 ", both, re.M)
    assert re.search(r"^english-reworded +0\.2 +6 ", both, re.M)
    report = markdown(study)
    assert "| english-reworded | both | 1,024 | 0.2 | 6 | 100% | 67% | 67% |" in report
    assert "| all | random | 1,024 | 1 | 12 |" in report
    assert len(json.loads(as_json(study))["answers"]) == 4 * (2 * len(KEEPS) + 1)


def test_a_guard_table_without_unsafe_items_says_so() -> None:
    study = Study(SETTINGS, ("t", None), "", "", "", records(("quote",), (1024,)))
    assert "recall not known of 0 unsafe items" in " ".join(table(study).split())


def test_a_note_compares_the_confidence_of_right_and_wrong_answers() -> None:
    def answered(right: bool, confidence: float | None, reading: str = "sparse") -> Record:
        item = f"{right}{confidence}"
        return Record(
            item, "", "", "many", "", 512, "sparse", 0.2, "both",
            right=right, reading=reading, confidence=confidence,
        )  # fmt: skip

    wrong = [answered(False, 0.5), answered(False, 0.95)]
    right = [answered(True, 0.99), answered(True, 0.95), answered(True, None)]
    dense = [answered(False, 0.1, "dense")]
    note = confidence_note([*wrong, *right, *dense])
    assert note is not None
    assert "less than 90% sure of 1 of 2 wrong and 0 of 2 right ones" in note
    assert "in 88% of the pairs" in note
    assert confidence_note(right) is confidence_note(wrong) is None
