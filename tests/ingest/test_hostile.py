"""Folders made to harm: read in bounded time, nothing outside them, and one sentence each."""

from __future__ import annotations

import os
import socket
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.ingest import safe_open, walk
from app.ingest.limits import ReadLimits
from app.ingest.reader import read
from app.ingest.records import ReadResult, SkipReason
from tests.ingest.helpers import check_sentence, folder, intake, names, refusal, written
from tests.patience import PATIENCE
from tests.tables import table

OUTSIDE = "nobody may read this"
SECONDS = 10.0 * PATIENCE
"""A machine under load is slow; what must not happen takes minutes, or for ever."""


@dataclass
class Place:
    """`root` is given to be read, and holds a file `good`. `outside` and what it holds is not."""

    root: Path
    outside: Path
    patch: pytest.MonkeyPatch

    @property
    def secret(self) -> Path:
        return self.outside / "secret"

    def swap(self, name: str, act: Callable[[], object]) -> None:
        """Call `act` once, right before `name` is opened for reading."""
        real, done = os.open, []

        def opening_(path: Any, *arguments: Any, **more: Any) -> int:
            if path == name and not done:
                done.append(path)
                act()
            return real(path, *arguments, **more)

        self.patch.setattr(safe_open.os, "open", opening_)

    def at_read(self, name: str, act: Callable[[], object]) -> None:
        """Call `act` after each piece of the file `name` that is read."""
        real, inode = os.read, (self.root / name).stat().st_ino

        def reading(descriptor: int, size: int) -> bytes:
            data = real(descriptor, size)
            if os.fstat(descriptor).st_ino == inode:
                act()
            return data

        self.patch.setattr(safe_open.os, "read", reading)

    def fail(self, name: str, error: OSError) -> None:
        def act() -> None:
            raise error

        self.swap(name, act)


@dataclass
class Case:
    """What a folder holds beside `good`, and what becomes of it: why it is skipped, or None where
    it is taken. `word` is part of the sentence or of the text."""

    build: Callable[[Place], object]
    reason: SkipReason | None
    word: str = ""
    name: str = "x"
    limits: ReadLimits = field(default_factory=lambda: ReadLimits(git_seconds=0.5))


def put(content: bytes | str, name: str = "x") -> Callable[[Place], object]:
    return lambda place: written(place.root / name, content)


def link(target: str, name: str = "x") -> Callable[[Place], object]:
    return lambda place: (place.root / name).symlink_to(target.format(outside=place.outside))


def sparse(size: int) -> Callable[[Place], object]:
    return lambda place: os.truncate(written(place.root / "x", b"text"), size)


def two_links(place: Place) -> None:
    (place.root / "x").symlink_to(place.root / "y")
    (place.root / "y").symlink_to(place.root / "x")


def unix_socket(place: Place) -> None:
    here = os.getcwd()
    os.chdir(place.root)  # the paths of sockets must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
    finally:
        os.chdir(here)


def deep(place: Place) -> None:
    path = place.root
    for _ in range(100):
        path = path / "x"
    written(path / "deepest", OUTSIDE)


def long_path(place: Place) -> None:
    descriptor = os.open(place.root, os.O_RDONLY)
    for name in ["x"] + ["y" * 250] * 20:
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


def named(name: bytes) -> Callable[[Place], object]:
    def build(place: Place) -> None:
        try:
            written(place.root / os.fsdecode(name), "odd name")
        except OSError:
            pytest.skip("this file system does not take such names")

    return build


def file_becomes_link(place: Place) -> None:
    path = written(place.root / "x", "text")

    def act() -> None:
        path.unlink()
        path.symlink_to(place.secret)

    place.swap("x", act)


def file_becomes_fifo(place: Place) -> None:
    path = written(place.root / "x", "text")

    def act() -> None:
        path.unlink()
        os.mkfifo(path)

    place.swap("x", act)


def folder_becomes_link(place: Place) -> None:
    path = place.root / "x"
    written(path / "secret", "text")

    def act() -> None:
        path.rename(place.root.parent / "moved")
        path.symlink_to(place.outside)

    place.swap("x", act)


def folder_above_becomes_link(place: Place) -> None:
    """The folder is replaced after it was opened: its files are still read, and no others."""
    path = place.root / "x"
    written(path / "secret", "text")

    def act() -> None:
        path.rename(place.root.parent / "moved")
        path.symlink_to(place.outside)

    place.swap("secret", act)


