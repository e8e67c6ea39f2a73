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


def difference(tmp_path: Path, other: dict[str, Any]) -> str | None:
    a, b = folder(tmp_path / "big", files.tokenizer()), folder(tmp_path / "small", other)
    forwards, backwards = same_tokenizer(a, b), same_tokenizer(b, a)
    assert (forwards is None) == (backwards is None) == (fingerprint(a) == fingerprint(b))
    for sentence in (forwards, backwards):
        if sentence is not None:
            assert "'big'" in sentence
            assert "'small'" in sentence
            assert sentence.endswith(".")
    return forwards


def test_the_same_content_under_other_names(tmp_path: Path) -> None:
    assert difference(tmp_path, files.tokenizer() | {"padding": None, "version": "2"}) is None


def test_merges_written_the_old_way(tmp_path: Path) -> None:
    assert difference(tmp_path, files.tokenizer(merges=["a b", "ab c"])) is None


def test_merges_in_another_order(tmp_path: Path) -> None:
    other = files.tokenizer(merges=[["ab", "c"], ["a", "b"]])
    assert "from merge 1 on" in (difference(tmp_path, other) or "")


def test_fewer_merges(tmp_path: Path) -> None:
    other = files.tokenizer(merges=[["a", "b"]])
    assert "2 merges and the other 1" in (difference(tmp_path, other) or "")


def test_a_vocabulary_of_another_size(tmp_path: Path) -> None:
    other = files.tokenizer(vocab={"a": 0, "b": 1})
    assert "5 tokens and the other 2" in (difference(tmp_path, other) or "")


def test_tokens_with_other_ids(tmp_path: Path) -> None:
    other = files.tokenizer(vocab={"a": 0, "b": 2, "c": 1, "ab": 3, "abc": 4})
    sentence = difference(tmp_path, other) or ""
    assert "2 of 5 tokens" in sentence
    assert "'b', which is id 1 in one and id 2 in the other" in sentence


def test_other_tokens(tmp_path: Path) -> None:
    other = files.tokenizer(vocab={"a": 0, "b": 1, "x": 2, "ab": 3, "abc": 4})
    assert "'c', which is id 2 in one and missing in the other" in (
        difference(tmp_path, other) or ""
    )


def test_another_special_token(tmp_path: Path) -> None:
    other = files.tokenizer()
    other["added_tokens"] = [{"id": 5, "content": "<eos>", "special": True}]
    sentence = difference(tmp_path, other) or ""
    assert "token 5 is '<|end|>' in one and '<eos>' in the other" in sentence


def test_one_special_token_more(tmp_path: Path) -> None:
    other = files.tokenizer()
    other["added_tokens"] = [*other["added_tokens"], {"id": 6, "content": "<think>"}]
    assert "token 6 is none in one and '<think>'" in (difference(tmp_path, other) or "")


def test_special_tokens_kept_in_the_other_file(tmp_path: Path) -> None:
    other = files.tokenizer()
    moved = {str(each["id"]): {"content": each["content"]} for each in other.pop("added_tokens")}
    a, b = folder(tmp_path / "a", files.tokenizer()), folder(tmp_path / "b", other)
    assert "special tokens" in (same_tokenizer(a, b) or "")
    files.write(b / "tokenizer_config.json", {"added_tokens_decoder": moved})
    assert same_tokenizer(a, b) is None


def test_another_kind(tmp_path: Path) -> None:
    other = files.tokenizer(type="Unigram", vocab=[["a", -1.0], ["b", -2.0]], merges=None)
    assert "differ: BPE and Unigram" in (difference(tmp_path, other) or "")


def test_unigram_pieces_count_by_their_place(tmp_path: Path) -> None:
    one = files.tokenizer(type="Unigram", vocab=[["a", -1.0], ["b", -2.0]])
    two = files.tokenizer(type="Unigram", vocab=[["b", -1.0], ["a", -2.0]])
    a, b, c = (folder(tmp_path / str(i), each) for i, each in enumerate([one, one, two]))
    assert same_tokenizer(a, b) is None
    assert "2 of 2 tokens" in (same_tokenizer(a, c) or "")


@pytest.mark.parametrize("content", [{}, {"model": {}}, {"model": None}, {"model": {"vocab": 3}}])
def test_no_tokenizer(tmp_path: Path, content: dict[str, Any]) -> None:
    whole = folder(tmp_path / "whole", files.tokenizer())
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        same_tokenizer(whole, folder(tmp_path / "broken", content))
