"""What other programs keep is found where it is, and no damage there stops us."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from app.extras.gguf import file
from app.extras.gguf.file import GgufError, summarise
from app.models import check, found
from app.models.cache import resolve_model
from app.models.found import (
    FoundModel,
    Kind,
    ModelPlace,
    Program,
    default_places,
    find_models,
    missing_places,
    user_places,
)
from tests.models import files, kept
from tests.patience import PATIENCE
from tests.tables import table


def find(folder: Path, program: Program = Program.USER) -> tuple[FoundModel, ...]:
    return find_models([ModelPlace(program, folder)])


def names(models: tuple[FoundModel, ...]) -> list[str]:
    return [model.name for model in models]


def only(models: tuple[FoundModel, ...]) -> FoundModel:
    (model,) = models
    return model


# ------------------------------------------------------------------------------ where they lie


def test_all_programs_keep_theirs_in_their_own_folders(home: Path) -> None:
    kept.lm_studio(home)
    files.model(home / ".cache/lm-studio/models/old/Older-4bit")
    blob = kept.ollama(home / ".ollama/models", "llama", "8b")
    assert [(each.name, each.kind, each.program) for each in find_models(default_places())] == [
        ("Big-Q4_K_M", Kind.GGUF, Program.LM_STUDIO),
        ("mlx-people/Small-4bit", Kind.MLX, Program.LM_STUDIO),
        ("old/Older-4bit", Kind.MLX, Program.LM_STUDIO),
        ("llama:8b", Kind.GGUF, Program.OLLAMA),
    ]
    sizes = {each.path: each.size for each in find_models(default_places())}
    assert sizes[blob] == blob.stat().st_size
    assert all(each.fault is None for each in find_models(default_places()))


def test_a_variable_names_another_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.ollama(home / "a", "llama", "8b")
    for name in (str(home / "a"), "~/a"):
        monkeypatch.setenv("OLLAMA_MODELS", name)
        assert names(find_models(default_places())) == ["llama:8b"]


def test_without_any_program_there_is_nothing(home: Path) -> None:
    assert find_models(default_places()) == ()


def test_an_mlx_folder_is_loaded_as_it_is(home: Path) -> None:
    folder = kept.lm_studio(home) / "mlx-people/Small-4bit"
    model = next(each for each in find_models(default_places()) if each.kind is Kind.MLX)
    assert model.path == resolve_model(str(model.path)) == folder
    assert model.size == sum(path.stat().st_size for path in folder.iterdir())


def test_an_mlx_folder_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "a/b")
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in str(only(find(tmp_path)).fault)


def test_weights_that_are_no_files_are_never_opened(tmp_path: Path) -> None:
    pipe = files.model(tmp_path / "a") / "model.safetensors"
    pipe.unlink()
    os.mkfifo(pipe)
    link = files.model(tmp_path / "b") / "model.safetensors"
    link.unlink()
    link.symlink_to(tmp_path / "gone")
    piped, linked = (str(each.fault) for each in find(tmp_path))
    assert "is not a regular file" in piped
    assert "is missing, or not a file" in linked


def test_nothing_is_looked_for_inside_an_mlx_model(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "a/b")
    kept.gguf_file(folder / "sub/deeper/c.gguf")
    assert names(find(tmp_path)) == ["a/b"]
    assert names(find(folder)) == ["b"]


# ------------------------------------------------------------------------------ the user's folders


def test_the_setting_names_several_folders(home: Path) -> None:
    files.model(home / "a/one")
    kept.gguf_file(home / "b/two.gguf")
    folders = f"~/a: {home}/b:"
    assert [place.folder for place in user_places(folders)] == [home / "a", home / "b"]
    assert names(find_models(user_places(folders))) == ["one", "two"]
    assert missing_places(folders) == ()


def test_a_folder_that_is_not_there_is_named(home: Path) -> None:
    (sentence,) = missing_places(f"{home}:{home}/nowhere")
    assert sentence.startswith(f"There is no folder '{home}/nowhere'")
    impossible = "/nowhere\0:~nobody-of-this-name/x:::"
    assert find_models(user_places(impossible)) == ()
    assert len(missing_places(impossible)) == 2


def test_what_is_in_two_places_is_listed_once(home: Path) -> None:
    folder = kept.lm_studio(home)
    (home / "link").symlink_to(folder)
    both = find_models((*default_places(), *user_places(f"{folder}:{home}/link")))
    assert [each.program for each in both] == [Program.LM_STUDIO] * 2


# ------------------------------------------------------------------------------ GGUF files


def test_parts_are_one_model(tmp_path: Path) -> None:
    parts = [kept.gguf_file(tmp_path / f"big-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
    model = only(find(tmp_path))
    assert (model.name, model.path, model.fault) == ("big", parts[0], None)
    assert model.size == sum(path.stat().st_size for path in parts)
    parts[1].unlink()
    assert "big-00002-of-00003.gguf is missing" in str(only(find(tmp_path)).fault)
    parts[0].unlink()
    assert "big-00001-of-00003.gguf is missing" in str(only(find(tmp_path)).fault)


def test_what_is_no_gguf_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("<html>")
    (tmp_path / "b.gguf").touch()
    assert [" is not a GGUF file" in str(each.fault) for each in find(tmp_path)] == [True] * 2


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    assert "is not a GGUF file" in str(only(find(tmp_path)).fault)


def test_a_link_to_nowhere_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(tmp_path / "gone")
    assert only(find(tmp_path)).fault is not None


def test_the_summary_is_what_the_file_says(tmp_path: Path) -> None:
    path = kept.gguf_file(tmp_path / "a.gguf")
    assert summarise(path).facts() == ("256", "Q4_K_M", "qwen3", "context 41K")
    assert summarise(path).title == "A Model"
    plain = kept.gguf_file(tmp_path / "b.gguf", file_type=None)
    assert summarise(plain).quantised == "F32"
    unknown = kept.gguf_file(tmp_path / "c.gguf", file_type=9_999)
    assert summarise(unknown).quantised == "F32"


def test_a_summary_is_read_once_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    read = file.read_gguf
    monkeypatch.setattr(file, "read_gguf", lambda path: reads.append(path) or read(path))
    path = kept.gguf_file(tmp_path / "a.gguf", context=1_000)
    assert find(tmp_path)
    assert reads == []
    assert summarise(path).context == summarise(path).context == 1_000
    assert len(reads) == 1
    kept.gguf_file(path, context=2_000)
    os.utime(path, ns=(1, 1))
    assert summarise(path).context == 2_000


def test_a_summary_of_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    path = kept.gguf_file(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:100])
    assert only(find(tmp_path)).fault is None  # its header is only read when asked
    with pytest.raises(GgufError, match="is damaged"):
        summarise(path)
    with pytest.raises(GgufError, match="There is no file"):
        summarise(tmp_path / "gone.gguf")


# ------------------------------------------------------------------------------ Ollama


def test_names_are_those_that_ollama_prints(tmp_path: Path) -> None:
    kept.ollama(tmp_path, "llama", "8b", context=1)
    kept.ollama(tmp_path, "phi", "mini", "someone", context=2)
    assert names(find(tmp_path, Program.OLLAMA)) == ["llama:8b", "someone/phi:mini"]


def test_two_names_of_one_file_are_one_model(tmp_path: Path) -> None:
    for tag in ("latest", "small", "smaller"):
        blob = kept.ollama(tmp_path, "llama", tag)
    model = only(find(tmp_path, Program.OLLAMA))
    assert (model.name, model.aliases) == ("llama:small", ("llama:smaller", "llama:latest"))
    assert (model.path, model.size) == (blob, blob.stat().st_size)


def test_a_missing_blob_is_a_fault(tmp_path: Path) -> None:
    kept.ollama(tmp_path, "llama", "8b").unlink()
    model = only(find(tmp_path, Program.OLLAMA))
    assert (model.name, model.size) == ("llama:8b", 0)
    assert "is missing: pull the model again with Ollama" in str(model.fault)


@table("digest", ["sha256:../../../secret", "sha256-" + "0" * 64, "sha256:" + "0" * 63, 7, None])
def test_a_digest_that_leads_elsewhere_is_refused(tmp_path: Path, digest: object) -> None:
    tmp_path = files.fresh(tmp_path)
    layers = [{"mediaType": kept.MODEL_LAYER, "digest": digest}]
    manifest = kept.manifest(tmp_path, "llama", "8b", "library", {"layers": layers})
    model = only(find(tmp_path, Program.OLLAMA))
    assert model.path == manifest
    assert "names no file" in str(model.fault)


@table("text", ["", "{", "[]", "7", "[" * 100_000, "\ud800", '{"a": ' + "9" * 5_000 + "}"])
def test_a_damaged_manifest_is_a_fault(tmp_path: Path, text: str) -> None:
    tmp_path = files.fresh(tmp_path)
    kept.ollama(tmp_path, "whole", "1b")
    manifest = kept.manifest(tmp_path, "llama", "8b", "library", {})
    manifest.write_bytes(text.encode("utf-8", "surrogatepass"))
    broken, whole = find(tmp_path, Program.OLLAMA)
    assert "is damaged" in str(broken.fault)
    assert (whole.name, whole.fault) == ("whole:1b", None)


def test_a_manifest_without_a_file_is_no_model(tmp_path: Path) -> None:
    """Models in Ollama's cloud have none."""
    contents: list[object] = [{}, {"layers": None}, {"layers": [7, {"mediaType": "other"}]}]
    for number, content in enumerate(contents):
        kept.manifest(tmp_path, "cloud", str(number), "library", content)
    assert find(tmp_path, Program.OLLAMA) == ()


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    kept.manifest(tmp_path, "llama", "8b", "library", {"layers": [], "": "x" * (1 << 20)})
    assert "more than 1,048,576 bytes" in str(only(find(tmp_path, Program.OLLAMA)).fault)


