"""Items are deterministic, have the requested length and exactly one right answer."""

from __future__ import annotations

import contextlib
import functools
import hashlib
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
    GROUPS,
    NEED_FILES,
    SUITES,
    DoesNotFit,
    Item,
    make,
)
from benchmarks.quality.tasks import Check, is_correct
from benchmarks.quality.tokens import FolderTokens

pytestmark = pytest.mark.benchmarks

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
    """If the random words or the digest changed, everything would be measured again."""
    found = hashlib.sha256()
    for held_out in (False, True):
        for index in range(8):
            with contextlib.suppress(DoesNotFit):
                words = SUITES[name], index, 900, 3, lambda text: len(text.split())
                item = make(*words, held_out)
                found.update(f"{item.id} {item.case} {item.tokens} {item.digest}".encode())
    assert found.hexdigest()[:12] == DIGESTS[name]


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


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("加nofail选项即可", "nofail", True),
        ("由发布经理授权。", "发布经理", True),
        ("密码要多于12个字符", "12", True),
        ("nofails", "nofail", False),
        ("port 1223", "22", False),
        ("The port is 22/tcp.", "22", True),
        ("Use `pkg-off`", "-off", True),
        ("the suffix -offensive", "-off", False),
        ("write x := 5", ":=", True),
        ("Größe", "größ", False),
        ("It ends in\n  BIG   words.", "big words", True),
    ],
)
def test_whole_words_are_found_also_between_chinese_ones(
    answer: str, expected: str, right: bool
) -> None:
    assert is_correct(answer, (expected,), Check.HOLDS_ANY) is right


ONE_VALUE = [*GROUPS["needle"], "lookup", "many", "track", "turns"]


@pytest.mark.parametrize("name", ONE_VALUE)
def test_each_value_stands_in_the_document_once(name: str) -> None:
    for item in some(name, max(8, every_case(name)), 2048):
        for value in item.expected:
            if item.case in ("json", "xml", "code"):  # other values may be equal by chance
                key = re.search(r'"(.+?)"|\b[A-Z]+_[A-Z]+\b', item.question)
                assert key is not None
                value = (key[1] or key[0]).strip('"')
            assert item.document.text.count(value) == 1, (item.id, value)


def test_a_question_with_two_answers_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phrase of the first attempt occurs twice, so another one is used."""
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


def test_what_does_not_fit_is_left_out_or_refused() -> None:
    fitting = [item.id for item in items("count", 20, 256, 0)]
    assert 0 < len(fitting) < 20
    refused = next(i for i in range(20) if f"count/256/{i}" not in fitting)
    with pytest.raises(DoesNotFit, match="tokens are too few"):
        make(SUITES["count"], refused, 256, 0, TOKENS.count)


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
