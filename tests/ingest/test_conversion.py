"""Notebooks, web pages, mails and Rich Text become the text that their programs show."""

from __future__ import annotations

import base64
import json
import time
from email.message import EmailMessage
from pathlib import Path

import pytest

from app.ingest import web_page
from app.ingest.mail import read_mail
from app.ingest.reader import read
from app.ingest.rtf import rtf_text
from app.ingest.text import decode
from tests.ingest.helpers import intake, refusal, written
from tests.tables import table

PICTURE = base64.b64encode(bytes(range(256)) * 40).decode()


def text_of(path: Path) -> str:
    return intake(path).documents[0].text


# ------------------------------------------------------------------------------ notebooks


def cell(kind: str, source: str | list[str], *outputs: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = {"cell_type": kind, "metadata": {}, "source": source}
    return found | ({"outputs": outputs, "execution_count": 1} if kind == "code" else {})


def test_a_notebook_is_its_cells_and_their_outputs(tmp_path: Path) -> None:
    cells = [
        cell("markdown", ["# Results\n", f"![a](data:image/png;base64,{PICTURE})"]),
        cell(
            "code",
            "plot(x)\n",
            {"output_type": "stream", "name": "stdout", "text": ["done\n"]},
            {
                "output_type": "display_data",
                "data": {"image/png": PICTURE, "text/plain": "<Figure>"},
            },
        ),
        cell(
            "code",
            "table",
            {"output_type": "execute_result", "data": {"text/html": ["<p>1<p>2"]}},
        ),
        cell(
            "code",
            "1/0",
            {"output_type": "error", "traceback": ["\x1b[31mZeroDivisionError\x1b[0m"]},
        ),
    ]
    notebook = {"nbformat": 4, "metadata": {"language_info": {"name": "python"}}, "cells": cells}
    assert text_of(written(tmp_path / "a.ipynb", json.dumps(notebook))) == (
        "[Cell 1: text]\n# Results\n![a](data:image/png)\n\n"
        "[Cell 2: python code]\nplot(x)\n\n"
        "[Output of cell 2]\ndone\n\n"
        "[Output of cell 2]\n<Figure>\n(png picture)\n\n"
        "[Cell 3: python code]\ntable\n\n[Output of cell 3]\n1\n\n2\n\n"
        "[Cell 4: python code]\n1/0\n\n"
        "[Output of cell 4]\nZeroDivisionError\n"
    )


@pytest.mark.parametrize("end", ["\n", f"\n{PICTURE[:76]}\n{PICTURE[:76]}\nAAAAA==\n"])
def test_text_after_embedded_data_of_a_notebook_stays(tmp_path: Path, end: str) -> None:
    source = f"data:image/png;base64,{PICTURE[:76]}{end}The result is five hundred and twelve"
    notebook = json.dumps({"cells": [cell("code", source)]})
    assert "data:image/png\nThe result is five" in text_of(written(tmp_path / "a.ipynb", notebook))


def test_a_notebook_with_nulls(tmp_path: Path) -> None:
    null: dict[str, object] = {"cell_type": "code", "source": "1 + 1", "outputs": None}
    notebook = json.dumps({"cells": [null], "metadata": {"language_info": None}})
    assert text_of(written(tmp_path / "a.ipynb", notebook)) == "[Cell 1: code]\n1 + 1\n"


def test_half_a_character_of_a_notebook_is_replaced(tmp_path: Path) -> None:
    notebook = json.dumps({"cells": [cell("code", "half \ud83d, whole \U0001f600")]})
    assert "half \ufffd, whole \U0001f600" in text_of(written(tmp_path / "a.ipynb", notebook))


@table("source", ["", "no JSON", "7", "{}", '{"cells": 7}', '{"cells": [7]}', "[" * 100_000])
def test_what_is_no_notebook_is_read_as_it_is(tmp_path: Path, source: str) -> None:
    assert text_of(written(tmp_path / "a.ipynb", source + "\n.")) == source + "\n."


# ------------------------------------------------------------------------------ web pages

PAGES = {
    "scripts and styles": (
        "<script>if (a<b) write('<p>x</p>')</script><style>p{}</style><!-- <p>no -->Yes",
        "Yes",
    ),
    "paragraphs": ("<p>One\n  two</p><p>Three", "One two\n\nThree"),
    "blocks and breaks": ("<div>A<div>B</div></div>C<br>D", "A\nB\nC\nD"),
    "headings": ("<h1>A</h1><h3> B </h3>", "# A\n\n### B"),
    "lists": ("<ul><li>A<li><p>B</p></ul><ol><li>C<li>D</ol>", "- A\n- B\n\n1. C\n2. D"),
    "a table": (
        "<table><tr><th></th><th>A<tr><td>b</td><td>1</td></tr></table>",
        "|  | A |\n| --- | --- |\n| b | 1 |",
    ),
    "spanning cells": (
        "<table><tr><th colspan=2>A<th>B<tr><td rowspan=2>1<td>2<td>3"
        "<tr><td><p>4<p>5<td>a|b</table>",
        "| A |  | B |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n|  | 4 5 | a\\|b |",
    ),
    "a table without cells": ("A<table></table><table><tr></table>B", "A\n\nB"),
    "a table that arranges a page": (
        "<table><tr><td>A<td><table><tr><td>1<td>2</table></table>",
        "A |\n\n| 1 | 2 |\n| --- | --- |",
    ),
    "entities": ("a &lt; b &amp; c&nbsp;d &#8364;", "a < b & c\xa0d €"),
    "signs": ("1 < 2 and <3 & 5", "1 < 2 and <3 & 5"),
    "quotes in a tag": ("<a title='>' href=\">\">x</a>", "x"),
    "a quote that does not end": ('<a title=">x</a> rest', "x rest"),
    "code as it stands": ("<pre>a\n  {{ b }}</pre>", "a\n  {{ b }}"),
    "pictures and fields": (
        "<img alt='A chart' src=x><input value=Anna><input type=hidden value=no>",
        "[A chart][Anna]",
    ),
    "hidden": (
        "<div hidden>no</div><div style='display: none'>no</div>"
        "<svg><text>no</text></svg><template>no</template>Yes",
        "Yes",
    ),
    "a comment without content": ("<p>One<!--><p>Two", "One\n\nTwo"),
    "a stray quote": ('<p class="x"">One<p title="y">Two', "One\n\nTwo"),
    "an apostrophe in a value": ("<p title=Bob's>One isn't<p>Two", "One isn't\n\nTwo"),
    "a number of many digits": (
        f"<p>&#{'9' * 5_000};<img alt='&#{'9' * 5_000};'>Yes",
        "\ufffd[\ufffd]Yes",
    ),
    "a script that closes itself": ("<script src=a.js /><p>Yes", "Yes"),
    "hidden without an end": ("<svg><p>Yes", "Yes"),
}


@table("case", PAGES)
def test_the_text_of_a_web_page(tmp_path: Path, case: str) -> None:
    source, text = PAGES[case]
    assert text_of(written(tmp_path / "a.html", source)) == text + "\n"
    # Also without the name of one, as it comes through a pipe.
    page = f"<!DOCTYPE html>\n<html><body>{source}</body></html>"
    assert text_of(written(tmp_path / "a", page)) == text + "\n"


@pytest.mark.parametrize(
    "source",
    ["<p>{{ user.name }}</p>", "<?php echo 1 ?><p>x", "<div id=root></div><script>a()</script>"],
)
def test_templates_and_pages_without_text_stay_as_they_are(tmp_path: Path, source: str) -> None:
    assert text_of(written(tmp_path / "a.html", source)) == source


def test_a_page_that_names_its_encoding(tmp_path: Path) -> None:
    page = '<html><meta charset="windows-1257"><p>Ąžuolas</p></html>'.encode("cp1257")
    result = intake(written(tmp_path / "a.html", page))
    assert result.documents[0].text == "Ąžuolas\n"
    assert not result.files[0].doubtful


def test_a_page_that_is_called_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    source = "<!DOCTYPE html><p>x</p>"
    assert text_of(written(tmp_path / "a.txt", source)) == source


HOSTILE_PIECES = (
    "<",
    "<a ='",
    "<!--",
    "<a ",
    '<a "',
    "<a '\" ",
    "</",
    "<!",
    "<script>",
    "<svg>",
    "<a b=",
)


@table("piece", [*HOSTILE_PIECES, "&", "<ul>", "<pre>", "<table><tr><td>"])
def test_time_grows_with_the_size_of_a_page(piece: str) -> None:
    def seconds(times: int) -> float:
        start = time.process_time()
        web_page.page_text(piece * times)
        return time.process_time() - start

    few = min(seconds(2_000) for _ in range(3))
    assert seconds(20_000) < 40 * few + 0.05


# ------------------------------------------------------------------------------ mails


def test_a_mail(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"] = "Zoë <zoe@example.org>", "ben@example.org"
    mail["Subject"] = "Kündigung"
    mail.set_content("Die Kündigungsfrist beträgt 30 Tage.\n", cte="base64")
    mail.add_alternative("<p>Not this one.</p>", subtype="html")
    mail.add_attachment("a;b\n1;2\n", filename="table.csv", subtype="csv")
    mail.add_attachment(b"\x89PNG", "image", "png", filename="plan.png")
    result = intake(written(tmp_path / "a.eml", bytes(mail)))
    assert result.documents[0].text == (
        "From: Zoë <zoe@example.org>\nTo: ben@example.org\nSubject: Kündigung\n\n"
        "Die Kündigungsfrist beträgt 30 Tage.\n\n"
        "[Attachment table.csv]\na;b\n1;2\n\n[Attachment plan.png, not read]\n"
    )
    assert [each.sentence for each in result.skipped] == [
        "a.eml has 1 attachment that cannot be read (plan.png): save them, and add them by name."
    ]


MAILS = {
    "only a page": (
        "a.eml",
        b"Content-Type: text/html; charset=utf-8\n\n<p>Yes</p><script>no</script>",
        "\nYes\n",
    ),
    "after a byte order mark": (
        "a.eml",
        b"\xef\xbb\xbfContent-Type: text/html\n\n<p>Yes</p>",
        "Yes\n",
    ),
    "quoted-printable": (
        "a.eml",
        b"Content-Transfer-Encoding: quoted-printable\nContent-Type: text/plain; charset=latin-1\n"
        b"\ngr=FC=\n=DFe",
        "grüße\n",
    ),
    "a wrong encoding": (
        "a.eml",
        b"Content-Type: text/plain; charset=us-ascii\n\ngr\xc3\xbc\xc3\x9fe",
        "grüße\n",
    ),
    "several": ("a.mbox", b"From x\nSubject: A\n\nOne\n\nFrom y\nSubject: B\n\nTwo\n", "Two\n"),
    "several in base64": (
        "a.mbox",
        b"From x\nSubject: A\nContent-Transfer-Encoding: base64\n\nT25l\n\n"
        b"From carl Tue\nSubject: B\n\nFrom here\n\nFrom there on",
        "Subject: A\n\nOne\n\nSubject: B\n\nFrom here\n\nFrom there on\n",
    ),
    "of Apple": ("a.emlx", b"20\nSubject: A\n\nOne\n", "Subject: A\n\nOne\n"),
    "an archive of a page": (
        "a.mht",
        b"MIME-Version: 1.0\nContent-Type: multipart/related; boundary=b\n\n--b\n"
        b"Content-Type: text/html\n\n<p>Yes\n--b\nContent-Type: image/png\n\nx\n--b--",
        "Yes\n",
    ),
    "UTF-8 in a header": ("a.eml", "Subject: Gehälter\n\nx".encode(), "Subject: Gehälter\n\nx\n"),
    "half a character": (
        "a.eml",
        b"Content-Type: text/plain; charset=utf-7\n\na +2D0- b",
        "a \ufffd b\n",
    ),
    "an encoding of no text": (
        "a.eml",
        b"Content-Type: text/plain; charset=unicode_escape\n\nC:\\new\\table",
        "C:\\new\\table\n",
    ),
    "parameters without end": ("a.eml", b"Content-Type: a" + b";x" * 200_000 + b"\n\nOne", "One"),
}


@table("case", MAILS)
def test_forms_of_mail(tmp_path: Path, case: str) -> None:
    name, data, text = MAILS[case]
    assert text_of(written(tmp_path / name, data)).endswith(text.lstrip("\n"))


def test_a_mail_with_bad_bytes_says_of_what_encoding(tmp_path: Path) -> None:
    head = b"Subject: a\nContent-Type: text/plain; charset=utf-8\n\n"
    (file,) = intake(written(tmp_path / "a.eml", head + "ä ö ü ".encode() + b"\xff")).files
    assert "is not entirely valid UTF-8" in file.sentence


def test_reading_a_mail_of_nested_parts_can_be_cancelled() -> None:
    head = "".join(f"Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n" for i in range(50))
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    read_mail(head.encode() + b"\nx" * 100_000, check)
    assert checks > 10


# ------------------------------------------------------------------------------ Rich Text

RTF = {
    r"{\rtf1\ansi\ansicpg1252 Gr\'fc\'dfe\par Two\line Three}": "Grüße\nTwo\nThree",
    r"{\rtf1\ansi\ansicpg1250 \'9elu\'9d}": "žluť",
    r"{\rtf1{\fonttbl{\f0\fcharset0 A;}{\f1\fcharset204 B;}}\f0 A \f1\'cf\'f0\f0 B}": "A ПрB",
    r"{\rtf1{\fonttbl{\f0\fcharset128 Gothic;}}\f0\'93\'fa\'96\'7b}": "日本",
    r"{\rtf1\uc1 caf\u233 e \u8211 - \u-10179 ?\u-8704 ?}": "café – 😀",
    r"{\rtf1{\*\generator X;}{\info{\title T}}{\stylesheet{\s0 Normal;}}Text {\b bold} end}": (
        "Text bold end"
    ),
    r"{\rtf1 a\{b\}\\c\~d{\pict 89504e47}{\field{\*\fldinst LINK}{\fldrslt shown}}}": (
        "a{b}\\c\xa0dshown"
    ),
    "{\\rtf1 x{\\pict\\bin5 }}{}{}y}": "xy",
    r"{\rtf1\trowd A\cell B\cell\row C\cell D\cell\row}": "A | B\nC | D\n",
    "{\\rtf1 one\r\ntwo": "onetwo",
    r"{\rtf1 }}}} x \'zz \q": " x zz ",
}


@table("source", RTF)
def test_rich_text(source: str) -> None:
    assert rtf_text(source.encode("latin-1")) == RTF[source]


def test_a_file_of_rich_text(tmp_path: Path) -> None:
    for before in ("", "\n", "\ufeff", "\ufeff\r\n"):
        assert text_of(written(tmp_path / "a.rtf", before + r"{\rtf1 A}")) == "A"
    assert "is empty" in refusal(written(tmp_path / "b.rtf", r"{\rtf1 }"))


def test_source_code_that_names_its_encoding() -> None:
    decoded = decode("# -*- coding: latin-2 -*-\n# žluťoučký\n".encode("iso8859_2"))
    assert (decoded.text[-10:], decoded.guessed) == ("žluťoučký\n", False)


def test_standard_input_is_converted_too() -> None:
    import io

    documents = read(["-"], io.BytesIO(b"<html><p>Yes</html>")).documents
    assert documents[0].text == "Yes\n"
