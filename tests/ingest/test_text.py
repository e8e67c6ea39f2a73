"""Encodings and what is no text."""

from __future__ import annotations

import codecs
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ingest.records import Reason, Rejected
from app.ingest.text import decode, is_binary

GERMAN = "Der Vertrag regelt die Kündigung der Räume, Größe und Maße.\n"
RUSSIAN = "Договор регулирует прекращение аренды, сроки и порядок расчётов.\n"
JAPANESE = "契約は賃貸の終了を定める。期間は三か月とする。ひらがなとカタカナ。\n"
POLISH = "Zażółć gęślą jaźń, umowa określa zasady wypowiedzenia między stronami.\n"

ENCODED = {
    "utf-8": (GERMAN + RUSSIAN + JAPANESE).encode(),
    "utf-8 with a mark": codecs.BOM_UTF8 + GERMAN.encode(),
    "utf-16 little": codecs.BOM_UTF16_LE + JAPANESE.encode("utf-16-le"),
    "utf-16 big": codecs.BOM_UTF16_BE + RUSSIAN.encode("utf-16-be"),
    "utf-16 little, no mark": GERMAN.encode("utf-16-le"),
    "utf-16 big, no mark": GERMAN.encode("utf-16-be"),
    "utf-32": codecs.BOM_UTF32_LE + GERMAN.encode("utf-32-le"),
    "cp1252": (GERMAN + "“10 €”\n").encode("cp1252"),
    "cp1252, one word": "grüße".encode("cp1252"),
    "cp1252, late in a large file": b"x = 1\n" * 100_000 + "# größe\n".encode("cp1252"),
    "cp1250": POLISH.encode("cp1250") * 3,
    "cp1251": RUSSIAN.encode("cp1251") * 3,
    "koi8": RUSSIAN.encode("koi8_r") * 3,
    "shift jis": JAPANESE.encode("cp932") * 3,
    "euc": JAPANESE.encode("euc_jp") * 3,
    "gb18030": "合同规定了租赁的终止，通知期限为三个月。\n".encode("gb18030") * 3,
    "big5": "合同規定了租賃的終止，通知期限為三個月。\n".encode("big5") * 3,
    "korean": "계약은 임대 종료를 규정한다. 통지 기간은 석 달이다.\n".encode("cp949") * 3,
}
HOLDS = {
    "cp1252": "“10 €”",
    "cp1252, one word": "grüße",
    "cp1252, late in a large file": "größe",
    "cp1250": POLISH,
    "cp1251": RUSSIAN,
    "koi8": RUSSIAN,
    "shift jis": JAPANESE,
    "euc": JAPANESE,
    "utf-16 little": JAPANESE,
    "utf-16 big": RUSSIAN,
}


@pytest.mark.parametrize("case", ENCODED)
def test_an_encoding_is_recognised_and_loses_nothing(case: str) -> None:
    data = ENCODED[case]
    decoded = decode(data)
    assert not decoded.lossy
    again = decoded.text.encode(decoded.encoding)
    assert again in (data, data[2:], data[3:], data[4:])
    assert HOLDS.get(case, "") in decoded.text
    assert not is_binary(data[:100])


def test_a_torn_utf8_file_stays_utf8() -> None:
    decoded = decode(GERMAN.encode() * 20 + b"torn \xc3\n")
    assert decoded.lossy
    assert decoded.text == GERMAN * 20 + "torn \\xc3\n"


NO_TEXT = {
    "nul": b"text\0text",
    "an image": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a program": b"\x7fELF\x02\x01\x01\0\0\0",
    "noise": random.Random(0).randbytes(60_000),
    "noise without nul": random.Random(0).randbytes(60_000).replace(b"\0", b"\x01"),
    "half a utf-16 character": codecs.BOM_UTF16_LE + b"a\0b",
    "a lone surrogate": codecs.BOM_UTF16_LE + b"\0\xd8a\0",
    "small numbers of two bytes": b"".join(bytes([n % 30, 0]) for n in range(500)),
}


@pytest.mark.parametrize("case", NO_TEXT)
def test_no_text(case: str) -> None:
    with pytest.raises(Rejected) as caught:
        decode(NO_TEXT[case])
    assert caught.value.reason is Reason.BINARY


@pytest.mark.parametrize("data", [b"", b" \n\t", codecs.BOM_UTF8, codecs.BOM_UTF16_LE + b"\n\0"])
def test_empty(data: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        decode(data)
    assert caught.value.reason is Reason.EMPTY


def test_no_known_encoding() -> None:
    with pytest.raises(Rejected) as caught:
        decode(JAPANESE.encode("euc_jp") * 2_000 + b"\xff\n")
    assert caught.value.reason is Reason.ENCODING


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_utf8_comes_back_byte_for_byte(text: str) -> None:
    text = "x" + text
    assert decode(text.encode()).text == text


@given(st.binary(max_size=300))
def test_any_bytes_are_a_text_or_refused(data: bytes) -> None:
    try:
        decoded = decode(data)
    except Rejected:
        return
    decoded.text.encode()
    assert "\0" not in decoded.text
