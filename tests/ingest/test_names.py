"""Files of the same name are told apart by the shortest end of their paths that differs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from app.ingest.names import distinct_names, tell_apart
from app.ingest.reader import read
from app.protocol.prompt import Document, Origin
from tests.ingest.helpers import folder, written
from tests.tables import table


@table(
    "paths, folders, names",
    [
        (["/x/a.txt", "/x/b.txt"], [], ["a.txt", "b.txt"]),
        (["/x/a/c.txt", "/x/b/c.txt", "/x/d.txt"], [], ["a/c.txt", "b/c.txt", "d.txt"]),
        (["/p/a/s/c", "/p/b/s/c", "/q/c"], [], ["a/s/c", "b/s/c", "q/c"]),
        (["/c", "/a/c"], [], ["c", "a/c"]),
        (["/y/src", "/z/src"], ["/y/src", "/z/src"], ["y/src", "z/src"]),
        (["/z/src", "/z/src/m.py", "/w/m.py"], ["/z/src"], ["src", "src/m.py", "w/m.py"]),
        (["/z/src", "/q/src/m.py", "/w/m.py"], ["/z/src"], ["z/src", "q/src/m.py", "w/m.py"]),
        (["/", "/a/root"], ["/", "/a/root"], ["root", "a/root"]),
        (["/a/x\n", "/b/x\n"], [], ["a/x\\n", "b/x\\n"]),
    ],
)
def test_names(paths: list[str], folders: list[str], names: list[str]) -> None:
    assert [*distinct_names(paths, folders).values()] == names


def test_files_folders_and_parts(tmp_path: Path) -> None:
    for place in ("a", "b"):
        folder(tmp_path / place / "src", **{"m.py": "m", "notes.md": "# One\n1\n# Two\n2\n"})
    paths = [
        str(tmp_path / each) for each in ("a/src", "b/src", "b/src/m.py", "a/src/notes.md#Two")
    ]
    found = [each.name for each in read([*paths, "-"], io.BytesIO(b"x")).documents]
    assert found == [
        *("a/src/", "a/src/m.py", "a/src/notes.md"),
        *("b/src/", "b/src/m.py", "b/src/notes.md"),
        *("m.py", "notes.md#Two", "standard input"),
    ]


def test_what_is_said_of_a_file_has_its_name(tmp_path: Path) -> None:
    for place in ("a", "b"):
        folder(tmp_path / place / "docs", x="größe".encode("cp1252"), y=b"\0")
    paths = [str(tmp_path / place / "docs") for place in ("a", "b")]
    first, second = read(paths).results
    assert (first.name, first.files[0].path) == ("a/docs", "a/docs/x")
    assert second.skipped[0].sentence.startswith("b/docs/y is a binary file")


def test_the_same_file_twice_has_one_name(tmp_path: Path) -> None:
    path = str(written(tmp_path / "a" / "x.txt"))
    assert [each.name for each in read([path, path]).documents] == ["x.txt", "x.txt"]


def document(name: str, path: str, part: str = "") -> Document:
    return Document(name, "text", origin=Origin(path, part=part) if path else None)


OLD = [
    document("c.txt", "/a/c.txt"),
    document("src/", "/a/src"),
    document("src/m.py", "/a/src/m.py"),
]


@pytest.mark.parametrize(
    ("documents", "names"),
    [
        ([document("c.txt", "/b/c.txt")], ["b/c.txt"]),
        ([document("c.txt", "/a/c.txt"), document("c.txt", "/b/c.txt")], ["c.txt", "b/c.txt"]),
        ([document("c.txt#5-10", "/b/c.txt", "5-10")], ["b/c.txt#5-10"]),
        ([document("c.txt#C# #1", "/b/c.txt", "C# #1")], ["b/c.txt#C# #1"]),
        ([document("paste-1.txt", ""), document("d.txt", "/a/d.txt")], ["paste-1.txt", "d.txt"]),
        (
            [document("src/", "/b/src"), document("src/m.py", "/b/src/m.py")],
            ["b/src/", "b/src/m.py"],
        ),
        (
            [document("src/", "/a/src"), document("src/new.py", "/a/src/new.py")],
            ["src/", "src/new.py"],
        ),
        ([document("m.py", "/a/src/m.py")], ["src/m.py"]),
    ],
)
def test_documents_of_later_questions(documents: list[Document], names: list[str]) -> None:
    assert [each.name for each in tell_apart(documents, OLD)] == names
