"""Whatever the values in a model's files are, the model is described or refused in one sentence."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType

from app.models.cache import ModelCache
from app.models.check import check_model
from app.models.errors import ModelError
from app.models.fit import fit, mac_with
from app.models.found import Place, Program, find_models
from app.models.gguf.convert import plan_conversion
from app.models.gguf.file import summarise
from app.models.gguf.weights import Error, convert
from app.models.library import find_model
from app.models.text import breakdown_rows, facts, verdict_sentences
from tests import tiny
from tests.models import files
from tests.models.gguf.making import NAMES, write_gguf

QUICK = 40
"""Mutations of each kind in the quick tests; the slow ones try all."""

# --------------------------------------------------------------------------- config.json

HUGE = 10**400
WRONG: tuple[Any, ...] = (
    *(None, True, "", "x", "9" * 5000, [], {}, [1], [[]], {"a": 1}, [HUGE]),
    *(0, -1, 1 << 31, 1 << 62, HUGE, -HUGE, 0.5, 1e308, float("inf"), float("-inf"), float("nan")),
)


def wrong_configs() -> Iterator[dict[str, Any]]:
    """Each key of each architecture with each wrong value, and each wrong value in a list."""
    for name in ("llama", "qwen3_moe", "qwen3_next", "gemma3_text", "deepseek_v3", "gpt_oss"):
        config = tiny.config_of(name)
        for key in config:
            yield from ({**config, key: wrong} for wrong in WRONG)
        yield from ({**config, "layer_types": [wrong] * 4} for wrong in WRONG)
        yield from ({**config, "text_config": {"hidden_size": wrong}} for wrong in WRONG)


def check_config(config: dict[str, Any], folder: Path) -> None:
    files.write(folder / "m" / "config.json", config)
    (found,) = find_models([Place(Program.USER, folder / "m")])
    assert found.fault is None or "\n" not in found.fault
    with suppress(ModelError):
        model = find_model(str(folder / "m"), ModelCache(folder / "cache"), ())
        estimate = fit(model.size, None, mac_with(32 << 30))
        assert [*facts(model), *breakdown_rows(estimate), *verdict_sentences(estimate)]
    with suppress(ModelError):
        check_model(folder / "m")


# --------------------------------------------------------------------------- GGUF

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64 = 4, 5, 6, 7, 8, 9, 10, 11
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def array(kind: int, *items: bytes) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


WRONG_VALUES = (
    *((UINT32, struct.pack("<I", number)) for number in (0, 1, 7, (1 << 31) + 1)),
    *((INT32, struct.pack("<i", -1)), (INT64, struct.pack("<q", -(1 << 63)))),
    (UINT64, struct.pack("<Q", (1 << 64) - 1)),
    *((FLOAT32, struct.pack("<f", number)) for number in (0.5, float("nan"), float("inf"))),
    *((BOOL, b"\1"), (STRING, text(b"")), (STRING, text(b"llama")), (STRING, text(b"\xff" * 99))),
    (ARRAY, array(UINT32)),
    (ARRAY, array(UINT32, bytes(4), bytes(4))),
    (ARRAY, array(FLOAT32, struct.pack("<f", float("nan")))),
    (ARRAY, array(STRING, text(b"a"), text(b"a"))),
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
        assert list(convert(each, Error()))


# --------------------------------------------------------------------------- the tests


@pytest.fixture
def model(tmp_path: Path) -> Path:
    files.model(tmp_path / "m")
    return tmp_path


def some(cases: Iterator[Any], seed: int) -> list[Any]:
    return random.Random(seed).sample(list(cases), QUICK)


def test_a_few_wrong_configurations_are_described_or_refused(model: Path) -> None:
    for config in some(wrong_configs(), 0):
        check_config(config, model)


@pytest.mark.parametrize("value", [float("inf"), HUGE], ids=["infinity", "400 digits"])
def test_numbers_that_no_float_holds_are_refused(value: float, model: Path) -> None:
    for key in ("hidden_size", "max_position_embeddings", "vocab_size", "num_hidden_layers"):
        check_config({**tiny.config_of("llama"), key: value}, model)


def test_a_few_wrong_gguf_files_are_converted_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama")
    for changed in some(wrong_files(parse(path.read_bytes())), 1):
        path.write_bytes(changed.bytes())
        check_gguf(path)


@pytest.mark.slow
def test_all_wrong_configurations_are_described_or_refused(model: Path) -> None:
    for config in wrong_configs():
        check_config(config, model)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_wrong_gguf_files_are_converted_or_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, name)
    for changed in wrong_files(parse(path.read_bytes())):
        path.write_bytes(changed.bytes())
        check_gguf(path)
