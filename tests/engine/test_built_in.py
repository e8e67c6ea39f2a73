"""The built-in scorer, with a target whose embeddings are random."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from numpy.typing import NDArray

from app.chat.model_pairs import resolve_pair
from app.engine.model import encoder_tokenizer, text_encoder
from app.engine.model.embeddings import (
    COMMON_DIRECTIONS,
    EmbeddingSpace,
    NoEmbeddings,
    widest_directions,
)
from app.engine.model.loader import ModelPair
from app.engine.model.text_encoder import (
    BATCH,
    STRIDE,
    TextEncoder,
    built_in_encoder,
    english_encoder,
    is_english,
    multilingual_encoder,
)
from app.engine.pair_loader import load_pair
from app.engine.scorers.built_in import (
    FADING,
    built_in_scores,
    embedding_scores,
    spread_in_paragraphs,
    trust,
    words_trust,
)
from app.engine.scorers.selection import chunk_bounds, select
from app.models.embedded import BUILT_IN, target_path
from app.protocol.commands import Ask, Load
from app.protocol.events import ImportanceMap, Loaded, PhaseProgress, Selected
from app.protocol.options import Mode
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Phase, Reading
from app.util.assets import assets_path
from tests import tiny
from tests.engine.driver import Driver, question
from tests.tables import table

LICENCE = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
SIMILAR = (
    ("How do I get my money back?", "Refunds are paid within two weeks."),
    ("The car is fast.", "This automobile reaches a high speed."),
    ("Where is the settings file stored?", "Its configuration lies in the home directory."),
    ("Who leads the company?", "The firm is headed by its chief executive."),
    ("When does it start to rain?", "Showers are expected from noon on."),
    ("Delete all old messages.", "Remove every email from last year."),
    ("The doctor saw the patient.", "A physician examined the sick man."),
    ("How large may an upload be?", "Files of up to 20 megabytes are accepted."),
)
"""Pairs of texts with nearly the same meaning and no common content word."""
TRANSLATED = (
    ("Wo werden die Einstellungen gespeichert?", "The configuration lies in the home directory."),
    ("¿Cuánto cuesta la entrega?", "Shipping is five euros."),
    ("Quand la réunion commence-t-elle?", "The board meets at nine in the morning."),
    ("Кто автор этой книги?", "The novel was written by a retired teacher."),
    ("怎样删除旧邮件？", "Messages can be removed with the Delete key."),
    ("パスワードを忘れたらどうしますか", "A forgotten password can be reset on the login page."),
)
"""Questions in other languages, and their answers in English."""
UNKNOWN_SCRIPT = "ገንዘቤን እንዴት መመለስ እችላለሁ"


ENCODERS = (english_encoder, multilingual_encoder)


def nothing(done: int, total: int) -> None:
    """Does not cancel."""


@pytest.fixture(scope="module")
def demo() -> ModelPair:
    """The demo target alone."""
    return load_pair(Load(str(target_path())))


def test_texts_with_the_same_meaning_are_close() -> None:
    encoder = english_encoder()
    sides = zip(*SIMILAR, strict=True)
    one, other = (encoder.encode_questions(side, nothing) for side in sides)
    assert np.linalg.norm(one, axis=1) == pytest.approx(np.ones(len(SIMILAR)), rel=1e-4)
    assert (np.argmax(one @ other.T, axis=1) == np.arange(len(SIMILAR))).mean() >= 0.75


def test_an_answer_in_another_language_is_close_to_its_question() -> None:
    encoder = multilingual_encoder()
    questions, answers = zip(*TRANSLATED, strict=True)
    near = encoder.encode_questions(questions, nothing) @ encoder.encode(answers, nothing).T
    assert (near.argmax(axis=1) == np.arange(len(TRANSLATED))).mean() >= 0.8


def test_pieces_cover_a_text_without_overlap() -> None:
    encoder, steps = english_encoder(), list[tuple[int, int]]()
    text = "One two three four. " * 400
    (pieces,) = encoder.encode_texts([text], lambda done, total: steps.append((done, total)))
    assert pieces.vectors.shape[0] == len(pieces.borders) - 1 == 5 * 400 // STRIDE + 1
    assert (pieces.borders[0], pieces.borders[-1]) == (0, len(text))
    assert (np.diff(pieces.borders) > 0).all()
    count = len(pieces.vectors)
    assert steps == [(min(at + BATCH, count), count) for at in range(0, count, BATCH)]
    steps.clear()
    (again,) = encoder.encode_texts([text], lambda done, total: steps.append((done, total)))
    assert again is pieces
    assert not steps, "a text that was just encoded is not encoded again"


def test_pieces_of_a_text_are_remembered_over_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, steps = english_encoder(), list[tuple[int, int]]()

    def encoded(text: str) -> NDArray[np.float32]:
        steps.clear()
        (found,) = encoder.encode_texts([text], lambda done, total: steps.append((done, total)))
        return found.vectors

    one, other = (" ".join(f"{word} {n}" for n in range(300)) for word in ("lease", "letter"))
    first = encoded(one)
    encoded(other)
    again = encoded(one)
    assert not steps, "the chats alternate"
    assert np.array_equal(first, again)
    longer = encoded(f"{one} One more sentence.")
    assert steps[-1][1] <= 2, "only the end is new"
    assert np.array_equal(longer[: len(first) - 2], first[:-2])
    monkeypatch.setattr(text_encoder, "REMEMBERED", 2)
    encoded("Something else.")
    encoded(one)
    assert steps[-1][1] == len(first)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_batch_of_long_passages_has_fewer(encoder: Callable[[], TextEncoder]) -> None:
    steps = list[tuple[int, int]]()
    passages = [" ".join(f"value{n * row % 97}" for n in range(200)) for row in range(2, 22)]
    vectors = encoder().encode(passages, lambda done, total: steps.append((done, total)))
    assert [total for _, total in steps] == [20] * len(steps)
    assert all(1 <= after - before <= 19 for (before, _), (after, _) in pairwise([(0, 0), *steps]))
    alone = [encoder().encode([each], nothing)[0] for each in passages[::7]]
    assert np.allclose(vectors[::7], alone, atol=1e-5)


def test_english_answers_load_no_multilingual_encoder() -> None:
    text_encoder.drop_built_in_encoders()
    unknown = text_encoder.encoding_bytes(None)
    built_in_encoder("Who pays?", ["The tenant pays the rent every month."])
    assert text_encoder.encoding_bytes(None) == unknown, "the other one is not loaded"
    built_in_encoder("Wer zahlt?", ["Der Mieter zahlt jeden Monat."])
    assert text_encoder.encoding_bytes(None) < unknown


LETTERS = (
    "ab Zß\u0301\u0323\u00e9\u1e9e \n\t\r\x00\x1c\x85\u200b\u00a0\u3000"
    "字。漢カ゛ก็๛🙂👩‍👩[SEP]'.-##Σς"
)
"""Characters of all kinds that the tokenizer treats differently."""


@pytest.mark.parametrize("encoder", ENCODERS)
def test_tokenising_in_parts_gives_the_same_tokens(
    encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, encoder = Random(5), encoder()
    texts = ["".join(random.choices(LETTERS, k=length)) for length in (1, 7, 90, 400, 400, 900)]
    texts += ["".join(map(chr, range(0x250))) + "x" * 300, "e\u0301 \u0301e " * 40]

    def tokens(weights: Any, shape: Any, ids: mx.array, mask: mx.array) -> mx.array:
        return mx.where(mask, ids, -1)

    monkeypatch.setattr(text_encoder, "encode", tokens)  # instead of vectors
    shares = [encoder.known_share(text) for text in texts]
    whole = [encoder.encode_texts([text], nothing, remember=False)[0] for text in texts]
    for part in (1, 5, 40):
        monkeypatch.setattr(encoder_tokenizer, "PART", part)
        assert [encoder.known_share(text) for text in texts] == shares
        for text, expected in zip(texts, whole, strict=True):
            (found,) = encoder.encode_texts([text], nothing, remember=False)
            assert np.array_equal(found.borders, expected.borders)
            assert np.array_equal(found.vectors, expected.vectors)


def test_other_threads_run_while_a_long_text_is_tokenised() -> None:
    """They wait for one part of the text at a time."""
    encoder, text, longest, done = english_encoder(), "One more word, then. " * 15000, 0.0, Event()

    def draw() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()

    drawing = Thread(target=draw)
    drawing.start()
    started_at = time.perf_counter()
    encoder.known_share(text)
    took = time.perf_counter() - started_at
    done.set()
    drawing.join()
    assert longest < took / 2


@table("encoder, text", product(ENCODERS, ["", " ", "x", "字", "🙂" * 300, "a" * 5000]))
def test_any_text_can_be_encoded(encoder: Any, text: str) -> None:
    (pieces,) = encoder().encode_texts([text], nothing, remember=False)
    assert len(pieces.borders) == len(pieces.vectors) + 1
    assert np.isfinite(pieces.vectors).all()


@table(
    "text, english, multilingual",
    [
        ("How long does a first-time offender have to put things right?", True, True),
        ("Wie lange hat man Zeit, einen Verstoß zu beheben?", False, True),
        ("Где находится файл настроек?", False, True),
        ("設定ファイルはどこにありますか", False, True),
        (UNKNOWN_SCRIPT, False, False),
        ("", False, False),
    ],
)
def test_known_share_is_high_in_an_encoders_languages_and_low_in_others(
    text: str, english: bool, multilingual: bool
) -> None:
    for encoder, knows in ((english_encoder(), english), (multilingual_encoder(), multilingual)):
        share = encoder.known_share(text)
        assert share >= 0.9 if knows else share <= 0.5


@table(
    "question, texts, english",
    [
        ("Who pays?", [], True),
        ("Who pays for a delay?", [LICENCE, LICENCE], True),
        ("Wer zahlt bei einer Verspätung?", [LICENCE], False),
        ("Who pays for a delay?", [LICENCE, "Die Verspätung zahlt der Lieferant. " * 9], False),
    ],
)
def test_the_english_encoder_is_for_english_questions_about_english_texts(
    question: str, texts: list[str], english: bool
) -> None:
    assert is_english(question, texts) is english
    expected = english_encoder() if english else multilingual_encoder()
    assert built_in_encoder(question, texts) is expected


def test_the_weight_of_meaning_follows_the_known_words() -> None:
    assert [trust(share) for share in (0, 0.5, 0.7, 0.9, 1)] == pytest.approx([0, 0, 0.5, 1, 1])


@table(
    "question, trusted",
    [
        ("What may I do with modified versions?", 1.0),
        ("Who bred these curious greyhounds?", 1.0),
        ("Was darf ich mit einer geänderten Fassung tun?", 0.15),
        ("我可以怎样使用修改后的版本？", 0.15),
        ("修正版は何に使えますか", 0.15),
        ("?", 1.0),
    ],
)
def test_words_count_little_if_the_documents_have_few_of_them(
    question: str, trusted: float
) -> None:
    documents = LICENCE[:9000], "Nothing."
    assert words_trust(question, documents) == pytest.approx(trusted)
    assert words_trust(question, ()) == 1


@pytest.mark.slow
def test_the_search_for_a_long_message_can_be_cancelled(demo: ModelPair) -> None:
    pair = demo
    text = "The ships in the harbour are old. " * 1000
    prompt = pair.prompts.build((Message(Role.USER, text, (Document("l", LICENCE[:3000]),)),))
    encoder = english_encoder()
    encoder.encode_texts([each.text for each in prompt.texts], nothing)

    class Cancelled(Exception):
        pass

    for asked, looked_for in ((3, 0), (10_000, 3)):  # counts before and after reading

        def check(done: int, total: int, left: list[int] = [asked, looked_for]) -> None:  # noqa: B006
            left[done == total] -= 1
            if min(left) < 0:
                raise Cancelled

        with pytest.raises(Cancelled):
            built_in_scores(pair.target, encoder, prompt, text, 32, check)


def test_in_unknown_languages_only_words_count(demo: ModelPair) -> None:
    pair = demo
    document = Document("l", LICENCE[:3000])
    for text, same in ((UNKNOWN_SCRIPT, True), ("What may I do with my own changes?", False)):
        prompt = pair.prompts.build((Message(Role.USER, text, (document,)),))
        target, pinned = pair.target, prompt.pinned
        found = built_in_scores(target, english_encoder(), prompt, text, 32, nothing)
        asked = prompt.ids[slice(*prompt.question)]
        words = embedding_scores(
            target.model, target.embedding_space, prompt.ids, pinned, asked, 32
        )
        assert np.array_equal(found, spread_in_paragraphs(words, prompt, 32)) is same
        assert (found[pinned] == 0).all()
        assert (found >= 0).all()


AFTER_AN_EMPTY_ANSWER = (
    Message(Role.USER, "Is there any guarantee?", (Document("gpl", LICENCE[:3000]),)),
    Message(Role.ASSISTANT, "", token_ids=(5, 6)),
    Message(Role.USER, "Who may copy it?"),
)


def test_without_a_draft_the_built_in_scorer_reads_the_text(
    driver: Driver, folders: dict[str, Path]
) -> None:
    """And the answer before, even if it is empty."""
    loaded = driver.load(folders["target"])
    assert (loaded.draft, loaded.dense_only) == (None, None)
    for messages in (question().messages, AFTER_AN_EMPTY_ANSWER):
        check_built_in(driver, replace(question(tokens=2), messages=messages))


def check_built_in(driver: Driver, ask: Ask) -> None:
    finished = driver.answer(ask)
    assert finished.statistics.fallback is None
    assert finished.statistics.reading is Reading.SPARSE
    assert driver.of(ImportanceMap)
    progress = [e for e in driver.of(PhaseProgress) if e.phase is Phase.SCORE]
    assert progress[-1].done == progress[-1].total == finished.statistics.prompt_tokens


def test_a_foreign_draft_scores_an_empty_answer(driver: Driver) -> None:
    driver.engine.send(replace(resolve_pair(), foreign_draft=True))
    driver.until(Loaded)
    ask = replace(question(Mode.SPARSE, 0.2, tokens=2), messages=AFTER_AN_EMPTY_ANSWER)
    statistics = driver.answer(ask).statistics
    assert statistics.fallback is None
    assert statistics.reading is Reading.SPARSE


def test_the_built_in_draft_is_the_default_and_has_a_name() -> None:
    target = str(target_path())
    assert resolve_pair(target).draft is None
    assert resolve_pair(target, BUILT_IN) == resolve_pair(target)
    assert resolve_pair("embedded", BUILT_IN).draft is None
    assert resolve_pair("embedded").draft is not None, "the demo target has its own"


ASKED = {
    "How long does a first-time offender have to put things right?": "prior to 30 days",
    "Must I hand over my program's text when I only change it for myself?": "without conditions",
    "Is there any guarantee that it works?": "THERE IS NO WARRANTY",
}


@pytest.mark.benchmarks
def test_without_a_draft_most_answers_are_among_what_is_read(driver: Driver) -> None:
    """The demo target has only 4 million parameters."""
    driver.engine.send(Load(str(target_path())))
    driver.until(Loaded)
    found = 0
    for text, passage in ASKED.items():
        message = Message(Role.USER, text, (Document("gpl", LICENCE),))
        check_built_in(driver, replace(question(Mode.SPARSE, 0.2, tokens=2), messages=(message,)))
        at = LICENCE.index(passage)
        texts = driver.of(Selected)[-1].texts
        found += any(t.start <= at and at + len(passage) <= t.end for t in texts)
    assert found >= 2


def test_of_two_questions_each_finds_its_own_passage(demo: ModelPair) -> None:
    questions = [question for question, _ in SIMILAR]
    between = "\n\n" + "The weather was mild and nothing else happened that day. " * 14 + "\n\n"
    document = Document("a.txt", between.join(passage for _, passage in SIMILAR))
    pair, found = demo, []
    for one, other in ((0, 7), (2, 5), (3, 6)):
        asked = f"{questions[one]} {questions[other]}"
        prompt = pair.prompts.build((Message(Role.USER, asked, (document,)),))
        chunk = 32
        scores = built_in_scores(pair.target, english_encoder(), prompt, asked, chunk, nothing)
        best = select(scores, prompt.pinned, 0.1).positions
        starts = prompt.offsets[0, 0]
        text = next(text for text in prompt.texts if text.document is not None)
        for index in (one, other):
            start = document.text.index(SIMILAR[index][1])
            token = text.first + int(np.searchsorted(starts, start, "right"))
            found.append(token in best)
    assert np.mean(found) >= 0.8


@pytest.mark.parametrize(
    ("question", "passage"),
    [
        ("And what about him?", "Captain Alvarez sailed north with two ships."),
        ("How much does a ticket to the museum cost?", "Visitors pay nine euros for the museum."),
    ],
    ids=["refers to the answer", "changes the subject"],
)
def test_a_follow_up_question_is_looked_for_with_the_answer_before_it(
    question: str, passage: str, demo: ModelPair
) -> None:
    between = "\n\n" + "The weather was mild and nothing else happened that day. " * 14 + "\n\n"
    texts = ("The harbour was built by Captain Alvarez.", passage, "The old mill burnt down.")
    document = Document("a.txt", between.join(["", *texts, ""]))
    before = (
        Message(Role.USER, "Who built the harbour?", (document,)),
        Message(Role.ASSISTANT, "Captain Alvarez."),
    )
    pair, chunk = demo, 32
    prompt = pair.prompts.build((*before, Message(Role.USER, question)))
    scores = built_in_scores(pair.target, english_encoder(), prompt, question, chunk, nothing)
    text = next(text for text in prompt.texts if text.document is not None)
    start = document.text.index(passage)
    place = np.searchsorted(text.starts, [start, start + len(passage)]) + text.first
    assert (scores > scores[slice(*place)].max()).mean() < 0.1
    answer = prompt.previous_answer
    assert answer is not None
    assert answer.text == "Captain Alvarez."


COURT = "conditions are imposed on you (whether by court order"
TALK = (
    "I am preparing a talk for colleagues in marketing who have never programmed, so avoid jargon"
    " and explain each term when it first appears. The talk takes place on Thursday afternoon in"
    " the large meeting room, there will be coffee, and about twenty people have said that they"
    " are coming. Most of them know the product from using it at home, some have read about it in"
    " a magazine, and two of them were here last year. "
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [
        "{asks}",
        "{asks} {talk}",
        "{talk} {asks}",
        "Who may publish new versions? How do I get the source? {says}",
        "Who may publish new versions? {asks} How do I get the source? {talk}",
        "Who may publish new versions? {says} {talk}",
    ],
)
def test_a_passage_is_found_whatever_else_is_asked(message: str, demo: ModelPair) -> None:
    asked = message.format(
        asks="What happens if a court says that I must not follow it?",
        says="Tell me what happens if a court says that I must not follow it.",
        talk=TALK,
    )
    pair, chunk = demo, 32
    prompt = pair.prompts.build((Message(Role.USER, asked, (Document("gpl", LICENCE),)),))
    scores = built_in_scores(pair.target, english_encoder(), prompt, asked, chunk, nothing)
    (text,) = prompt.texts
    start = LICENCE.index(COURT)
    place = np.searchsorted(text.starts, [start, start + len(COURT)]) + text.first
    better = scores > scores[slice(*place)].max()
    assert better.mean() < 0.15


ROWS, WIDTH, CHUNK = 12_000, 64, 32
TOKENS = 40 * CHUNK
QUESTION = (TOKENS, TOKENS + 3)
WORDS_ASKED = (9000, 9001, 9002)


class Embeddings(nn.Module):
    """A stand-in for a model, whose embeddings have a large common part."""

    def __init__(self, similar: dict[int, int]) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(ROWS, WIDTH)) + 20 * np.linspace(0, 1, WIDTH)
        for token, other in similar.items():
            rows[token] = rows[other] + 0.3 * rng.normal(size=WIDTH)
        self.embed_tokens = nn.Embedding(ROWS, WIDTH)
        self.embed_tokens.weight = mx.array(rows.astype(np.float32))


def prompt(holder: int, tokens: tuple[int, ...]) -> np.ndarray:
    """Random tokens with some given ones in the middle of chunk `holder`, and the question."""
    ids = np.random.default_rng(1).integers(5000, 8000, TOKENS)
    ids[holder * CHUNK + 10 : holder * CHUNK + 10 + len(tokens)] = tokens
    return np.append(ids, WORDS_ASKED).astype(np.int32)


def best_chunk(model: Any, ids: np.ndarray) -> int:
    pinned = np.zeros(len(ids), bool)
    pinned[:5] = pinned[TOKENS:] = True
    found = embedding_scores(
        model, EmbeddingSpace.of(model), ids, pinned, ids[slice(*QUESTION)], CHUNK
    )
    assert found.shape == ids.shape
    assert np.isfinite(found).all()
    assert (found[pinned] == 0).all()
    assert (found >= 0).all()
    return int((np.argmax(found) - 5) // CHUNK)  # chunks start after the pinned tokens


@table("bits", [None, 8, 4])
def test_similar_words_are_found(bits: int | None) -> None:
    """The text contains none of the question's tokens."""
    model = Embeddings({9100: 9000, 9101: 9001, 9102: 9002})
    if bits:
        nn.quantize(model, bits=bits)
    for holder in (3, 20, 38):
        found = best_chunk(model, prompt(holder, (9100, 9101, 9102)))
        assert abs(found - holder) <= 1, "it, or a neighbour, which counts as much"


