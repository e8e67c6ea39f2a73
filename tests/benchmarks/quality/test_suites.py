"""The items: the same for the same seed, as long as asked for, with one right answer in them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections import Counter
from itertools import pairwise

import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.model.prompt import PromptBuilder
from app.models.embedded import target_path
from app.protocol.prompt import Document
from benchmarks.quality import suites
from benchmarks.quality.suites import (
    DEFAULT,
    GROUPS,
    NEED_FILES,
    SUITES,
    DoesNotFit,
    Item,
    Suite,
    make,
)
from benchmarks.quality.tasks import MARKS, Check, is_correct
from benchmarks.quality.tokens import FolderTokens
from benchmarks.quality.words import ATTRIBUTES, PEOPLE

TOKENS = FolderTokens(target_path())
NAMES = [name for name in SUITES if name not in NEED_FILES]
ANY_LENGTH = "json array of 80"


def items(name: str, n: int, length: int, seed: int, held_out: bool = False) -> tuple[Item, ...]:
    """The first `n` items of a suite, without those that do not fit."""
    made = []
    for index in range(n):
        with contextlib.suppress(DoesNotFit):
            made.append(suites.make(SUITES[name], index, length, seed, TOKENS.count, held_out))
    return tuple(made)


@functools.cache
def some(name: str, n: int, length: int = 1024, held_out: bool = False) -> tuple[Item, ...]:
    return items(name, n, length, 0, held_out)


def every_case(name: str) -> int:
    return 2 * len(SUITES[name].cases)


DIGESTS = {
    "needle-single": "1b71e6969d45",
    "needle-multikey": "f6aed68b8eaa",
    "needle-multivalue": "74372b5288d8",
    "needle-multiquery": "52493b2b3ee2",
    "lookup": "2989b7e569b6",
    "quote": "234b862b4ae9",
    "many": "ab16072e2ba7",
    "count": "d2b12232bcee",
    "cwe": "df628dd0f9c4",
    "cwe-3": "d8a3f86e73a1",
    "fwe": "9d8f24b8963e",
    "vt": "4addf4833be2",
    "track": "b220c579b45e",
    "adversarial": "d04970d69a94",
    "turns": "8cc543ab2b26",
    "absent": "a182f1bf1664",
    "recall": "014ab359d7df",
    "hops": "427b52dde046",
}


@pytest.mark.parametrize("name", NAMES)
def test_items_are_those_of_stored_results(name: str) -> None:
    """A word drawn otherwise, or an item's digest computed otherwise, would measure all again."""
    found = hashlib.sha256()
    for held_out in (False, True):
        for index in range(8):
            with contextlib.suppress(DoesNotFit):
                words = SUITES[name], index, 900, 3, lambda text: len(text.split())
                item = make(*words, held_out)
                found.update(f"{item.id} {item.case} {item.tokens} {item.digest}".encode())
    assert found.hexdigest()[:12] == DIGESTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_length_or_wording_is_another_item(name: str) -> None:
    suite, count = SUITES[name], TOKENS.count
    same = [make(suite, 0, 1024, 0, count), make(suite, 0, 1024, 0, count)]
    others = [
        make(suite, 1, 1024, 0, count),
        make(suite, 0, 1024, 1, count),
        make(suite, 0, 2048, 0, count),
        make(suite, 0, 1024, 0, count, held_out=True),
    ]
    digests = [item.digest for item in same + others]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 1 + len(others)


@functools.cache
def builder() -> PromptBuilder:
    return PromptBuilder(load_tokenizer(target_path()))


