"""Notebooks and Rich Text become the text that their programs show."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from app.ingest import kinds
from app.ingest.notebook import notebook_text
from app.ingest.reader import read
from app.ingest.rtf import rtf_text
from app.ingest.text import decode
from tests.ingest.helpers import intake, refusal, written
from tests.tables import table
from tests.worked_examples import module_of, section

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
        "[Cell 2: python code]\n```\nplot(x)\n```\n\n"
        "[Output of cell 2]\ndone\n\n"
        "[Output of cell 2]\n<Figure>\n(png picture)\n\n"
        "[Cell 3: python code]\n```\ntable\n```\n\n[Output of cell 3]\n1\n\n2\n\n"
        "[Cell 4: python code]\n```\n1/0\n```\n\n"
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
    assert text_of(written(tmp_path / "a.ipynb", notebook)) == "[Cell 1: code]\n```\n1 + 1\n```\n"


def test_half_a_character_of_a_notebook_is_replaced(tmp_path: Path) -> None:
    notebook = json.dumps({"cells": [cell("code", "half \ud83d, whole \U0001f600")]})
    assert "half \ufffd, whole \U0001f600" in text_of(written(tmp_path / "a.ipynb", notebook))


@table("source", ["", "no JSON", "7", "{}", '{"cells": 7}', '{"cells": [7]}', "[" * 100_000])
def test_what_is_no_notebook_is_read_as_it_is(tmp_path: Path, source: str) -> None:
    assert text_of(written(tmp_path / "a.ipynb", source + "\n.")) == source + "\n."


def test_comments_in_the_code_of_a_notebook_are_no_headings() -> None:
    stream: dict[str, object] = {"output_type": "stream", "text": "# of rows: 5\n"}
    found = {"output_type": "display_data", "data": {"text/markdown": "# Result"}}
    cells = [cell("code", "# load data\nload()", stream, found), cell("raw", "# raw")]
    assert notebook_text(json.dumps({"cells": cells})) == (
        "[Cell 1: code]\n```\n# load data\nload()\n```\n\n[Output of cell 1]\n # of rows: 5\n\n"
        "[Output of cell 1]\n# Result\n\n[Cell 2: raw text]\n # raw\n"
    )


@table(
    "printed, shown",
    [
        (["0%|\r50%|\r100%|\n", "done\n"], "100%|\ndone"),
        (["one\r\ntwo\r\n"], "one\ntwo"),
        (["a 1\ra 2\n", "b 1\r"], "a 2\nb 1"),
        (["1/2\b\b\b2/2"], "2/2"),
    ],
)
def test_only_the_last_state_of_a_line_is_shown(printed: list[str], shown: str) -> None:
    output = {"output_type": "stream", "name": "stderr", "text": printed}
    text = notebook_text(json.dumps({"cells": [cell("code", "train()", output)]})) or ""
    assert text.partition("[Output of cell 1]\n")[2] == f"{shown}\n"


def test_what_is_printed_in_several_pieces_is_one_output() -> None:
    outputs: list[dict[str, object]] = [
        {"output_type": "stream", "name": name, "text": text}
        for name, text in [("stderr", "50%"), ("stderr", "\r100%"), ("stdout", "done")]
    ]
    text = notebook_text(json.dumps({"cells": [cell("code", "train()", *outputs)]})) or ""
    assert text.endswith("[Output of cell 1]\n100%\n\n[Output of cell 1]\ndone\n")


def test_a_drawing_in_html_is_named() -> None:
    drawing = {"output_type": "display_data", "data": {"text/html": "<script>draw()</script>"}}
    text = notebook_text(json.dumps({"cells": [cell("code", "plot()", drawing)]})) or ""
    assert text.endswith("[Output of cell 1]\n(HTML without text)\n")


@pytest.mark.parametrize("source", ["[],", '{"cell_type": [', '["cell_type",'])
def test_files_of_many_brackets_are_not_parsed(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ingest.notebook._MAX_CONTAINERS", 1_000)
    monkeypatch.setattr("app.ingest.notebook.json.loads", None)
    assert notebook_text(source * 1_001) is None


# ------------------------------------------------------------------------------ Rich Text

RTF = {
    r"{\rtf1\ansi\ansicpg1252 Gr\'fc\'dfe\par Two\line Three}": "Grüße\n\nTwo\nThree",
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
    r"{\rtf1\trowd A\cell B\cell\row C\cell D\cell\row}": "| A | B |\n| --- | --- |\n| C | D |",
    "{\\rtf1 one\r\ntwo": "onetwo",
    r"{\rtf1 }}}} x \'zz \q": " x zz",
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


def test_the_file_type_of_contributing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = section("Add a file type")
    suffix, reader, file = re.findall(r'`"(\.\w+)": "(.+?)"` to `TEXT_FORMATS` in `(.+?)`', text)[0]
    assert file == "app/ingest/kinds.py"
    module_of("Add a file type", reader.partition(":")[0], monkeypatch)
    monkeypatch.setitem(kinds.TEXT_FORMATS, suffix, reader)
    subtitles = "1\n00:00:01,000 --> 00:00:02,500\nThe vault opens.\n\n"
    for content, shown in ((subtitles, "The vault opens.\n\n"), ("No times.\n", "No times.\n")):
        (document,) = read([str(written(tmp_path / f"talk{suffix}", content))]).documents
        assert document.text == shown
