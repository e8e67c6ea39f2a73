"""What was skipped in a folder, as it is kept with a draft."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.ingest.records import REASON_TEXTS, Reason, Skipped
from app.protocol.prompt import Document
from app.ui.attach.attachment import make_attachment
from app.ui.attach.attachment_meta import MAX_SKIPPED, to_notes, with_notes

FOLDER = make_attachment([Document("src/", "tree"), Document("src/a.py", "a")])
FILE = make_attachment([Document("a.txt", "A.")])


def skipped(reason: Reason, detail: str = "", rest: bool = False) -> Skipped:
    _, words, advice = REASON_TEXTS[reason]
    return Skipped(f"src/{reason}", reason, detail or words, advice, rest)


def test_every_reason_comes_back() -> None:
    every = tuple(skipped(reason) for reason in Reason)
    own = (skipped(Reason.TOO_MUCH, "is over the limit of 7 files", rest=True),)
    folder = replace(FOLDER, files=3, skipped=every + own, lossy=("src/odd\u202e.txt",))
    found, file = with_notes((FOLDER, FILE), to_notes((folder, FILE)))
    assert (found.files, found.skipped, found.lossy) == (3, every + own, ("src/odd\u202e.txt",))
    assert [each.sentence for each in found.skipped] == [each.sentence for each in every + own]
    assert (file.files, file.skipped) == (None, ())


def test_nothing_is_noted_of_files_and_of_very_much() -> None:
    assert to_notes(()) == to_notes((FILE, FOLDER)) == ""
    many = tuple(replace(skipped(Reason.IGNORED), path=f"src/{n}") for n in range(MAX_SKIPPED))
    assert len(
        with_notes((FOLDER,), to_notes((replace(FOLDER, files=1, skipped=many),)))[0].skipped
    )
    assert to_notes((replace(FOLDER, files=1, skipped=many, lossy=("one more",)),)) == ""


@pytest.mark.parametrize(
    "notes",
    [
        "",
        "nonsense",
        "7",
        "[]",
        '{"src/": 7}',
        '{"src/": {}}',
        '{"src/": {"files": "x", "skipped": [], "odd": []}}',
        '{"src/": {"files": 1, "skipped": [["a", "no reason", false]], "odd": []}}',
        '{"src/": {"files": 1, "skipped": [["a"]], "odd": []}}',
        '{"src/": {"files": 1, "skipped": [["a", "empty", false, "one"]], "odd": []}}',
        '{"src/": {"files": 1, "skipped": 3, "odd": []}}',
    ],
)
def test_what_is_damaged_is_not_known(notes: str) -> None:
    (found,) = with_notes((FOLDER,), notes)
    assert (found.files, found.skipped, found.lossy) == (None, (), ())


def test_it_is_short() -> None:
    some = tuple(replace(skipped(Reason.IGNORED), path=f"src/{n}") for n in range(100))
    assert len(to_notes((replace(FOLDER, files=1, skipped=some),))) < 4_000
    assert json.loads(to_notes((replace(FOLDER, files=1, skipped=some),)))["src/"]["files"] == 1
