"""Questions about real documents: excerpts with the answer, and their records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.engine_session import EngineSession
from app.engine.engine import MlxEngine
from app.engine.scorers import attention
from app.engine.scorers.scorer import ScoringError
from app.errors import UserError
from app.models.embedded import draft_path, target_path
from app.protocol.commands import Ask, CachePolicy, Load
from app.protocol.events import Event, Selected
from app.protocol.options import DEFAULT_TUNING, BackgroundPolicy, Mode
from app.protocol.prompt import Document, Message, Role, Span, SpanReason, SpanText
from benchmarks.quality import real_documents, runner
from benchmarks.quality.real_documents import BRIEF, TURNS, Corpus, Fact, facts_of, kind_of
from benchmarks.quality.report import _passage_table, _real_table
from benchmarks.quality.results import RealCell, real_cells, sparse_cells, wilson
from benchmarks.quality.results_log import Record, ResultsLog
from benchmarks.quality.runner import Runner, item_keys, share_selected
from benchmarks.quality.settings import Scoring, ScoringSwitch, Settings
from benchmarks.quality.suites import (
    ANSWER,
    ANSWERED,
    CONVERSATION,
    HELD_OUT,
    PASSAGE,
    PASSAGE_KINDS,
    REAL,
    REWORDED,
    TUNED_ON,
    DoesNotFit,
    passage_suites,
)
from benchmarks.quality.tasks import Check, is_correct
from benchmarks.quality.tokens import FolderTokens

pytestmark = pytest.mark.benchmarks

TOKENS = FolderTokens(target_path())
FACTS = facts_of(REAL)
ASKED_IN_OTHER_WORDS = sorted({*HELD_OUT, *TUNED_ON} - {*passage_suites(*PASSAGE_KINDS)})
FILLER = "Between two facts nothing is said that anybody could ask about. "


def documents(filler: int, facts: Sequence[Fact] = FACTS) -> tuple[Document, ...]:
    """Substitutes for the real documents: every passage, each followed by `filler` sentences."""
    texts: dict[str, str] = {}
    for fact in facts:
        passage = fact.passage.replace(" ", "\n", 1)
        texts[fact.document] = texts.get(fact.document, "") + f"{passage}. {FILLER * filler}"
    return tuple(Document(f"texts/{name}", text) for name, text in texts.items())


SHORT, LONG = documents(2), documents(40)
UPKEEP = CachePolicy(BackgroundPolicy.OFF)


def words(text: str) -> set[str]:
    """Prefixes of long words, and pairs of Chinese characters."""
    alphabetic = re.findall(r"[^\W\d_]{4,}", text.lower())
    chinese = re.findall(r"(?=([\u4e00-\u9fff]{2}))", text)
    return {word[:6] for word in alphabetic if not "\u3040" <= word[0] <= "\u9fff"} | set(chinese)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.question[:40])
def test_facts_have_consistent_answers_and_wordings(fact: Fact) -> None:
    assert is_correct(fact.answer, fact.expected, Check.HOLDS_ANY)
    assert any(each.casefold() in fact.passage.casefold() for each in fact.expected)
    assert words(fact.question) & words(fact.passage), "in the document's own words"
    assert not words(fact.reworded) & words(fact.passage), "in other words"
    assert not is_correct(fact.reworded, fact.expected, Check.HOLDS_ANY)


FUNCTION_WORDS = words(
    "also does from into should that them they this were where which with"
    " dass eine gegen kann nicht noch sein sich sind unter avant avec dans leurs pour sans"
)


@pytest.mark.parametrize("suite", passage_suites(*PASSAGE_KINDS))
def test_held_out_facts_share_words_with_their_passage_unless_reworded(suite: str) -> None:
    """Reworded: at most one in ten may share a word, such as a foreign function word."""
    facts = facts_of(suite)
    assert len({fact.passage for fact in facts}) == len(facts) >= 25
    shared = 0
    for fact in facts:
        assert fact.answer
        question = fact.reworded if suite.endswith(REWORDED) else fact.question
        shared += bool(words(question) & words(fact.passage) - FUNCTION_WORDS)
    share = shared / len(facts)
    assert share <= 0.1 if suite.endswith(REWORDED) else share >= 0.9


@pytest.mark.parametrize("suite", ASKED_IN_OTHER_WORDS)
def test_questions_are_asked_once(suite: str) -> None:
    facts = facts_of(suite)
    assert len(facts) >= 40
    assert len({(fact.question, fact.passage) for fact in facts}) == len(facts)
    follows = suite.endswith(("followup", "change"))
    for fact in facts:
        assert fact.answer
        assert not fact.reworded
        assert bool(fact.before) == bool(fact.earlier) == follows


FEWEST_ANSWERS = {"english": 50, "code": 30, "logs": 35, "tables": 45, "followup": 30}


@pytest.mark.parametrize("suite", ANSWERED)
def test_expected_answers_can_be_judged_and_are_not_in_the_question(suite: str) -> None:
    facts = facts_of(suite)
    assert len(facts) >= FEWEST_ANSWERS.get(kind_of(suite), 12)
    assert len({(fact.question, fact.passage) for fact in facts}) == len(facts)
    for fact in facts:
        assert is_correct(fact.answer, fact.expected, Check.HOLDS_ANY), fact.question
        asked = (fact.question, fact.reworded, *(text for turn in fact.before for text in turn))
        for text in asked:
            assert not is_correct(text, fact.expected, Check.HOLDS_ANY), text


@pytest.mark.parametrize("suite", ["answer-followup", "answer-code-reworded"])
def test_an_answer_is_asked_for_on_the_excerpt_of_the_passage(suite: str) -> None:
    passage_suite = suite.replace(ANSWER, PASSAGE)
    every, asked = facts_of(passage_suite), facts_of(suite)
    texts: dict[str, str] = {}
    for fact in every:
        part = f"{fact.earlier}. {FILLER * 9}{fact.passage}. {FILLER * 20}"
        texts[fact.document] = texts.get(fact.document, "") + part
    corpus = Corpus([Document(name, text) for name, text in texts.items()], TOKENS)
    assert 0 < len(asked) < len(every)
    for index in (0, 7, len(asked) - 1):
        item = corpus.item(suite, index, 2000, 3)
        same = corpus.item(passage_suite, every.index(asked[index]), 2000, 3)
        assert item.expected
        assert item.messages[0] == Message(Role.SYSTEM, BRIEF)
        assert item.messages[1:] == same.messages
        assert (item.document, item.passages) == (same.document, same.passages)


def test_tuning_leaves_the_held_out_documents_alone() -> None:
    tuned_on = {fact.document for suite in TUNED_ON for fact in facts_of(suite)}
    held_out = {fact.document for suite in HELD_OUT for fact in facts_of(suite)}
    assert not tuned_on & held_out


def test_documents_alternate() -> None:
    names = [fact.document for fact in FACTS]
    assert len(set(names[:4])) == 4
    assert set(Counter(names).values()) == {len(FACTS) // 4}


@pytest.mark.parametrize(("files", "length"), [(LONG, 500), (LONG, 2000), (SHORT, 2000)])
def test_an_excerpt_has_its_length_and_the_passage(
    files: tuple[Document, ...], length: int
) -> None:
    corpus = Corpus(files, TOKENS)
    corpus.check([REAL])
    depths = []
    for index, fact in enumerate(FACTS):
        item = corpus.item(REAL, index, length, 0)
        ((start, end),) = item.passages
        text = item.document.text
        assert text[start:end].split() == fact.passage.split()
        assert TOKENS.count(text) == pytest.approx(length - TOKENS.count(item.question), abs=60)
        depths.append(start / len(text))
        other = corpus.item(REAL + REWORDED, index, length, 0)
        assert (item.question, other.question) == (fact.question, fact.reworded)
    assert min(depths) < 0.3
    assert max(depths) > 0.7


def test_an_item_has_the_turns_before_it_and_what_they_were_about() -> None:
    suite = "dev-followup"
    facts = facts_of(suite)
    texts: dict[str, str] = {}
    for fact in facts[:8]:
        part = f"{fact.earlier}. {FILLER * 20}{fact.passage}. {FILLER * 60}"
        texts[fact.document] = texts.get(fact.document, "") + part
    corpus = Corpus([Document(name, text) for name, text in texts.items()], TOKENS)
    for index, fact in enumerate(facts[:4]):
        item = corpus.item(suite, index, 1500, 0)
        ((question, answer),) = fact.before
        assert [message.text for message in item.messages] == [question, answer, fact.question]
        assert fact.earlier in item.document.text
        ((start, end),) = item.passages
        assert item.document.text[start:end] == fact.passage


def test_several_passages_are_asked_about_at_once() -> None:
    suite = "passage-several"
    facts = {fact.question: fact for fact in facts_of(suite)}
    corpus = Corpus(documents(40, list(facts.values())), TOKENS)
    corpus.check([suite])
    others = set()
    for index in range(12):
        item = corpus.item(suite, index, 3000, 0)
        text = item.document.text
        found = [text[start:end] for start, end in item.passages]
        asked = [next(q for q, f in facts.items() if f.passage.split() == t.split()) for t in found]
        assert item.question == " ".join(asked)
        assert len(set(asked)) == 2
        others.add(asked[1])
        reworded = corpus.item(suite + REWORDED, index, 3000, 0)
        assert reworded.question == " ".join(facts[q].reworded for q in asked)
        one = (SpanText(0, 0, 0, *item.passages[0]),)
        spans = (Span(0, 1, SpanReason.IMPORTANT, 1.0),)
        selected = Selected(1, 0.5, 1, 2, spans, one)
        share = share_selected(selected, item)
        assert share is not None
        assert 0 < share < 1, "only one of the two"
    assert len(others) > 6
    with pytest.raises(DoesNotFit, match="no other passage"):
        corpus.item(suite, 0, 100, 0)


def test_an_item_is_the_same_for_the_same_seed() -> None:
    one, again = (Corpus(LONG, TOKENS) for _ in range(2))
    assert one.item(REAL, 11, 500, 7) == again.item(REAL, 11, 500, 7)
    assert one.item(REAL, 11, 500, 7) != one.item(REAL, 11, 500, 8)
    further = one.item(REAL, 11 + len(FACTS), 500, 7)
    assert further.question == one.item(REAL, 11, 500, 7).question
    assert further.document != one.item(REAL, 11, 500, 7).document


def test_items_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DoesNotFit, match="the documents have only"):
        Corpus(SHORT, TOKENS).item(REAL, 0, 1_000_000, 0)
    with pytest.raises(DoesNotFit, match="its passage alone takes"):
        Corpus(LONG, TOKENS).item(REAL, 0, 60, 0)


def test_missing_or_different_documents_are_refused() -> None:
    with pytest.raises(UserError, match=r"is missing: fetch .* `make real-texts`"):
        Corpus(LONG[1:], TOKENS).check([REAL])
    other = replace(LONG[0], text="Something else.")
    with pytest.raises(UserError, match="differs"):
        Corpus((other, *LONG[1:]), TOKENS).check([REAL])


def measured(settings: Settings, folder: Path) -> tuple[tuple[Record, ...], int]:
    """Records by the demo pair, and the number of turns."""
    switch, asked = ScoringSwitch(), 0
    log = ResultsLog(folder / "results.jsonl")
    with EngineSession(MlxEngine(choose_scorer=switch), UPKEEP) as session:
        session.load(Load(str(target_path()), str(draft_path())))
        run = session.run

        def counted(ask: Ask) -> Iterator[Event]:
            nonlocal asked
            asked += 1
            return run(ask)

        session.run = counted  # type: ignore[method-assign]
        outcome = Runner(session, settings, log, TOKENS, switch).run()
    assert outcome.complete
    return outcome.records, asked


def test_the_passage_and_the_answer_are_measured(tmp_path: Path) -> None:
    settings = Settings((REAL,), (500,), (0.1, 1.0), (Scoring.LEXICAL,), n=2, files=LONG)
    records, _ = measured(settings, tmp_path)
    by_keep = {
        (record.item, record.keep if record.mode == Mode.SPARSE else None): record
        for record in records
    }
    for index in range(2):
        dense, some, everything = (by_keep[f"real/500/{index}", k] for k in (None, 0.1, 1.0))
        assert dense.passage is None
        assert everything.passage == 1.0
        assert some.passage is not None
        assert dense.answer == everything.answer
        assert not any(record.failed for record in (dense, some, everything))


def test_stored_answers_are_judged_again_when_what_is_expected_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings((REAL,), (500,), (0.1,), (Scoring.LEXICAL,), n=1, files=LONG)
    before, _ = measured(settings, tmp_path)
    answer = next(record.answer for record in before if record.mode == Mode.SPARSE)
    monkeypatch.setattr(runner, "code_digest", lambda: "other")
    for expected in ("nobody would say this", " ".join(answer.split()[:3])):
        corrected = (replace(FACTS[0], expected=(expected,)), *FACTS[1:])
        monkeypatch.setattr(real_documents, "facts_of", lambda suite, facts=corrected: facts)
        again, asked = measured(settings, tmp_path)
        (sparse,) = (record for record in again if record.mode == Mode.SPARSE)
        assert asked == 0
        assert sparse.right == (expected in " ".join(answer.split()))


def test_passages_are_found_without_an_answer_and_as_with_one(tmp_path: Path) -> None:
    keeps, scorings = (0.1, 0.3), (Scoring.BOTH, Scoring.LEXICAL)
    tunings = (replace(DEFAULT_TUNING, read_on=0.0),)
    settings = Settings((PASSAGE, REAL), (500,), keeps, scorings, n=2, tunings=tunings, files=LONG)
    records, asked = measured(settings, tmp_path)
    found = {
        (record.suite, record.item[-1], record.scoring, record.keep): record
        for record in records
        if record.mode == Mode.SPARSE
    }
    assert len(found) == 2 * 2 * 2 * 2
    for (_, *rest), record in found.items():
        assert record.passage == found[REAL, *rest].passage
        assert record.read_fraction == pytest.approx(found[REAL, *rest].read_fraction, abs=1e-5)
    assert asked == 2 * (2 + 5)
    assert {cell.suite for cell in sparse_cells(records)} == {REAL}
    assert [cell.n for cell in real_cells(records)] == [2] * 8


def test_a_draft_that_cannot_score_finds_no_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ScoringError("it cannot")

    monkeypatch.setattr(attention, "score_by_attention", fail)
    settings = Settings((PASSAGE,), (500,), (0.1, 0.3), (Scoring.BOTH,), n=1, files=LONG)
    records, _ = measured(settings, tmp_path)
    assert [record.passage for record in records] == [None, None]
    assert all(record.fallback for record in records)


def record(item: int, mode: Mode, **values: object) -> Record:
    scoring = "both" if mode is Mode.SPARSE else ""
    base = Record(f"real/500/{item}", "", "", REAL, "", 500, str(mode), 0.1, scoring)
    return replace(base, **values)  # type: ignore[arg-type]


def test_cells_summarise_passages_and_agreement() -> None:
    records = [
        record(0, Mode.FULL, tokens="a"),
        record(0, Mode.SPARSE, tokens="a", passage=1.0),
        record(1, Mode.FULL, tokens="b"),
        record(1, Mode.SPARSE, tokens="c", passage=0.4),
        record(2, Mode.FULL, tokens="b"),
        record(2, Mode.SPARSE, failed="No.", passage=1.0),
    ]
    (cell,) = real_cells(records)
    assert cell.n == 2
    assert cell.passage.share == 0.5
    assert cell.agreed is not None
    assert cell.agreed.share == 0.5
    (alone,) = real_cells([each for each in records if each.mode == Mode.SPARSE])
    assert (alone.n, alone.agreed) == (2, None)


def test_the_report_has_the_table_of_real_documents() -> None:
    cell = RealCell(PASSAGE, 500, "both", 0.1, 4, wilson(3, 4), None)
    answered = replace(cell, suite=REAL, agreed=wilson(1, 4))
    rows = _real_table((answered, cell)).plain().splitlines()
    expected = "real both 500 0.1 4 75.0 30–95 25.0"
    assert rows[-2].split() == expected.split()
    assert rows[-1].split() == ["passage", "both", "500", "0.1", "4", "75.0", "30–95"]
    more = replace(cell, keep=0.2, passage=wilson(4, 4))
    other = replace(cell, suite="dev-code", n=2, passage=wilson(1, 2))
    head, *_, first, second = _passage_table((cell, more, other)).plain().splitlines()
    assert head.split() == ["suite", "scoring", "length", "n", "0.1", "0.2"]
    assert first.split() == ["passage", "both", "500", "4", "75.0", "100.0"]
    assert second.split() == ["dev-code", "both", "500", "2", "50.0"]


def test_no_held_out_question_is_asked_twice() -> None:
    suites = (PASSAGE, "dev-code", "answer-code")
    settings = Settings(suites, (500,), (0.1,), (Scoring.LEXICAL,), n=100)
    asked = Counter(key.suite for key in item_keys(settings))
    once = {suite: len(facts_of(suite)) for suite in suites[1:]}
    assert asked == {PASSAGE: 100, **once}


def test_turns_of_a_conversation_share_a_document_with_all_answers() -> None:
    corpus = Corpus(documents(40, facts_of(CONVERSATION)), TOKENS)
    turns = [corpus.item(CONVERSATION, index, 3000, 0) for index in range(2 * TURNS)]
    first, second = turns[:TURNS], turns[TURNS:]
    for talk in (first, second):
        assert len({item.document for item in talk}) == len({item.chat for item in talk}) == 1
        assert [len(item.before) for item in talk] == list(range(TURNS))
        assert len({item.question for item in talk}) == TURNS
        assert all(item.expected for item in talk)
        document = " ".join(talk[0].document.text.split())
        for fact in facts_of(CONVERSATION)[:TURNS] if talk is first else ():
            assert " ".join(fact.passage.split()) in document
    assert first[0].document != second[0].document
    assert {item.case for item in first} == {"turns 1 to 5", "turns 6 to 10", "turns 11 to 15"}