# ------------------------------------------------------------------------------ bad folders


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    kept.gguf_file(tmp_path / "a/model.gguf")
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert names(find(tmp_path)) == ["model"]
    walked = [folder.path for folder in check.bounded_walk(tmp_path)]
    assert walked == [tmp_path, tmp_path / "a"]


def test_links_to_other_disks_are_followed(tmp_path: Path) -> None:
    kept.gguf_file(tmp_path / "disk/model.gguf")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/linked").symlink_to(tmp_path / "disk")
    assert names(find(tmp_path / "models")) == ["model"]


def test_only_four_levels_are_searched(tmp_path: Path) -> None:
    kept.gguf_file(tmp_path / "1/2/3/4/in.gguf")
    kept.gguf_file(tmp_path / "1/2/3/4/5/out.gguf")
    kept.gguf_file(tmp_path / ".hidden/out.gguf")
    assert names(find(tmp_path)) == ["in"]


def test_a_huge_tree_ends(tmp_path: Path) -> None:
    kept.gguf_file(tmp_path / "in.gguf")
    for number in range(30):
        kept.gguf_file(tmp_path / f"{number}/out.gguf")
    walked = [folder.path for folder in check.bounded_walk(tmp_path, entries=41)]
    assert walked[0] == tmp_path
    assert len(walked) == 1 + 10