def test_frequent_words_have_little_weight() -> None:
    """One chunk has the question's rare token, another its two frequent ones."""
    model = Embeddings({})
    ids = prompt(7, (9000,))
    ids[30 * CHUNK : 30 * CHUNK + 2] = (100, 101)
    ids[TOKENS:] = (100, 101, 9000)
    assert abs(best_chunk(model, ids) - 7) <= 1


@table("name", ["llama", "qwen3", "gemma3", "gpt_oss", "nemotron_h"])
def test_embeddings_are_found_in_real_architectures(name: str) -> None:
    model = tiny.build(name)
    space = EmbeddingSpace.of(model)
    found = space.vectors(model, np.arange(10, dtype=np.int32))
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(10), rel=1e-4)
    assert np.abs(found @ space.directions.T).max() < 1e-3


@table("width", [2, 16, 200])
def test_the_subspace_iteration_finds_the_leading_eigenvectors(width: int) -> None:
    rng = np.random.default_rng(3)
    spread = np.maximum(9.0 * 0.6 ** np.arange(width), 1.0)
    turned = np.linalg.qr(rng.normal(size=(width, width)))[0]
    rows = (rng.normal(size=(500, width)) * spread @ turned).astype(np.float32)
    rows -= rows.mean(axis=0)
    count = min(COMMON_DIRECTIONS, width)
    found = widest_directions(rows, COMMON_DIRECTIONS)
    assert found.shape == (count, width)
    exact = np.linalg.eigh(rows.T @ rows)[1][:, -count:]
    # Cosines between both subspaces: 1 if one contains the other's directions.
    assert np.linalg.svd(found @ exact)[1] == pytest.approx(np.ones(count), abs=1e-3)


