"""The demo pair's manifest tells every change of its files."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from app.models.embedded import MANIFEST, integrity, pair_path, write_manifest
from tests.models import files
from tests.tables import table


def written(path: Path) -> Path:
    for folder in ("target", "draft", "recipe"):
        (path / folder).mkdir()
        (path / folder / "config.json").write_text(folder)
    write_manifest(path)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_a_whole_pair(pair: Path) -> None:
    assert integrity(pair) == ()


def test_the_embedded_pair_is_whole() -> None:
    assert integrity() == ()
    assert (pair_path() / "recipe").is_dir()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_the_manifest_is_one_of_sha256sum(pair: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", MANIFEST], cwd=pair, check=True)


def test_what_lies_beside_the_models_does_not_count(pair: Path) -> None:
    (pair / "recipe" / "config.json").write_text("other")
    (pair / "target" / ".DS_Store").touch()
    assert integrity(pair) == ()


def write(pair: Path, name: str, content: bytes) -> None:
    (pair / name).write_bytes(content)


@table(
    "damage, said",
    [
        (lambda pair: write(pair, "draft/config.json", b"drafT"), "draft/config.json was modified"),
        (lambda pair: (pair / "target/config.json").unlink(), "target/config.json is missing"),
        (lambda pair: write(pair, "target/model.py", b""), "target/model.py is not part of it"),
        (lambda pair: (pair / MANIFEST).unlink(), "SHA256SUMS is missing"),
        (lambda pair: write(pair, MANIFEST, b""), "SHA256SUMS cannot be read"),
        (lambda pair: write(pair, MANIFEST, b"nonsense\n"), "SHA256SUMS cannot be read"),
        (lambda pair: write(pair, MANIFEST, b"\xff\n"), "SHA256SUMS cannot be read"),
    ],
)
def test_a_damaged_pair(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    pair = written(files.fresh(tmp_path))
    damage(pair)
    (fault,) = integrity(pair)
    assert said in fault
