"""The process that reads documents has limits in all, and nothing that it does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from email.message import EmailMessage
from pathlib import Path

import psutil
import pytest

from app.ingest import document_worker
from app.ingest.convert import converted
from app.ingest.documents import converted_apart
from app.ingest.kinds import Kind
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.reader import read_content
from app.ingest.records import ReadCancelled, Rejected, SkipReason
from app.ingest.text import Decoded
from tests.ingest.documents import zipped
from tests.ingest.helpers import check_sentence, intake, refusal, written
from tests.ingest.test_pdf import pdf_of
from tests.tables import table

ROOT = Path(__file__).parents[2]


def run(code: str, **more: object) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the place of the worker."""
    script = tmp_path / "worker.py"
    monkeypatch.setattr(document_worker, "__file__", str(script))
    return script


# --------------------------------------------------------------------------- what it may do


TRIES = """
import os, resource, socket, subprocess
from app.ingest import confine
confine.confine(1_000_000, 5)
def tried(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"
print([
    tried(lambda: socket.socket().connect(("127.0.0.1", 9))),
    tried(lambda: subprocess.run(["true"])),
    tried(lambda: os.execv("/bin/true", ["true"])),
    tried(lambda: open(sys.argv[0] if sys.argv[0] != "-c" else "/dev/null").close()),
])
names = ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_NOFILE")
print([resource.getrlimit(getattr(resource, name))[0] for name in names])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS confines in another way")
def test_it_has_no_network_and_starts_no_program() -> None:
    first, second = run(TRIES).splitlines()
    assert first == str([*["PermissionError"] * 3, "done"])
    assert second == str([0, 1_000_000, 5, 0, 64])


def test_it_gets_few_variables(
    tmp_path: Path, worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(
        worker,
        "import json, os, sys\n"
        "print('[0, 1, []]'); print(json.dumps(['', ' '.join(os.environ), '']))\n"
        "assert json.loads(sys.argv[4])['parent'] == os.getppid()\n"
        "os.pwrite(int(sys.argv[2]), b'1 1 ', 0)",
    )
    for name in ("HF_TOKEN", "PYTHONPATH", "HOME", "LANG"):
        monkeypatch.setenv(name, "x")
    given = set(intake(written(tmp_path / "a.pdf", pdf_of("x"))).texts[0].text.split())
    assert "LANG" in given
    assert given <= {"TZ", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TMPDIR"}


def test_it_ends_when_its_parent_is_gone() -> None:
    child = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); from app.ingest import confine;"
        " confine.end_with(int(sys.argv[1]))\nwhile True: pass"
    )
    started = run(
        "import os, subprocess\n"
        f"command = [sys.executable, '-c', {child!r}, str(os.getpid())]\n"
        "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid)"
    )
    end = time.monotonic() + 20
    while psutil.pid_exists(pid := int(started)):
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            break
        assert time.monotonic() < end
        time.sleep(0.05)


# -------------------------------------------------------------------------- limits in all


def book(sections: int, text: str) -> bytes:
    items = '<item id="s" href="s.xhtml" media-type="application/xhtml+xml"/>'
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container><rootfiles><rootfile full-path="c.opf"/>'
            "</rootfiles></container>",
            "c.opf": f"<package><manifest>{items}</manifest><spine>"
            + '<itemref idref="s"/>' * sections
            + "</spine></package>",
            "s.xhtml": f"<html><body>{text}</body></html>",
        }
    )


def test_a_document_has_a_limit_of_parts(tmp_path: Path) -> None:
    limits = ReadLimits(document_parts=3)
    path = written(tmp_path / "a.pdf", pdf_of("One.", "Two.", "Three.", "Four.", "Five."))
    taken = intake(path, limits)
    assert taken.texts[0].text.endswith("[Page 3]\nThree.\n\n[Pages 4 to 5, not read]\n")
    assert [each.sentence for each in taken.skipped] == [
        "a.pdf is not read completely (without pages 4 to 5): name those you need, as in #4-."
    ]
    assert taken.skipped[0].reason is SkipReason.CUT
    part = intake(Path(f"{path}#2-4"), limits)
    assert (part.texts[0].text.count("[Page "), part.skipped) == (3, ())
    some = intake(written(tmp_path / "a.epub", book(9, "<p>Text.</p>")), limits)
    assert some.texts[0].text.endswith("[Section 3]\nText.\n\n[Sections 4 to 9, not read]\n")
    check_sentence(some.skipped[0].sentence)


def test_pages_that_a_document_only_claims_take_no_space(tmp_path: Path) -> None:
    data = pdf_of("One.").replace(b"/Count 1 ", b"/Count 1000000 ")
    taken = intake(written(tmp_path / "a.pdf", data), ReadLimits(document_parts=500))
    assert taken.texts[0].text == (
        "[Page 1]\nOne.\n\n[Pages 2 to 500, not read]\n\n[Pages 501 to 1,000,000, not read]\n"
    )
    assert [each.reason for each in taken.skipped] == [SkipReason.BAD_PAGES, SkipReason.CUT]


def test_a_document_has_a_limit_of_time(tmp_path: Path) -> None:
    path = written(tmp_path / "a.epub", book(20_000, "<p>Text.</p>" * 10_000))
    start = time.monotonic()
    taken = intake(path, ReadLimits(document_total_seconds=0))
    assert time.monotonic() - start < 20
    assert taken.texts[0].text.startswith("[Section 1]\nText.")
    assert taken.texts[0].text.endswith(" to 20,000, not read]\n")
    assert [each.reason for each in taken.skipped] == [SkipReason.CUT]


def test_a_document_has_a_limit_of_text(tmp_path: Path) -> None:
    data = book(1_000, "<p>Text.</p>" * 1_000)
    path = written(tmp_path / "a.epub", data)
    assert "has more text than" in refusal(path, limits=ReadLimits(total_bytes=100_000))


def test_time_by_the_clock_may_be_longer(tmp_path: Path, worker: Path) -> None:
    written(
        worker,
        "import os, sys, time; time.sleep(0.5)\n"
        'print(\'[0, 1, []]\\n["", "Yes", ""]\'); os.pwrite(int(sys.argv[2]), b\'1 1 \', 0)',
    )
    path = written(tmp_path / "a.pdf", pdf_of("x"))
    assert intake(path, ReadLimits(document_seconds=0.1)).texts[0].text == "Yes\n"


def test_reading_stops_when_nobody_waits_for_it(worker: Path) -> None:
    written(worker, "import time; time.sleep(60)")
    start = time.monotonic()
    with pytest.raises(ReadCancelled):
        read_content("a.pdf", pdf_of("x"), cancelled=lambda: time.monotonic() > start + 0.2)
    assert time.monotonic() - start < 10


# ------------------------------------------------------------------- large files without parts


def mail() -> bytes:
    message = EmailMessage()
    message["Subject"] = "Kündigung"
    message.set_content("größe", charset="latin-1")
    message.add_attachment(b"\x89PNG", "image", "png", filename="plan.png")
    return bytes(message)


@table(
    "kind, data",
    [
        (Kind.PAGE, "<p>Größe</p>".encode()),
        (Kind.PAGE, "<meta charset=windows-1257><p>Ąžuolas</p>".encode("cp1257")),
        (Kind.PAGE, "<p>größe und größe</p>".encode("latin-1")),
        (Kind.PAGE, b"\xff\xfe" + "<p>Größe</p>".encode("utf-16-le")),
        (Kind.MAIL, mail()),
        (Kind.RTF, rb"{\rtf1 caf\u233 e \u-10179 ?}"),
        (Kind.TEXT_FORMAT, b'{"cells": [{"cell_type": "code", "source": "1 \\ud83d"}]}'),
        (Kind.TEXT_FORMAT, b"no notebook"),
        (Kind.PAGE, b" "),
        (Kind.WEB_ARCHIVE, b"bplist00"),
    ],
)
def test_a_process_of_its_own_converts_alike(kind: Kind, data: bytes) -> None:
    def fields(rejected: Rejected) -> tuple[object, ...]:
        return rejected.reason, rejected.detail, rejected.advice

    def read(apart: bool) -> Decoded | tuple[object, ...]:
        try:
            if apart:
                return converted_apart(kind, ".ipynb", data, ReadLimits(), ReadBudget())
            return converted(kind, ".ipynb", data, lambda: None)
        except Rejected as rejected:
            return fields(rejected)

    here, apart = read(False), read(True)
    if isinstance(here, tuple) or isinstance(apart, tuple):
        assert apart == here
        return
    text = here.text.replace("\ud83d", "\ufffd")
    assert (apart.text, apart.encoding, apart.lossy) == (text, here.encoding, here.lossy)
    assert apart.guessed == here.guessed
    assert [*map(fields, apart.missing)] == [*map(fields, here.missing)]


def test_large_pages_and_mails_are_read_in_a_process(tmp_path: Path, worker: Path) -> None:
    found = {"decoded": ["Yes", "utf-8", False, False], "missing": []}
    written(worker, f"print({json.dumps(found)!r})")
    for name in ("a.html", "a.eml", "a.rtf", "a.ipynb"):
        begin = "{\\rtf1" if name == "a.rtf" else "x"
        assert intake(written(tmp_path / name, f"{begin} y")).texts[0].text.rstrip("\n") != "Yes"
        assert intake(written(tmp_path / name, begin + " " * 300_000)).texts[0].text == "Yes"
    assert intake(written(tmp_path / "a.txt", "x" * 300_000)).texts[0].text == "x" * 300_000


@table(
    "act, sentence",
    [
        ("os.kill(os.getpid(), signal.SIGPROF)", "takes too much memory or longer than 30 seconds"),
        ("os.abort()", "is damaged: save it again, or convert it to text."),
        ("print('x' * 2_000_000)", "has more text than 1.0 MB: raise the limit in the settings"),
    ],
)
def test_a_large_page_that_cannot_be_read(
    worker: Path, tmp_path: Path, act: str, sentence: str
) -> None:
    written(worker, f"import os, signal; {act}")
    path = written(tmp_path / "a.html", "<p>" * 100_000)
    assert sentence in refusal(path, limits=ReadLimits(total_bytes=1_000_000))


def test_the_numbers_of_a_great_many_parts_take_no_memory() -> None:
    from app.ingest.parts import numbers_in, parse_ranges

    assert numbers_in(((1, None),), 2**31, 5) == [1, 2, 3, 4, 5]
    assert numbers_in(parse_ranges("7-,2,4-5") or (), 8) == [2, 4, 5, 7, 8]
    assert numbers_in(parse_ranges("3,5-10,4-6,1") or (), 8, 4) == [1, 3, 4, 5]
    assert numbers_in(((0, 0),), 8) == []
    assert os.path.exists(document_worker.__file__)
