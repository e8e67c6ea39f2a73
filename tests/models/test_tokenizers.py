"""Tokenizers are the same when their content is, whatever their files look like; and tokens counted
in pieces are those of the whole text."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from app.models.embedded import target_path
from app.models.errors import ModelError
from app.models.tokenizers import (
    SAMPLE,
    SAMPLES,
    TokenCounter,
    fingerprint,
    pieces,
    same_tokenizer,
    sample,
)
from tests.models import files
from tests.tables import table


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


@table(
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
)
def test_other_content(tmp_path: Path, change: dict[str, Any]) -> None:
    special = {key: value for key, value in change.items() if key == "added_tokens"}
    model = {key: value for key, value in change.items() if key not in special}
    assert not same(files.fresh(tmp_path), files.tokenizer(**model) | special)


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


@table("content", [{}, {"model": {}}, {"model": None}, {"model": {"vocab": 3}}])
def test_no_tokenizer(tmp_path: Path, content: dict[str, Any]) -> None:
    tmp_path = files.fresh(tmp_path)
    whole = folder(tmp_path / "whole", files.tokenizer())
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        same_tokenizer(whole, folder(tmp_path / "broken", content))


# --------------------------------------------------------------------------- counting

TEXT = "The quick brown fox, <|im_end|> it says,\n\n    jumps over 12 lazy dogs.\n" * 50


def test_the_count_is_that_of_the_whole_text_but_for_a_token_at_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Tokenizer.from_file(str(target_path() / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    whole = len(tokenizer.encode(TEXT, add_special_tokens=False))
    counter = TokenCounter(target_path())
    assert counter.count([TEXT]) == whole
    monkeypatch.setattr("app.models.tokenizers.PIECE", 200)
    cuts = len(list(pieces(TEXT, 200)))
    assert whole <= (counter.count([TEXT]) or 0) <= whole + cuts


@pytest.mark.slow
def test_the_tokens_of_many_texts_are_estimated_from_a_sample() -> None:
    counter, texts = TokenCounter(target_path()), [TEXT * (n % 7) for n in range(400)]
    counted, estimated = counter.count(texts), counter.estimate(texts)
    assert counted
    assert estimated
    assert abs(estimated - counted) < 0.05 * counted
    assert sum(map(len, sample(texts))) <= SAMPLES * SAMPLE
    assert counter.estimate([""]) == 0
    assert counter.estimate(texts, lambda: True) is None


def test_lone_surrogates_count_as_something() -> None:
    assert TokenCounter(target_path()).count(["a\ud800b"])


@table("text, size", product(["", "abc", "ab\ncd\nefghijk\n\nl", "\n" * 9, "x" * 20], [1, 3, 8]))
def test_pieces_are_the_text_and_no_longer_than_asked(text: str, size: int) -> None:
    parts = list(pieces(text, size))
    assert "".join(parts) == text
    assert all(len(part) <= size for part in parts)


def test_a_cancelled_count_is_none() -> None:
    assert TokenCounter(target_path()).count([TEXT], lambda: True) is None


def test_a_folder_without_a_tokenizer_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        TokenCounter(tmp_path).count([TEXT])
