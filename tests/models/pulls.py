"""Pulling from the fake hub with little patience, and what must hold whatever happened."""

from __future__ import annotations

import json
import random
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.models.cache import ModelCache, blobs
from app.models.errors import ModelError
from app.models.hub import HubSettings, RetryPolicy
from app.models.manifest import file_digest
from app.models.progress import ByteProgress
from app.models.pull import Outcome, Pull
from tests.models import files
from tests.models.fake_hub import FakeHub

NAME = "org/tiny"
TOKEN = "hf_TokenThatMustNotShow"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without certificates: reading those takes longer than a pull."""
QUICK = RetryPolicy(
    connect_timeout=2, stall_timeout=0.4, min_bytes=16, max_attempts=4, backoff=0.01, max_wait=0.3
)


def weights(name: str, size: int, seed: int = 0) -> bytes:
    """A whole safetensors file with `size` random bytes in one tensor."""
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    head = json.dumps({name: tensor}).encode()
    return len(head).to_bytes(8, "little") + head + random.Random(seed).randbytes(size)


def tiny_model(size: int = 200_000, seed: int = 0) -> dict[str, bytes]:
    """Two shards of weights, an index, a tokenizer that is large enough for LFS, and files that
    must not be fetched."""
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    tokenizer = files.tokenizer() | {"padding": "x" * 5000}
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "README.md": b"# tiny",
        "config.json": json.dumps({"model_type": "qwen3", "seed": seed}).encode(),
        "tokenizer_config.json": b"{}",
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "merges.txt": b"",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        names[0]: weights("a", size, seed),
        names[1]: weights("b", size // 2, seed + 1),
        "onnx/model.onnx": b"not for us",
    }


SKIPPED = {".gitattributes", "README.md", "onnx/model.onnx"}


@dataclass
class Puller:
    """Pulls into one cache, and keeps what it reported."""

    cache: ModelCache
    hub: FakeHub
    token: str | None = None
    reports: list[ByteProgress] = field(default_factory=list)

    def settings(self, patience: RetryPolicy = QUICK) -> HubSettings:
        return HubSettings(self.hub.endpoint, self.token, patience, 3, reserve_bytes=0, tls=NO_TLS)

    def pull(self, name: str = NAME, settings: HubSettings | None = None) -> Outcome:
        self.reports.clear()
        pull = Pull(self.cache, name, settings or self.settings(), self.reports.append)
        return pull.run()


def check_whole(cache: ModelCache, hub: FakeHub, name: str = NAME) -> None:
    """The snapshot holds exactly what it should."""
    snapshot = cache.snapshot_folder(name)
    assert snapshot is not None
    expected = {p: d for p, d in hub.repositories[name].files.items() if p not in SKIPPED}
    assert snapshot.name == hub.repositories[name].commit
    found = {p.relative_to(snapshot).as_posix(): p for p in snapshot.rglob("*") if p.is_file()}
    assert found.keys() == expected.keys()
    for path, data in expected.items():
        assert found[path].read_bytes() == data
        assert not found[path].readlink().is_absolute()
    assert not cache.download_folder(name).exists()


def check_clean(cache: ModelCache) -> None:
    """No byte that was not verified lies where a loader could look."""
    for name in cache.names():
        for blob in blobs(cache.repository_folder(name)):
            assert file_digest(blob, blob.name) == blob.name
        for link in (cache.repository_folder(name) / "snapshots").rglob("*"):
            assert link.exists()


def check_reports(reports: list[ByteProgress]) -> None:
    """Bytes never run backwards or past the end."""
    done = [report.done for report in reports]
    assert done == sorted(done)
    assert all(report.done <= report.total for report in reports)


def check_token(hub: FakeHub, token: str) -> None:
    """It went to the hub and nowhere else."""
    told = [asked for asked in hub.asked if asked.authorization is not None]
    assert {asked.server for asked in told} <= {"hub"}
    assert all(asked.authorization == f"Bearer {token}" for asked in told)


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def refused(puller: Puller) -> str:
    """The sentence that a pull ends in, which shows nothing of the server."""
    with pytest.raises(ModelError) as caught:
        puller.pull()
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert "evil" not in sentence
    assert TOKEN not in sentence
    assert "secret" not in sentence
    assert "127.0.0.1" not in sentence
    return sentence


def check(puller: Puller) -> None:
    """What must hold after any pull."""
    check_clean(puller.cache)
    check_reports(puller.reports)
    check_token(puller.hub, TOKEN)