def test_without_anything_to_score_embedding_scores_are_zero() -> None:
    model = Embeddings({})
    space = EmbeddingSpace.of(model)
    ids = prompt(3, ())
    everything = np.ones(len(ids), bool)
    assert not embedding_scores(model, space, ids, everything, ids[slice(*QUESTION)], CHUNK).any()
    nothing = np.zeros(len(ids), bool)
    assert not embedding_scores(model, space, ids, nothing, ids[:0], CHUNK).any()
    with pytest.raises(NoEmbeddings):
        EmbeddingSpace.of(nn.Linear(2, 2))


def test_importance_spreads_within_a_paragraph(demo: ModelPair) -> None:
    pair, chunk = demo, 8
    document = Document("a.txt", "\n\n".join(["one two three four five six " * 12] * 3))
    prompt = pair.prompts.build((Message(Role.USER, "Which?", (document,)),))
    text = next(text for text in prompt.texts if text.document is not None)
    importance = np.where(prompt.pinned, 0.0, 1.0).astype(np.float32)
    middle = len(document.text) // 2
    token = text.first + int(np.searchsorted(text.starts, middle, "right")) - 1
    starts, ends = chunk_bounds(prompt.pinned, chunk)
    index = int(np.searchsorted(starts, token, "right")) - 1
    importance[starts[index] : ends[index]] = 5.0
    found = spread_in_paragraphs(importance, prompt, chunk)
    assert found[starts[index]] == 5
    assert found[starts[index - 1]] == found[starts[index + 1]] == 1 + 4 * FADING
    middles = (starts + ends)[found[starts] > 1] // 2 - text.first
    assert set(text.starts[middles] * 3 // len(document.text)) == {1}
    assert (found[prompt.pinned] == 0).all()
