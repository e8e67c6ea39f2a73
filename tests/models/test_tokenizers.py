"""Tokenizers are the same when their content is, whatever their files look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.models.errors import ModelError
from app.models.tokenizers import fingerprint, same_tokenizer
from tests.models import files


def folder(path: Path, content: dict[str, Any]) -> Path:
    path.mkdir()
    files.write(path / "tokenizer.json", content)
    return path


def same(tmp_path: Path, other: dict[str, Any]) -> bool:
    """As the usual tokenizer, in either order."""
    a, b = folder(tmp_path / "a", files.tokenizer()), folder(tmp_path / "b", other)
    found = same_tokenizer(a, b)
    assert found == same_tokenizer(b, a) == (fingerprint(a) == fingerprint(b))
    return found


def test_the_same_content_under_other_names(tmp_path: Path) -> None:
    assert same(tmp_path, files.tokenizer() | {"padding": None, "version": "2"})


def test_merges_written_the_old_way(tmp_path: Path) -> None:
    assert same(tmp_path, files.tokenizer(merges=["a b", "ab c"]))


SPECIAL = files.tokenizer()["added_tokens"]


@pytest.mark.parametrize(
    "change",
    [
        {"merges": [["ab", "c"], ["a", "b"]]},
        {"merges": [["a", "b"]]},
        {"vocab": {"a": 0, "b": 1}},
        {"vocab": {"a": 0, "b": 2, "c": 1, "ab": 3, "abc": 4}},
        {"vocab": {"a": 0, "b": 1, "x": 2, "ab": 3, "abc": 4}},
        {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]], "merges": None},
        {"added_tokens": [{"id": 5, "content": "<eos>", "special": True}]},
        {"added_tokens": [*SPECIAL, {"id": 6, "content": "<think>"}]},
    ],
    ids=[
        *("merges in another order", "fewer merges", "a smaller vocabulary", "other ids"),
        *("another token", "another kind", "another special token", "one special token more"),
    ],
)
def test_other_content(tmp_path: Path, change: dict[str, Any]) -> None:
    special = {key: value for key, value in change.items() if key == "added_tokens"}
    model = {key: value for key, value in change.items() if key not in special}
    assert not same(tmp_path, files.tokenizer(**model) | special)


def test_special_tokens_kept_in_the_other_file(tmp_path: Path) -> None:
    other = files.tokenizer()
    moved = {str(each["id"]): {"content": each["content"]} for each in other.pop("added_tokens")}
    a, b = folder(tmp_path / "a", files.tokenizer()), folder(tmp_path / "b", other)
    assert not same_tokenizer(a, b)
    files.write(b / "tokenizer_config.json", {"added_tokens_decoder": moved})
    assert same_tokenizer(a, b)


def test_unigram_pieces_count_by_their_place(tmp_path: Path) -> None:
    one = files.tokenizer(type="Unigram", vocab=[["a", -1.0], ["b", -2.0]])
    two = files.tokenizer(type="Unigram", vocab=[["b", -1.0], ["a", -2.0]])
    a, b, c = (folder(tmp_path / str(i), each) for i, each in enumerate([one, one, two]))
    assert same_tokenizer(a, b)
    assert not same_tokenizer(a, c)


@pytest.mark.parametrize("content", [{}, {"model": {}}, {"model": None}, {"model": {"vocab": 3}}])
def test_no_tokenizer(tmp_path: Path, content: dict[str, Any]) -> None:
    whole = folder(tmp_path / "whole", files.tokenizer())
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        same_tokenizer(whole, folder(tmp_path / "broken", content))
