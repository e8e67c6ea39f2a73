"""`specchat models add` with a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.models import kept
from tests.models.gguf.making import write_gguf


@pytest.fixture
def tiny(home: Path) -> Path:
    write_gguf(home / "tiny.gguf", "llama")
    return home / "tiny.gguf"


def test_a_file_is_converted_listed_and_removed(tiny: Path, shell: Shell) -> None:
    status, out, _ = shell("add", str(tiny))
    assert status == 0
    assert "llama, " in out
    assert "Every matrix is exactly as in the file." in out
    assert out.endswith(" KB).\n")
    assert "local/tiny is installed (" in out
    _, listed, _ = shell("list", "--json")
    (installed,) = json.loads(listed)["installed"]
    assert (installed["repository"], installed["fault"]) == ("local/tiny", None)
    assert shell("verify", "local/tiny")[0] == 0
    status, _, err = shell("add", str(tiny))
    assert status == 2
    assert "local/tiny is installed already" in err
    assert shell("rm", "local/tiny")[0] == 0
    assert shell("add", str(tiny), "--bits", "4", "--as", "other")[0] == 0


def test_parts_are_given_in_order(tiny: Path, shell: Shell) -> None:
    data = tiny.read_bytes()
    parts = [tiny.with_name(f"tiny.gguf.part0{n}") for n in range(2)]
    parts[0].write_bytes(data[: len(data) // 2])
    parts[1].write_bytes(data[len(data) // 2 :])
    status, out, _ = shell("add", *map(str, parts))
    assert status == 0
    assert "local/tiny is installed (" in out
    status, _, err = shell("add", *map(str, reversed(parts)), "--as", "backwards")
    assert status == 2
    assert "is not a GGUF file" in err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "There is no file"), (b"GGUF", "is damaged"), (b"hello", "is not a GGUF")],
)
def test_what_is_no_gguf_file_is_a_sentence(
    content: bytes | None,
    sentence: str,
    tiny: Path,
    shell: Shell,
) -> None:
    path = tiny.with_name("other.gguf")
    if content is not None:
        path.write_bytes(content)
    status, out, err = shell("add", str(path))
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_name_that_cannot_be_one_is_refused(tiny: Path, shell: Shell) -> None:
    status, _, err = shell("add", str(tiny), "--as", "a b")
    assert status == 2
    assert "'a b' cannot be the name of a model" in err


def test_a_file_of_ollamas_gets_the_name_that_ollama_has_for_it(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(path: Path, *, context: int) -> Path:
        path.parent.mkdir(parents=True)
        write_gguf(path, "llama")
        return path

    monkeypatch.setattr(kept, "gguf_file", whole)
    blob = kept.ollama(home / ".ollama/models", "llama", "8b")
    status, out, _ = shell("add", str(blob))
    assert status == 0
    assert "local/llama-8b is installed (" in out
    assert blob.is_file(), "it is left where it was"
