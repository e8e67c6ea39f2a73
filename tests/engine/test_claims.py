"""Numbers, dates and names of a sentence, and whether its passage has them."""

from __future__ import annotations

import time

import numpy as np

from app.engine.turn.citations import ReadText, cite
from app.engine.turn.claims import claims_of
from tests.tables import table

PAID = "The deposit of EUR 24,000 will be paid back on 12 January 2026."
GEZAHLT = "Die Kaution von 24.000 EUR wird am 12. Januar 2026 zurückgezahlt."


@table(
    "sentence, passage, expected",
    [
        (PAID, PAID, True),
        (PAID.replace("2026", "2027"), PAID, False),
        (PAID.replace("24", "42"), PAID, False),
        (PAID.replace("24,000", "24"), PAID, False),
        (PAID.replace("12 January 2026", "January 12, 2026"), PAID, True),
        (PAID.replace("12 January 2026", "12th of January, 2026"), PAID, True),
        (PAID.replace("12 January 2026", "2026-01-12"), PAID, True),
        (PAID.replace("12 January 2026", "2026-01-13"), PAID, False),
        (PAID.replace("12 January 2026", "12/01/2026"), PAID, True),
        (PAID.replace("12 January 2026", "12.01.26"), PAID, True),
        (PAID.replace("12 January 2026", "12 January"), PAID, True),
        (PAID.replace("12 January 2026", "January 2026"), PAID, True),
        (PAID.replace("12 January 2026", "February 2026"), PAID, False),
        (PAID.replace("on 12 January 2026", "in January"), PAID, True),
        (PAID.replace("on 12 January 2026", "in February"), PAID, False),
        (PAID.replace("EUR 24,000", "€24000"), PAID, True),
        (PAID.replace("EUR 24,000", "$24,000"), PAID.replace("EUR ", "€"), False),
        (PAID.replace("EUR 24,000", "24,000 euros"), PAID.replace("EUR ", "€"), True),
        (GEZAHLT, PAID, True),
        (PAID, GEZAHLT, True),
        (GEZAHLT.replace("12. Januar 2026", "12.01.2026"), GEZAHLT, True),
        (GEZAHLT.replace("24.000", "24000"), GEZAHLT, True),
        (GEZAHLT.replace("24.000", "24,5"), GEZAHLT.replace("24.000", "24.5"), True),
        (GEZAHLT.replace("Januar", "Februar"), GEZAHLT, False),
        ("The ratio of it is 1.500.", "The ratio of it is 1,500.", False),
        ("It costs 1 234 567 euros.", "It costs 1,234,567 euros.", True),
        ("It costs 1.234,50 euros.", "It costs 1,234.50 euros.", True),
        ("It costs 2 million euros.", "It costs 2,000,000 euros.", True),
        ("It costs two hundred euros.", "It costs 200 euros.", True),
        ("The rate is 5 %.", "The rate is five percent.", True),
        ("The rate is 5 %.", "Der Satz beträgt 5 Prozent.", True),
        ("The rate is 0.5 %.", "The rate is 5 %.", False),
        ("It ends after twelve months.", "It ends after 12 months.", True),
        ("It ends after 12 months.", "Es endet nach zwölf Monaten.", True),
        ("It ends after twenty-five days.", "It ends after 25 days.", True),
        ("It ends after twenty-five days.", "It ends after 20 days and 5 hours.", False),
        ("It is one of the rules.", "It is a rule.", True),
        ("- 2. The tenant pays [1].", "The tenant pays.", True),
        ("It is version 1.2.3.", "It is version 1.2.4.", False),
        ("It opens at 12:30.", "It opens at 12:45 for 30 minutes.", False),
        ("The fee goes to Mr Maier.", "The fee goes to Ms Keller.", False),
        ("The fee goes to Mr Maier.", "Maier gets the fee.", True),
        ("Die Gebühr geht an Herrn Maier.", "Die Gebühr geht an Frau Keller.", False),
        ("Die Gebühr geht an die Stadt.", "Die Gebühr geht an den Ort.", True),
        ("It is for all Americans.", "It is for every American.", True),
        ("Dr. Green chairs the committee.", "Dr. Brown chairs the committee.", False),
        ("Peter Jones met Anna White in Paris.", "Peter Jones met Anna Brown in Paris.", False),
        ("租金为每月8000元。", "租金为每月5000元。", False),
        ("租金为每月5000元。", "每月租金5000元。", True),
        ("合同于2027年1月12日到期。", "合同于2026年1月12日到期。", False),
        ("월세는 5000원입니다.", "월세는 8000원입니다.", False),
        ("It has 3M users and costs $3.5k.", "It has 3,000,000 users, and costs $3,500.", True),
        ("It ends on 31 December 2026.", "from 1 January 2026 to 31 December 2027", False),
        ("It ends on 1 December 2027.", "from 1 January 2026 to 31 December 2027", False),
        ("It is paid on 12 January 2027.", "Paid on 12 January 2026, back in 2027.", False),
        ("It costs one hundred euros.", "It costs two hundred euros.", False),
        ("It costs one hundred euros.", "It costs 100 euros.", True),
        ("Es kostet einundzwanzig Euro.", "Es kostet zweiundzwanzig Euro.", False),
        ("Es kostet einundzwanzig Euro.", "Es kostet 21 Euro.", True),
        ("Es kostet zweihundert Euro.", "Es kostet 200 €.", True),
        ("Es kostet eine Million Euro.", "Es kostet zwei Millionen Euro.", False),
        ("The fee is 5 %.", "The fee is 5 euros.", False),
        ("Es sind 19 Prozent.", "Es sind 19 Euro.", False),
        ("It costs $500.", "It costs €500.", False),
        ("It costs $500.", "It costs 500.", True),
        ("It costs 2 million dollars.", "It costs $2,000,000.", True),
        ("The fee goes to Mr John.", "The fee goes to Mr Johnson.", False),
        ("It is near the Niger.", "It is near Nigeria.", False),
        ("The parking fee was 7,200.", "Parking,7200,7400", True),
        ("The load is 200.", "beta,9090,200", True),
        ("It costs 24 euros.", "Es kostet 24,5 Euro.", False),
        ("It was seen on 5 March 2026.", "2026-03-05T10:05:00Z seen", True),
        ("It opens at 9:00.", "It opens at 09:00.", True),
        ("It is 3 m long.", "Its length is 3 metres.", True),
        ("The License Of The Covered Software", "this license covers it", True),  # a title
    ],
)
def test_a_passage_has_what_a_sentence_states(sentence: str, passage: str, expected: bool) -> None:
    assert claims_of(sentence).are_in(passage) is expected


