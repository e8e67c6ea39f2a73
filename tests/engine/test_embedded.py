"""The demo pair end to end finds the answers; a broken scorer does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from app.chat.conversation import Conversation, Question
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import FILE, QUESTION
from app.cli.demo import KEEP
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager
from app.engine.pair_loader import load_pair
from app.engine.scorers import attention, choice
from app.engine.turn.calibration import _random_prompt
from app.engine.turn.costs import first_costs
from app.engine.turn.quotation import CANDIDATES, NOTHING_FOUND, PASSAGES_FOUND
from app.engine.turn.turn_estimate import TurnEstimate
from app.protocol.commands import Ask
from app.protocol.events import Finished, Selected
from app.protocol.options import DEFAULT_TUNING, Mode, Sampling, Tuning
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason, Reading, Statistics
from app.util.assets import assets_path
from tests.tables import table

SENTENCE = (
    '"patent license" is any express agreement or commitment, however denominated, not to enforce a'
    " patent (such as an express permission to practice a patent or covenant not to sue for patent"
    " infringement)."
)

LINK = "Can I link with the Affero license?"
VIOLATION = "How many days do I have to fix a violation?"


@pytest.fixture(scope="module")
def session() -> Iterator[EngineSession]:
    with EngineSession() as session:
        session.load(resolve_pair())
        yield session


@pytest.fixture(scope="module")
def licence() -> Document:
    return Document(FILE, (assets_path() / "demo" / FILE).read_text(encoding="utf-8"))


def _answer(
    session: EngineSession, question: Question, tuning: Tuning = DEFAULT_TUNING
) -> tuple[Finished, Statistics, list[Any]]:
    ask = replace(Conversation().start_turn(question)[1], tuning=tuning)
    events = list(session.run(ask))
    finished = events[-1]
    assert finished.statistics is not None
    return finished, finished.statistics, events


def test_the_search_for_a_quotation_is_part_of_the_forecast() -> None:
    """Scoring is timed including the search."""
    quotes = load_pair(resolve_pair())
    writes = replace(quotes, only_quotes=False)
    costs, others = first_costs(quotes), first_costs(writes)
    assert costs.draft.per_token > 1.5 * others.draft.per_token
    assert costs.sparse == others.sparse


def test_a_prompt_too_long_for_the_draft_alone_is_predicted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The built-in scorer adds its own share, and not that of the search for a quotation again."""
    pair = replace(load_pair(resolve_pair()), dense_only=None)
    ask = Ask((Message(Role.USER, QUESTION),), Mode.SPARSE, KEEP)
    costs = first_costs(pair)
    cache, prompt = ConversationCache(pair), _random_prompt(8_000, 4_000)
    estimate = TurnEstimate(pair, ask, prompt, cache, cast(MemoryManager, None))
    alone = estimate.predict_ttft(costs).sparse
    monkeypatch.setattr(choice, "ALONE_UP_TO", 1_000)
    both = estimate.predict_ttft(costs).sparse
    assert alone is not None
    assert both is not None
    assert 1.2 * alone < both < 2.2 * alone


def _flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (slice(-11000, None), 2500),
        pytest.param(slice(None), 8000, marks=pytest.mark.benchmarks),
    ],
)
def test_the_demo_quotes_the_right_sentence_at_keep_0_2(
    session: EngineSession, licence: Document, part: slice, tokens: int
) -> None:
    document = replace(licence, text=licence.text[part])
    finished, statistics, events = _answer(
        session, Question(QUESTION, (document,), Mode.SPARSE, KEEP)
    )
    assert SENTENCE in _flat(finished.text)
    assert finished.finish_reason is FinishReason.STOP
    assert statistics.reading is Reading.SPARSE
    assert statistics.prompt_tokens > tokens
    assert statistics.read_fraction <= 0.3
    selected = next(e for e in events if isinstance(e, Selected))
    read = "".join(document.text[t.start : t.end] for t in selected.texts)
    assert "any express agreement or commitment" in _flat(read)


@table("known", [True, False])
@table("question", [QUESTION, LINK, "Who painted the ceiling of the chapel?"])
def test_a_quote_that_was_cut_off_continues_exactly(
    session: EngineSession, licence: Document, question: str, known: bool
) -> None:
    asked = Question(question, (replace(licence, text=licence.text[-11_000:]),), Mode.SPARSE, KEEP)
    whole, _, _ = _answer(session, asked)
    for length in (7, 20):
        ask = Conversation(sampling=Sampling(length)).start_turn(asked)[1]
        (*_, first) = session.run(ask)
        assert first.finish_reason is FinishReason.LENGTH
        ids = first.generated_ids if known else None
        begun = Message(Role.ASSISTANT, first.text, token_ids=ids)
        sampling = replace(ask.sampling, max_tokens=2_000)
        (*_, rest) = session.run(
            replace(ask, messages=(*ask.messages, begun), sampling=sampling, conversation=None)
        )
        assert (rest.text, rest.finish_reason) == (whole.text, FinishReason.STOP)


