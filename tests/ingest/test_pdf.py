"""PDF files: the text of their pages, and one sentence about what cannot be read."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.ingest import document_worker
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.process import ProcessLimits, run_bounded
from app.ingest.reader import read, read_outline
from app.ingest.records import RECOGNISABLE, ReadCancelled, ReadProgress
from app.protocol.prompt import Document
from tests.ingest.helpers import check_sentence, folder, intake, names, refusal, written
from tests.tables import slow, table

SENTENCE = "The tenant may give notice of three months."


PICTURE = "100 100 200 200 re f"


def pdf_of(*pages: str) -> bytes:
    """A PDF file with these lines, one on each page. Where a line is empty, there is a picture."""
    shown = (f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else PICTURE for text in pages)
    return assembled([content.encode() for content in shown])


def assembled(
    contents: list[bytes],
    extra: bytes = b"",
    extras: Sequence[bytes] | None = None,
    annotations: Sequence[bytes] = (),
) -> bytes:
    """A PDF file with these pages. `extra`: what every content's dictionary has, or `extras`, one
    for each. `annotations`: dictionaries of the first page."""
    annotated = [b"<< /Type /Annot /Rect [0 0 9 9] %s >>" % each for each in annotations]
    first = 4 + 2 * len(contents)
    listed = b" ".join(b"%d 0 R" % (first + n) for n in range(len(annotated)))
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [%s] >> >>" % listed,
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, content in enumerate(contents):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> /Annots [%s] >>"
            % (5 + 2 * number, b"" if number else listed),
            b"<< /Length %d %s>>\nstream\n%s\nendstream"
            % (len(content), extras[number] if extras else extra, content),
        ]
    objects += annotated
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size, start = len(objects) + 1, len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, start)
    return bytes(out)


def encrypted(case: str) -> bytes:
    """A file with SENTENCE, encrypted by `case`: an algorithm, and `password` if it needs one."""
    files = json.loads((Path(__file__).parent / "encrypted_pdfs.json").read_text())
    return zlib.decompress(base64.b85decode(files[case]))


def test_the_text_of_a_pdf_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pdf", pdf_of(SENTENCE, "And so on."))
    text = f"[Page 1]\n{SENTENCE}\n\n[Page 2]\nAnd so on.\n\n"
    assert read([str(path)]).documents == (Document("a.pdf", text),)
    taken = intake(folder(tmp_path, b="b"))
    assert names(taken) == ["a.pdf", "b"]
    assert taken.files[0].encoding == "pdf"


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf\r\n", *map(slow, [b"\xef\xbb\xbf", b" \n"])])
def test_a_pdf_file_after_a_byte_order_mark_or_white_space(tmp_path: Path, before: bytes) -> None:
    path = str(written(tmp_path / "a.pdf", before + pdf_of(SENTENCE)))
    assert read([path]).documents == (Document("a.pdf", f"[Page 1]\n{SENTENCE}\n\n"),)
    assert read_outline(path, ReadLimits(), lambda: False).numbers == range(1, 2)


HOSTILE = {
    "cut in half": (pdf_of(SENTENCE)[:300], "damaged"),
    "only the mark": (b"%PDF-1.7\n", "damaged"),
    "noise": (b"%PDF-1.7\n" + bytes(range(256)) * 100, "damaged"),
    "no pages": (assembled([]), "damaged"),
    "pictures only": (pdf_of("", ""), "(OCR)"),
    "a loop of pages": (pdf_of(SENTENCE).replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"), "PDF"),
    "a length that lies": (
        pdf_of(SENTENCE).replace(b"/Length ", b"/Length 99999999999"),
        "",
    ),
}


@table("case", HOSTILE)
def test_a_hostile_pdf_file(tmp_path: Path, case: str) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    data, word = HOSTILE[case]
    written(tmp_path / "a.pdf", data)
    start = time.monotonic()
    taken = intake(folder(tmp_path, b="b"), ReadLimits(document_seconds=8))
    assert time.monotonic() - start < 20
    assert "b" in names(taken)
    for told in taken.skipped:
        check_sentence(told.sentence)
        assert word in told.sentence
    assert taken.skipped or not word


NOTICE = b"BT /F1 12 Tf 72 700 Td (The notice period is 30 days.) Tj ET"
WITHOUT_TEXT = "a.pdf has 1 of 3 pages (2) without text: they are blank or damaged."
LONG = "a page that takes too long"
BAD_PAGES = {
    "a text without its end": (b"BT /F1 12 Tf 72 700 Td (Middle Tj ET", b"", "", WITHOUT_TEXT),
    "a bad hexadecimal text": (b"BT /F1 12 Tf 72 700 Td <4G> Tj ET", b"", "@", ""),
    "an unknown filter": (b"x", b"/Filter /Other ", "", WITHOUT_TEXT),
    LONG: (
        b"",  # `long_page` makes it
        b"/Filter /FlateDecode ",
        "(This page could not be read.)",
        "a.pdf has 1 of 3 pages (2) that cannot be read: save it again, or convert it to text.",
    ),
}


@functools.cache
def long_page() -> bytes:
    return zlib.compress(b"BT /F1 12 Tf " + b"(a) Tj " * 2_000_000 + b"ET", 9)


@pytest.mark.parametrize("case", [slow(case) if case == LONG else case for case in BAD_PAGES])
def test_a_bad_page_costs_only_that_page(tmp_path: Path, case: str) -> None:
    bad, extra, text, told = BAD_PAGES[case]
    bad = long_page() if case == LONG else bad
    data = assembled([NOTICE, bad, NOTICE], extras=[b"", extra, b""])
    limits = ReadLimits(document_seconds=0.2)
    result = intake(written(tmp_path / "a.pdf", data), limits)
    notice = "The notice period is 30 days."
    assert result.documents[0].text == (
        f"[Page 1]\n{notice}\n\n[Page 2]\n{text}\n\n[Page 3]\n{notice}\n\n"
    )
    assert [each.sentence for each in result.skipped] == ([told] if told else [])


def test_a_page_that_crashes_the_process_costs_only_that_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = (
        "import os, sys; first = int(sys.argv[3]); number = first + 1\n"
        'os.write(1, b\'[0, 6, []]\\n["[Page %d]", "%d", ""]\\n["[Pa\' % (number, number))\n'
        "os.pwrite(int(sys.argv[2]), b'%d 6 ' % number, 0); os.abort()"
    )
    monkeypatch.setattr(document_worker, "__file__", str(written(tmp_path / "w.py", worker)))
    result = intake(written(tmp_path / "a.pdf", pdf_of(SENTENCE)))
    assert "[Page 3]\n3\n\n[Page 4]\n(This page could not be read.)" in result.documents[0].text
    assert ["has 3 of 6 pages (2, 4, 6)" in each.sentence for each in result.skipped] == [True]


def test_a_first_page_that_takes_too_long_costs_only_that_page(tmp_path: Path) -> None:
    data = assembled([long_page(), NOTICE], extras=[BAD_PAGES[LONG][1], b""])
    limits = ReadLimits(document_seconds=0.2)
    result = intake(written(tmp_path / "a.pdf", data), limits)
    assert result.documents[0].text.endswith("[Page 2]\nThe notice period is 30 days.\n\n")
    assert "1 of 2 pages (1) that cannot be read" in result.skipped[0].sentence


def test_pages_without_text_are_counted(tmp_path: Path) -> None:
    pages = ["Cover", *[""] * 3, "Middle", "", "End", *[""] * 4]
    path = written(tmp_path / "docs" / "scan.pdf", pdf_of(*pages))
    alone, inside = intake(path), intake(path.parent)
    for result, name in ((alone, "scan.pdf"), (inside, "docs/scan.pdf")):
        assert [each.sentence for each in result.skipped] == [
            f"{name} has 8 of 11 pages (2-4, 6, 8-11) without text:"
            " run text recognition (OCR) on it first."
        ]
        assert result.skipped_summary == "8 pages without text"
    assert "scan.pdf (skipped: pages without text)" in inside.documents[0].text


def test_blank_pages_are_told_apart_from_pictures(tmp_path: Path) -> None:
    blank = written(tmp_path / "a.pdf", assembled([NOTICE, b"", b""]))
    (skipped,) = intake(blank).skipped
    assert skipped.sentence.endswith("2 of 3 pages (2-3) without text: they are blank or damaged.")
    assert skipped.reason not in RECOGNISABLE
    mixed = written(tmp_path / "a.pdf", assembled([NOTICE, b"", PICTURE.encode()]))
    assert intake(mixed).skipped[0].reason in RECOGNISABLE
    nothing = written(tmp_path / "a.pdf", assembled([b"", b""]))
    assert "is a PDF file whose pages are blank or damaged: save it again" in refusal(nothing)


def test_form_fields_and_comments_follow_the_text_of_their_page(tmp_path: Path) -> None:
    annotations = [
        b"/Subtype /Widget /FT /Tx /T (Name) /V (Anna Kowalska)",
        b"/Subtype /Widget /FT /Tx /TU (Date of birth) /T (f2) /V (1 May 1990)",
        b"/Subtype /Widget /FT /Tx /T (Empty)",
        b"/Subtype /Widget /FT /Tx /Ff 8192 /T (Password) /V (secret)",
        b"/Subtype /Widget /FT /Btn /T (Agreed) /AS /Yes",
        b"/Subtype /Widget /FT /Ch /T (Country) /Opt [[(pl) (Poland)] [(cz) (Czechia)]] /V (pl)",
        b"/Subtype /Widget /FT /Sig /T (Signature) /V << /Contents (x) >>",
        b"/Subtype /Text /T (Ben) /Contents (Ask the landlord.)",
        b"/Subtype /FreeText /Contents (See\\rclause 4.)",
        b"/Subtype /Text /F 2 /Contents (hidden)",
        b"/Subtype /Link /Contents (a link)",
        b"/Subtype /Text /Contents 99 0 R /F /Damaged",
    ]
    data = assembled([NOTICE, b""], annotations=annotations)
    assert read([str(written(tmp_path / "a.pdf", data))]).documents[0].text == (
        "[Page 1]\nThe notice period is 30 days.\n\n"
        "Form field Name: Anna Kowalska\n"
        "Form field Date of birth: 1 May 1990\n"
        "Form field Agreed: Yes\n"
        "Form field Country: Poland\n"
        "Comment by Ben: Ask the landlord.\n"
        "Comment: See\nclause 4.\n\n[Page 2]\n\n\n"
    )


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256", *map(slow, ["AES-128", "AES-256-R5"])])
def test_a_file_that_opens_without_a_password(tmp_path: Path, algorithm: str) -> None:
    path = written(tmp_path / "a.pdf", encrypted(algorithm))
    assert SENTENCE in read([str(path)]).documents[0].text


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_a_password(tmp_path: Path, algorithm: str) -> None:
    path = written(tmp_path / "a.pdf", encrypted(f"{algorithm} password"))
    assert "with a password" in refusal(path)


def test_a_bomb_bursts_in_its_own_process(tmp_path: Path) -> None:
    bomb = zlib.compress(zlib.compress(b"q " * 5_000_000, 9), 9)
    data = assembled([bomb], b"/Filter [/FlateDecode /FlateDecode] ")
    assert len(data) < 10_000
    path = written(tmp_path / "a.pdf", data)
    start = time.monotonic()
    refusal(path, limits=ReadLimits(document_seconds=1))
    assert time.monotonic() - start < 10


def test_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = written(tmp_path / "slow.py", "import time; time.sleep(60)")
    monkeypatch.setattr(document_worker, "__file__", str(slow))
    path = written(tmp_path / "a.pdf", pdf_of(SENTENCE))
    start = time.monotonic()
    assert "longer than 0.3 seconds" in refusal(path, limits=ReadLimits(document_seconds=0.3))
    assert time.monotonic() - start < 5


def test_pages_are_told_and_reading_them_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = "import os, sys, time; os.pwrite(int(sys.argv[2]), b'41 300 ', 0); time.sleep(60)"
    monkeypatch.setattr(document_worker, "__file__", str(written(tmp_path / "slow.py", worker)))
    path = written(tmp_path / "a.pdf", pdf_of(SENTENCE))
    told: list[ReadProgress] = []
    with pytest.raises(ReadCancelled):
        read([str(path)], progress=told.append, cancelled=lambda: told[-1:] and told[-1].pages > 0)
    assert told[-1].page_text == "page 41 of 300"


def test_memory_of_a_process_is_bounded_on_every_system() -> None:
    command = [sys.executable, "-c", "import time; x = b'x' * 100_000_000; time.sleep(30)"]
    start = time.monotonic()
    done = run_bounded(command, ProcessLimits(20, 10, memory=60_000_000), ReadBudget())
    assert (done[0], time.monotonic() - start < 15) == (None, True)


def test_a_process_that_gets_on_has_its_time_again() -> None:
    """It ends once it was asked five times, which is four times longer than its limit."""
    read_end, write_end = os.pipe()
    asked: list[int] = []

    def progressed() -> bool:
        asked.append(1)
        if len(asked) == 5:
            os.write(write_end, b"x")
        return True

    command = [sys.executable, "-c", f"import os; os.read({read_end}, 1)"]
    limits = ProcessLimits(0.01, 10)
    done = run_bounded(command, limits, ReadBudget(), progressed, pass_fds=(read_end,))
    assert done == (0, b"")
    stopped = run_bounded(command, limits, ReadBudget(), pass_fds=(read_end,))
    assert stopped == (None, b"")


def test_the_worker_tells_its_pages(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as pages, tempfile.TemporaryFile() as file:
        file.write(pdf_of(SENTENCE, "Two.", "Three."))
        file.seek(0)
        command = [sys.executable, document_worker.__file__, str(2**30), str(pages.fileno()), "0"]
        done = subprocess.run(
            command, stdin=file, stdout=subprocess.DEVNULL, pass_fds=(pages.fileno(),), check=True
        )
        assert (done.returncode, os.pread(pages.fileno(), 64, 0)) == (0, b"3 3 ")


def test_nothing_is_imported_from_where_we_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sprung = tmp_path / "sprung"
    for name in ("pypdfium2.py", "io.py", "resource.py", "app/__init__.py"):
        written(tmp_path / name, f"open({str(sprung)!r}, 'w')")
    path = written(tmp_path / "a.pdf", pdf_of(SENTENCE))
    monkeypatch.chdir(tmp_path)
    assert SENTENCE in read([str(path)]).documents[0].text
    assert not sprung.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only some systems bound it")
def test_memory_is_bounded(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pdf", pdf_of(SENTENCE))
    assert "damaged" in refusal(path, limits=ReadLimits(document_memory=16 * 1024 * 1024))
    assert os.path.exists(path)
