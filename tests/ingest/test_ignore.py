"""The rules of .gitignore files: as git has them, and never slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.ingest import git, walk
from app.ingest.ignore import parse
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.records import Rejected, SkipReason
from app.ingest.walk import Walk
from tests.ingest.helpers import check_sentence, folder, intake, names, written
from tests.tables import table

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def run_git(where: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    subprocess.run(command, cwd=where, check=True, capture_output=True)


@pytest.fixture(params=["git", "without git"])
def with_and_without_git(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "without git":
        monkeypatch.setattr(git, "_git", lambda: None)
    elif shutil.which("git") is None:
        pytest.skip("git is not installed")
    return request.param == "git"


def walked(top: Path) -> list[str]:
    def skip(path: str, refused: Rejected) -> None:
        assert refused.reason in (SkipReason.IGNORED, SkipReason.EMPTY)

    return sorted(found.path for found in Walk(top, ReadLimits(), ReadBudget(), skip).files())


TREE = {
    ".gitignore": "*.log\n/build/\n!keep.log\n# no\n\n*.tmp\n",
    "a.log": "x",
    "keep.log": "x",
    "build/x": "x",
    "sub/build/x": "x",
    "sub/.gitignore": "!*.tmp\nown\n",
    "sub/x.tmp": "x",
    "sub/own": "x",
    "own": "x",
    "x.tmp": "x",
    "sub/deep/own": "x",
    "sub/deep/keep.log": "x",
}
LEFT = [
    *(".gitignore", "keep.log", "own", "sub/.gitignore", "sub/build/x"),
    *("sub/deep/keep.log", "sub/x.tmp"),
]


@pytest.mark.usefixtures("with_and_without_git")
def test_nested_rules(tmp_path: Path) -> None:
    top = folder(tmp_path / "top", **TREE)
    assert walked(top) == LEFT
    (top / ".git").mkdir()
    assert walked(top) == LEFT


@pytest.mark.usefixtures("with_and_without_git")
def test_a_folder_inside_a_repository_has_the_rules_above_it(tmp_path: Path) -> None:
    top = folder(tmp_path / "top", **TREE)
    (top / ".git").mkdir()
    assert walked(top / "sub") == [".gitignore", "build/x", "deep/keep.log", "x.tmp"]
    # A folder that is ignored itself was asked for.
    assert walked(top / "build") == ["x"]


@pytest.mark.usefixtures("with_and_without_git")
def test_a_repository_inside_one_has_its_own_rules(tmp_path: Path) -> None:
    top = folder(tmp_path / "top", **TREE)
    folder(top / "inner", **{"a.log": "x", "b": "x", ".gitignore": "b"})
    (top / ".git").mkdir()
    run_git(top / "inner", "init", "-q")
    assert {"inner/a.log", "inner/.gitignore"} <= set(walked(top))
    assert "inner/b" not in walked(top)


@NEEDS_GIT
def test_what_is_tracked_is_read_though_it_is_ignored(tmp_path: Path) -> None:
    top = folder(tmp_path / "top", **TREE)
    run_git(top, "init", "-q")
    run_git(top, "add", "-f", "a.log")
    assert walked(top) == sorted([*LEFT, "a.log"])
    written(top / ".git" / "info" / "exclude", "own\n")
    assert walked(top) == sorted({*LEFT, "a.log"} - {"own"})
    # As a linked worktree or a submodule has it.
    (top / ".git").rename(tmp_path / "elsewhere")
    written(top / ".git", f"gitdir: {tmp_path / 'elsewhere'}\n")
    assert walked(top) == LEFT


RULES = st.lists(
    st.sampled_from(
        [
            *("*", "!*/", "*.a", "!*.a", "/x", "x/", "!x/", "x/*", "!x/y", "**/y", "x/**", "**/y/"),
            *(
                "x/**/y",
                "/*",
                "!/x",
                "[xy]",
                "?",
                "\\!x",
                "!",
                "#x",
                "y ",
                "y\\ ",
                "/",
                "**",
                "*/y",
            ),
            *("!/*/", "x/y", "[!x]", "x.?", "*.*", "!x.a", "\\", "***", "x**", "//x"),
            *("[[:alpha:]]", "[^[:digit:]x]", "x[!1]*", "x/**/", "z**/", "z**/x", "w**/[x-z]"),
            *("[]x]", "[x", "[[:no:]]", "[z-x]", "[\\x]", "w[/x]*", "x\\*", "*.a ", "\\#"),
        ]
    ),
    max_size=6,
)
PATHS = ["x", "y", "x.a", "z/x", "z/y/x", "z/x.a", "w/x/y/z", "w/x/x.a", "w/y/y/y", "v/y.a"]


@NEEDS_GIT
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(top=RULES, inner=RULES)
@example(top=["*", "!*/", "!*.a"], inner=["x/*", "!/*/"])
def test_without_git_it_is_as_with_git(
    tmp_path: Path, top: list[str], inner: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "top"
    if not place.exists():
        folder(place, **dict.fromkeys(PATHS, "x"))
        (place / ".git").mkdir()
    written(place / ".gitignore", "\n".join(top) + "\n")
    written(place / "w" / ".gitignore", "\n".join(inner) + "\n")
    with_git = git.git_files(place, place, ReadLimits(), ReadBudget())
    assert with_git is not None
    with monkeypatch.context() as patch:
        patch.setattr(walk, "git_files", lambda *_: None)
        assert walked(place) == sorted(set(with_git))


SLOW_RULES = {
    "one with many wildcards": ("*a*a*a*a*a*a*a*a*ab", True),
    "folders with wildcards": ("/".join(["**"] * 30) + "/b", True),
    "all classes": ("[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*b", True),
    "a long one": ("a*" * 2_000, False),
    "many with some": ("*a*a*ab\n" * 5_000, False),
    "many simple ones": ("\n".join(f"{n}*b" for n in range(10_000)), False),
}


@table("case", SLOW_RULES)
def test_hostile_rules_are_not_slow_and_are_told(tmp_path: Path, case: str) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    rules, applied = SLOW_RULES[case]
    docs = folder(tmp_path / "docs", **{".gitignore": rules, "a" * 120: "x"})
    start = time.monotonic()
    taken = intake(docs)
    assert time.monotonic() - start < 10
    assert "a" * 120 in names(taken)
    told = [(each.path, each.reason) for each in taken.skipped]
    assert told == ([] if applied else [("docs/.gitignore", SkipReason.RULES)])
    for each in taken.skipped:
        check_sentence(each.sentence)


def test_time_grows_with_the_rule_and_with_the_path() -> None:
    def seconds(size: int) -> float:
        spec, _ = parse(b"*a" * size + b"b\n" + b"**/a*/" * (size // 4) + b"b\n")
        path = "a" * size + "/" + "a/" * size + "a"
        start = time.process_time()
        spec.match(path, False)
        return time.process_time() - start

    few = min(seconds(50) for _ in range(3))
    assert seconds(400) < 200 * few + 0.1


@table(
    "rule, ignored, kept",
    [
        ("v[[:digit:]]/", ["v1/"], ["v1", "va/"]),
        ("a[!1]*", ["ab", "x/ab"], ["a1", "a"]),
        ("a[^1]*", ["ab"], ["a1"]),
        ("b/**/", ["b/c/"], ["b/c", "b/"]),
        ("b**/", ["b/", "bc/", "x/b/"], ["b"]),
        ("[[:upper:][:digit:]-]x", ["Ax", "1x", "-x"], ["ax"]),
        ("[]-]x", ["]x", "-x"], ["ax"]),
        ("[a", [], ["[a", "a"]),
        ("x\\ ", ["x "], ["x"]),
        ("\\!x", ["!x"], ["x"]),
        ("a/**/b", ["a/b", "a/c/b", "a/c/d/b"], ["b", "a/cb", "x/a/b"]),
        ("**/b/*.txt", ["b/x.txt", "a/b/x.txt"], ["b/c/x.txt"]),
        ("é?", ["éa"], ["éß"]),  # git compares bytes
        ("*.log\r", ["a.log"], ["a.log\r"]),
    ],
)
def test_rules_mean_what_they_mean_to_git(rule: str, ignored: list[str], kept: list[str]) -> None:
    spec, whole = parse(rule.encode() + b"\n")
    assert whole
    for path in (*ignored, *kept):
        found = spec.match(path.removesuffix("/"), path.endswith("/"))
        assert found is (True if path in ignored else None), path


def test_rules_that_are_no_rules_are_passed_over() -> None:
    spec, whole = parse(b"\xef\xbb\xbf*.log\n\\\n!\n[z-a]\n\xff\n  \n\0\n")
    assert whole
    assert spec.match("a.log", False)
    assert spec.match(os.fsdecode(b"\xff"), False)
    assert spec.match("a", False) is None


# ------------------------------------------------------------------------------ generated files


MINIFIED = "var a=1;" * 2_000
GENERATED = {
    "app.min.js": "a()\n",
    "app.js": MINIFIED,
    "app.css": "a{b:c}" * 500,
    "app.js.map": "{}",
    "package-lock.json": "{}",
    "Cargo.lock": "x",
    "x_pb2.py": "x",
    "x.go": "// Code generated by x. DO NOT EDIT.\npackage x\n",
    "x.ts": "/**\n * @generated by x\n */\n",
    "x.py": "# Automatically generated by x: do not edit.\n",
    "X.java": "// Generated by the protocol buffer compiler.  DO NOT EDIT!\n",
}
WRITTEN = {
    "a.js": "a()\n" * 5_000,
    "data.json": "[1, 2]" * 5_000,
    "notes.md": "Generated by hand: do not edit.\n",
    "long.txt": "word " * 5_000,
    "b.py": "# Edit this file; it is not generated.\n",
    "generator.go": "x := 1\n" * 500 + "// Code generated by %s. DO NOT EDIT.\n",
    "a.lock": "x",
}


def test_what_programs_wrote_is_left_out_and_said(tmp_path: Path) -> None:
    docs = folder(tmp_path / "docs", **GENERATED, **WRITTEN)
    taken = intake(docs)
    assert sorted(names(taken)) == sorted(WRITTEN)
    assert {each.path.partition("/")[2] for each in taken.skipped} == set(GENERATED)
    assert taken.skipped[0].sentence.endswith("by a program: add it by name to include it.")
    assert "Cargo.lock (skipped: generated)" in taken.documents[0].text
    assert sorted(names(intake(docs, ReadLimits(include_ignored=True)))) == sorted(
        {**GENERATED, **WRITTEN}
    )
    assert intake(docs / "app.js").texts[0].text == MINIFIED


ATTRIBUTES = {
    ".gitattributes": "/dist/** linguist-generated\n*.gen -text linguist-generated=true\n"
    '"a b" linguist-generated\n[attr]x linguist-generated\nsub/ linguist-generated\n'
    "!*.md linguist-generated\nwritten.min.js -linguist-generated\n*.c text\n",
    "dist/.gitattributes": "kept -linguist-generated\n",
    "dist/kept": "x",
    "dist/sub/y": "y",
    "a.gen": "x",
    "a b": "x",
    "x": "x",
    "sub/z.md": "z",
    "written.min.js": MINIFIED,
    "a.c": "x",
}
UNMARKED = [".gitattributes", "a.c", "dist/kept", "sub/z.md", "written.min.js", "x"]


@pytest.mark.usefixtures("with_and_without_git")
def test_what_is_marked_as_generated(tmp_path: Path) -> None:
    top = folder(tmp_path / "top", **ATTRIBUTES)
    assert sorted(names(intake(top))) == UNMARKED
    (top / ".git").mkdir()
    assert sorted(names(intake(top))) == UNMARKED
    assert sorted(names(intake(top / "dist"))) == ["kept"]