def goes_away(place: Place) -> None:
    path = written(place.root / "x", "text")
    place.swap("x", path.unlink)


def grows(place: Place) -> None:
    path = written(place.root / "x", "text" * 100_000)

    def act() -> None:
        with path.open("ab") as file:
            file.write(b"more")

    place.at_read("x", act)


def is_cut_short(place: Place) -> None:
    path = written(place.root / "x", "text" * 100_000)
    place.at_read("x", lambda: os.truncate(path, 100_000))


def fails(error: OSError, content: str = "text") -> Callable[[Place], object]:
    def build(place: Place) -> None:
        written(place.root / "x", content)
        place.fail("x", error)

    return build


def unreadable_folder(place: Place) -> None:
    written(place.root / "x" / "a", "text")
    place.fail("x", PermissionError(13, "Permission denied"))


def many(place: Place) -> None:
    (place.root / "x").mkdir()
    for number in range(300):
        (place.root / "x" / f"{number:04}").touch()


def elsewhere(place: Place) -> None:
    """As if another disk were mounted on it."""
    written(place.root / "x" / "a", OUTSIDE)
    real, inode = os.fstat, (place.root / "x").stat().st_ino

    def status(descriptor: int) -> os.stat_result:
        info = real(descriptor)
        if info.st_ino != inode:
            return info
        return os.stat_result([*info[:2], info.st_dev + 1, *info[3:]])

    place.patch.setattr(walk.os, "fstat", status)


def cloud(place: Place) -> None:
    """As macOS marks a file that is only in iCloud."""
    written(place.root / "x", OUTSIDE)
    real = walk.stat_entry

    @dataclass
    class Info:
        st_mode: int
        st_size: int
        st_flags: int = 0x40000000

    def status(name: str, parent: int) -> Any:
        info = real(name, parent)
        return Info(info.st_mode, info.st_size) if name == "x" else info

    place.patch.setattr(walk, "stat_entry", status)


def hostile_git(kind: Callable[[Path], object]) -> Callable[[Place], object]:
    def build(place: Place) -> None:
        written(place.root / "x", "text")
        kind(place.root / ".git")

    return build


def fifo(name: str) -> Callable[[Place], object]:
    return lambda place: os.mkfifo(place.root / name)


