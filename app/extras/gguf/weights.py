"""Converts the tensors of a GGUF file to mlx-lm's format, one at a time. Does not use MLX.

MLX quantises a row in groups: w = scale * q + bias. Five of ggml's types are equivalent, with
groups of 32 numbers, and are only packed in another order. In two more (Q4_K, Q5_K) a group's scale
is a product, which is rounded to 16 bits. All other types are dequantised, and quantised again if
requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.extras.gguf.architectures import OTHER
from app.extras.gguf.file import GgufError, GgufFile, Tensor

GROUP = 32
"""Numbers per group in those of ggml's types that MLX can store."""
EXACT = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8}
"""Bits per number of the types that MLX stores bit for bit."""
ROUNDED = {"Q4_K": 4, "Q5_K": 5}
"""Bits per number of the types whose numbers are kept and whose scales are rounded."""
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
DEFAULT_BITS = 8
"""Bits per number for weights of a type that MLX does not have."""
_CHUNK = 1 << 24
"""Numbers converted at a time: 64 MB in 32 bits."""

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """How a tensor is stored: with `bits` per number in groups of `group`, or else in `dtype`."""

    name: str
    tensor: Tensor
    dtype: str
    bits: int | None = None
    group: int = GROUP
    heads: int | None = None
    """Number of heads whose rows must be reordered; None if the order is the same."""
    offset: float = 0.0
    """Added to each number."""

    @property
    def keeps_codes(self) -> bool:
        """Whether the numbers are quantised as in the file; scales may be rounded."""
        return self.bits is not None and (EXACT | ROUNDED).get(self.tensor.kind) == self.bits

    @property
    def is_exact(self) -> bool:
        kind = self.tensor.kind
        if self.bits is None:
            return self.dtype in (FLOATS.get(kind), "float32")
        return kind in EXACT and self.keeps_codes and self.dtype != "bfloat16"

    @property
    def is_matrix(self) -> bool:
        return len(self.tensor.shape) > 1

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensors to write: for each name, its safetensors type and its shape."""
        shape, dtype = self.tensor.shape, _SAFETENSORS[self.dtype]
        if self.bits is None:
            return {self.name: (dtype, shape)}
        groups = (*shape[:-1], shape[-1] // self.group)
        return {
            f"{self.module}.weight": ("U32", (*shape[:-1], shape[-1] * self.bits // 32)),
            f"{self.module}.scales": (dtype, groups),
            f"{self.module}.biases": (dtype, groups),
        }


_SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
SAFETENSORS_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}


def plan(
    gguf: GgufFile, config: dict[str, Any], named: list[tuple[str, Tensor]], bits: int | None
) -> list[TensorPlan]:
    """Plan how to store each tensor. `bits` (4, 8, or 16 for unquantised) is used for types that
    MLX cannot store unchanged; None means 8 for tensors that are quantised in the file, and
    unquantised for others. 32 dequantises everything, which is many times faster on a CPU. Raises
    GgufError if a type is unknown."""
    dtype = "float32" if bits == 32 else base_dtype(gguf)
    plans = []
    for name, tensor in named:
        if not can_dequantise(tensor.kind):
            raise GgufError(
                f"'{gguf.paths[0]}' has weights in {tensor.kind}, which specchat cannot convert",
                OTHER,
            )
        chosen, group = _bits(tensor, bits)
        heads = None
        if gguf.architecture == "llama":
            heads = {
                "q_proj": config["num_attention_heads"],
                "k_proj": config["num_key_value_heads"],
            }.get(name.split(".")[-2])
        # llama.cpp multiplies by a norm's weight w, mlx-lm's gemma3 by w + 1.
        offset = -1.0 if gguf.architecture == "gemma3" and len(tensor.shape) == 1 else 0.0
        plans.append(TensorPlan(name, tensor, dtype, chosen, group, heads, offset))
    return plans


def base_dtype(gguf: GgufFile) -> str:
    """The dtype of scales and of everything unquantised. Gemma's activations exceed float16."""
    matrices = [t.kind for t in gguf.tensors.values() if len(t.shape) > 1]
    if all(kind == "F32" for kind in matrices):
        return "float32"
    return "bfloat16" if "BF16" in matrices or gguf.architecture == "gemma3" else "float16"


def _bits(tensor: Tensor, wanted: int | None) -> tuple[int | None, int]:
    kind, width = tensor.kind, tensor.shape[-1]
    # The router of experts is small, and errors in it have a large effect.
    if len(tensor.shape) < 2 or "ffn_gate_inp" in tensor.name:
        return None, GROUP
    if wanted != 32 and (kind in EXACT or kind in ROUNDED):
        return (EXACT | ROUNDED)[kind], GROUP
    if kind not in FLOATS and wanted is None:
        wanted = DEFAULT_BITS
    group = 64 if width % 64 == 0 else GROUP
    return (wanted if wanted in (4, 8) and width % group == 0 else None), group


