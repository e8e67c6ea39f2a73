"""What was skipped in a folder, as it is saved with a draft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.ingest.records import REASON_TEXTS, FileRead, Reason, Skipped
from app.protocol.prompt import Document
from app.ui.attach.attachment import MAX_SKIPPED, make_attachment, to_notes, with_notes

FOLDER = make_attachment([Document("src/", "tree"), Document("src/a.py", "a")])
ODD = FileRead("src/odd\u202e.txt", 9, "cp1250", lossy=True, guessed=True)
FILE = make_attachment([Document("a.txt", "A.")])


def skipped(reason: Reason, detail: str = "", limit: str = "") -> Skipped:
    _, words, advice = REASON_TEXTS[reason]
    return Skipped(f"src/{reason}", reason, detail or words, advice, limit)


def test_every_reason_is_restored() -> None:
    every = tuple(skipped(reason) for reason in Reason)
    own = (
        skipped(Reason.TOO_MUCH, "is over the limit of 7 files", "7 files"),
        replace(skipped(Reason.BAD_PAGES, "has 2 of 3 pages (1-2) that cannot be read"), pages=2),
    )
    folder = replace(FOLDER, skipped=every + own, doubtful=(ODD,))
    found, file = with_notes((FOLDER, FILE), to_notes((folder, FILE)))
    assert (found.skipped, found.doubtful) == (every + own, (ODD,))
    assert [each.sentence for each in found.skipped] == [each.sentence for each in every + own]
    assert file.skipped == ()


def test_no_notes_for_files_and_for_too_many_skipped() -> None:
    assert to_notes(()) == to_notes((FILE, FOLDER)) == ""
    many = tuple(replace(skipped(Reason.IGNORED), path=f"src/{n}") for n in range(MAX_SKIPPED))
    assert len(with_notes((FOLDER,), to_notes((replace(FOLDER, skipped=many),)))[0].skipped)
    assert to_notes((replace(FOLDER, skipped=many, doubtful=(ODD,)),)) == ""


@pytest.mark.parametrize(
    "notes",
    [
        "",
        "nonsense",
        "7",
        "[]",
        '{"src/": 7}',
        '{"src/": [[]]}',
        '{"src/": [[["a", "no reason", "b", "c"]], []]}',
        '{"src/": [[["a", "empty"]], []]}',
        '{"src/": [3, []]}',
    ],
)
def test_damaged_notes_are_ignored(notes: str) -> None:
    (found,) = with_notes((FOLDER,), notes)
    assert (found.skipped, found.doubtful) == ((), ())