LIMITS_100 = ReadLimits(entries=100)
CASES = {
    # links
    "a link to a file outside": Case(link("{outside}/secret"), SkipReason.LINK, "symbolic link"),
    "a link to a folder outside": Case(link("{outside}"), SkipReason.LINK),
    "a relative link outside": Case(link("../outside/secret"), SkipReason.LINK),
    "a link to itself": Case(link("x"), SkipReason.LINK),
    "links in a loop": Case(two_links, SkipReason.LINK),
    "a link to the folder above": Case(link(".."), SkipReason.LINK),
    "a link to the folder itself": Case(link("."), SkipReason.LINK),
    "a link to nothing": Case(link("nothing"), SkipReason.LINK),
    "a link to a device": Case(link("/dev/zero"), SkipReason.LINK),
    "a link into /proc": Case(link("/proc/self/root"), SkipReason.LINK),
    "a README that is a link": Case(
        link("{outside}/secret", "README"), SkipReason.LINK, "", "README"
    ),
    # what is no file
    "a FIFO": Case(fifo("x"), SkipReason.SPECIAL, "not a regular file"),
    "a README that is a FIFO": Case(fifo("README"), SkipReason.SPECIAL, "", "README"),
    "a socket": Case(unix_socket, SkipReason.SPECIAL),
    "another disk": Case(elsewhere, SkipReason.OUTSIDE, "another file system"),
    "a file that is only in iCloud": Case(cloud, SkipReason.UNREADABLE, "iCloud"),
    # rules and repositories
    "a .gitignore that is a FIFO": Case(fifo(".gitignore"), SkipReason.SPECIAL, "", ".gitignore"),
    "a .gitignore that is a link": Case(
        link("{outside}/secret", ".gitignore"), SkipReason.LINK, "", ".gitignore"
    ),
    "a .gitignore that is a folder": Case(put("x", ".gitignore/x"), None, "x", ".gitignore/x"),
    "a .gitignore of nothing but NUL": Case(
        put(b"\0" * 9999, ".gitignore"), SkipReason.BINARY, "", ".gitignore"
    ),
    "a .gitignore of 1 MB": Case(
        lambda p: (put("x*\n" * 350_000, ".gitignore")(p), put("text")(p)), None, "text"
    ),
    "a .git that is a FIFO": Case(hostile_git(os.mkfifo), None, "text"),
    "a .git that is a link to itself": Case(
        hostile_git(lambda p: p.symlink_to(".git")), None, "text"
    ),
    "a .git that leads elsewhere": Case(
        hostile_git(lambda p: p.write_text("gitdir: /dev/zero\n")), None, "text"
    ),
    "an empty .git": Case(hostile_git(Path.mkdir), None, "text"),
    "a .git without end": Case(
        hostile_git(lambda p: os.truncate(written(p, "x"), 2**30)), None, "text"
    ),
    # sizes
    "1 GB of nothing": Case(sparse(2**30), SkipReason.BINARY, "binary"),
    "8 TB of nothing": Case(sparse(2**43), SkipReason.BINARY),
    "a text that is too large": Case(put("text " * 2_000_000), SkipReason.TOO_LARGE, "larger than"),
    "a text with a hole of 1 GB": Case(
        lambda p: os.truncate(written(p.root / "x", "text " * 20_000), 2**30), SkipReason.TOO_LARGE
    ),
    "a line of 1 MB": Case(put("x" * 2**20), None, "xxx"),
    "a line of 1 MB, no UTF-8": Case(put(b"\xe4" * 2**20), None),
    "a folder of many files": Case(many, SkipReason.TOO_MUCH, "100 files", "x/…", LIMITS_100),
    "many folders in each other": Case(deep, SkipReason.TOO_DEEP, "too deep", "/".join("x" * 41)),
    "a path that is too long": Case(
        long_path, SkipReason.TOO_DEEP, "", "/".join(["x"] + ["y" * 250] * 5)
    ),
    # encodings
    "UTF-16": Case(put("grüße".encode("utf-16")), None, "grüße"),
    "UTF-16 without a mark": Case(put("Es ist so und so.".encode("utf-16-le")), None, "so und so"),
    "UTF-16 that is torn": Case(put("grüße".encode("utf-16")[:-1]), None, "grüß"),
    "UTF-32": Case(put("grüße".encode("utf-32")), None, "grüße"),
    "Latin-1": Case(put("die grüße".encode("latin-1")), None, "grüße"),
    "surrogates in UTF-8": Case(
        put(b"text \xed\xa0\x80 text\n" + "ä".encode() * 99), None, "\\xed"
    ),
    "NUL late in a text": Case(put(b"text\n" * 99_999 + b"\0"), SkipReason.BINARY),
    "no bytes": Case(put(b""), SkipReason.EMPTY),
    "only blanks": Case(put(b" \n\t\r\n"), SkipReason.EMPTY),
    "only a mark": Case(put(b"\xef\xbb\xbf"), SkipReason.EMPTY),
    # names
    "a name that is no UTF-8": Case(named(b"x\xff\xfe"), None, "odd name", "x\\xff\\xfe"),
    "a name with control characters": Case(
        named(b"x\n\x1b[2J\r"), None, "odd name", "x\\n\\x1b[2J\\r"
    ),
    "a name like markup": Case(named(b"x<[b]>"), None, "odd name", "x<[b]>"),
    "a name like an option": Case(named(b"--help"), None, "odd name", "--help"),
    "a name with a backslash": Case(named(b"..\\x"), None, "odd name", "..\\x"),
    "a name with wildcards": Case(named(b"[*]?!"), None, "odd name", "[*]?!"),
    "a name with accents in another form": Case(
        named("gru\u0308n".encode()), None, "odd name", "gru\u0308n"
    ),
    "a name of 255 bytes": Case(named(b"x" * 255), None, "odd name", "x" * 255),
    # changes while it is read
    "a file that becomes a link": Case(file_becomes_link, SkipReason.LINK),
    "a file that becomes a FIFO": Case(file_becomes_fifo, SkipReason.SPECIAL),
    "a folder that becomes a link": Case(folder_becomes_link, SkipReason.CHANGED),
    "a folder above that becomes a link": Case(folder_above_becomes_link, None, "text", "x/secret"),
    "a file that goes away": Case(goes_away, SkipReason.CHANGED, "disappeared"),
    "a file that grows for ever": Case(grows, None, "text"),
    "a file that is cut short": Case(is_cut_short, None, "text"),
    # what the system refuses
    "a file that may not be read": Case(
        fails(PermissionError(13, "Permission denied")), SkipReason.UNREADABLE, "Permission denied"
    ),
    "a folder that may not be read": Case(unreadable_folder, SkipReason.UNREADABLE, "Permission"),
    "a broken disk": Case(fails(OSError(5, "Input/output error")), SkipReason.UNREADABLE, "Input"),
    "a device that would block": Case(fails(BlockingIOError(11, "busy")), SkipReason.UNREADABLE),
    # secrets
    "a .env": Case(put("KEY=1", ".env"), SkipReason.PRIVATE, "passwords or keys", ".env"),
    "a private key of any name": Case(
        put("-----BEGIN RSA PRIVATE KEY-----\nAA"), SkipReason.PRIVATE, "private key"
    ),
    "a folder of keys": Case(put("text", ".ssh/config"), SkipReason.PRIVATE, "", ".ssh"),
}