@dataclass(slots=True)
class ErrorSum:
    """Sums of squared errors and of squared weights, over the matrices that were changed."""

    wrong: float = 0.0
    total: float = 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the errors, relative to that of the weights."""
        return math.sqrt(self.wrong / self.total) if self.total else 0.0

    def add(self, before: Floats, after: Floats) -> None:
        self.wrong += float(np.square(before - after, dtype=np.float64).sum())
        self.total += float(np.square(before, dtype=np.float64).sum())


def convert(
    planned: TensorPlan, error: ErrorSum, check: Callable[[], object] = lambda: None
) -> Iterator[NDArray[Any]]:
    """Yield the tensors of `planned.outputs()`, in that order, as bytes in safetensors' format.
    Adds to `error`. `check` is called after every 16 million numbers, and may raise."""
    rows, order = _rows(planned), _order(planned)
    width = planned.tensor.shape[-1]
    step = max(1, _CHUNK // width)
    parts: list[tuple[NDArray[Any], ...]] = []
    for start in range(0, len(rows), step):
        chosen = slice(start, start + step) if order is None else order[start : start + step]
        parts.append(_convert_rows(planned, rows[chosen], error))
        check()
    for pieces in zip(*parts, strict=True):
        yield np.concatenate(pieces)


def _rows(planned: TensorPlan) -> Codes:
    """The tensor's bytes, by row: (N, B)."""
    count = math.prod(planned.tensor.shape[:-1])
    return planned.tensor.data.reshape(count, -1)


def _order(planned: TensorPlan) -> NDArray[np.int64] | None:
    """The index in the file of each row to write; None if the order is the same. A bias counts as
    one row."""
    if planned.heads is None or not planned.is_matrix:
        return None
    return _halves_apart(np.arange(planned.tensor.shape[0]), planned.heads)


