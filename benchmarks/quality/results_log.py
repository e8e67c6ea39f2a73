"""The results log: a record for each run of an evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from app.protocol.commands import Load
from app.protocol.options import Mode
from benchmarks.json_log import JsonLog

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
REPORTING = ("results", "report")
"""Modules that do not affect measurements."""
SMALL = 64 * 2**20
"""Files up to this many bytes are identified by content, larger ones by modification time."""


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """How an item is read. Dense reading has no scoring and keep 1."""

    mode: Mode
    keep: float = 1.0
    scoring: str = ""


DENSE = ReadConfig(Mode.FULL)


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one item. `digest`: of the item. `code`: digest of the program. `tokens`: digest
    of the generated token ids. `failed`: the message of a failed turn. `ttft`: seconds. `spread`:
    evenness of importance (`normalised_entropy`). `passage`: share of the answer's passage that was
    read. `confidence`: mean probability of the generated tokens."""

    item: str
    digest: str
    code: str
    suite: str
    case: str
    length: int
    mode: str
    keep: float
    scoring: str
    right: bool = False
    answer: str = ""
    tokens: str = ""
    prompt_tokens: int = 0
    read_fraction: float = 0.0
    ttft: float = 0.0
    reading: str = ""
    ended: str = ""
    fallback: str | None = None
    guard: str | None = None
    failed: str | None = None
    spread: float | None = None
    passage: float | None = None
    confidence: float | None = None

    @property
    def config(self) -> ReadConfig:
        return ReadConfig(Mode(self.mode), self.keep, self.scoring)


@dataclass(frozen=True, slots=True)
class Origin:
    """Displayed names of target and draft, specchat's version, and the machine."""

    target: str
    draft: str | None
    version: str
    machine: str


class ResultsLog:
    """The records of runs, kept in a file, and their origin. The last record of a run counts, and
    the last origin."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        """Raises UserError if the file cannot be opened."""
        self._log = JsonLog(path, fresh)
        self._records: dict[tuple[str, ReadConfig], Record] = {}
        self._origin: Origin | None = None
        for content in self._log.records:
            if (record := _parse(Record, content)) is not None:
                self._records[record.item, record.config] = record
            elif (origin := _parse(Origin, content)) is not None:
                self._origin = origin

    def find(self, item: str, config: ReadConfig) -> Record | None:
        return self._records.get((item, config))

    def right_in_full(self) -> frozenset[str]:
        """The ids of the items that were answered right after reading in full."""
        return frozenset(
            item for (item, how), record in self._records.items() if how == DENSE and record.right
        )

    def add(self, record: Record) -> None:
        """Write what differs from the defaults, at once. Raises UserError."""
        defaults = {field.name: field.default for field in fields(Record)}
        differing = {n: v for n, v in asdict(record).items() if v != defaults[n]}
        self._log.append(differing)
        self._records[record.item, record.config] = record

    @property
    def origin(self) -> Origin | None:
        return self._origin

    @origin.setter
    def origin(self, origin: Origin) -> None:
        """Raises UserError."""
        if origin != self._origin:
            self._log.append(asdict(origin))
        self._origin = origin


def _parse(kind: type[T], content: Mapping[str, Any]) -> T | None:
    """None for what is none of this version."""
    try:
        parsed = kind(**content)
        hash(parsed)
    except TypeError:
        return None
    return parsed


def pair_digest(load: Load) -> str:
    """A digest of both models' files (names, sizes, contents or times) and of `kv_bits`."""
    digest = hashlib.sha256(f"{load.kv_bits} bits\n".encode() if load.kv_bits else b"")
    for folder in (load.target, load.draft):
        for path in sorted(Path(folder).iterdir()) if folder else ():
            if path.is_file():
                status = path.stat()
                small = status.st_size <= SMALL
                mark = (
                    hashlib.sha256(path.read_bytes()).hexdigest() if small else status.st_mtime_ns
                )
                digest.update(f"{path.name} {status.st_size} {mark}\n".encode())
        digest.update(b"\n")
    return digest.hexdigest()


def code_digest(root: Path = ROOT) -> str:
    """A digest of the code that affects measurements, 8 hexadecimal digits."""
    digest = hashlib.sha256()
    folders = (root / name for name in ("app/engine", "benchmarks/quality", "app/protocol"))
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        if path.suffix in (".py", ".json", ".toml") and path.stem not in REPORTING:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
