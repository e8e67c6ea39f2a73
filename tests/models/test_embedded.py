"""The embedded pair's manifest tells every change of its files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from app.models.embedded import MANIFEST, integrity, pair_path, write_manifest


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    for folder in ("target", "draft", "recipe"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(folder)
    write_manifest(tmp_path)
    return tmp_path


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


def test_an_altered_file(pair: Path) -> None:
    (pair / "draft" / "config.json").write_text("drafT")
    (fault,) = integrity(pair)
    assert "draft/config.json was modified" in fault


def test_a_missing_file(pair: Path) -> None:
    (pair / "target" / "config.json").unlink()
    (fault,) = integrity(pair)
    assert "target/config.json is missing" in fault


def test_a_file_too_many(pair: Path) -> None:
    (pair / "target" / "model.py").touch()
    (fault,) = integrity(pair)
    assert "target/model.py is not part of it" in fault


def test_no_manifest(pair: Path) -> None:
    (pair / MANIFEST).unlink()
    (fault,) = integrity(pair)
    assert "SHA256SUMS is missing" in fault


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"\xff\n"])
def test_a_broken_manifest(pair: Path, content: bytes) -> None:
    (pair / MANIFEST).write_bytes(content)
    (fault,) = integrity(pair)
    assert "SHA256SUMS cannot be read" in fault
