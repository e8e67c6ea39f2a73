"""The passage quoted by the demo model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.model.prompt import Prompt, PromptText
from app.engine.model.text_encoder import english_encoder
from app.engine.turn import quotation
from app.engine.turn.quotation import (
    CANDIDATES,
    CANNOT_COUNT,
    MAX_CANDIDATE,
    NOTHING_FOUND,
    PASSAGES_FOUND,
    Found,
    Quote,
    far_above_average,
    find_quotes,
    quote,
)
from app.protocol.prompt import Document, Message, Role
from app.util.assets import assets_path
from app.util.sentences import LONGEST, units
from tests.tables import slow, table

GPL = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")


def text(content: str, document: int | None = 0) -> PromptText:
    return PromptText(0, document, False, 7, np.arange(len(content) + 1), content)


def find(question: str, *texts: PromptText) -> Found:
    return find_quotes(texts, question, english_encoder(), lambda done, of: None)


def quoted(question: str, *texts: PromptText) -> str | None:
    """The passage given as the answer."""
    found = find(question, *texts)
    return found.quotes[0].text if found.answers else None


@given(st.text(alphabet="ab .?!\n。`#", max_size=60) | st.text(max_size=2000))
def test_units_cover_a_text_except_white_space(content: str) -> None:
    found = units(content)
    joined = "".join("".join(content[each.start : each.end].split()) for each in found)
    assert joined == "".join(content.split())
    for each in found:
        bare = content[each.start : each.end]
        assert bare == bare.strip()
        assert 0 < len(bare) <= LONGEST


def test_long_lines_are_split_between_words() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    assert all(words[each.start : each.end].split()[0] in words.split() for each in units(words))
    assert [(each.start, each.end) for each in units("x" * 1000)] == [
        (0, 400),
        (400, 800),
        (800, 1000),
    ]


@pytest.mark.parametrize(
    ("question", "part"),
    [
        ("May I charge money for a copy?", "any price or no price"),
        slow("When may network access be denied?", "adversely affects the operation"),
    ],
)
def test_the_passage_that_answers_is_quoted(question: str, part: str) -> None:
    found = quoted(question, text(GPL))
    assert part in " ".join(found.split())


@pytest.mark.parametrize(
    "question", ["Which whales live in the Arctic?", slow("Wie alt wurde er?")]
)
def test_nothing_is_quoted_if_nothing_answers(question: str) -> None:
    assert quoted(question, text(GPL)) is None


def test_only_documents_are_quoted_and_headings_only_where_there_is_nothing_else() -> None:
    question = "What happens to patents?"
    assert quoted(question, text("What happens to patents is this.", document=None)) is None
    found = quoted(question, text("Patents.\n\nWhat happens to the patents of others is unknown."))
    assert found.endswith("unknown.")


def test_a_quote_knows_its_tokens() -> None:
    content = (
        "Nothing here at all.\n\nThe dog of our neighbours barks at night. So it is.\n\nThe end."
    )
    (found,) = find("When does the dog bark?", text(content)).shown
    assert found.tokens == (7 + content.index("The dog"), 7 + content.index("\n\nThe end"))


HANDBOOK = """Contents
5.9.3 Removing a package . . . . . . . . . . 40
5.9.4 Orphaning a package . . . . . . . . . . 41

5.9.4. Orphaning a package

If you can no longer maintain a package, inform others about it. You should set the
maintainer to the quality group (see Section 5.9.3. Removing a package). Then ask whether
somebody wants to take it over.

