"""`specchat models` lists what other programs keep."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.cli.main import parser
from app.cli.run_app import _library
from app.models.found import default_places
from tests.cli.conftest import Shell
from tests.models import files, kept
from tests.models.pulls import NAME
from tests.models.test_pairs import folder


def test_they_are_listed_below_the_installed_ones(shell: Shell, home: Path) -> None:
    shell("pull", NAME)
    kept.lm_studio(home)
    blob = kept.ollama(home / ".ollama/models", "llama", "8b")
    kept.ollama(home / ".ollama/models", "llama", "latest")
    status, out, err = shell("list")
    installed, gguf, mlx, ollama = out.splitlines()
    assert status == 0
    assert installed.endswith(NAME)
    folder = "~/.lmstudio/models"
    assert gguf.endswith(f" · LM Studio · {folder}/gguf-people/Big-GGUF/Big-Q4_K_M.gguf · GGUF")
    assert mlx.endswith(f"  mlx-people/Small-4bit · LM Studio · {folder}/mlx-people/Small-4bit")
    assert ollama.endswith(
        f"  llama:8b, llama:latest · Ollama · ~/.ollama/models/blobs/{blob.name} · GGUF"
    )
    assert err == "`specchat models add PATH` converts a GGUF file.\n"


def test_their_faults_are_said(shell: Shell, home: Path) -> None:
    kept.ollama(home / ".ollama/models", "llama", "8b").unlink()
    assert "is missing: pull the model again with Ollama" in shell("list")[1]


def test_mlx_models_alone_need_no_advice(shell: Shell, home: Path) -> None:
    files.model(home / ".lmstudio/models/a/b")
    assert "converts" not in shell("list")[2]


def test_as_json(shell: Shell, home: Path) -> None:
    folder = kept.lm_studio(home)
    gguf, mlx = json.loads(shell("list", "--json")[1])["found"]
    path = folder / "gguf-people/Big-GGUF/Big-Q4_K_M.gguf"
    assert gguf == {
        "name": "Big-Q4_K_M",
        "kind": "gguf",
        "program": "LM Studio",
        "path": str(path),
        "size": path.stat().st_size,
        "fault": None,
        "aliases": [],
    }
    assert (mlx["kind"], mlx["path"]) == ("mlx", str(folder / "mlx-people/Small-4bit"))


def test_the_folders_of_the_setting_are_searched(shell: Shell, home: Path) -> None:
    kept.gguf_file(home / "my models/a.gguf")
    settings = home / "config/specchat/settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[models]\nfolders = "~/my models:/nowhere"\n')
    _, out, err = shell("list")
    assert "  a · your folder · ~/my models/a.gguf · GGUF\n" in out
    assert "There is no folder '/nowhere', which the setting models.folders names.\n" in err


def test_one_is_shown_by_its_name_or_its_path(shell: Shell, home: Path) -> None:
    blob = kept.ollama(home / ".ollama/models", "llama", "8b", context=40_960)
    for name in ("llama:8b", str(blob), f"~/.ollama/models/blobs/{blob.name}"):
        status, out, err = shell("show", name)
        first, second, third = out.splitlines()
        assert status == 0
        assert first.endswith(f"llama:8b · Ollama · ~/.ollama/models/blobs/{blob.name} · GGUF")
        assert second == "specchat never changes or deletes it."
        assert third == "A Model · 256 · Q4_K_M · qwen3 · context 41K"
        assert err.endswith(f"/{blob.name}` converts it.\n")


def test_a_gguf_file_anywhere_is_shown_by_its_path(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept.gguf_file(home / "x.gguf")
    monkeypatch.chdir(home)
    for name in ("x.gguf", str(path), "~/x.gguf"):
        status, out, err = shell("show", name)
        assert status == 0
        first, second = out.splitlines()
        assert first.endswith("  x · ~/x.gguf · GGUF")
        assert second == "A Model · 256 · Q4_K_M · qwen3 · context 41K"
        assert err == "`specchat models add ~/x.gguf` converts it.\n"


@pytest.mark.parametrize("name", ["none.gguf", "text.gguf", "~nobody-here/x.gguf", "a\0.gguf"])
def test_a_gguf_file_that_cannot_be_read_is_one_sentence(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(home)
    (home / "text.gguf").write_text("text")
    status, out, err = shell("show", name)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("specchat: ")


def test_a_folder_anywhere_is_shown_by_its_path(shell: Shell, home: Path) -> None:
    path = folder(home / "mine", layers=4)
    out = shell("show", str(path))[1]
    assert "qwen3" in out
    assert "Fits " in out


def test_an_installed_one_of_the_same_name_is_shown(shell: Shell, home: Path) -> None:
    files.model(home / ".lmstudio/models" / NAME)
    assert "LM Studio" in shell("show", NAME)[1]
    shell("pull", NAME)
    assert "Downloaded and verified by specchat." in shell("show", NAME)[1]


@pytest.mark.parametrize("name", ["no/such", "/no/such", "a\0b", ""])
def test_one_that_is_nowhere_is_one_sentence(shell: Shell, name: str) -> None:
    status, out, err = shell("show", name)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_damaged_header_is_one_sentence(shell: Shell, home: Path) -> None:
    path = kept.gguf_file(home / ".lmstudio/models/a/b/c.gguf")
    path.write_bytes(path.read_bytes()[:100])
    status, _, err = shell("show", "c")
    assert (status, err.count("\n")) == (2, 1)
    assert "is damaged" in err


def test_a_name_cannot_write_to_the_terminal(shell: Shell, home: Path) -> None:
    path = kept.gguf_file(home / ".lmstudio/models/a/b/plain.gguf")
    os.rename(path, os.fsencode(path.parent) + b"/\xff\x1b[31m.gguf")
    status, out, _ = shell("list")
    assert (status, "\x1b" in out, "[31m" in out) == (0, False, True)
    assert shell("list", "--json")[0] == 0


def test_the_app_searches_the_same_folders(home: Path) -> None:
    assert _library().places() == default_places()


def test_the_help_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["models", "--help"])
    assert "LM Studio" in capsys.readouterr().out
