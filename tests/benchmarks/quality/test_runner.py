"""The runner measures every item in every configuration, logs at once, and continues after a
stop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from app.chat.engine_session import EngineSession
from app.errors import UserError
from app.models.embedded import draft_path, target_path
from app.protocol.commands import Ask, Load
from app.protocol.options import DEFAULT_TUNING, Mode
from benchmarks.quality import results
from benchmarks.quality.results import guard_stats
from benchmarks.quality.results_log import DENSE, ReadConfig, Record, ResultsLog, code_digest
from benchmarks.quality.runner import Outcome, Runner, Status, results_name
from benchmarks.quality.settings import Scoring, Settings
from benchmarks.quality.tokens import FolderTokens
from tests.benchmarks.quality.reader import Reader

pytestmark = pytest.mark.benchmarks

TOKENS = FolderTokens(target_path())
SETTINGS = Settings(("needle-single", "count"), (1024,), (0.2, 1.0), (Scoring.BOTH,), n=4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "eval" / "results.jsonl"


def measure(
    file: Path,
    settings: Settings = SETTINGS,
    reader: Reader | None = None,
    fresh: bool = False,
    stop_at: int | None = None,
    on_progress: Callable[[Status], None] = lambda status: None,
) -> tuple[Outcome, list[Ask]]:
    """Cancels in turn `stop_at`, counted from 1, or before the first one if 0."""
    reader = reader or Reader()
    ledger = ResultsLog(file, fresh)
    session, switch = EngineSession(reader), reader.switch
    runner = Runner(session, settings, ledger, TOKENS, switch, reader.context)

    def stop(ask: Ask) -> None:
        if len(reader.asks) == stop_at:
            runner.cancel()
            reader.turn.cancel()  # the session knows the turn only after `ask`

    if stop_at is not None:
        reader.on_ask = stop
    if stop_at == 0:
        runner.cancel()
    return runner.run(on_progress), reader.asks


def test_each_item_is_read_densely_first_and_then_in_each_configuration(file: Path) -> None:
    settings = replace(SETTINGS, scorings=(Scoring.LEXICAL, Scoring.RANDOM), auto=True, n=2)
    reader = Reader()
    outcome, asks = measure(file, settings, reader)
    scored = zip(asks, reader.scorings, strict=True)
    ways = [(ask.mode, ask.keep_ratio, scoring) for ask, scoring in scored]
    first = ways[:6]
    assert first[0][0] is Mode.FULL
    assert first[1:5] == [
        (Mode.SPARSE, keep, scoring)
        for scoring in (Scoring.LEXICAL, Scoring.RANDOM)
        for keep in (0.2, 1.0)
    ]
    assert first[5] == (Mode.AUTO, 0.2, Scoring.BOTH)
    assert ways == first * 4
    assert all(ask.sampling.temperature == 0 for ask in asks)
    assert outcome.complete
    assert (outcome.done, outcome.total, len(outcome.records)) == (24, 24, 24)


def test_auto_mode_uses_the_scoring_that_the_engine_would_choose(file: Path) -> None:
    settings = replace(SETTINGS, n=1, auto=True, default=Scoring.LEXICAL)
    reader = Reader()
    outcome, asks = measure(file, settings, reader)
    scored = zip(asks, reader.scorings, strict=True)
    assert {scoring for ask, scoring in scored if ask.mode is Mode.AUTO} == {Scoring.LEXICAL}
    assert {r.scoring for r in outcome.records if r.mode == Mode.AUTO} == {"lexical"}


def test_dropped_sentences_lose_answers_depending_on_the_scoring(file: Path) -> None:
    settings = replace(SETTINGS, scorings=(Scoring.BOTH, Scoring.RANDOM), n=12)
    outcome, _ = measure(file, settings)
    cells = {(c.suite, c.scoring, c.keep): c for c in results.cells(outcome.records)}
    assert cells["needle-single", "both", 0.2].regressions == 0
    assert cells["needle-single", "both", 0.2].right == 12
    assert cells["needle-single", "random", 0.2].regressions >= 6
    assert cells["needle-single", "random", 1.0].regressions == 0
    assert all(cell.differing == 0 for cell in cells.values() if cell.keep == 1.0)
    assert cells["needle-single", "both", 0.2].read_fraction == pytest.approx(0.2, abs=0.03)
    assert cells["needle-single", "both", 0.2].ttft_ratio == pytest.approx(1 / 0.3, rel=0.1)


def test_the_guard_is_recorded(file: Path) -> None:
    outcome, _ = measure(file, replace(SETTINGS, auto=True))
    guard = guard_stats(outcome.records)
    assert guard is not None
    flagged = {row.suite: row.flagged for row in guard.suites}
    assert flagged["needle-single"] == 0
    assert 0 < flagged["count"] <= 4


def test_nothing_is_measured_twice(file: Path) -> None:
    once, _ = measure(file)
    again, asks = measure(file)
    assert asks == []
    assert again.records == once.records
    assert (again.done, again.total) == (24, 24)
    assert again.stale == 0


def test_more_items_keeps_or_suites_measure_only_new_runs(file: Path) -> None:
    measure(file)
    wider = replace(
        SETTINGS, n=5, keeps=(0.2, 0.5, 1.0), suites=("needle-single", "count", "quote")
    )
    outcome, asks = measure(file, wider)
    assert len(outcome.records) == 3 * 5 * 4
    known = 2 * 4 * 3
    assert len(asks) == len(outcome.records) - known
    fewer, asks = measure(file, replace(SETTINGS, n=2, keeps=(0.2,)))
    assert asks == []
    assert Counter(r.config for r in fewer.records) == {
        DENSE: 4,
        ReadConfig(Mode.SPARSE, 0.2, "both"): 4,
    }


class Killed(BaseException):
    """Simulates kill -9: no code catches it."""


@pytest.mark.parametrize("at", [0, 1, 5, 23])
def test_a_killed_evaluation_continues_where_it_stopped(file: Path, at: int) -> None:
    reader = Reader()

    def die(ask: Ask) -> None:
        if len(reader.asks) == at + 1:
            raise Killed

    reader.on_ask = die
    with pytest.raises(Killed):
        measure(file, reader=reader)
    outcome, asks = measure(file)
    assert len(asks) == 24 - at
    whole, _ = measure(file.with_name("other.jsonl"))
    assert outcome.records == whole.records


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_an_incomplete_last_line_is_measured_again_on_a_new_line(file: Path, cut: int) -> None:
    whole, _ = measure(file)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - cut])
    outcome, asks = measure(file)
    lost = 0 if cut == 1 else 1  # without its line's end, a record is whole
    assert len(asks) == lost
    assert set(outcome.records) == set(whole.records)
    third, asks = measure(file)
    assert asks == []
    assert third.records == outcome.records


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe\n", b"[]\n", b"7\n", b"{}\n", b'{"item": []}\n', b"\n\n"]
)
def test_invalid_lines_are_ignored(file: Path, junk: bytes) -> None:
    measure(file)
    strange = json.loads(file.read_bytes().splitlines()[0]) | {"item": ["a list"]}
    file.write_bytes(junk + json.dumps(strange).encode() + b"\n" + file.read_bytes())
    _, asks = measure(file)
    assert asks == []


def test_an_item_that_changed_is_measured_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["code"] = "before"
        if line["item"].startswith("count/1024/0"):
            line["digest"] = "other"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome, asks = measure(file)
    assert len(asks) == 3
    assert outcome.stale == 24 - 3, "what other code measured is used, and reported"


def test_failed_turns_count_as_wrong_and_are_retried(file: Path) -> None:
    def fails(ask: Ask) -> str | None:
        sparse = ask.mode is Mode.SPARSE and ask.keep_ratio == 0.2
        return "There is no memory" if sparse and "magic" in ask.messages[-1].text else None

    outcome, _ = measure(file, reader=Reader(on_ask=fails))
    cell = next(c for c in results.cells(outcome.records) if c.suite == "needle-single")
    assert (cell.n, cell.right, cell.failed, cell.regressions) == (4, 0, 4, 4)
    sentences = results.failures(outcome.records)
    assert sentences == {"Something went wrong inside specchat (There is no memory): try again.": 4}
    outcome, asks = measure(file)
    assert len(asks) == 4
    assert results.failures(outcome.records) == {}


def test_a_cancel_before_the_first_turn_asks_nothing(file: Path) -> None:
    outcome, asks = measure(file, stop_at=0)
    assert (outcome.records, asks, outcome.complete) == ((), [], False)


def test_after_a_stop_the_table_has_earlier_results(file: Path) -> None:
    whole, _ = measure(file)
    outcome, asks = measure(file, replace(SETTINGS, keeps=(0.2, 0.5, 1.0)), stop_at=2)
    assert len(asks) == 2
    assert set(whole.records) < set(outcome.records)
    assert len(outcome.records) == len(whole.records) + 1


def test_items_longer_than_the_context_are_skipped_with_a_reason(file: Path) -> None:
    settings = replace(SETTINGS, lengths=(1024, 2048))
    outcome, asks = measure(file, settings, Reader(context=1500))
    assert {record.length for record in outcome.records} == {1024}
    assert len(asks) == outcome.done == outcome.total == 24
    assert [sentence.split(":")[0] for sentence in outcome.skipped] == [
        "needle-single at 2,048 tokens",
        "count at 2,048 tokens",
    ]
    assert all("4 of 4 items skipped" in sentence for sentence in outcome.skipped)
    assert all("1,500" in sentence for sentence in outcome.skipped)


def test_items_that_do_not_fit_a_length_are_skipped_with_a_reason(file: Path) -> None:
    settings = replace(SETTINGS, suites=("count",), lengths=(200,), n=10)
    outcome, _ = measure(file, settings)
    left = len({record.item for record in outcome.records})
    assert 0 < left < 10
    (sentence,) = outcome.skipped
    assert sentence.startswith(f"count at 200 tokens: {10 - left} of 10 items skipped, ")
    assert outcome.done == outcome.total == 3 * left


def test_progress_counts_runs_and_predicts_the_end(file: Path) -> None:
    seen: list[Status] = []
    measure(file, on_progress=seen.append)
    assert seen[0].eta is None
    assert (seen[0].done, seen[0].total) == (0, 24)
    assert [s.done for s in seen] == sorted(s.done for s in seen)
    etas = [s.eta for s in seen if s.eta is not None]
    assert etas
    assert all(eta >= 0 for eta in etas)


def _copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_results_are_separate_by_pair_seed_and_wording(tmp_path: Path) -> None:
    target = _copy(target_path(), tmp_path / "target")
    load = Load(str(target), str(draft_path()))
    name = results_name(load, SETTINGS)
    assert name == results_name(Load(str(target_path()), str(draft_path())), SETTINGS)
    free = [
        replace(SETTINGS, suites=("quote",), lengths=(2048,), keeps=(0.5,), n=7, auto=True),
        replace(SETTINGS, tunings=(replace(DEFAULT_TUNING, chunk=16),)),
    ]
    assert {results_name(load, settings) for settings in free} == {name}
    others = [
        replace(SETTINGS, seed=1),
        replace(SETTINGS, held_out=True),
    ]
    names = {results_name(load, settings) for settings in others}
    config = target / "config.json"
    config.write_text(config.read_text() + " ")
    names.add(results_name(load, SETTINGS))
    names.add(results_name(Load(str(target_path())), SETTINGS))
    assert len(names - {name}) == 4


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "eval").write_text("a file where a folder should be")
    with pytest.raises(UserError, match="cannot be written"):
        ResultsLog(tmp_path / "eval" / "results.jsonl")


def test_a_record_is_on_disk_before_the_next_run(file: Path) -> None:
    lines: list[int] = []

    def look(ask: Ask) -> None:
        lines.append(len(file.read_bytes().splitlines()))

    measure(file, reader=Reader(on_ask=look))
    assert lines == list(range(24))
    assert Record(**json.loads(file.read_bytes().splitlines()[0])).mode == "full"


# -------------------------------------------------------------------------------------- chats

CHAT = Settings(("recall",), (1024,), (0.2,), (Scoring.BOTH,), n=4)


def test_the_turns_of_a_chat_are_really_asked_one_after_the_other(file: Path) -> None:
    outcome, asks = measure(file, CHAT)
    dense, sparse = ([a for a in asks if a.mode is mode] for mode in (Mode.FULL, Mode.SPARSE))
    assert [len(ask.messages) for ask in dense] == [1, 3, 5, 7, 9]
    assert [len(ask.messages) for ask in sparse] == [1, 3, 5, 7, 9]
    for own in (dense, sparse):
        assert len({ask.conversation for ask in own}) == 1
        for before, after in pairwise(own):
            assert after.messages[: len(before.messages)] == before.messages
        assert len({ask.messages[-1].text for ask in own}) == 5
    assert dense[0].conversation != sparse[0].conversation
    assert [r.case for r in outcome.records if r.mode == "full"] == [f"turn {t}" for t in "2345"]


def test_a_chat_goes_on_where_it_was_stopped(file: Path) -> None:
    first, _ = measure(file, replace(CHAT, n=2))
    both, asks = measure(file, CHAT)
    assert both.records[: len(first.records)] == first.records
    assert [len(ask.messages) for ask in asks if ask.mode is Mode.FULL] == [1, 3, 5, 7, 9]
    assert len(both.records) == 8


def test_an_item_that_is_no_chat_leaves_nothing_for_the_next(file: Path) -> None:
    _, asks = measure(file)
    assert {ask.conversation for ask in asks} == {None}


def test_the_code_of_results_is_all_that_affects_them_and_nothing_that_only_reports(
    tmp_path: Path,
) -> None:
    quality = "benchmarks/quality"
    names = ("app/engine/turn/turn.py", "app/protocol/options.py")
    names += (f"{quality}/words.toml", f"{quality}/results.py")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    changed = {}
    for name in names:
        before = code_digest(tmp_path)
        (tmp_path / name).write_text("2")
        changed[name] = code_digest(tmp_path) != before
    assert [*changed.values()] == [True, True, True, False]