Another matter is testing.
"""


@pytest.mark.parametrize(
    "question", ["how do I orphan a package?", 'What of "orphaning a package"?']
)
def test_headings_contents_and_fragments_are_never_quoted_alone(question: str) -> None:
    found = quoted(question, text(HANDBOOK))
    assert found is not None
    assert "If you can no longer maintain a package" in found
    assert "somebody wants to take it over." in found
    assert ". . ." not in found


def test_a_phrase_in_quotation_marks_is_found_across_lines_and_quoted_whole() -> None:
    content = "One of the\n  two things is blue. It is round.\n\nThe three others are red and long."
    for question in ('What does it say of "of the two"?', "Was heißt „of the two“?"):
        assert quoted(question, text(content)) == content.partition("\n\n")[0]
    found = quoted('What is a "patent license"?', text(GPL))
    assert found.startswith('In the following three paragraphs, a "patent license" is')
    assert found.endswith("patent against the party.")


def test_code_keeps_its_lines_and_indentation() -> None:
    code = (
        "class Box:\n\n    def open(self, key):\n        if key == 4711:\n            return True\n"
    )
    found = quoted("what does open do with the key?", text(f"A file.\n\n{code}\nThe end."))
    assert found is not None
    assert "    def open(self, key):\n        if key == 4711:\n            return True" in found


@pytest.mark.slow
def test_brackets_and_quotation_marks_need_only_linear_time() -> None:
    for piece in ("„", "“", "«", '"', "(", ")", ". . ", "``` ", "1. ", "Aa b. ", "x = a(b", "a.\n"):
        many = piece * 50_000
        assert units(many)[-1].end == len(many.rstrip())
        quoted(f"What is {piece * 20_000}?", text("The dog barks at night."))


def answered(question: str, *documents: Document) -> tuple[Prompt, str]:
    texts = tuple(text(each.text, number) for number, each in enumerate(documents))
    ids = np.zeros(7 + max(len(each.text) for each in documents), np.int32)
    messages = (Message(Role.USER, question, documents),)
    return quote(Prompt(ids, (), {}, texts=texts), messages, question, lambda done, of: None)


VILLAGES = (
    "The village of Alm has a church and a mill.\nIts mill was built in 1650.\n\n"
    "The village of Bech has a church and a school.\n\n"
    "The village of Cron has a church and a harbour.\n\n"
    "The village of Dorn has a church and a market.\n\n"
    "Nothing else is known."
)


def test_of_a_long_candidate_the_nearest_sentence_is_shown() -> None:
    source = text("The mill is old. " * 40)
    long, short = (Quote(source, 17, end, 1.0, (34, 50)) for end in (17 + MAX_CANDIDATE + 1, 60))
    assert long.brief.text == "The mill is old."
    assert short.brief == short
    assert Found((long, long), similarity=0.4).shown == (long.brief, long.brief)
    assert Found((long,), similarity=0.9, nearness=1.5).shown == (long,), "an answer is whole"


def test_if_no_passage_leads_the_nearest_are_shown_as_candidates_with_their_lines() -> None:
    other = Document("trees.txt", "Oaks grow slowly and live long in this part of the land.")
    part = Document("villages.txt", VILLAGES, line=40)
    prompt, answer = answered("Which village has a church?", part, other)
    assert answer.startswith(f"{PASSAGES_FOUND}\n\n1. villages.txt, line")
    assert answer.count("\n\nThe village of ") == CANDIDATES == len(prompt.user_pins)
    assert "villages.txt, line 43:\n\nThe village of Bech has a church and a school." in answer
    assert "trees.txt" not in answer


def test_what_a_document_is_about_is_answered_by_its_beginning() -> None:
    trees = Document("trees.txt", "Oaks grow slowly and live long in this part of the land.")
    _, answer = answered("What is this about?", Document("villages.txt", VILLAGES), trees)
    assert "1. villages.txt, lines 1 to 2:\n\nThe village of Alm" in answer
    assert "2. trees.txt, line 1:\n\nOaks" in answer


def test_a_passage_over_several_lines_has_the_numbers_of_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotation, "MIN_NEARNESS", 100)
    _, answer = answered("When was the mill built?", Document("villages.txt", VILLAGES))
    assert "\n\n1. villages.txt, lines 1 to 2:\n\nThe village of Alm" in answer


def test_a_passage_of_a_document_with_pages_has_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotation, "MIN_NEARNESS", 100)
    pages = f"[Page 7]\nContents\n\n[Page 8]\n{VILLAGES}"
    _, answer = answered("When was the mill built?", Document("villages.pdf#7-8", pages))
    assert (
        "\n\n1. villages.pdf#7-8, page 8, lines 1 to 2:\n\n[Page 8]\nThe village of Alm" in answer
    )


def test_the_answer_alone_is_pinned_and_nothing_if_nothing_is_near() -> None:
    villages = Document("villages.txt", VILLAGES)
    prompt, answer = answered("When was the mill of Alm built?", villages)
    assert answer == VILLAGES.partition("\n\n")[0]
    assert prompt.user_pins == ((7, 7 + len(answer)),)
    prompt, answer = answered("How do I reset my password?", villages)
    assert (answer, prompt.user_pins) == (NOTHING_FOUND, ())


WEATHER = "date,rain,wind,weather\n" + "".join(
    f"2012/{month:02}/{day:02},{day * month % 19}.{day % 7},{day % 5},sun\n"
    for month in range(1, 13)
    for day in range(1, 29)
)
RAIN = "date,rain,wind,weather\n2012/01/28,9.0,3,sun"
ZONES = (
    "# Time zones, one in each row. A time zone is used in a country.\n#\n#code\tzone\n"
    + "".join(
        f"{code}\tPacific/{name}\n"
        for code, name in (("FJ", "Fiji"), ("NR", "Nauru"), ("NU", "Niue"), ("TO", "Tongatapu"))
    )
)
BRANCHES = "\n".join(
    f"[Sheet Branch {n:02}]\n| Role | Name | Since |\n| --- | --- | --- |\n"
    f"| Manager | Person {chr(64 + n)} | {1990 + n} |\n"
    f"| Deputy | Person {chr(90 - n)} | {2000 + n} |\n"
    f"| Cashier | Person {chr(64 + n)}{chr(64 + n)} | {1980 + n} |\n"
    for n in range(1, 13)
)
STOCK = (
    "[Sheet Stock]\npart,bin,count\n"
    + "".join(f"P{n:02},B{n % 7}-{n},{n * 31}\n" for n in range(30))
    + "\n[Sheet Orders]\norder,part,due,net\n"
    + "".join(f"O{n},P{n % 30:02},{n % 28 + 1}.05.2026,{n * 7}.{n:02}\n" for n in range(10, 90))
)
ELEMENTS = "number,symbol,name,IE-1,melting point\n" + "".join(
    f"{n},{name[0]},{name},{n * 113}.4,{n * 49}\n"
    for n, name in enumerate(("Hydrogen", "Boron", "Carbon", "Tungsten", "Uranium"), 1)
)
COLUMNS = "Name            Version       Size\n" + "".join(
    f"{name:<16}1.{number}.0         {number * 7}\n"
    for number, name in enumerate(("libxml2", "zlib", "openssl", "bzip2", "curl", "expat"))
)


@table(
    "name, content, question, answer",
    [
        *(
            (
                "weather.csv",
                WEATHER,
                f"How much did it rain on {day}?",
                "date,rain,wind,weather\n2012/01/28,9.0,3,sun",
            )
            for day in ("2012-01-28", "28.01.2012", "Jan 28 2012", "28 January 2012")
        ),
        ("weather.csv", WEATHER, "How strong was the wind in the evening of 28.01.2012?", RAIN),
        ("zones.tab", ZONES, "Which time zone is used in Fiji?", "#code\tzone\nFJ\tPacific/Fiji"),
        (
            "branches.xlsx",
            BRANCHES,
            "Who is the manager of Branch 07?",
            "[Sheet Branch 07]\n| Role | Name | Since |\n| --- | --- | --- |\n"
            "| Manager | Person G | 1997 |",
        ),
        (
            "elements.csv",
            ELEMENTS,
            "What's the melting point of tungsten?",
            "number,symbol,name,IE-1,melting point\n4,T,Tungsten,452.4,196",
        ),
        ("zones.tab", ZONES, "what do I set in Nauru", "#code\tzone\nNR\tPacific/Nauru"),
        (
            "stock.csv",
            STOCK,
            "In which bin is P07?",
            "[Sheet Stock]\npart,bin,count\nP07,B0-7,217",
        ),
        (
            "stock.csv",
            STOCK,
            "Which order costs 140,20 euros?",
            "[Sheet Orders]\norder,part,due,net\nO20,P20,21.05.2026,140.20",
        ),
        (
            "packages.txt",
            COLUMNS,
            "Which version of openssl is installed?",
            "Name            Version       Size\nopenssl         1.2.0         14",
        ),
    ],
)
def test_a_row_is_found_by_codes_dates_and_sheets_and_quoted_with_its_header(
    name: str, content: str, question: str, answer: str
) -> None:
    prompt, given = answered(question, Document(name, content))
    assert given == answer
    ((first, last),) = prompt.user_pins
    assert content[first - 7 : last - 7] == answer.splitlines()[-1]


def test_a_row_of_a_part_is_shown_with_the_header_of_its_file() -> None:
    start = WEATHER.index("2012/05/01")
    part = Document("weather.csv", WEATHER[start:], line=1 + WEATHER[:start].count("\n"))
    asked = (Message(Role.USER, "", (Document("weather.csv", WEATHER),), retrieved=(part,)),)
    texts = (text(part.text, 0),)
    prompt = Prompt(np.zeros(7 + len(part.text), np.int32), (), {}, texts=texts)
    question = "How much did it rain on 8 June 2012?"
    _, given = quote(prompt, asked, question, lambda done, of: None)
    assert given == "date,rain,wind,weather\n2012/06/08,10.1,3,sun"


def test_what_a_row_lacks_is_not_answered_with_another_one() -> None:
    for question in ("How much did it rain on 2019-01-28?", "What was the weather on 2012-13-77?"):
        _, given = answered(question, Document("weather.csv", WEATHER))
        assert given.startswith((PASSAGES_FOUND, NOTHING_FOUND))


def test_one_line_at_the_end_of_a_long_log_is_found() -> None:
    lines = "".join(
        f"2024-01-{n % 28 + 1:02}T00:00:{n % 60:02} INFO worker-{n} served\n" for n in range(900)
    )
    last = "The password of the vault is heron-42."
    _, given = answered("What is the password of the vault?", Document("paste", lines + last))
    assert given == last


def test_what_the_scorer_puts_far_above_the_average_is_shown_in_any_case() -> None:
    document = Document("villages.txt", VILLAGES)
    source = text(VILLAGES)
    ids = np.zeros(7 + len(VILLAGES), np.int32)
    prompt = Prompt(ids, (), {}, texts=(source,))
    asked = (Message(Role.USER, "", (document,)),)
    importance = np.full(len(ids), 0.1, np.float32)
    assert far_above_average(prompt, asked, importance) is None
    importance[7 + VILLAGES.index("harbour")] = 1e3
    shown = far_above_average(prompt, asked, importance)
    assert shown is not None
    assert shown.startswith(f"{PASSAGES_FOUND}\n\n1. villages.txt, line 6:\n\nThe village of Cron")


def test_a_list_is_never_given_as_one_passage() -> None:
    _, given = answered("Which mills are there?", Document("villages.txt", VILLAGES))
    assert given.startswith(CANNOT_COUNT) or given == NOTHING_FOUND
