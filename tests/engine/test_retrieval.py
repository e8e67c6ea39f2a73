"""Retrieval chooses files for each question if the documents do not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.model import text_encoder
from app.engine.model.prompt import PromptBuilder
from app.engine.model.text_encoder import english_encoder
from app.engine.scorers.file_index import PAGE, FileIndex, Ranking, pages
from app.engine.turn.retrieval import RetrievedPrompt, Retriever, index_of
from app.protocol.commands import Ask
from app.protocol.events import Planned, Retrieved
from app.protocol.options import Mode, Sampling, min_retrieved
from app.protocol.prompt import NO_CHOICE, Document, FileChoice, Message, RetrievalReason, Role
from app.protocol.reasons import Reason, ReasonCode
from app.util.search_words import MAX_WORDS, terms
from tests import tiny
from tests.engine.driver import Driver
from tests.tables import slow, table

CONTEXT, ANSWER = 4096, 64
FILES = 30
TOPICS = ("harbour dues", "orchard pruning", "violin strings", "glacier survey", "kiln firing")


def library(files: int = FILES) -> tuple[Document, ...]:
    """Files of about 400 characters, the first ones about the topics; far too many to fit."""
    about = [
        Document(
            f"shop/{topic.split()[0]}.txt",
            f"Notes on {topic}.\nThe {topic} are settled on day {number + 3} of each month.\n"
            + "The clerk writes a line into the ledger and closes it again.\n" * 6,
        )
        for number, topic in enumerate(TOPICS)
    ]
    rest = [
        Document(
            f"shop/rest/{number:02}.txt", f"Shelf {number}.\n" + "Nothing of note here.\n" * 24
        )
        for number in range(files - len(about))
    ]
    return (*about, *rest)


@pytest.fixture(scope="module", autouse=True)
def texts_are_encoded_once() -> Iterator[None]:
    """Most tests ask about the same files, and encoding them is what takes time."""
    encode, known = text_encoder.encode, dict[Any, mx.array]()

    def encode_once(weights: Any, shape: Any, ids: mx.array, mask: mx.array) -> mx.array:
        key = id(weights), ids.shape, np.array(ids).tobytes(), np.array(mask).tobytes()
        if key not in known:
            known[key] = encode(weights, shape, ids, mask)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_encoder, "encode", encode_once)
        yield


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    return PromptBuilder(load_tokenizer(tiny.save(tmp_path_factory.mktemp("model"))))


def fit(
    builder: PromptBuilder,
    *messages: Message,
    files: FileChoice = NO_CHOICE,
    context: int = CONTEXT,
) -> RetrievedPrompt:
    retriever = Retriever(builder, context, True, lambda: None)
    return retriever.fit(messages, files, ANSWER, lambda done, total: None)


def asks(text: str, *documents: Document) -> Message:
    return Message(Role.USER, text, documents)


def names(found: RetrievedPrompt) -> list[str]:
    assert found.parts is not None
    return [part.document.name for part in found.parts]


def test_documents_that_fit_are_unchanged(builder: PromptBuilder) -> None:
    few = library(7)
    found = fit(builder, asks("On which day are the kiln firing bills settled?", *few))
    assert found.parts is None
    assert found.messages[0].in_prompt == few


@pytest.mark.slow
def test_the_file_that_the_question_is_about_is_chosen_and_the_prompt_fits(
    builder: PromptBuilder,
) -> None:
    for topic in TOPICS:
        found = fit(builder, asks(f"When are the {topic} settled?", *library()))
        assert found.parts is not None
        assert f"shop/{topic.split()[0]}.txt" in names(found)
        assert len(found.prompt.ids) + ANSWER <= CONTEXT
        part = next(p for p in found.parts if topic.split()[0] in p.document.name)
        assert part.reason is RetrievalReason.WORDS
        assert set(part.words) >= {topic.split()[0]}
        assert (found.prompt.documents.files, found.room > 1000) == (FILES, True)
        assert sum(p.tokens for p in found.parts) <= found.room
        assert found.ranked
        assert all(each.name not in names(found) for each in found.ranked)


@pytest.mark.slow
def test_the_question_at_the_end_of_a_long_message_counts(
    builder: PromptBuilder,
) -> None:
    words = [f"Zq{a}{b}x." for a in "abcdefghijkl" for b in "abcdefghijkl"]
    assert len(words) > 2 * MAX_WORDS
    talk = " ".join(words)
    for topic in TOPICS:
        found = fit(builder, asks(f"{talk} When are the {topic} settled?", *library()))
        name = topic.split()[0]
        (part,) = (p for p in found.parts or () if name in p.document.name)
        assert part.reason is RetrievalReason.WORDS
        assert name in part.words


def test_a_folder_is_not_a_file(builder: PromptBuilder) -> None:
    listed = f"A folder; {FILES} files of it follow.\n" + "harbour.txt\n" * FILES
    tree = Document("shop/", listed)
    found = fit(builder, asks("When are the harbour dues settled?", tree, *library()))
    assert "shop/" not in names(found)
    assert found.prompt.documents.files == FILES


def test_a_later_question_adds_files_and_keeps_the_earlier_ones(
    builder: PromptBuilder,
) -> None:
    first = fit(builder, asks("When are the harbour dues settled?", *library()))
    answered = (*first.messages, Message(Role.ASSISTANT, "On day 3."))
    topic = next(t for t in TOPICS if f"shop/{t.split()[0]}.txt" not in names(first))
    second = fit(builder, *answered, asks(f"And the {topic}?"))
    assert second.messages[0].retrieved == first.messages[0].retrieved
    assert f"shop/{topic.split()[0]}.txt" in names(second)
    assert not set(names(second)) & set(names(first))
    shared = len(first.prompt.ids) - len("assistant\n") - 60
    assert (second.prompt.ids[:shared] == first.prompt.ids[:shared]).all()


@pytest.mark.slow
def test_many_questions_each_get_room(builder: PromptBuilder) -> None:
    messages: tuple[Message, ...] = ()
    for number in range(7):
        topic = TOPICS[number % len(TOPICS)]
        documents = () if messages else library()
        found = fit(builder, *messages, asks(f"When are the {topic} settled?", *documents))
        assert found.parts is not None
        present = [each.name for message in found.messages for each in message.in_prompt]
        assert f"shop/{topic.split()[0]}.txt" in present
        assert len(present) == len(set(present))
        assert len(found.prompt.ids) + ANSWER <= CONTEXT
        messages = (*found.messages, Message(Role.ASSISTANT, f"On day {number}."))


@pytest.mark.slow
def test_earlier_files_are_removed_before_a_question_gets_too_little(
    builder: PromptBuilder,
) -> None:
    messages: tuple[Message, ...] = ()
    rooms = []
    for topic in TOPICS:
        documents = () if messages else library(200)
        asked = asks(f"When are the {topic} settled?", *documents)
        found = fit(builder, *messages, asked, context=2 * CONTEXT)
        rooms.append(found.room)
        messages = (*found.messages, Message(Role.ASSISTANT, "On a day."))
    assert min(rooms) >= min_retrieved(2 * CONTEXT - 1_000)
    assert rooms[1] < rooms[0]
    assert rooms[2] > rooms[1]  # earlier files made room


def test_progress_continues_while_the_best_files_are_compared(builder: PromptBuilder) -> None:
    seen: list[tuple[int, int]] = []
    retriever = Retriever(builder, CONTEXT // 4, True, lambda: None)
    notes = (Document(f"notes/{n}.txt", f"Note {n} on the harbour.") for n in range(150))
    message = asks("When are the harbour dues settled?", *notes)
    retriever.fit((message,), NO_CHOICE, ANSWER, lambda done, total: seen.append((done, total)))
    (total,) = {total for _, total in seen}
    shares = [done / total for done, _ in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert len({share for share in shares if share > 0.01}) > 1


def test_regenerating_an_answer_uses_the_same_files(builder: PromptBuilder) -> None:
    first = fit(builder, asks("When are the harbour dues settled?", *library()))
    again = fit(builder, *first.messages)
    assert again.parts is None
    assert (again.prompt.ids == first.prompt.ids).all()


def test_the_user_can_include_and_exclude_files(builder: PromptBuilder) -> None:
    choice = FileChoice(frozenset({"shop/rest/07.txt"}), frozenset({"shop/harbour.txt"}))
    found = fit(builder, asks("When are the harbour dues settled?", *library()), files=choice)
    assert found.parts is not None
    reasons = {part.document.name: part.reason for part in found.parts}
    assert reasons["shop/rest/07.txt"] is RetrievalReason.CHOSEN
    assert "shop/harbour.txt" not in reasons


def test_a_file_that_the_question_names_is_chosen(builder: PromptBuilder) -> None:
    found = fit(builder, asks("What does rest/21.txt say?", *library()))
    assert found.parts is not None
    (named,) = [p for p in found.parts if p.reason is RetrievalReason.NAME]
    assert named.document.name == "shop/rest/21.txt"


@pytest.mark.slow
def test_pages_of_a_long_file_are_chosen_with_their_lines(builder: PromptBuilder) -> None:
    lines = [f"Entry {n}: the lamp of pier {n} was lit.\n" for n in range(2000)]
    lines[1234] = "Entry 1234: the accordion was repaired by the blacksmith.\n"
    found = fit(builder, asks("Who repaired the accordion?", Document("log.txt", "".join(lines))))
    assert found.parts is not None
    part = next(p.document for p in found.parts if "accordion" in p.document.text)
    start = part.line - 1
    assert "".join(lines[start : start + part.text.count("\n")]) == part.text
    assert len(found.prompt.ids) + ANSWER <= CONTEXT


def test_if_no_page_fits_the_beginning_of_one_is_used(
    builder: PromptBuilder,
) -> None:
    text = "The accordion was repaired by the blacksmith. " + "Nothing of note. " * 300
    found = fit(builder, asks("Who repaired it?", Document("log.txt", text)), context=700)
    assert found.parts[0].document.text.startswith("The accordion")
    assert len(found.prompt.ids) + ANSWER <= 700


@pytest.mark.slow
def test_pinned_passages_stay_pinned_in_a_part(builder: PromptBuilder) -> None:
    text = "".join(f"Entry {n}: the lamp of pier {n} was lit.\n" for n in range(2000))
    at = text.index("Entry 777:")
    document = Document("log.txt", text, ((at, at + 10),))
    found = fit(builder, asks("Which lamp of pier 777 was lit?", document))
    assert found.parts is not None
    pinned = [p.document.text[a:b] for p in found.parts for a, b in p.document.pinned]
    assert pinned == ["Entry 777:"]


def test_a_conversation_that_is_too_long_without_documents_is_left_to_the_turn(
    builder: PromptBuilder,
) -> None:
    found = fit(builder, asks("word " * 1000, *library()))
    assert found.parts is None
    assert len(found.prompt.ids) > CONTEXT


def test_a_small_document_of_an_earlier_question_stays(builder: PromptBuilder) -> None:
    letter = Document("letter.txt", "Dear clerk, the ledger is blue.")
    answered = (asks("Which colour?", letter), Message(Role.ASSISTANT, "Blue."))
    found = fit(builder, *answered, asks("When are the harbour dues settled?", *library()))
    assert found.messages[0].in_prompt == (letter,)
    assert "shop/harbour.txt" in names(found)


# ------------------------------------------------------------------------------ the engine


def test_a_turn_retrieves_and_the_next_one_reuses_its_cache(
    driver: Driver, folders: dict[str, Path]
) -> None:
    driver.load(folders["target"])

    def ask(turn: int, *messages: Message) -> Ask:
        sampling = Sampling(max_tokens=4)
        return Ask(messages, Mode.FULL, 0.2, sampling, conversation="c")

    first = driver.answer(ask(1, asks("When are the harbour dues settled?", *library())))
    (retrieved,) = driver.of(Retrieved)
    parts = tuple(part.document for part in retrieved.parts)
    assert "shop/harbour.txt" in [each.name for each in parts]
    (planned,) = driver.of(Planned)
    assert planned.prompt_tokens < CONTEXT
    asked = Message(Role.USER, "When are the harbour dues settled?", library(), retrieved=parts)
    answer = Message(Role.ASSISTANT, first.text, token_ids=first.generated_ids)
    second = driver.answer(ask(2, asked, answer, asks("And the kiln firing?")))
    assert second.statistics.reused_tokens >= planned.prompt_tokens


@table(
    "question, mode, lacks",
    [
        ("How many notes are there in all?", Mode.AUTO, True),
        ("How many notes are there in all?", Mode.SPARSE, True),
        ("When are the harbour dues settled?", Mode.FULL, True),
        ("When are the harbour dues settled?", Mode.AUTO, False),
    ],
)
def test_where_the_whole_text_is_wanted_it_is_said_that_only_parts_fit(
    question: str, mode: Mode, lacks: bool, driver: Driver, folders: dict[str, Path]
) -> None:
    driver.load(folders["target"])
    driver.answer(Ask((asks(question, *library()),), mode, 0.2, Sampling(max_tokens=2)))
    (planned,) = driver.of(Planned)
    assert (planned.guard == Reason(ReasonCode.PARTS_ONLY)) == lacks
    assert (planned.guard in planned.reasons) == lacks


# ------------------------------------------------------------------------------- the index


def test_pages_cover_a_text_and_are_split_between_lines() -> None:
    text = "".join(f"def f{n}():\n    return {n}\n\n" for n in range(900))
    found = list(pages(Document("a.py", text)))
    assert "".join(page.text for page in found) == text
    assert max(page.end - page.start for page in found) <= PAGE
    assert all(page.text.startswith("def ") for page in found)
    assert all(len(page.text) <= PAGE for page in pages(Document("b", "x" * 10_000)))


@table(
    "word, found",
    [
        ("resolvers", {"resolver"}),
        ("URLResolver", {"urlresolver", "url", "resolver"}),
        ("get_object_or_404", {"get", "object", "404"}),
        ("Häuser", {"häuser"}),
        ("解約権利", {"解約", "約権", "権利"}),
    ],
)
def test_words_are_found_by_parts_of_identifiers(word: str, found: set[str]) -> None:
    assert set(terms(word)) >= found


def test_the_index_is_extended_instead_of_rebuilt() -> None:
    seen: list[int] = []
    some = tuple(Document(f"other/{each.name}", each.text) for each in library(20))
    index = index_of(some, seen.append)
    assert len(seen) == 20
    more = (*some, Document("shop/new.txt", "The accordion was repaired."))
    assert index_of(more, seen.append) is index
    assert len(seen) == 21
    ranked = rank(index, "Who repaired the accordion?").pages
    assert ranked[0].page.document.name == "shop/new.txt"


def _nothing(done: int, total: int) -> None:
    pass


PIECES = ["[Page ", "A", "aB", "\n", " \n\n", "é", "\n\n ", "_", "解", "a\n\n\t"]


@pytest.mark.parametrize("pieces", [PIECES[::3], slow(PIECES)], ids=["some", "all"])
def test_indexing_needs_linear_time(pieces: list[str]) -> None:
    for piece in pieces:
        check_linear(piece)


def check_linear(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        started_at = time.process_time()
        FileIndex().extend([Document("x", text)], lambda done: None)
        return time.process_time() - started_at

    seconds(20_000)
    short = min(seconds(100_000) for _ in range(3))
    assert min(seconds(400_000) for _ in range(3)) < 10 * short + 0.1, piece


def rank(index: FileIndex, question: str) -> Ranking:
    return index.rank(question, "", index.documents, english_encoder(), _nothing)


def ranking(question: str, **texts: str) -> tuple[list[str], bool]:
    """The names of files of a folder, best first, and whether one stands out."""
    index = FileIndex()
    index.extend([Document(f"app/{name}", each) for name, each in texts.items()], lambda n: None)
    found = rank(index, question)
    return [each.page.document.name.removeprefix("app/") for each in found.pages], found.stands_out


CHECK = "Where is the session token compared? compare_session_token checks the session token.\n"
SAYS = "def compare_session_token(token): return token == session\n"


@table(
    "name",
    [
        "locale/sr/LC_MESSAGES/django.po",
        "i18n/messages.json",
        "poetry.lock",
        "web/package-lock.json",
        "LICENSE",
        "licenses/COPYING.txt",
        "static/session.min.js",
        "token_pb2.py",
    ],
)
def test_translations_locks_licences_and_generated_files_come_last(name: str) -> None:
    files = {name: CHECK, "views.py": SAYS, "other.py": "x = 1\n"}
    assert ranking("Where is the session token compared?", **files)[0][0] == "views.py"
    index = FileIndex()
    index.extend([Document("django.po", CHECK), Document("app/views.py", SAYS)], lambda n: None)
    first = rank(index, "Where is the session token compared?").pages[0]
    assert first.page.document.name == "django.po", "a file that was attached itself is meant"


def test_a_generated_file_comes_last_unless_the_question_names_it() -> None:
    generated = "# Code generated by a tool. DO NOT EDIT.\n" + CHECK
    files = {"tokens.py": generated, "views.py": SAYS, "other.py": "x = 1\n"}
    assert ranking("Where is the session token compared?", **files)[0][0] == "views.py"
    for question in ("What does tokens.py check?", "Which generated code checks the token?"):
        assert ranking(question, **files)[0][0] == "tokens.py"
    licences = {
        "LICENSE": "You may sell copies.\n",
        "a.py": "def sell_copies(): pass\n",
        "b.py": "y",
    }
    assert ranking("May I sell copies under the licence?", **licences)[0][0] == "LICENSE"


def test_if_all_files_have_the_same_words_none_stands_out() -> None:
    same = {f"f{number}.txt": f"Entry {number} of the register.\n" for number in range(40)}
    assert not ranking("What is the register?", **same)[1]
    assert ranking("What is the register?", **same, odd="The cat register is on the wall.")[1]
    assert not ranking("What is it?", **same)[1]
    assert ranking("Where is the cat?", **same, odd="The cat is on the wall.")[1]


@table("asked", ["2012-01-28", "28.01.2012", "Jan 28 2012", "28 January 2012", "1/28/2012"])
def test_pages_with_a_date_are_found_in_any_notation(asked: str) -> None:
    days = [f"2012/{month:02}/{day:02}" for month in (1, 2) for day in range(1, 29)]
    files = {day.replace("/", ""): f"{day},{number},rain\n" for number, day in enumerate(days)}
    files = {f"day{number}.csv": text for number, text in enumerate(files.values())}
    assert ranking(f"How much did it rain on {asked}?", **files)[0][0] == "day27.csv"


def test_the_name_of_a_sheet_is_on_all_its_pages() -> None:
    rows = "".join(f"| {number} | Manager | Alma |\n" for number in range(200))
    sheets = "".join(f"[Sheet Branch {n:02}]\n| No | Role | Name |\n{rows}\n" for n in range(1, 9))
    index = FileIndex()
    index.extend([Document("branches.xlsx", sheets)], lambda n: None)
    found = rank(index, "Who is the manager of Branch 07?").pages
    sheet = sheets.index("[Sheet Branch 07]"), sheets.index("[Sheet Branch 08]")
    best = [each.page for each in found[:3]]
    assert all(page.end > sheet[0] and page.start < sheet[1] for page in best)
