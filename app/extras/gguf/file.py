"""Reads metadata and tensors of a GGUF file. Does not use MLX.

ggml's docs/gguf.md describes the format. The reader of the package `gguf` takes 17 seconds for a
vocabulary of 262,144 tokens, and trusts the file. This one takes half a second, and limits
everything, because the file is not trusted. It uses the package's table of types.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from app.models.errors import ModelError
from app.models.formats import Summary
from app.util.regular_files import open_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"GGUF"
ORGANISATION = "local"
"""Where converted models are installed."""
_AGAIN = "download the model again"
_VERSIONS = (2, 3)
_MAX_KEYS, _MAX_TENSORS, _MAX_DIMENSIONS = 10_000, 200_000, 4
_MAX_STRING, _MAX_STRINGS = 16 << 20, 2_000_000
"""Maximum bytes of a string, and strings in an array: several times what any model has."""
_MAX_REASON = 200
"""Maximum characters of why a file is damaged, which may have a name from the file."""
_MAX_ARRAY_BYTES = 256 << 20
_ALIGNMENT = 32

_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


class GgufError(ModelError):
    """A GGUF file is damaged, or its model cannot be used."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in the file. `shape` has the fastest dimension last, as in NumPy (in the file it is
    first). `kind` is the name of a ggml type, `data` are the bytes (N,) in the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Metadata:
    """A file's metadata. Each method returns the value of a key, or None if the key is missing, and
    raises GgufError if the value has another type. A key that begins with a dot is prefixed with
    the architecture: `.block_count` stands for `llama.block_count`.
    """

    path: Path
    values: Mapping[str, Any]

    def text(self, key: str) -> str | None:
        value = self._value(key)
        return value if isinstance(value, str) or value is None else self._refuse(key, "a text")

    def integer(self, key: str) -> int | None:
        value = self._value(key)
        return value if type(value) is int or value is None else self._refuse(key, "an integer")

    def number(self, key: str) -> float | None:
        """A finite number."""
        value = self._value(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value):
            self._refuse(key, "a number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self._value(key)
        return value if isinstance(value, bool) or value is None else self._refuse(key, "a flag")

    def texts(self, key: str) -> list[str] | None:
        value = self._value(key)
        if not isinstance(value, list | None):
            self._refuse(key, "a list of texts")
        return value

    def numbers(self, key: str) -> NDArray[Any] | None:
        """An array (N,) of finite numbers."""
        import numpy as np

        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or not np.isfinite(value).all():
            self._refuse(key, "a list of numbers")
        return value

    def _value(self, key: str) -> Any:
        if key.startswith("."):
            key = (self.text("general.architecture") or "") + key
        return self.values.get(key)

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        raise GgufError(f"'{self.path}' has a {key.lstrip('.')} that is not {wanted}", _AGAIN)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A model: metadata and tensors of all its parts. `size` is in bytes."""

    paths: tuple[Path, ...]
    metadata: Metadata
    tensors: dict[str, Tensor]
    size: int

    @property
    def architecture(self) -> str:
        return self.metadata.text("general.architecture") or ""


def is_gguf(path: Path) -> bool:
    """Whether the file begins like a GGUF file."""
    with suppress(OSError), open_file(path) as file:
        return file.read(4) == MAGIC
    return False


def parts_of(path: Path) -> tuple[Path, ...]:
    """All parts of the model to which `path` belongs, going by their names
    (`NAME-00001-of-00003.gguf`). Raises GgufError if one is missing."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    stem, _, count, suffix = match.groups()
    paths = tuple(
        path.with_name(f"{stem}-{n:05}-of-{count}{suffix}") for n in range(1, int(count) + 1)
    )
    missing = [each.name for each in paths if not each.is_file()]
    if missing or not paths:
        what = missing[0] if missing else "its first part"
        raise GgufError(f"'{path}' is one of {int(count)} parts, and {what} is missing", _AGAIN)
    return paths


def repository_of(path: Path, title: str = "") -> str:
    """Name under which the model of a file is installed. `title` is used if the file is named after
    its digest, as Ollama's files are."""
    name = title if title and path.name.startswith("sha256") else path.name
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf(\.part\d+)?$", "", name, flags=re.IGNORECASE)
    stem = re.sub(r"[^\w.]+|_{2,}|\.{2,}", "-", stem, flags=re.ASCII).strip("-.")[:90]
    return f"{ORGANISATION}/{stem or 'model'}"


def read_gguf(path: Path) -> GgufFile:
    """Read a model. `path` is its file, or one of its parts. The data of tensors is mapped, not
    read. Raises GgufError if a file is damaged or cannot be read."""
    paths = parts_of(path)
    values: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    size = 0
    for number, part in enumerate(paths):
        data = _mapped(part)
        try:
            here, found = _GgufReader(part, data).read()
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise GgufError(f"'{part}' is damaged ({str(error)[:_MAX_REASON]})", _AGAIN) from None
        own = Metadata(part, here)
        count = own.integer("split.count") or 1
        if count > 1 and (own.integer("split.no") != number or count != len(paths)):
            raise GgufError(f"'{part}' is not part {number + 1} of {len(paths)}", _AGAIN)
        values = here | values
        if both := tensors.keys() & found.keys():
            raise GgufError(f"'{part}' has the tensor {min(both)!r} of another part", _AGAIN)
        tensors |= found
        size += len(data)
    metadata = Metadata(path, values)
    expected = metadata.integer("split.tensors.count")
    if expected not in (None, len(tensors)):
        raise GgufError(f"'{path}' has {len(tensors):,} of {expected:,} tensors", _AGAIN)
    return GgufFile(paths, metadata, tensors, size)


def _mapped(path: Path) -> NDArray[np.uint8]:
    import numpy as np  # slow: finding GGUF files does not need it

    try:
        with open_file(path) as file:
            if file.read(4) != MAGIC:
                raise GgufError(f"'{path}' is not a GGUF file", "use a file that ends in .gguf")
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise GgufError.unreadable(path, error) from None


class _GgufReader:
    """Reads one part. Raises ValueError or struct.error if it is damaged."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self._path, self._data, self._at = path, data, 4
        self._bytes = data.data

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        (version,) = self._unpack("I")
        if version not in _VERSIONS:
            # In a big-endian file, the bytes of the version are reversed.
            what = "is big-endian" if version >= 1 << 16 else f"has version {version} of the format"
            raise GgufError(
                f"'{self._path}' {what}, and specchat only reads little-endian versions 2 and 3",
                "get a newer file of this model",
            )
        tensor_count, key_count = self._unpack("QQ")
        if key_count > _MAX_KEYS or tensor_count > _MAX_TENSORS:
            raise ValueError(f"{key_count:,} keys and {tensor_count:,} tensors")
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._string()
            if key in metadata:
                raise ValueError(f"the key {key!r} is there twice")
            metadata[key] = self._value(*self._unpack("I"))
        entries = [self._tensor_entry() for _ in range(tensor_count)]
        alignment = Metadata(self._path, metadata).integer("general.alignment")
        return metadata, self._tensors(entries, _ALIGNMENT if alignment is None else alignment)

    def _unpack(self, form: str) -> tuple[Any, ...]:
        # "<" has no padding, so a form's size is the sum of its fields'.
        size = struct.calcsize(f"<{form}")
        self._need(size)
        values = struct.unpack_from(f"<{form}", self._bytes, self._at)
        self._at += size
        return values

    def _need(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise ValueError(f"it ends in its header, after {len(self._data):,} bytes")

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        if length > _MAX_STRING:
            raise ValueError(f"a text of {length:,} bytes")
        self._need(length)
        text = bytes(self._bytes[self._at : self._at + length]).decode("utf-8", "replace")
        self._at += length
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _NUMBERS:
            raise ValueError(f"a value of the unknown type {kind}")
        return self._unpack(_NUMBERS[kind])[0]

    def _array(self) -> Any:
        """Read a list of strings, or an array (N,) of numbers."""
        import numpy as np

        kind, length = self._unpack("IQ")
        if kind == _STRING:
            if length > _MAX_STRINGS:
                raise ValueError(f"a list of {length:,} texts")
            return [self._string() for _ in range(length)]
        if kind not in _NUMBERS:
            raise ValueError(f"a list of values of the unknown type {kind}")
        dtype = np.dtype(f"<{_NUMBERS[kind]}" if kind != _BOOL else "?")
        size = dtype.itemsize * length
        if size > _MAX_ARRAY_BYTES:
            raise ValueError(f"a list of {length:,} numbers")
        self._need(size)
        values = np.frombuffer(self._bytes, dtype, length, self._at)
        self._at += size
        return values

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dimensions,) = self._unpack("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} has {dimensions:,} dimensions")
        shape = self._unpack("Q" * dimensions)[::-1]
        kind, offset = self._unpack("IQ")
        return name, shape, kind, offset

    def _tensors(
        self, entries: Sequence[tuple[str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, Tensor]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        if not 1 <= alignment <= 1 << 20 or alignment % 8:
            raise ValueError(f"the alignment {alignment}")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        ends: list[tuple[int, int, str]] = []
        for name, shape, number, offset in entries:
            try:
                kind = GGMLQuantizationType(number)
            except ValueError:
                raise ValueError(f"the tensor {name!r} has the unknown type {number}") from None
            block, block_bytes = GGML_QUANT_SIZES[kind]
            elements = math.prod(shape)
            if not elements or shape[-1] % block:
                raise ValueError(f"the tensor {name!r} has the shape {shape} in blocks of {block}")
            begin, size = start + offset, elements // block * block_bytes
            if offset % alignment or begin + size > len(self._data):
                raise ValueError(f"the tensor {name!r} lies outside of the file")
            if name in tensors:
                raise ValueError(f"the tensor {name!r} is there twice")
            tensors[name] = Tensor(name, shape, kind.name, self._data[begin : begin + size])
            ends.append((begin, begin + size, name))
        ends.sort()
        for (_, end, name), (begin, _, other) in pairwise(ends):
            if begin < end:
                raise ValueError(f"the tensors {name!r} and {other!r} overlap")
        return tensors


# ---------------------------------------------------------------------------- summary


_GUESSED = 1024
"""Flag in `general.file_type`: the type was guessed."""
_MAX_TEXT = 200


def summarise(path: Path) -> Summary:
    """Summarise a model. `path` is its file, or one of its parts. Takes up to half a second; the
    result is cached while the file's size and time stay the same. Raises GgufError if the file
    cannot be read."""
    try:
        status = path.stat()
    except OSError as error:
        raise GgufError.unreadable(path, error) from None
    return _summary(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=512)
def _summary(path: Path, changed: int, size: int) -> Summary:
    file = read_gguf(path)
    return Summary(
        (file.metadata.text("general.name") or "")[:_MAX_TEXT],
        file.architecture[:_MAX_TEXT],
        max(file.metadata.integer(".context_length") or 0, 0),
        _quantised(file),
        sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
    )


def _quantised(file: GgufFile) -> str:
    """The quantisation that the file states, such as `Q4_K_M`, or else the type of most of its
    bytes."""
    from gguf.constants import LlamaFileType

    number = file.metadata.integer("general.file_type")
    try:
        kind = LlamaFileType(-1 if number is None else number & ~_GUESSED)
        return kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        sizes: Counter[str] = Counter()
        for tensor in file.tensors.values():
            sizes[tensor.kind] += len(tensor.data)
        return sizes.most_common(1)[0][0] if sizes else ""
