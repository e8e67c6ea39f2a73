"""A folder becomes a tree and its files, in an order and with names that models read well; and what
one folder holds is listed for choosing from it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from app.ingest.breadth import in_breadth
from app.ingest.filenames import is_private, printable
from app.ingest.limits import ReadLimits
from app.ingest.reader import folder_tree, read
from app.ingest.records import FileRead, IngestError, ReadCancelled, SkipReason
from app.ingest.walk import DirListing, list_folder
from app.protocol.prompt import Document
from tests.ingest.helpers import check_sentence, folder, intake, names, written
from tests.tables import table


def test_a_folder_is_a_tree_and_its_files(tmp_path: Path) -> None:
    docs = folder(
        tmp_path / "docs",
        **{"b/y": "y", "b/x": "x", "b/README": "b", "c": "c", "a": "a", "README.md": "r"},
        **{".git/config": "no", "b/.git": "no", ".hidden": "h", ".env": "KEY", "logo": b"\0"},
    )
    taken = intake(docs)
    assert [(each.name, each.text) for each in taken.texts] == [
        ("docs/README.md", "r"),
        ("docs/.hidden", "h"),
        ("docs/a", "a"),
        ("docs/b/README", "b"),
        ("docs/b/x", "x"),
        ("docs/b/y", "y"),
        ("docs/c", "c"),
    ]
    assert taken.documents[0] == taken.tree
    assert taken.tree == Document(
        "docs/",
        "A folder; 7 files of it follow.\n\n"
        "docs/\n  README.md\n  .env (skipped: private)\n  .hidden\n  a\n"
        "  b/\n    README\n    x\n    y\n  c\n  logo (skipped: binary)\n",
    )
    assert taken.summary == "docs: 7 files, 7 B; skipped 2: 1 private, 1 binary"
    for each in taken.skipped:
        check_sentence(each.sentence)


def test_encodings_are_told(tmp_path: Path) -> None:
    docs = folder(tmp_path / "docs", a="größe".encode("cp1252"), b="größe " * 9 + "\n")
    written(docs / "c", ("größe " * 9).encode() + b"\xff")
    assert intake(docs).files == (
        FileRead("docs/a", 5, "cp1252", lossy=False, guessed=True),
        FileRead("docs/b", 73, "utf-8", lossy=False, guessed=False),
        FileRead("docs/c", 73, "utf-8", lossy=True, guessed=False),
    )


def test_each_of_many_files_is_a_document(tmp_path: Path) -> None:
    docs = folder(tmp_path / "docs", **{f"{n:03}": f"text {n}\n" for n in range(300)})
    taken = intake(docs)
    assert [each.name for each in taken.texts] == [f"docs/{n:03}" for n in range(300)]


@table(
    "limits, taken, reason, rest",
    [
        (ReadLimits(files=2), ["a", "b/c"], SkipReason.TOO_MUCH, True),
        (ReadLimits(entries=5), ["a", "b/c"], SkipReason.TOO_MUCH, True),
        (ReadLimits(total_bytes=4), ["a", "b/c"], SkipReason.TOO_MUCH, True),
        (ReadLimits(file_bytes=3), ["a", "b/c", "e"], SkipReason.TOO_LARGE, False),
        (ReadLimits(depth=1), ["a", "b/c", "e"], SkipReason.TOO_DEEP, False),
        (ReadLimits(path_bytes=2), ["a", "b/c", "e"], SkipReason.TOO_DEEP, False),
    ],
)
def test_limits(
    tmp_path: Path, limits: ReadLimits, taken: list[str], reason: SkipReason, rest: bool
) -> None:
    docs = folder(tmp_path / "docs", **{"a": "aa", "b/c": "cc", "b/d/x": "xxxx", "e": "ee"})
    cut = intake(docs, limits)
    assert names(cut) == taken
    (skipped,) = cut.skipped
    assert (skipped.reason, skipped.rest) == (reason, rest)
    check_sentence(skipped.sentence)
    assert ("It contains more" in cut.documents[0].text) == rest


def test_what_is_private_is_read_when_asked_for(tmp_path: Path) -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"
    docs = folder(tmp_path / "docs", **{"a": "a", ".env": "K=1", ".aws/x": "x", "deploy": key})
    taken = intake(docs)
    assert names(taken) == ["a"]
    assert {each.reason for each in taken.skipped} == {SkipReason.PRIVATE}
    assert names(intake(docs, ReadLimits(include_private=True))) == [
        ".aws/x",
        ".env",
        "a",
        "deploy",
    ]


def test_what_is_ignored_is_read_when_asked_for(tmp_path: Path) -> None:
    docs = folder(tmp_path / "docs", **{".gitignore": "*.log", "a.log": "a", "b": "b"})
    assert names(intake(docs)) == [".gitignore", "b"]
    assert names(intake(docs, ReadLimits(include_ignored=True))) == [".gitignore", "a.log", "b"]


PRIVATE = [
    *(".env", ".ENV", ".env.local", "prod.env", "id_rsa", "id_ed25519", "server.key", "x.pem"),
    *("cert.p12", ".netrc", ".npmrc", ".pypirc", "credentials", "credentials.json", ".pgpass"),
    *("secrets.yaml", "terraform.tfstate", "prod.tfvars", ".git-credentials", ".bash_history"),
    *("service-account.json", "service_account_prod.json", "passwords.kdbx", ".htpasswd"),
    *("token", "token.txt", "hf_token", "github-token.json", "passwords.csv", "my-passwords.xlsx"),
    *(
        "my-secrets.yaml",
        "client_secret.txt",
        "wallet.dat",
        "old-wallet.json",
        "logins.json",
        "key4.db",
        "auth.json",
        "cookies.sqlite",
    ),
    *("serve-token", "worker-key", "host-keys.json", "api_key.txt", "seed-phrase.txt"),
    *("hosts.yml", "application_default_credentials.json", ".yarnrc.yml", "rclone.conf"),
]
NOT_PRIVATE = [
    *(".env.example", ".env.sample", "id_rsa.pub", "secrets.py", "environment.yml", "keys.md"),
    *("credentials.go", "monkey", "keyboard.txt", "history", ".environment", "key.c"),
    *("tokenizer.json", "tokens.md", "token.cpp", "passwordless.txt", "wallets.md", "config.json"),
    *("hosts", "hosts.md", "rclone.md"),
]


@table("name", PRIVATE)
def test_private_names(name: str) -> None:
    assert is_private(name)


@table("name", NOT_PRIVATE)
def test_names_that_only_look_private(name: str) -> None:
    assert not is_private(name)


@pytest.mark.parametrize("name", [".docker", ".SSH", "gcloud", ".gnupg"])
def test_private_folders_are_not_entered(name: str, tmp_path: Path) -> None:
    docs = folder(tmp_path / "docs", **{f"{name}/config.json": "{}", "a": "a"})
    assert names(intake(docs)) == ["a"]


def test_names_stay_on_their_line() -> None:
    assert printable("a\n</document>\x1b[31m\u2028\x85") == ("a\\n</document>\\x1b[31m\\u2028\\x85")
    assert printable(os.fsdecode(b"a\xff")) == "a\\xff"
    assert printable("grüße 文") == "grüße 文"


def test_a_tree_is_folded_where_it_grows_too_long() -> None:
    files = [(f"src/{a}/{b}", "") for a in "xyz" for b in range(4)] + [("z", "")]
    assert folder_tree("t", files, 100).count("\n") == 1 + 1 + 3 * 5 + 1
    assert folder_tree("t", files, 6) == (
        "t/\n  src/\n    x/ (4 files)\n    y/ (4 files)\n    z/ (4 files)\n  z\n"
    )
    assert folder_tree("t", files, 2) == "t/\n  src/ (12 files)\n  … and 1 more\n"
    assert folder_tree("t", [("a", ""), ("a/b", "")], 9) == "t/\n  a/\n    b\n"


def listed(path: Path, most: int = 100, seconds: float = 10.0) -> DirListing:
    return list_folder(str(path), most, seconds)


def test_names_kinds_and_what_would_be_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    written(tmp_path / ".gitignore", "*.log\n/out/\n")
    for name in ("sub/b.py", "sub/a.log", "sub/.env", "sub/keep/x", "sub/out/x", "out/y"):
        written(tmp_path / name)
    os.mkfifo(tmp_path / "sub" / "pipe")
    (tmp_path / "sub" / "loop").symlink_to("loop")
    (tmp_path / "sub" / "link").symlink_to("keep")
    found = {
        each.name: (each.is_folder, each.skip_reason) for each in listed(tmp_path / "sub").entries
    }
    assert found == {
        ".env": (False, "private"),
        "a.log": (False, "ignored"),
        "b.py": (False, ""),
        "keep": (True, ""),
        "link": (True, ""),
        "out": (True, ""),
    }
    assert [e.name for e in listed(tmp_path).entries if e.skip_reason] == ["out"]
    assert ".git" not in [each.name for each in listed(tmp_path).entries]


def test_no_more_than_asked_are_looked_at(tmp_path: Path) -> None:
    for number in range(20):
        written(tmp_path / f"{number:02}")
    assert len(listed(tmp_path, most=7).entries) == 7
    assert listed(tmp_path, most=7).truncated
    assert not listed(tmp_path, most=20).truncated


def test_a_slow_folder_gives_what_it_gave(tmp_path: Path) -> None:
    written(tmp_path / "a")
    assert listed(tmp_path, seconds=-1.0) == DirListing((), truncated=True)


def test_cancelled(tmp_path: Path) -> None:
    written(tmp_path / "a")
    with pytest.raises(ReadCancelled):
        list_folder(str(tmp_path), 10, 10.0, lambda: True)


@pytest.mark.parametrize("name", ["nowhere", "file", "file/x"])
def test_what_is_no_folder_is_said_in_one_sentence(tmp_path: Path, name: str) -> None:
    written(tmp_path / "file")
    with pytest.raises(IngestError, match="no folder") as caught:
        listed(tmp_path / name)
    check_sentence(str(caught.value))


def test_of_too_many_files_each_folder_has_some(tmp_path: Path) -> None:
    sizes = {"a": 30, "b": 3, "c/d": 20, "c/e": 1, "": 4}
    for place, count in sizes.items():
        for number in range(count):
            file = tmp_path / "top" / place / f"f{number:02}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{place} {number}\n")
    (tmp_path / "top" / "a" / "f05.txt").write_bytes(b"\0\1\2")
    (result,) = read([str(tmp_path / "top")], limits=ReadLimits(files=20)).results
    names = [each.path.removeprefix("top/") for each in result.files]
    counts = Counter(name.rpartition("/")[0] for name in names)
    assert counts == {"a": 6, "b": 3, "c/d": 6, "c/e": 1, "": 4}
    assert names == [each.name.removeprefix("top/") for each in result.texts]
    everything = read([str(tmp_path / "top")]).results[0]
    order = [each.path.removeprefix("top/") for each in everything.files]
    assert names == [name for name in order if name in names]
    (rest,) = (each for each in result.skipped if each.rest)
    assert rest.sentence == (
        "top has 37 more files, over the limit of 20 files: add the parts you need by name."
    )
    assert result.skipped_summary == "1: 1 binary, and the rest (limit 20 files)"


def test_paths_are_chosen_in_linear_time() -> None:
    paths = [f"{n % 500}/{n % 7}/{n}" for n in range(40_000)]
    chosen = in_breadth(paths, 5_000)
    assert len(chosen) == 5_000
    assert set(Counter(path.partition("/")[0] for path in chosen).values()) == {10}
    assert in_breadth(paths[:10], 10) == set(paths[:10])
    assert in_breadth(paths, 0) == set()
