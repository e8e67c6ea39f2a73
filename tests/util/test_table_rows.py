"""The rows of tables in a text, and dates, times and numbers in other notations."""

from __future__ import annotations

import time

from app.util.figures import in_any_notation
from app.util.prose import reflow
from app.util.table_rows import names_of, tables_of
from tests.tables import table

PROSE = (
    "The tenant pays the rent, the heating, and the water.\nThe landlord keeps the roof in order,\n"
    "and pays for it.\nNothing else was agreed, as both of them say.\n"
)
CODE = "def f(a, b):\n    for each in (a, b):\n        print(each, end=',')\n    return [a, b]\n"
TABLES = {
    "csv": ("day,rain,sun\n" + "2012/01/28,1.5,3\n" * 3, "day,rain,sun", 3),
    "tsv": ("code\tname\n" + "ZW\tZimbabwe\n" * 4, "", 5),
    "comment": ("# About.\n#code\tname\n" + "ZW\tZimbabwe\n" * 4, "#code\tname", 4),
    "columns": ("Name      Size\n" + "zlib        12\n" * 3, "Name      Size", 3),
    "log": ("2024-01-05T00:00:00 INFO served it\n" * 4, "", 4),
    "syslog": ("Jan  5 00:00:00 host sshd: closed\n" * 4, "", 4),
    "sheet": (
        "[Sheet May]\n| Day | Name |\n| --- | --- |\n" + "| 1 | Alma |\n" * 3,
        "[Sheet May]\n| Day | Name |\n| --- | --- |",
        3,
    ),
}


@table("name", TABLES)
def test_rows_are_found_with_the_names_of_their_columns(name: str) -> None:
    text, names, count = TABLES[name]
    for before in ("", f"{PROSE}\n"):
        (found,) = tables_of(before + text)
        assert len(found.rows) == count
        last = found.rows[-1][0]
        assert "\n".join(filter(None, names_of(before + text, last))) == names


@table("text", ["", PROSE, CODE, "One line, one, two.", "* a\n* b\n* c\n"])
def test_prose_and_code_are_no_tables(text: str) -> None:
    assert not [*tables_of(text)]


def test_tables_are_found_in_linear_time() -> None:
    for piece in ("a,b\n", "|", "a  b  ", "[Sheet a]\n", "#\n", "2024-01-05 a\n", "\t\n"):
        began = time.process_time()
        assert sum(len(each.rows) for each in tables_of(piece * 40_000)) <= 40_000
        assert time.process_time() - began < 2


DAYS = ("2012/01/28,5", "28.01.2012", "28.1.12", "Jan 28 2012", "January 28th, 2012", "20120128")
OTHERS = ("2012/01/29", "2012/11/28", "28.01.2013", "Jan 28 2013", "1/28/2013", "128.01.2012")


@table("asked", ["2012-01-28", "2012/01/28", "28.01.2012", "28 January 2012", "Jan 28 2012"])
def test_a_date_is_matched_in_any_notation(asked: str) -> None:
    (pattern,), rest = in_any_notation(f"How much did it rain on {asked}?")
    assert "28" not in rest
    assert all(pattern.search(each) for each in (*DAYS, f"it was {asked}."))
    assert not any(pattern.search(each) for each in OTHERS)


@table(
    "asked, same, others",
    [
        ("at 3 pm", ("15:00:12", "3 p.m.", "3:00 pm"), ("03:00", "13:00", "15:30")),
        ("at 03:18", ("2024-02-09T03:18:44", "3:18 am"), ("13:18", "03:19")),
        ("for 12,500 euros", ("12500", "12.500", "12 500"), ("112500", "12,501", "12,500,000")),
        ("in March 2013", ("2013/03/04", "March 2013", "04.03.2013"), ("March 2014", "2013/04/03")),
        ("on 28 January", ("Jan 28 03:12:44 host", "2014-01-28"), ("Jan 27", "2014-02-28")),
    ],
)
def test_times_and_large_numbers_are_matched_in_any_notation(
    asked: str, same: tuple[str, ...], others: tuple[str, ...]
) -> None:
    (pattern,), _ = in_any_notation(f"What was paid {asked}?")
    assert [each for each in same if not pattern.search(each)] == []
    assert [each for each in others if pattern.search(each)] == []


def test_rows_keep_their_lines_when_they_are_shown() -> None:
    row = "last_name,first_name,department,extension,room\nAdeyemi,Ngozi,Legal and tax,7148,B356"
    assert reflow(row) == row
    wrapped = (
        "This is a line of prose, which was wrapped, as here,\nand this, too, is one, as it is."
    )
    assert "\n" not in reflow(wrapped)
