from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from app.ui.transcript.markdown import answer_parser
from app.util.sanitize import (
    BIDI_NAMES,
    INVISIBLE_NAMES,
    TAGS,
    sanitize,
    sanitize_line,
    without_hidden,
)
from tests.tables import table

ANYTHING = st.text(
    st.one_of(
        st.characters(),
        st.characters(max_codepoint=0xA0),
        st.sampled_from([chr(code) for code in (*BIDI_NAMES, *INVISIBLE_NAMES, *TAGS)]),
        st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF),
    )
)


@given(ANYTHING)
def test_nothing_dangerous_is_left(text: str) -> None:
    for character in sanitize(text):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
        assert ord(character) not in BIDI_NAMES | INVISIBLE_NAMES
        assert ord(character) not in TAGS
        assert ord(character) not in (0x2028, 0x2029)


@given(ANYTHING)
def test_twice_is_once_and_the_result_can_be_written(text: str) -> None:
    once = sanitize(text)
    assert sanitize(once) == once
    once.encode()


@given(ANYTHING, ANYTHING)
def test_piece_by_piece_is_the_same(left: str, right: str) -> None:
    assert sanitize(left + right) == sanitize(left) + sanitize(right)


UNSEEN = "".join(map(chr, INVISIBLE_NAMES))
"""Some are letters, by their category."""


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"], exclude_characters=UNSEEN)))
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert sanitize(text) == text


@table(
    "text, shown",
    [
        ("\x1b[2J", "␛[2J"),
        ("a\x00b", "a␀b"),
        ("\x7f", "␡"),
        ("\x9b", "⟨9B⟩"),
        ("\u202etxt", "⟨RLO⟩txt"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\n", "a␍\n"),
        ("\ud800", "\ufffd"),
        ("a\u200bb\u2060\ufeff", "a⟨ZWSP⟩b⟨WJ⟩⟨BOM⟩"),
        ("".join(chr(0xE0000 + ord(each)) for each in "Obey\n"), "⟨O⟩⟨b⟩⟨e⟩⟨y⟩⟨E000A⟩"),
        ("👩\u200d💻 Kün\u00addigung", "👩\u200d💻 Kün\u00addigung"),
        ("😀\U000e0139\U000e0155", "😀⟨VS74⟩⟨VS102⟩"),
        ("a\ufe00b\u3164c\u115f\uffa0", "a⟨VS1⟩b⟨HF⟩c⟨HCF⟩⟨HWHF⟩"),
        ("❤\ufe0f ☎\ufe0e 1\ufe0f\u20e3", "❤\ufe0f ☎\ufe0e 1\ufe0f\u20e3"),
        ("\u034f\u180e\u206a\U000e0fff\U0001d173", "⟨CGJ⟩⟨MVS⟩⟨ISS⟩⟨E0FFF⟩⟨1D173⟩"),
    ],
)
def test_examples(text: str, shown: str) -> None:
    assert sanitize(text) == shown


def test_joiners_among_dividing_characters_are_hidden() -> None:
    assert without_hidden("a\u200b\u200c\xadb, c\u200bd \u200de") == ("ab, c\u200bd e", 4)


def test_a_line_stays_one_line() -> None:
    assert sanitize_line("a\nb\tc") == "a␊b␉c"


@table("entity", ["&#x202E;", "&#8238;", "&#x2066;", "&#12;", "&#x1b;"])
def test_an_entity_cannot_bring_back_what_was_taken_out(entity: str) -> None:
    tokens = answer_parser().parse(sanitize(f"text {entity} and `{entity}`\n\n    {entity}"))
    shown = [part.content for token in tokens for part in (token, *(token.children or ()))]
    assert all(sanitize(text) == text for text in shown)
