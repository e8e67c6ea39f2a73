"""Documents in and out, whole and in little memory."""

from __future__ import annotations

import gzip
import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.protocol.prompt import Role
from app.store import attachments
from app.store.records import StoreError
from app.store.store import Store
from tests.store.samples import attach


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, attachment_limit=40 * 2**20) as store:
        yield store


def files(folder: Path) -> list[Path]:
    return [path for path in (folder / "attachments").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"\xff\0\r\n", b"abc" * attachments.CHUNK_BYTES],
    ids=["nothing", "one", "binary", "pieces"],
)
def test_bytes_come_back_as_they_were(store: Store, tmp_path: Path, data: bytes) -> None:
    attachment = store.attach("a.bin", data)
    assert b"".join(store.iter_bytes(attachment)) == data
    assert attachment.size == len(data)
    assert attachment.sha256 == hashlib.sha256(data).hexdigest()
    (file,) = files(tmp_path)
    assert gzip.decompress(file.read_bytes()) == data  # no secret format


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("naïve 中文 🙂\r\n".encode(), "naïve 中文 🙂\r\n"),
        (b"\xef\xbb\xbfwith a mark", "with a mark"),
        (b"broken \xff byte", "broken \ufffd byte"),
        (("xä" * attachments.CHUNK_BYTES).encode(), "xä" * attachments.CHUNK_BYTES),
    ],
    ids=["unicode", "mark", "broken", "across-pieces"],
)
def test_text_is_what_the_bytes_say(store: Store, data: bytes, text: str) -> None:
    assert store.text(store.attach("a.txt", data)) == text


def test_the_same_document_is_kept_once(store: Store, tmp_path: Path) -> None:
    first, second = attach(store, "same", "a.txt"), attach(store, "same", "b.txt")
    assert first.sha256 == second.sha256
    assert len(files(tmp_path)) == 1


def test_reading_a_large_document_takes_little_memory(store: Store) -> None:
    size = 32 * 2**20
    attachment = store.attach("large.txt", b"0123456789abcdef" * (size // 16))
    tracemalloc.start()
    try:
        assert sum(len(piece) for piece in store.iter_bytes(attachment)) == attachment.size == size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 2


def test_above_the_limit_it_is_refused_and_nothing_left(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"'large.txt' is larger than 40 MB: attach a part"):
        store.attach("large.txt", bytes(41 * 2**20))
    assert files(tmp_path) == []
    assert store.attach("fits.txt", bytes(40 * 2**20)).size == 40 * 2**20


def test_attaching_again_heals_a_damaged_file(store: Store, tmp_path: Path) -> None:
    attachment = attach(store)
    files(tmp_path)[0].write_bytes(b"garbage")
    with pytest.raises(StoreError, match="damaged"):
        store.text(attachment)
    attach(store)
    assert store.text(attachment).startswith("The tenant pays.")


def test_a_message_takes_only_what_is_here(store: Store, tmp_path: Path) -> None:
    attachment = attach(store)
    files(tmp_path)[0].unlink()
    conversation = store.create().id
    with pytest.raises(StoreError, match=r"'contract.txt' is no longer stored: attach it again"):
        store.add_message(conversation, Role.USER, "x", [attachment])
    assert store.branch(conversation) == ()


def test_what_nobody_refers_to_is_swept_at_the_start(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        used = attach(store, "used")
        store.add_message(store.create().id, Role.USER, "x", [used])
        attach(store, "unused")
        (tmp_path / "attachments" / "unfinished-1").write_bytes(b"half")
    with Store(tmp_path) as store:
        assert [path.name for path in files(tmp_path)] == [f"{used.sha256}.gz"]
        assert store.text(used) == "used"