@pytest.mark.parametrize("length", [1024, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_as_long_as_asked_for(name: str, length: int) -> None:
    for item in some(name, every_case(name), length):
        prompt = len(builder().build(item.messages).ids)
        assert item.tokens == pytest.approx(prompt, rel=0.05)
        if item.case != ANY_LENGTH and not (item.chat and item.case != "turn 5"):
            assert prompt == pytest.approx(length, rel=0.05), item.id


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_right_and_less_than_it_is_wrong(name: str, held_out: bool) -> None:
    for item in some(name, max(8, every_case(name)), held_out=held_out):
        assert is_correct(item.answer, item.expected, item.check)
        if item.check is Check.NOT_SAID:
            assert not is_correct("The access code is 1234.", item.expected, item.check)
        elif item.check is Check.LAST_NUMBER:
            wrong = f"{item.answer} {int(item.expected[0]) + 1}"
            assert not is_correct(wrong, item.expected, item.check)
        for value in item.expected if item.check is Check.HOLDS_ALL else ():
            assert not is_correct(item.answer.replace(value, "-"), item.expected, item.check), value
        assert not is_correct("", item.expected, item.check)


ONE_VALUE = [*GROUPS["needle"], "lookup", "many", "track", "turns"]


@pytest.mark.parametrize("name", ONE_VALUE)
def test_each_value_stands_in_the_document_once(name: str) -> None:
    for item in some(name, max(8, every_case(name)), 2048):
        for value in item.expected:
            if item.case in ("json", "xml", "code"):  # a value of others may be the same by chance
                key = re.search(r'"(.+?)"|\b[A-Z]+_[A-Z]+\b', item.question)
                assert key is not None
                value = (key[1] or key[0]).strip('"')
            assert item.document.text.count(value) == 1, (item.id, value)


def test_each_adversarial_evidence_stands_in_the_document_once() -> None:
    found = some("adversarial", 16, 4096)
    assert {item.case for item in found} == {c.name for c in SUITES["adversarial"].cases}
    for item in found:
        assert item.document.text.count(item.answer) == 1, item.id


def test_a_quoted_phrase_stands_in_the_document_once_with_what_follows() -> None:
    for item in some("quote", 40, 4096):
        phrase = item.question.split('"')[1]
        assert item.document.text.count(phrase) == 1
        assert f"{phrase} {item.expected[0]}" in item.document.text


def test_a_question_with_two_answers_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phrase of the first try stands there twice, so another one is taken."""
    suite, count = SUITES["quote"], TOKENS.count
    usual = make(suite, 0, 1024, 0, count)
    drawn = suites._draw

    def doubled(*arguments: object) -> object:
        task, text = drawn(*arguments)  # type: ignore[arg-type]
        return task, (f"{text} {usual.answer}" if task.question == usual.question else text)

    monkeypatch.setattr(suites, "_draw", doubled)
    other = make(suite, 0, 1024, 0, count)
    assert other.question != usual.question
    assert other.document.text.count(other.question.split('"')[1]) == 1


@pytest.mark.parametrize("length", [512, 1024, 4096])
@pytest.mark.parametrize("name", ["cwe", "cwe-3", "fwe"])
def test_the_expected_words_are_the_most_common_ones(name: str, length: int) -> None:
    found = some(name, 8, length)
    assert len(found) >= 6
    for item in found:
        counts = Counter(item.document.text.split()).most_common()
        top = counts[: len(item.expected)]
        assert {word for word, _ in top} == set(item.expected)
        assert top[-1][1] > counts[len(item.expected)][1]


def test_what_is_counted_is_there_so_often() -> None:
    for item in some("count", 20, 2048):
        words = re.findall(r"\w+", item.question)
        asked = next(word for word in words if word in (*MARKS, *PEOPLE))
        times = len(re.findall(rf"\b{asked}\b", item.document.text))
        assert str(times) == item.expected[0]


def test_what_is_absent_is_not_there_but_its_neighbours_are() -> None:
    neighbours = 0
    for item in some("absent", 30, 2048):
        text, question = item.document.text, item.question
        attribute = next((a for a in ATTRIBUTES["en"] if a in question.lower()), None)
        if attribute is None:
            key = re.search(r'"(.+?)"|([a-z]+-[a-z]+)|([A-Z]+_[A-Z]+)', question)
            assert key is not None, question
            assert key[0].strip('"') not in text
        else:
            thing = re.search(r"the (\w+ \w+)(?: have)?[?.]$", question)
            assert thing is not None, question
            assert f"{attribute} of the {thing[1]}" not in text
            neighbours += f"{attribute} of the " in text and f" of the {thing[1]} is " in text
    assert neighbours >= 3


def test_a_variable_chain_is_whole() -> None:
    for item in some("vt", 10, 2048):
        number = re.search(r"\d+", item.question)
        assert number is not None
        links = [number[0], *item.expected]
        places = [
            item.document.text.index(f"VAR {name} = {source}.") for source, name in pairwise(links)
        ]
        assert places == sorted(places)


@pytest.mark.parametrize("length", [512, 8192])
def test_the_array_has_80_records_at_any_length(length: int) -> None:
    index = next(i for i, c in enumerate(SUITES["adversarial"].cases) if c.name == ANY_LENGTH)
    item = make(SUITES["adversarial"], index, length, 0, TOKENS.count)
    records = json.loads(item.document.text)
    assert len(records) == 80
    key = item.question.split('"')[1]
    assert [str(r[key]) for r in records if key in r] == list(item.expected)


@pytest.mark.parametrize("name", ["needle-single", "adversarial"])
def test_depth_is_where_it_says(name: str) -> None:
    seen = set()
    for item in some(name, 8, 4096):
        if depth := re.search(r"(\d+)%", item.case):
            place = item.document.text.index(item.expected[0]) / len(item.document.text)
            assert place == pytest.approx(int(depth[1]) / 100, abs=0.05)
            seen.add(depth[1])
    assert seen == {"10", "50", "90"}


def test_what_does_not_fit_is_left_out_or_refused() -> None:
    fitting = [item.id for item in items("count", 20, 256, 0)]
    assert 0 < len(fitting) < 20
    refused = next(i for i in range(20) if f"count/256/{i}" not in fitting)
    with pytest.raises(DoesNotFit, match="tokens are too few"):
        make(SUITES["count"], refused, 256, 0, TOKENS.count)


def test_a_later_turn_brings_the_document_with_the_first_message() -> None:
    for item in some("turns", 4):
        assert [str(m.role) for m in item.messages] == ["user", "assistant", "user"]
        assert [len(m.documents) for m in item.messages] == [1, 0, 0]
        assert item.messages[-1].text == item.question
        assert is_correct(item.messages[1].text, item.expected, item.check) or (
            item.expected[0] not in item.messages[1].text
        )


def test_the_names() -> None:
    assert not NEED_FILES & set(DEFAULT)
    assert set(GROUPS["needle"]) < set(DEFAULT)
    assert {name for name, suite in SUITES.items() if suite.safe is False} == {
        "count",
        "cwe",
        "cwe-3",
        "vt",
    }
    assert suites.UNSAFE <= suites.JUDGED
    assert len(SUITES["adversarial"].cases) == 8
    assert all(isinstance(suite, Suite) for suite in SUITES.values())


def test_the_turns_of_a_chat_share_their_document() -> None:
    turns = some("recall", 8)
    for chat in (turns[:4], turns[4:]):
        assert len({item.document for item in chat}) == 1
        assert len({item.chat for item in chat}) == 1
        assert [len(item.before) for item in chat] == [1, 2, 3, 4]
        for before, after in pairwise(chat):
            assert after.before == (*before.before, (before.question, before.answer))
    assert turns[0].document != turns[4].document


def test_hops_in_files_are_spread_over_a_real_text() -> None:
    prose = Document("notes.txt", "\n\n".join(f"Paragraph {n}.\nIt goes on." for n in range(400)))
    code = Document("tool.py", "\n\n".join(f"def f{n}():\n    return {n}" for n in range(400)))
    suite = SUITES[suites.HOPS_IN_FILES]
    for index, case in enumerate(suite.cases):
        item = make(suite, index, 1000, 0, TOKENS.count, True, (prose, code))
        assert item == make(suite, index, 1000, 0, TOKENS.count, True, (prose, code)), (
            "the same again"
        )
        text = item.document.text
        assert ("return" in text, "Paragraph" in text) == (
            case.name == "files",
            case.name != "files",
        )
        assert all(expected in text for expected in item.expected)
        assert 900 < item.tokens < 1100
        numbers = [int(n) for n in re.findall(r"Paragraph (\d+)|def f(\d+)", text) for n in n if n]
        follows = [later == earlier + 1 for earlier, later in pairwise(numbers)]
        assert follows.count(False) <= 1, "in the file's order, from any paragraph on"


def test_long_paragraphs_of_a_file_are_cut() -> None:
    log = Document("server.log", "\n".join(f"line {n} of the log" for n in range(3000)))
    item = make(SUITES[suites.HOPS_IN_FILES], 0, 1000, 0, TOKENS.count, False, (log,))
    assert 900 < item.tokens < 1100
    assert len(re.findall("VAR", item.document.text)) >= 2
