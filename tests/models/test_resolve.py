"""A model is named by a folder, by a repository in the local cache, or as the embedded one."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from app.models import embedded
from app.models.cache import resolve_model
from app.models.errors import ModelError
from tests.tables import table

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two commits of org/tiny; `main` is the newer."""
    folder = tmp_path / "hub"
    repository = folder / "models--org--tiny"
    for commit in (OLD, NEW):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(NEW)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def refusal(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(name)
    return str(caught.value)


def test_the_embedded_pair() -> None:
    assert resolve_model("embedded") == embedded.target_path()
    assert resolve_model("embedded", draft=True) == embedded.draft_path()


def test_a_folder(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    assert resolve_model("~/models") == tmp_path / "models"


def test_a_repository_in_the_cache(cache: Path) -> None:
    assert resolve_model("org/tiny") == cache / "models--org--tiny" / "snapshots" / NEW


def test_main_moves(cache: Path) -> None:
    (cache / "models--org--tiny" / "refs" / "main").write_text(OLD)
    assert resolve_model("org/tiny").name == OLD


def test_a_folder_comes_before_a_repository(cache: Path) -> None:
    (Path("org") / "tiny").mkdir(parents=True)
    assert resolve_model("org/tiny") == Path("org/tiny").absolute()


@pytest.mark.usefixtures("cache")
def test_a_repository_that_is_not_here() -> None:
    assert "download it with" in refusal("org/other")


def test_a_repository_whose_main_is_not_here(cache: Path) -> None:
    (cache / "models--org--tiny" / "refs" / "main").write_text("c" * 40)
    assert "download it with" in refusal("org/tiny")


@table("name", ["./none", "/none/at/all", "none", "~nobody-here/m", "a\0b", "../x", "a--b/c"])
def test_no_such_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no model folder" in refusal(name)


@table("name", ["", "  "])
def test_no_name(name: str) -> None:
    assert "empty" in refusal(name)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    assert "is a file" in refusal(str(file))