def new_place(top: Path, patch: pytest.MonkeyPatch) -> Place:
    folder(top / "outside", secret=OUTSIDE)
    folder(top / "root", good="good")
    return Place(top / "root", top / "outside", patch)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


@table("name", CASES)
def test_a_hostile_folder(name: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        try_case(new_place(Path(tempfile.mkdtemp(dir=tmp_path)), patch), CASES[name])


def try_case(place: Place, case: Case) -> None:
    case.build(place)
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    start = time.monotonic()
    taken = intake(place.root, case.limits)
    assert time.monotonic() - start < SECONDS
    check(taken, case)
    assert "good" in names(taken) or case.reason is SkipReason.TOO_MUCH
    if before:
        assert len(os.listdir("/proc/self/fd")) <= len(before), "a descriptor was left open"


def check(taken: ReadResult, case: Case) -> None:
    assert not any(OUTSIDE in document.text for document in taken.documents)
    for each in taken.skipped:
        check_sentence(each.sentence)
    if case.reason is None:
        text = next(each.text for each in taken.texts if each.name == f"root/{case.name}")
        assert case.word in text
    else:
        told = next(each for each in taken.skipped if each.path == f"root/{case.name}")
        assert told.reason is case.reason
        assert case.word in told.sentence


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes devices"
)
def test_a_device_is_not_opened(place: Place) -> None:
    try:
        os.mknod(place.root / "x", 0o20600, os.makedev(1, 5))
    except OSError:
        pytest.skip("devices cannot be made here")
    check(intake(place.root), Case(lambda place: None, SkipReason.SPECIAL))


@pytest.mark.parametrize("path", ["/dev", "/proc/self", "/sys/kernel"])
def test_the_systems_own_folders(path: str) -> None:
    if not os.path.isdir(path):
        pytest.skip("needs Linux")
    start = time.monotonic()
    try:
        read([path], limits=ReadLimits(entries=2_000))
    except Exception as error:
        check_sentence(str(error))
    assert time.monotonic() - start < SECONDS


def test_everything_ignored_is_told_in_one_sentence(place: Place) -> None:
    written(place.root / ".gitignore", "*\n")
    assert "(skipped 2: 2 ignored): choose another one" in refusal(place.root)


def test_large_files_do_not_fill_the_memory(place: Place) -> None:
    for number in range(20):
        os.truncate(written(place.root / f"text {number}", "text " * 20_000), 2**30)
    tracemalloc.start()
    try:
        intake(place.root)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_folder_of_100_000_files(place: Place) -> None:
    (place.root / "x").mkdir()
    for number in range(100_000):
        os.close(os.open(place.root / "x" / f"{number}", os.O_CREAT | os.O_WRONLY))
    start = time.monotonic()
    taken = intake(place.root)
    assert time.monotonic() - start < 60
    assert names(taken) == ["good"]
    assert taken.tree is not None
    assert taken.tree.text.count("\n") < 310
    written(place.root / "x" / "0", "text")
    for number in range(6_000):
        written(place.root / "x" / f"{number}", "text")
    assert len(intake(place.root).files) == 5_000
