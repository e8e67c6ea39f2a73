"""Where a long answer is cut, and that it does not depend on how it came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.ui.transcript.answer import CODE_LINES, SECTION_LINES, Sections
from app.ui.transcript.lazy_container import estimate_rows

LINE = st.sampled_from(
    [
        "",
        "",
        "text",
        "- item",
        "  more",
        "12. twelve",
        "```",
        "```py",
        "~~~",
        "`x`",
        "# head",
        "| a |",
    ]
)


def split(text: str) -> list[str]:
    sections = Sections()
    sections.feed(text)
    return sections.texts


def many(line: str, count: int) -> str:
    return "".join(f"{line.format(n)}\n" for n in range(count))


def test_a_short_text_is_one_section() -> None:
    assert split("") == [""]
    assert split("One.\n\nTwo.\n") == ["One.\n\nTwo.\n"]


def test_paragraphs_are_cut_at_blank_lines() -> None:
    sections = split(many("Line {}.\n", 100))
    assert len(sections) == 200 // SECTION_LINES
    assert all(section.startswith("Line") and section.endswith("\n\n") for section in sections)
    assert "".join(sections) == many("Line {}.\n", 100)


def test_lists_are_cut_between_their_items() -> None:
    text = "".join(f"{n}. item\n   more of it\n" for n in range(1, 200))
    sections = split(text)
    assert len(sections) > 5
    assert all(section[0].isdigit() for section in sections)
    assert "".join(sections) == text


def test_a_paragraph_without_an_end_is_not_cut() -> None:
    assert len(split(many("words and words", 500))) == 1


def test_long_code_is_opened_again() -> None:
    sections = split("```python\n" + many("x = {}", 3 * CODE_LINES) + "```\nDone.\n")
    assert len(sections) == 4
    assert all(section.startswith("```python\n") for section in sections)
    assert all(section.endswith("```\n") for section in sections[:-1])
    assert sections[-1].endswith("```\nDone.\n")


@given(st.lists(LINE, max_size=400), st.integers(1, 50))
def test_sections_do_not_depend_on_how_the_text_arrives(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    sections = Sections()
    for start in range(0, len(text), size):
        sections.feed(text[start : start + size])
    assert sections.texts == split(text)


def test_the_rows_of_a_text_are_estimated_from_its_lines() -> None:
    assert [estimate_rows(text, 10) for text in ("", "a" * 25, "a" * 25 + "\n\nb")] == [1, 3, 5]