def test_a_huge_folder_is_not_read_to_its_end(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    (folder,) = check.bounded_walk(tmp_path, entries=5)
    assert len(folder.files) == 5


def test_many_files_do_not_take_long(tmp_path: Path) -> None:
    first = kept.gguf_file(tmp_path / "0/0.gguf")
    for number in range(1, 500):
        (tmp_path / str(number)).mkdir()
        os.link(first, tmp_path / f"{number}/{number}.gguf")
    start = time.monotonic()
    assert len(find(tmp_path)) == 500
    assert time.monotonic() - start < 5 * PATIENCE


def test_a_folder_that_cannot_be_read_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.gguf_file(tmp_path / "locked/a.gguf")
    kept.gguf_file(tmp_path / "open/b.gguf")
    scan = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(check.os, "scandir", refuse)
    assert names(find(tmp_path)) == ["b"]


def test_a_model_that_cannot_be_read_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    files.model(tmp_path / "a")
    monkeypatch.setattr(found, "check_files", refuse)
    assert "cannot be read (Permission denied)" in str(only(find(tmp_path)).fault)


def test_a_file_is_no_folder_of_models(tmp_path: Path) -> None:
    path = kept.gguf_file(tmp_path / "a.gguf")
    assert find(path) == ()
    assert find(path, Program.OLLAMA) == ()
    assert missing_places(str(path)) != ()


def test_names_of_any_bytes_are_no_problem(tmp_path: Path) -> None:
    kept.gguf_file(tmp_path / "plain.gguf")
    os.link(tmp_path / "plain.gguf", os.fsencode(tmp_path) + b"/\xff\x1b[31m.gguf")
    assert len(find(tmp_path)) == 2


def test_nothing_is_changed(home: Path) -> None:
    kept.lm_studio(home)
    kept.ollama(home / ".ollama/models", "llama", "8b")

    def state() -> list[tuple[Path, int, int]]:
        paths = sorted(home.rglob("*"))
        return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

    before = state()
    for each in find_models(default_places()):
        if each.kind is Kind.GGUF:
            summarise(each.path)
    assert state() == before
