"""A pipe, a socket or a device where a file should be is refused at once, at every door."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from app.cli.logs import CRASH_NOTE, pop_crash
from app.errors import UserError
from app.extras.gguf.file import is_gguf, read_gguf
from app.extras.hosts.hostfile import parse_hosts, read_keys
from app.models.cache import ModelCache
from app.models.catalogue import catalogue
from app.models.check import check_model
from app.models.hub import default_hub_settings
from app.models.manifest import read_manifest
from app.settings.file import SettingsFile
from app.util.regular_files import NotRegular, read_file, read_secret
from tests.models import files
from tests.tables import table


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS = (pipe, device, unix_socket, Path.mkdir)
Make = Callable[[Path], None]


@pytest.mark.parametrize("make", KINDS)
def test_only_regular_files_are_read(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(NotRegular, match="not a regular file"):
        read_file(tmp_path / "x")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(11))
    assert read_file(tmp_path / "x", 11) == bytes(11)
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_file(tmp_path / "x", 10)


def model_with(name: str) -> Callable[[Path, Make], None]:
    def try_it(folder: Path, make: Make) -> None:
        model = files.model(folder / "model")
        (model / name).unlink(missing_ok=True)
        make(model / name)
        check_model(model)

    return try_it


def test_a_link_to_itself_costs_one_model_not_the_list(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    repository, commit = cache.repository_folder("a/b"), "0" * 40
    snapshot = files.model(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "merges.txt").symlink_to("merges.txt")
    assert [each.repository for each in cache.installed()] == ["a/b"]


def gguf(folder: Path, make: Make) -> None:
    make(folder / "m.gguf")
    assert not is_gguf(folder / "m.gguf")
    read_gguf(folder / "m.gguf")


def own_catalogue(folder: Path, make: Make) -> None:
    make(folder / "catalog.toml")
    assert catalogue(folder) == catalogue(None)


def main_commit(folder: Path, make: Make) -> None:
    cache = ModelCache(folder)
    refs = cache.repository_folder("a/b") / "refs"
    refs.mkdir(parents=True)
    make(refs / "main")
    assert cache.commit("a/b") is None
    assert cache.installed() == []


def manifest(folder: Path, make: Make) -> None:
    make(folder / "manifest.json")
    assert read_manifest(folder / "manifest.json") is None


def settings(folder: Path, make: Make) -> None:
    make(folder / "settings.toml")
    assert "cannot be read" in SettingsFile(folder / "settings.toml").problem


def token(folder: Path, make: Make) -> None:
    make(folder / "token")
    with pytest.raises(NotRegular):
        read_secret(folder / "token")


def keys(folder: Path, make: Make) -> None:
    make(folder / "keys.json")
    read_keys(folder / "keys.json")


def hosts(folder: Path, make: Make) -> None:
    make(folder / "hosts.json")
    parse_hosts(str(folder / "hosts.json"), {})


def crash(folder: Path, make: Make) -> None:
    make(folder / CRASH_NOTE)
    assert pop_crash(folder) is None


def hub_token(folder: Path, make: Make) -> None:
    make(folder / "token")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_TOKEN", raising=False)
        patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        default_hub_settings()


DOORS: dict[str, Callable[[Path, Make], Any]] = {
    **{
        name: model_with(name)
        for name in (
            *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"),
            *("model.safetensors", "model.safetensors.index.json", "chat_template.jinja"),
            *("merges.txt", "added_tokens.json"),
        )
    },
    **{each.__name__: each for each in (gguf, own_catalogue, main_commit, manifest)},
    **{each.__name__: each for each in (settings, token, keys, hosts, crash, hub_token)},
}
SAYS_SO = {*DOORS} - {"own_catalogue", "main_commit", "manifest", "settings", "token", "crash"}


@table("make", [pipe, device])
@table("door", DOORS)
def test_no_door_waits_for_what_is_no_file(door: str, make: Make, tmp_path: Path) -> None:
    tmp_path = Path(tempfile.mkdtemp(dir=tmp_path))
    if door in SAYS_SO:
        with pytest.raises(UserError):
            DOORS[door](tmp_path, make)
    else:
        DOORS[door](tmp_path, make)
