"""The performance report says what was measured, and computes whether aims are met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from app.bench import report_sections
from app.bench.median_range import spread
from app.bench.performance import ENTRIES, Measured, report, with_figures

ROOT = Path(__file__).parents[2]

DECODE: dict[str, Any] = {
    "machine": "a machine",
    "rows": [
        {
            "shape": "small",
            "length": 4096,
            "kept": 800,
            "ratios": {"to_plain_kept": [0.96, 0.9, 1.0], "to_plain_all": [1.5, 1.4, 1.6]},
            "runs": [{"ours": 10.0, "plain_kept": 9.6, "plain_all": 15.0}],
        }
    ],
}
MEMORY: dict[str, Any] = {
    "machine": "a machine",
    "asked": {"keep": 0.2},
    "rows": [
        {
            "length": length,
            "kept": length // 5,
            "ratio": [ratio] * 3,
            "runs": [
                {
                    "plain": 2e8,
                    "dense": 1.9e8,
                    "sparse": ratio * 2e8,
                    "foreseen_dense": 2.1e8,
                    "foreseen_sparse": 1e8,
                }
            ],
        }
        for length, ratio in ((4096, 0.5), (8192, 1.1))
    ],
}
NAMES = ("plain", "dense", "draft", "look", "select", "target", "TTFT", "sooner", "engine")
NAMES = (*NAMES, "1/(r+k+e)", "r", "e")
TTFT: dict[str, Any] = {
    "machine": "a machine",
    "asked": {"target": None, "shape": "small", "scale": 1.0},
    "rows": [
        {
            "length": length,
            "keep": keep,
            "kept": int(length * keep),
            "figures": {name: [1.0, 0.5, 2.0] for name in (*NAMES, "G", "memory")},
        }
        for length in (1024, 4096)
        for keep in (0.1, 0.2)
    ],
}
SNAPSHOT: dict[str, Any] = {
    "machine": "a machine",
    "bytes": 3e8,
    "save": [0.5, 0.4, 0.6],
    "load": [0.5, 0.4, 0.6],
    "disk_write": [0.55, 0.4, 0.6],
    "disk_read": [2.0, 1.0, 3.0],
}


OVERHEAD: dict[str, Any] = {
    "machine": "a machine",
    "keep": 0.2,
    "step": 512,
    "lengths": [
        {
            "prompt_tokens": length,
            "runs": [
                {
                    "plain_draft": 1.0,
                    "plain_target": 2.0,
                    "plain_dense": dense and 4 * dense,
                    "dense": dense,
                    "speedup": dense and dense / 2.0,
                    "engine": dense and 4.0,
                    "ours": 2.0,
                    "half_way": 2.6,
                    "ratio": 1.5,
                    "ratio_half_way": 1.15,
                    "kept": length // 5,
                    "phases": {"score": 0.5, "prefill": 1.5},
                }
            ],
        }
        for length, dense in ((4096, 20.0), (16384, None))
    ],
    "prompts": [{"tokens": 4096, "building": 0.1, "ttft": 1.0, "share": 0.1}],
    "selecting": {"tokens": 131_072, "seconds": 0.0094},
}
DRAFT_FIGURES = {
    name: [0.3, 0.2, 0.4]
    for name in ("plain", "dense", "sparse", "/plain", "/dense", "read", "sparsely", "/read")
}
DRAFT: dict[str, Any] = {
    "machine": "a machine",
    "shape": "embedded",
    "rows": [
        {"length": 8192, "figures": DRAFT_FIGURES | {"/dense": [0.9, 0.9, 0.9]}},
        {"length": 32768, "figures": DRAFT_FIGURES},
    ],
}


def test_overhead_has_its_aims_at_each_length() -> None:
    section = report_sections.overhead(OVERHEAD)
    assert {aim.wanted: aim.met for aim in section.aims} == {
        "parts / ours, 4,096 tokens: at least 1.05": True,
        "parts / ours, half way, 4,096 tokens: at least 1.2": False,
        "parts / ours, 16,384 tokens: at least 1.05": True,
        "parts / ours, half way, 16,384 tokens: at least 1.2": False,
        "building a prompt of 4,096 tokens, embedded pair: under 5 % of TTFT": False,
        "selecting from 131,072 tokens: under 10 ms": True,
    }
    assert section.table.count("target reads all") == 2, "by both, where it was measured"
    assert set(section.pictures) == {"overhead-4096.svg", "overhead-16384.svg"}


def test_time_saved_and_our_own_speed_are_two_figures() -> None:
    """One ratio had both: plain mlx-lm's dense prefill over our sparse turn."""
    table = report_sections.overhead(OVERHEAD).table
    assert "| saved by reading sparsely: ours, all / sparse | 10.00 (10.00 to 10.00) |" in table
    assert "| our engine: plain / ours, all read | 4.00 (4.00 to 4.00) |" in table
    assert "On a Mac the second is about 1" in report_sections.overhead(OVERHEAD).intro
    head = report_sections.ttft(TTFT).table.splitlines()[0]
    assert "| plain, s | dense, s | sparse, s | engine | sooner |" in head


