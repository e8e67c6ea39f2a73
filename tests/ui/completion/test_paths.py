"""From what is typed after `@` to names."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.ingest.dir_listing import DirListing, Entry
from app.ui.completion import MAX_SHOWN, PathCompleter, word_before

LISTING = DirListing(
    (
        Entry(".env", False, "private"),
        Entry("app", True),
        Entry("build", True, "ignored"),
        Entry("My notes.txt", False),
        Entry("README.md", False),
        Entry("reader.py", False),
    )
)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("@", ""),
        ("see @src/re", "src/re"),
        ("see @My\\ notes", "My\\ notes"),
        ("me@home", None),
        ("@src done", None),
        ("see (@src", None),
        ("@a @b", "b"),
        ("", None),
    ],
)
def test_the_word_at_the_cursor(line: str, word: str | None) -> None:
    assert word_before(line) == word


def names(word: str, listing: DirListing = LISTING) -> list[str]:
    return [each.name for each in PathCompleter("/start").completions(word, listing)]


def test_without_a_name_everything_but_hidden_files_is_offered_and_ignored_ones_last() -> None:
    assert names("") == ["app", "My notes.txt", "reader.py", "README.md", "build"]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("read", ["reader.py", "README.md"]),
        ("note", ["My notes.txt"]),
        ("rdr", ["reader.py"]),
        ("b", ["build"]),
        ("ad", ["reader.py", "README.md"]),
        ("xyz", []),
        (".", [".", "..", ".env"]),
        ("..", [".."]),
        (".e", [".env"]),
        ("app/", [".", "app", "My notes.txt", "reader.py", "README.md", "build"]),
        ("~", ["~"]),
        ("[", []),
    ],
)
def test_what_begins_so_comes_before_what_holds_it_and_what_has_its_letters(
    word: str, found: list[str]
) -> None:
    assert names(word) == found


def test_a_choice_is_typed_so_that_it_can_be_read_again() -> None:
    (notes,) = PathCompleter("/start").completions("sub/My\\ n", LISTING)
    assert (notes.typed, notes.path) == ("sub/My\\ notes.txt", "/start/sub/My notes.txt")
    assert word_before("see @" + notes.typed) == notes.typed
    app, *_ = PathCompleter("/start").completions("ap", LISTING)
    assert (app.typed, app.path) == ("app/", "/start/app")


@pytest.mark.parametrize(
    ("word", "folder"),
    [
        ("re", "/start"),
        ("a/b/re", "/start/a/b"),
        ("../re", "/"),
        ("/etc/ho", "/etc"),
        ("~/x", str(Path.home())),
        ("my\\ a/x", "/start/my a"),
    ],
)
def test_the_folder_that_is_typed(word: str, folder: str) -> None:
    assert PathCompleter("/start").folder(word) == folder


def test_no_more_are_offered_than_one_reads() -> None:
    many = DirListing(tuple(Entry(f"f{number}", False) for number in range(2_000)))
    assert len(names("f", many)) == MAX_SHOWN
