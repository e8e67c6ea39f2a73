"""A damaged or hostile GGUF file is refused in one sentence, at once, and never crashes."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType

from app.extras.gguf.convert import plan_conversion
from app.extras.gguf.file import read_gguf, summarise
from app.extras.gguf.weights import ErrorSum, convert
from app.models.errors import ModelError
from tests.extras.gguf.making import NAMES, write_gguf
from tests.patience import PATIENCE
from tests.tables import table

MANY = (1 << 64) - 1
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64 = 4, 5, 6, 7, 8, 9, 10, 11
F32, Q4_0 = 0, 2


def text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def key(name: str, kind: int, data: bytes) -> bytes:
    return text(name.encode()) + struct.pack("<I", kind) + data


def tensor(name: str, shape: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    lengths = struct.pack(f"<{len(shape)}Q", *shape)
    return (
        text(name.encode())
        + struct.pack("<I", len(shape))
        + lengths
        + struct.pack("<IQ", kind, offset)
    )


def gguf(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = bytes(4096),
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = magic + struct.pack("<IQQ", version, n_tensors, n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def array(kind: int, length: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + data


DAMAGED: dict[str, bytes] = {
    "nothing": b"",
    "four bytes": b"GGUF",
    "another format": b"PK\x03\x04" + bytes(100),
    "the first version": gguf(version=1),
    "a version of the future": gguf(version=4),
    "the other byte order": gguf(version=3 << 24),
    "more keys than there are": gguf(counts=(0, 5), data=b""),
    "endless keys": gguf(counts=(0, MANY)),
    "endless tensors": gguf(counts=(MANY, 0)),
    "more tensors than there are": gguf(counts=(500, 0), data=b""),
    "a long name with a fault": gguf((), (tensor("t" * 9_999, (0, 8)),)),
    "an endless name": gguf((text(b"k", MANY) + struct.pack("<I", UINT32),)),
    "a name beyond the end": gguf((text(b"k", 1 << 20),)),
    "a key twice": gguf((key("a", UINT32, bytes(4)),) * 2),
    "a value of an unknown type": gguf((key("a", 77, bytes(4)),)),
    "an endless text": gguf((key("a", STRING, text(b"x", 1 << 62)),)),
    "an endless list of numbers": gguf((key("a", ARRAY, array(UINT32, MANY)),)),
    "an endless list of texts": gguf((key("a", ARRAY, array(STRING, MANY)),)),
    "a list of texts beyond the end": gguf((key("a", ARRAY, array(STRING, 1_000_000)),), data=b""),
    "a list of lists": gguf((key("a", ARRAY, array(ARRAY, 1, array(ARRAY, 1)) * 50),)),
    "a list of an unknown type": gguf((key("a", ARRAY, array(99, 3, bytes(12))),)),
    "no dimensions": gguf((), (tensor("t", ()),)),
    "five dimensions": gguf((), (tensor("t", (1, 1, 1, 1, 1)),)),
    "endless dimensions": gguf((), (text(b"t") + struct.pack("<I", (1 << 32) - 1),)),
    "an endless shape": gguf((), (tensor("t", (MANY, MANY)),)),
    "a shape of nothing": gguf((), (tensor("t", (0, 8)),)),
    "half a block": gguf((), (tensor("t", (16, 8), Q4_0),)),
    "an unknown type of numbers": gguf((), (tensor("t", (8,), 4_000),)),
    "a type that was taken away": gguf((), (tensor("t", (32,), 4),)),
    "a tensor beyond the end": gguf((), (tensor("t", (32,), F32, 1 << 40),)),
    "an offset that turns over": gguf((), (tensor("t", (32,), F32, MANY - 31),)),
    "an offset between two blocks": gguf((), (tensor("t", (8,), F32, 3),)),
    "tensors that overlap": gguf((), (tensor("a", (64,)), tensor("b", (64,), F32, 32))),
    "a tensor twice": gguf((), (tensor("a", (8,)), tensor("a", (8,), F32, 32))),
    "an alignment of nothing": gguf((key("general.alignment", UINT32, bytes(4)),)),
    "an endless alignment": gguf(
        (key("general.alignment", UINT64, struct.pack("<Q", 1 << 63)),), (tensor("a", (8,)),)
    ),
    "an alignment that is no number": gguf((key("general.alignment", STRING, text(b"32")),)),
    "parts that are not there": gguf((key("split.count", UINT32, struct.pack("<I", 7)),)),
    "tensors that are not there": gguf((key("split.tensors.count", UINT32, struct.pack("<I", 7)),)),
    "no architecture": gguf((), (tensor("a", (8,)),)),
    "an architecture that is a number": gguf((key("general.architecture", UINT32, bytes(4)),)),
}


@table("what", DAMAGED)
def test_it_is_refused_in_one_sentence_at_once(what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DAMAGED[what])
    began = time.process_time()
    with pytest.raises(ModelError) as refused:
        plan_conversion([path])
    assert time.process_time() - began < 2 * PATIENCE
    sentence = str(refused.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    assert len(sentence) < 400


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, "llama")
    return path.read_bytes()


def refused_or_read(path: Path) -> bool:
    """Whether it was refused; anything but a ModelError is a crash."""
    try:
        planned = plan_conversion([path])
    except ModelError as error:
        return "\n" not in str(error)
    json.dumps(planned.config)
    list(planned.lines())
    return False


def test_cut_anywhere_it_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    chance = random.Random(0)
    for length in [*(chance.randrange(len(whole)) for _ in range(60)), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert refused_or_read(path), length


HEADER = 8_000
"""Bytes of the file that are no weights, about."""


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(HEADER)] = chance.randrange(256)
    return bytes(changed)


def lengthened(data: bytes, chance: random.Random) -> bytes:
    """Eight bytes anywhere become a huge number."""
    at = chance.randrange(HEADER)
    return data[:at] + struct.pack("<Q", chance.choice((MANY, 1 << 62, 1 << 31))) + data[at + 8 :]


@pytest.mark.parametrize("damage", [flipped, lengthened])
def test_damaged_anywhere_it_is_refused_or_read(
    damage: Callable[[bytes, random.Random], bytes], whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.gguf"
    chance, refused = random.Random(1), 0
    for _ in range(150):
        path.write_bytes(damage(whole, chance))
        refused += refused_or_read(path)
    assert refused > 20


def test_a_part_that_is_missing_is_named(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(whole)
    with pytest.raises(ModelError, match=r"m-00002-of-00003\.gguf is missing"):
        read_gguf(path)


def test_parts_of_other_models_are_refused(whole: bytes, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(whole)
    with pytest.raises(ModelError, match="of another part"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")


# --------------------------------------------------------------------------- wrong values

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def listed(kind: int, *items: bytes) -> bytes:
    return array(kind, len(items), b"".join(items))


WRONG_VALUES = (
    *((UINT32, struct.pack("<I", number)) for number in (0, 1, 7, (1 << 31) + 1)),
    *((INT32, struct.pack("<i", -1)), (INT64, struct.pack("<q", -(1 << 63)))),
    (UINT64, struct.pack("<Q", (1 << 64) - 1)),
    *((FLOAT32, struct.pack("<f", number)) for number in (0.5, float("nan"), float("inf"))),
    *((BOOL, b"\1"), (STRING, text(b"")), (STRING, text(b"llama")), (STRING, text(b"\xff" * 99))),
    (ARRAY, listed(UINT32)),
    (ARRAY, listed(UINT32, bytes(4), bytes(4))),
    (ARRAY, listed(FLOAT32, struct.pack("<f", float("nan")))),
    (ARRAY, listed(STRING, text(b"a"), text(b"a"))),
)


@dataclass(frozen=True)
class Parsed:
    """A GGUF file in pieces: its keys with their types and bytes, and for each tensor its entry
    without its type, the type and the offset."""

    keys: tuple[tuple[bytes, int, bytes], ...]
    tensors: tuple[tuple[bytes, int, int], ...]
    data: bytes

    def bytes(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        for name, kind, value in self.keys:
            head += text(name) + struct.pack("<I", kind) + value
        for entry, kind, offset in self.tensors:
            head += entry + struct.pack("<IQ", kind, offset)
        return head + bytes(-len(head) % 32) + self.data


def parse(whole: bytes) -> Parsed:
    at = 4

    def take(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", whole, at)
        at += struct.calcsize(form)
        assert isinstance(value, int)
        return value

    def skip(kind: int) -> None:
        nonlocal at
        if kind == STRING:
            length = take("Q")
            at += length
        elif kind == ARRAY:
            of, count = take("I"), take("Q")
            for _ in range(count):
                skip(of)
        else:
            at += SIZES[kind]

    assert take("I") == 3
    tensor_count, key_count = take("Q"), take("Q")
    keys, tensors = [], []
    for _ in range(key_count):
        length = take("Q")
        name, at = whole[at : at + length], at + length
        kind, start = take("I"), at
        skip(kind)
        keys.append((name, kind, whole[start:at]))
    for _ in range(tensor_count):
        start = at
        skip(STRING)
        dimensions = take("I")
        at += 8 * dimensions
        entry = whole[start:at]
        tensors.append((entry, take("I"), take("Q")))
    at += -at % 32
    return Parsed(tuple(keys), tuple(tensors), whole[at:])


def wrong_files(parsed: Parsed) -> Iterator[Parsed]:
    """Each key with each wrong value, or missing, and each tensor in each type."""
    for index, (name, _, _) in enumerate(parsed.keys):
        before, after = parsed.keys[:index], parsed.keys[index + 1 :]
        yield Parsed(before + after, parsed.tensors, parsed.data)
        for kind, value in WRONG_VALUES:
            yield Parsed((*before, (name, kind, value), *after), parsed.tensors, parsed.data)
    more = (
        *(b"split.count", b"split.no", b"split.tensors.count", b"general.alignment"),
        *(b"general.name", b"general.file_type", b"tokenizer.ggml.add_bos_token"),
        *(b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.add_space_prefix"),
    )
    for name in more:
        for kind, value in WRONG_VALUES:
            yield Parsed((*parsed.keys, (name, kind, value)), parsed.tensors, parsed.data)
    for index, (entry, _, offset) in enumerate(parsed.tensors):
        for number in GGMLQuantizationType:
            changed = (entry, int(number), offset)
            tensors = (*parsed.tensors[:index], changed, *parsed.tensors[index + 1 :])
            yield Parsed(parsed.keys, tensors, parsed.data)


def check_gguf(path: Path) -> None:
    """It is summarised and converted, or refused."""
    for step in (summarise, converted):
        refusal = ""
        try:
            step(path)
        except ModelError as error:
            refusal = str(error)
        assert "\n" not in refusal
        assert len(refusal) < 400


def converted(path: Path) -> None:
    planned = plan_conversion([path])
    json.dumps([planned.config, planned.tokenizer, planned.tokenizer_config])
    assert list(planned.lines())
    for each in planned.plans:
        assert list(convert(each, ErrorSum()))


def test_a_few_wrong_gguf_files_are_converted_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama")
    for changed in random.Random(1).sample([*wrong_files(parse(path.read_bytes()))], 40):
        path.write_bytes(changed.bytes())
        check_gguf(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_wrong_gguf_files_are_converted_or_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, name)
    for changed in wrong_files(parse(path.read_bytes())):
        path.write_bytes(changed.bytes())
        check_gguf(path)