def test_readme_has_the_very_figures_of_the_report() -> None:
    """Whoever edits one by hand, or measures again without `--readme`, sees it here."""
    kept = json.loads((ROOT / "docs/performance/overhead.json").read_text("utf-8"))["figures"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert with_figures(readme, kept) == readme
    report = (ROOT / "docs/performance.md").read_text("utf-8")
    for key in ("speedup", "engine", "ratio"):
        runs = [run[key] for run in kept["lengths"][0]["runs"]]
        assert report_sections.around(spread(runs)) in readme
        assert report_sections.around(spread(runs)) in report


def test_a_text_without_a_block_for_figures_is_told() -> None:
    with pytest.raises(ValueError, match="no lines"):
        with_figures("# A text", OVERHEAD)


def test_a_draft_is_judged_at_its_longest_prompt() -> None:
    aims = report_sections.draft(DRAFT).aims
    assert [aim.met for aim in aims] == [True, True]
    assert all("32,768 tokens" in aim.wanted for aim in aims)


def test_what_was_foretold_is_judged() -> None:
    turns = [
        {"shape": "quick", "regret": regret, "reading": reading}
        for regret, reading in ((1.0, "sparse"), (1.0, "sparse"), (1.4, "dense"))
    ]
    figures = {
        "machine": "a machine",
        "error": 0.1,
        "error_p90": 0.3,
        "within": 2 / 3,
        "crossing": {"quick": 900, "close": None},
        "turns": [*turns, {"shape": "close", "regret": 1.0, "reading": "dense"}],
    }
    section = report_sections.planner(figures)
    assert [aim.met for aim in section.aims] == [True, False]
    assert "| quick | 3 | 2 | 1.00 (1.00 to 1.40) | 900 |" in section.table
    assert "| close | 1 | 0 | 1.00 (1.00 to 1.00) | never |" in section.table


def of(**figures: Any) -> dict[str, Measured]:
    return {name: Measured(f"specchat bench {name}", found) for name, found in figures.items()}


def test_every_section_has_its_command_and_table_or_says_what_makes_it() -> None:
    text, pictures = report(of(decode=DECODE, memory=MEMORY, ttft=TTFT), "performance")
    for entry in ENTRIES:
        assert f"## {entry.title}" in text
        assert (
            entry.name in ("decode", "memory", "ttft") or f"`{entry.command(False)}` does" in text
        )
    assert "```sh\nspecchat bench decode\n```" in text
    assert "| small | 4,096 | 800 | 100.0 (100.0 to 100.0) |" in text
    assert "Measured on a machine." in text
    assert set(pictures) == {"memory.svg", "ttft.svg", "ttft-phases.svg", "g.svg"}
    for name, picture in pictures.items():
        assert f"](performance/{name})" in text
        ElementTree.fromstring(picture)


def test_tables_have_as_many_cells_in_every_row() -> None:
    text, _ = report(of(decode=DECODE, memory=MEMORY, ttft=TTFT, snapshot=SNAPSHOT), "p")
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize(
    ("section", "figures", "met"),
    [
        (report_sections.decode, DECODE, [False, True]),
        (report_sections.memory, MEMORY, [True, False]),
        (report_sections.snapshot, SNAPSHOT, [True, False]),
    ],
)
def test_aims_are_computed(section: Any, figures: dict[str, Any], met: list[bool]) -> None:
    assert [aim.met for aim in section(figures).aims] == met


def test_what_failed_and_other_machines_are_said() -> None:
    other = Measured("specchat bench store", None, "The disk is full (exit status 1).")
    found = of(decode=DECODE, memory={**MEMORY, "machine": "another"}) | {"store": other}
    text, _ = report(found, "performance")
    assert "It failed: The disk is full (exit status 1)." in text
    assert "Measured on another." in text
    assert "Measured on a machine." in text


def test_the_same_figures_make_the_same_report() -> None:
    assert report(of(ttft=TTFT), "p") == report(of(ttft=TTFT), "p")
