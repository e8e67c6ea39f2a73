"""Tokens counted in pieces are those of the whole text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from app.models.embedded import target_path
from app.models.errors import ModelError
from app.models.token_count import SAMPLE, SAMPLES, TokenCounter, pieces, sample

TEXT = "The quick brown fox, <|im_end|> it says,\n\n    jumps over 12 lazy dogs.\n" * 50


def test_the_count_is_that_of_the_whole_text_but_for_a_token_at_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Tokenizer.from_file(str(target_path() / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    whole = len(tokenizer.encode(TEXT, add_special_tokens=False))
    counter = TokenCounter(target_path())
    assert counter.count([TEXT]) == whole
    monkeypatch.setattr("app.models.token_count.PIECE", 200)
    cuts = len(list(pieces(TEXT, 200)))
    assert whole <= (counter.count([TEXT]) or 0) <= whole + cuts


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


@pytest.mark.parametrize("text", ["", "abc", "ab\ncd\nefghijk\n\nl", "\n" * 9, "x" * 20])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_pieces_are_the_text_and_no_longer_than_asked(text: str, size: int) -> None:
    parts = list(pieces(text, size))
    assert "".join(parts) == text
    assert all(len(part) <= size for part in parts)


def test_a_cancelled_count_is_none() -> None:
    assert TokenCounter(target_path()).count([TEXT], lambda: True) is None


def test_a_folder_without_a_tokenizer_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        TokenCounter(tmp_path).count([TEXT])