def _halves_apart(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder dimensions of heads for rotary positions: llama.cpp rotates pairs of adjacent
    dimensions, mlx-lm pairs that are half a head apart."""
    return values.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _convert_rows(planned: TensorPlan, rows: Codes, error: ErrorSum) -> tuple[NDArray[Any], ...]:
    if planned.bits is None:
        floats = dequantise(planned.tensor.kind, rows) + np.float32(planned.offset)
        if planned.heads is not None and not planned.is_matrix:
            floats = _halves_apart(floats, planned.heads)[None]
        stored = to_dtype(floats, planned.dtype)
        if planned.is_matrix and not planned.is_exact:
            error.add(floats, from_dtype(stored, planned.dtype))
        return (stored,)
    kind = planned.tensor.kind
    if kind in _SPLIT:
        codes, scales, biases = _SPLIT[kind](rows)
    else:
        codes, scales, biases = quantise(dequantise(kind, rows), planned.bits, planned.group)
    stored_scales, stored_biases = (to_dtype(each, planned.dtype) for each in (scales, biases))
    if not planned.is_exact:
        after = _affine(
            codes,
            from_dtype(stored_scales, planned.dtype),
            from_dtype(stored_biases, planned.dtype),
        )
        error.add(dequantise(kind, rows), after)
    return pack(codes, planned.bits), stored_scales, stored_biases


# ---------------------------------------------------------------------------- numbers


@cache
def can_dequantise(kind: str) -> bool:
    from gguf import GGMLQuantizationType
    from gguf.constants import GGML_QUANT_SIZES

    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    with suppress(NotImplementedError):
        dequantise(kind, np.zeros((1, size), np.uint8))
        return True
    return False


def dequantise(kind: str, rows: Codes) -> Floats:
    """Dequantise rows (N, B) of any ggml type to 32-bit floats (N, M)."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values: Floats = dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[kind])
    return values.reshape(len(rows), -1)


def to_dtype(values: Floats, dtype: str) -> NDArray[Any]:
    """Convert to `dtype`. bfloat16 becomes 16-bit integers, because NumPy does not have it."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Round to nearest, ties to even.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_dtype(values: NDArray[Any], dtype: str) -> Floats:
    if dtype != "bfloat16":
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


def quantise(values: Floats, bits: int, group: int) -> tuple[Codes, Floats, Floats]:
    """Quantise to codes (N, M), scales and biases (N, M / group), such that the lowest and highest
    code of a group are its minimum and maximum. Raises GgufError if a value is not finite."""
    groups = values.reshape(len(values), -1, group)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise GgufError("The weights in this file are damaged: some are not finite", OTHER)
    scales = ((high - low) / (2**bits - 1)).astype(np.float32)
    steps = np.where(scales > 0, scales, 1.0)[..., None]
    codes = np.clip(np.rint((groups - low[..., None]) / steps), 0, 2**bits - 1)
    return codes.astype(np.uint8).reshape(values.shape), scales, low


def _affine(codes: Codes, scales: Floats, biases: Floats) -> Floats:
    groups = codes.reshape(*scales.shape, -1)
    return (groups * scales[..., None] + biases[..., None]).reshape(codes.shape)


def pack(codes: Codes, bits: int) -> NDArray[np.uint32]:
    """Pack codes (N, M) in MLX's order: a stream of bits, lowest first, in 32-bit words
    (N, M * bits / 32)."""
    if bits == 8:
        stream = np.ascontiguousarray(codes)
    elif bits == 4:
        stream = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    else:
        eights = codes.reshape(len(codes), -1, 8).astype(np.uint64)
        shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
        words = np.bitwise_or.reduce(eights << shifts, axis=-1)
        stream = words[..., None].view(np.uint8)[..., :bits].reshape(len(codes), -1)
    return np.ascontiguousarray(stream).view(np.uint32)


# ---------------------------------------------------------------------------- ggml's blocks


def _blocks(rows: Codes, size: int) -> Codes:
    return rows.reshape(len(rows), -1, size)


def _half(blocks: Codes, at: int) -> Floats:
    """The 16-bit float at byte `at` of each block."""
    halves = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)
    return halves[..., 0].astype(np.float32)


def _nibbles(data: Codes) -> Codes:
    """The lower halves of all bytes, then the upper halves, along the last axis."""
    return np.concatenate([data & np.uint8(15), data >> np.uint8(4)], axis=-1)


def _fifth_bits(data: Codes) -> Codes:
    """The 32 bits of each four bytes, shifted to the position of a fifth bit."""
    return np.unpackbits(data, axis=-1, bitorder="little") << np.uint8(4)


def _flat(codes: Codes) -> Codes:
    return codes.reshape(len(codes), -1)


def _q4_0(rows: Codes) -> tuple[Codes, Floats, Floats]:
    blocks = _blocks(rows, 18)
    scales = _half(blocks, 0)
    return _flat(_nibbles(blocks[..., 2:])), scales, -8 * scales


def _q4_1(rows: Codes) -> tuple[Codes, Floats, Floats]:
    blocks = _blocks(rows, 20)
    return _flat(_nibbles(blocks[..., 4:])), _half(blocks, 0), _half(blocks, 2)


def _q5_0(rows: Codes) -> tuple[Codes, Floats, Floats]:
    blocks = _blocks(rows, 22)
    scales = _half(blocks, 0)
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return _flat(codes), scales, -16 * scales


def _q5_1(rows: Codes) -> tuple[Codes, Floats, Floats]:
    blocks = _blocks(rows, 24)
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return _flat(codes), _half(blocks, 0), _half(blocks, 2)


def _q8_0(rows: Codes) -> tuple[Codes, Floats, Floats]:
    blocks = _blocks(rows, 34)
    scales = _half(blocks, 0)
    # The file has signed numbers from -128, MLX unsigned ones.
    return _flat(blocks[..., 2:] ^ np.uint8(0x80)), scales, -128 * scales


def _k_scales(blocks: Codes) -> tuple[Floats, Floats]:
    """Scales and biases (N, S, 8) of the eight groups of a K block, stored as 6 bits each in 12
    bytes."""
    packed = blocks[..., 4:16]
    low, high, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (rest & 15) | (low >> 6) << 4], axis=-1)
    minima = np.concatenate([high & 63, (rest >> 4) | (high >> 6) << 4], axis=-1)
    return _half(blocks, 0)[..., None] * scales, -_half(blocks, 2)[..., None] * minima


def _pairs_of_groups(data: Codes) -> Codes:
    """Eight groups of 32 numbers from 128 bytes: the lower halves of 32 bytes, then the upper
    halves."""
    quarters = data.reshape(*data.shape[:-1], 4, 1, 32)
    return np.concatenate([quarters & np.uint8(15), quarters >> np.uint8(4)], axis=-2).reshape(
        *data.shape[:-1], 256
    )


def _q4_k(rows: Codes) -> tuple[Codes, Floats, Floats]:
    blocks = _blocks(rows, 144)
    scales, biases = _k_scales(blocks)
    return _flat(_pairs_of_groups(blocks[..., 16:])), _flat_floats(scales), _flat_floats(biases)


def _q5_k(rows: Codes) -> tuple[Codes, Floats, Floats]:
    blocks = _blocks(rows, 176)
    scales, biases = _k_scales(blocks)
    # Bit g of byte i belongs to number i of group g.
    bits = np.unpackbits(blocks[..., 16:48, None], axis=-1, bitorder="little")
    fifth = bits.swapaxes(-1, -2).reshape(*blocks.shape[:2], 256) << np.uint8(4)
    codes = _pairs_of_groups(blocks[..., 48:]) | fifth
    return _flat(codes), _flat_floats(scales), _flat_floats(biases)


def _flat_floats(values: Floats) -> Floats:
    return values.reshape(len(values), -1).astype(np.float32)


_SPLIT: dict[str, Callable[[Codes], tuple[Codes, Floats, Floats]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
}