@table(
    "question, passage, expected",
    [
        ("What does Acme pay?", "The supplier pays the fee.", True),
        ("What does Acme pay?", "The fee is paid by Globex in time.", False),
        ("Who pays?", "The supplier pays the fee.", False),
    ],
)
def test_a_name_of_the_question_need_not_be_in_the_passage(
    question: str, passage: str, expected: bool
) -> None:
    assert claims_of("The fee is paid by Acme.").are_in(passage, question) is expected


def cited(answer: str, text: str, question: str = "") -> list[str]:
    read = ReadText(0, 0, text, np.zeros(len(text) + 1, np.int64))
    found = cite(answer, question, [read], None).found
    return [text[each.passage_start : each.passage_end] for each in found]


RENTS = (
    "| City | Rent | Share |\n|---|---|---|\n| Berlin | EUR 48,200 | 42 % |\n"
    "| Munich | EUR 61,000 | 37 % |\n| Hamburg | EUR 48,200 | 21 % |\n"
)
BERLIN, MUNICH, HAMBURG = RENTS.splitlines()[2:]


@table(
    "question, answer, expected",
    [
        ("What is the rent in Berlin?", "EUR 48,200", [BERLIN]),
        ("What is the rent in Hamburg?", "48.200 euros", [HAMBURG]),
        ("What share has Munich?", "37 %", [MUNICH]),
        ("What share has Munich?", "42 %", []),
        ("What is the rent in Munich?", "EUR 48,200.", []),
        ("What is the rent in Munich?", "EUR 16,000", []),
    ],
)
def test_a_short_answer_with_a_figure_finds_its_row(
    question: str, answer: str, expected: list[str]
) -> None:
    assert cited(answer, RENTS, question) == expected


def test_only_the_sentence_that_is_wrong_has_no_citation() -> None:
    text = "The lease begins on 1 March 2024 and has no end. The rent of EUR 900 is due each month."
    wrong = text.replace("900", "950")
    assert cited(text, text) == [text.removesuffix(".")]
    assert cited(wrong, text) == ["The lease begins on 1 March 2024 and has no end"]


def test_no_quotation_begins_in_a_number() -> None:
    text = "It costs 24,000 euros for the whole of the long year."
    assert cited("They say 42,000 euros for the whole of the long year.", text) == []


def test_what_stands_in_quotation_marks_is_compared_alone() -> None:
    answer = 'Rule 3 says: "The tenant pays the rent on the first day."'
    assert cited(answer, "The tenant pays the rent on the first day.")


def test_long_passages_are_compared_in_linear_time() -> None:
    def seconds(count: int) -> float:
        text = " ".join(
            f"{n % 28 + 1} March {1900 + n % 99} and 1 {n % 10}00 000" for n in range(count)
        )
        start = time.process_time()
        assert cited(text, text)
        return time.process_time() - start

    seconds(100)
    assert seconds(4000) < 8 * max(seconds(1000), 0.01)
