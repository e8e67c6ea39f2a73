"""Encodings and what is no text."""

from __future__ import annotations

import codecs
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ingest.records import Rejected, SkipReason
from app.ingest.text import decode, is_binary
from tests.tables import slow, table

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


@table("case", ENCODED)
def test_an_encoding_is_recognised_and_loses_nothing(case: str) -> None:
    data = ENCODED[case]
    decoded = decode(data)
    assert not decoded.lossy
    again = decoded.text.encode(decoded.encoding)
    assert again in (data, data[2:], data[3:], data[4:])
    assert HOLDS.get(case, "") in decoded.text
    assert not is_binary(data[:100])


TERM = "The café’s term is two years — renewable. "
ONE_BAD_BYTE = {
    "a torn file": (GERMAN.encode() * 20 + b"torn \xc3\n", GERMAN * 20 + "torn \\xc3\n"),
    "few characters beyond ascii, cut": ((TERM + "é").encode()[:-1], TERM + "\\xc3"),
    "a character of three bytes, cut": ("It’s fine —".encode()[:-1], "It’s fine \\xe2\\x80"),
    "a stray byte": (TERM.encode() + b"\xff end", TERM + "\\xff end"),
    "a stray byte far from the others": (
        TERM.encode() + b"Plain.\n" * 20_000 + b"\xa0",
        TERM + "Plain.\n" * 20_000 + "\\xa0",
    ),
    "utf-16, cut": (TERM.encode("utf-16")[:-1], TERM[:-1] + "\\x20"),
    "utf-16, a lone surrogate": (
        codecs.BOM_UTF16_LE + b"\0\xd8" + TERM.encode("utf-16-le"),
        "\\x00\\xd8" + TERM,
    ),
    "shift jis, cut": (JAPANESE.encode("cp932") + b"\x83", JAPANESE + "\\x83"),
}


@table("case", ONE_BAD_BYTE)
def test_a_bad_byte_changes_no_other_character(case: str) -> None:
    data, text = ONE_BAD_BYTE[case]
    decoded = decode(data)
    assert decoded.text == text
    assert decoded.lossy


# The same sentence, as its language and its usual encodings have it.
LEGACY = {
    "Polish": (
        "Okres wypowiedzenia wynosi trzydzieści dni, także dla części umowy.",
        "cp1250",
        "iso8859_2",
        "cp852",
    ),
    "Czech": ("Výpovědní lhůta činí třicet dní a běží od příštího měsíce.", "cp1250", "iso8859_2"),
    "Slovak": ("Výpovedná lehota je tridsať dní a začína plynúť ďalší mesiac.", "cp1250"),
    "Hungarian": (
        "A felmondási idő harminc nap, és a következő hónaptól számít.",
        "cp1250",
        "iso8859_2",
        "cp852",
    ),
    "Romanian": ("Termenul de preaviz este de treizeci de zile şi curge după încetare.", "cp1250"),
    "Croatian": (
        "Otkazni rok iznosi trideset dana i počinje teći sljedeći mjesec, što znači žurbu.",
        "cp1250",
    ),
    "Turkish": (
        "İhbar süresi otuz gündür ve sözleşmenin bitişinden sonra başlar.",
        "cp1254",
        "cp857",
    ),
    "Finnish": ("Irtisanomisaika on kolmekymmentä päivää, eikä sitä lyhennetä.", "cp1252", "cp850"),
    "Swedish": ("Uppsägningstiden är trettio dagar på båda sidor.", "cp1252", "mac_roman"),
    "German": (
        "Die Kündigungsfrist beträgt dreißig Tage für beide.",
        "cp1252",
        "cp850",
        "mac_roman",
    ),
    "French": (
        "Le délai de préavis est de trente jours, même à l’étranger.",
        "cp1252",
        "mac_roman",
    ),
    "Portuguese": ("O aviso prévio é de trinta dias; não há exceções à regra.", "cp1252"),
    "Latvian": ("Uzteikuma termiņš ir trīsdesmit dienas, un to var pagarināt.", "cp1257"),
    "Lithuanian": ("Įspėjimo terminas yra trisdešimt dienų, jį gali keisti abi šalys.", "cp1257"),
    "English": ("“It’s the term – 30 days,” he said.", "cp1252"),
    "Russian": (
        "Срок уведомления составляет тридцать дней.",
        "cp1251",
        "koi8_r",
        "cp866",
        "iso8859_5",
    ),
    "Greek": ("Η προθεσμία είναι τριάντα ημέρες.", "cp1253"),
    "Hebrew": ("תקופת ההודעה היא שלושים יום.", "cp1255"),
    "Arabic": ("مدة الإشعار ثلاثون يوما.", "cp1256", "iso8859_6"),
    "Thai": ("ระยะเวลาแจ้งล่วงหน้าสามสิบวัน", "cp874"),
    "Japanese": ("通知期間は三十日とする。", "cp932", "euc_jp"),
    "Chinese": ("合同的通知期限为三十天。", "gb18030"),
    "Korean": ("통지 기간은 삼십 일로 한다.", "cp949"),
    "Taiwanese": ("合約的通知期限為三十天。", "big5"),
}


LINES = [(text, each) for text, *encodings in LEGACY.values() for each in encodings]


@table("text, encoding", LINES)
def test_a_language_shows_the_encoding_and_it_is_called_a_guess(text: str, encoding: str) -> None:
    is_guessed(text, encoding, 1)


@pytest.mark.parametrize("rows", [LINES[::10], slow(LINES)], ids=["a tenth", "all"])
def test_a_long_text_shows_the_encoding_too(rows: list[tuple[str, str]]) -> None:
    for text, encoding in rows:
        is_guessed(text, encoding, 200)


def is_guessed(text: str, encoding: str, times: int) -> None:
    decoded = decode((text + "\n").encode(encoding) * times)
    assert decoded.text == (text + "\n") * times, encoding
    assert decoded.guessed, encoding


def test_one_character_in_a_long_line_is_found() -> None:
    assert decode(b"x" * 99_999 + "é".encode("cp1252") + b"x" * 99_999).text[99_999] == "é"


def test_japanese_in_seven_bits() -> None:
    decoded = decode(JAPANESE.encode("iso2022_jp"))
    assert (decoded.text, decoded.guessed) == (JAPANESE, False)


NO_TEXT = {
    "nul": b"text\0text",
    "an image": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a program": b"\x7fELF\x02\x01\x01\0\0\0",
    "noise": random.Random(0).randbytes(60_000),
    "noise without nul": random.Random(0).randbytes(60_000).replace(b"\0", b"\x01"),
    "utf-16 of noise": codecs.BOM_UTF16_LE + random.Random(0).randbytes(60_000),
    "small numbers of two bytes": b"".join(bytes([n % 30, 0]) for n in range(500)),
}


@table("case", NO_TEXT)
def test_no_text(case: str) -> None:
    with pytest.raises(Rejected) as caught:
        decode(NO_TEXT[case])
    assert caught.value.reason is SkipReason.BINARY


@pytest.mark.parametrize("data", [b"", b" \n\t", codecs.BOM_UTF8, codecs.BOM_UTF16_LE + b"\n\0"])
def test_empty(data: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        decode(data)
    assert caught.value.reason is SkipReason.EMPTY


def test_no_known_encoding() -> None:
    with pytest.raises(Rejected) as caught:
        decode(bytes(random.Random(0).choices(range(0x80, 0x100), k=5_000)))
    assert caught.value.reason is SkipReason.ENCODING


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