@pytest.mark.benchmarks
def test_the_first_token_comes_sooner_than_with_dense_reading(
    writer: EngineSession, licence: Document
) -> None:
    """It was six times sooner at a quarter of the text, far beyond noise."""
    quarter = Document(FILE, licence.text[-len(licence.text) // 4 :])
    _, sparse, _ = _answer(writer, Question(QUESTION, (quarter,), Mode.SPARSE, KEEP))
    _, full, _ = _answer(writer, Question(QUESTION, (quarter,), Mode.FULL))
    assert full.prompt_tokens > 2000
    assert full.read_fraction == 1.0
    assert sparse.ttft < full.ttft
    assert sparse.peak_bytes < full.peak_bytes


def _others(licence: Document) -> list[tuple[str, str]]:
    """Unique phrases from all parts of the text, with the rest of their sentences."""
    text = licence.text
    found = []
    for start in range(2000, len(text) - 1500, 2400):
        match = re.compile(r"\b\w+ \w+ \w+ \w+\b").search(text, start)
        if match and text.count(match[0]) == 1:
            found.append((match[0], _flat(text[match.start() : match.end() + 60])))
    return found


@pytest.mark.benchmarks
@pytest.mark.parametrize("every", [1, 2])
def test_most_other_passages_are_found_too(
    writer: EngineSession, licence: Document, every: int
) -> None:
    asked = _others(licence)[::every]
    assert len(asked) >= 10 // every
    right = 0
    for phrase, continued in asked:
        question = Question(f'What does it say of "{phrase}"?', (licence,), Mode.SPARSE, KEEP)
        finished, _, _ = _answer(writer, question)
        right += _flat(finished.text)[: len(continued) - 20] == continued[:-20]
    assert right >= 0.5 * len(asked)


SENTENCE_END = re.compile(r"[.?!](?=\s|$)|(?=\n[ \t]*\n)|$")


def _whole_sentence_kept(events: list[Any], text: str, phrase: str) -> bool:
    """Whether the last selection contains everything from a phrase to the end of its sentence."""
    start = text.index(phrase)
    match = SENTENCE_END.search(text, start + len(phrase))
    selected = [e for e in events if isinstance(e, Selected)][-1]
    return any(place.start <= start and match.end() <= place.end for place in selected.texts)


@pytest.mark.benchmarks
def test_adjacent_chunks_keep_sentences_complete(writer: EngineSession, licence: Document) -> None:
    complete: dict[float, list[bool]] = {0.0: [], DEFAULT_TUNING.neighbours: []}
    for phrase, _ in _others(licence):
        for share, whole in complete.items():
            question = Question(f'What does it say of "{phrase}"?', (licence,), Mode.SPARSE, KEEP)
            tuning = replace(DEFAULT_TUNING, neighbours=share)
            _, _, events = _answer(writer, question, tuning)
            whole.append(_whole_sentence_kept(events, licence.text, phrase))
    shares = {share: sum(whole) / len(whole) for share, whole in complete.items()}
    print(
        f"\nsentences read whole at keep {KEEP}, by neighbours: {shares}, n = {len(complete[0.0])}"
    )
    assert shares[DEFAULT_TUNING.neighbours] >= 0.9
    assert shares[DEFAULT_TUNING.neighbours] > shares[0.0]


@pytest.mark.parametrize(
    "mode", [Mode.SPARSE, pytest.param(Mode.FULL, marks=pytest.mark.benchmarks)]
)
def test_the_embedded_pair_answers_from_the_selected_sentence(
    session: EngineSession, licence: Document, mode: Mode
) -> None:
    short = Document(licence.name, licence.text[-14000:])
    finished, statistics, events = _answer(session, Question(LINK, (short,), mode))
    assert finished.text in short.text
    assert "permission to link or combine" in finished.text
    assert statistics.generated_tokens > 20
    assert statistics.confidence is None, "it did not choose the words"
    for selected in [event for event in events if isinstance(event, Selected)]:
        start = short.text.index(finished.text)
        assert any(t.start <= start and start + 20 <= t.end for t in selected.texts)


@pytest.mark.parametrize(
    "part", [slice(18500, 25500), pytest.param(slice(None), marks=pytest.mark.benchmarks)]
)
def test_the_embedded_pair_shows_candidates_if_no_passage_clearly_answers(
    session: EngineSession, licence: Document, part: slice
) -> None:
    document = replace(licence, text=licence.text[part])
    finished, _, events = _answer(session, Question(VIOLATION, (document,), Mode.SPARSE))
    introduction, *candidates = re.split(
        r"\n\n\d\. gpl-3.0.txt, lines [\d,]+ to [\d,]+:\n\n", finished.text
    )
    assert introduction == PASSAGES_FOUND
    assert len(candidates) == CANDIDATES
    assert any("30 days after" in _flat(each) for each in candidates)
    (selected,) = [event for event in events if isinstance(event, Selected)]
    for each in candidates:
        start = document.text.index(each)
        assert any(t.start <= start and start + len(each) <= t.end for t in selected.texts)


def test_the_embedded_pair_reports_that_it_found_nothing(
    session: EngineSession, licence: Document
) -> None:
    short = Document(licence.name, licence.text[:3000])
    question = Question("Which whales live in the Arctic?", (short,), Mode.FULL)
    assert _answer(session, question)[0].text == NOTHING_FOUND


def test_a_broken_scorer_finds_nothing(
    writer: EngineSession, licence: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random importance misses the sentence, so the tests above would fail."""

    def at_random(model: Any, prefix: Any, ids: Any, *_: Any, **__: Any) -> Any:
        return np.random.default_rng(0).random(len(ids)).astype(np.float32)

    monkeypatch.setattr(attention, "score_by_attention", at_random)
    question = Question(QUESTION, (licence,), Mode.SPARSE, 0.05)
    finished, statistics, _ = _answer(writer, question)
    assert statistics.fallback is None
    assert SENTENCE not in _flat(finished.text)
