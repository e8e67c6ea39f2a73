"""Tokenizers that a document sets off: one sentence, soon, and the next text is read."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer, models, normalizers

from app.engine.model.chat_template import PromptError
from app.engine.model.prompt import PromptBuilder
from app.models.errors import ModelError
from app.models.tokenizers import TokenCounter
from app.protocol.prompt import Document, Message, Role
from app.sandbox import process as sandbox
from app.sandbox.worker import Encoders
from tests import tiny
from tests.tables import table

TEXT = ("e" * 5000 + "x") * 40


def split(pattern: str) -> dict[str, Any]:
    return {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
    }


def replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Replace", "pattern": pattern, "content": content}}


WORDPIECE = {
    "type": "WordPiece",
    "unk_token": "<|endoftext|>",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 1_000_000_000,
    "vocab": {"<|endoftext|>": 0},
}
BOMBS: dict[str, dict[str, Any]] = {
    "a pattern that tries everything": split("([ef]+)+[xy][xy]"),
    "a pattern that tries much at each place": split("[ef]{0,5000}[xy][xy]"),
    "a pattern that looks back": split("(?<=[ef]{5})[ef]*[ef]*[ef]*[xy][xy]"),
    "a pattern that refers back": split(r"([ef]*)\1\1[xy][xy]"),
    "a replacement by a pattern": replaced({"Regex": "([ef]|[ef][ef])*[xy][xy]"}, ""),
    "a replacement that grows": replaced({"String": "e"}, "x" * 900),
    "a replacement of nothing": replaced({"Regex": "(?=e)"}, "x" * 900),
    "a word without end": {"model": WORDPIECE, "pre_tokenizer": None},
}


def folder(path: Path, change: dict[str, Any]) -> Path:
    tiny.save(path)
    content = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**content, **change}))
    return path


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for what would get several; all of them are waited for."""
    generous = sandbox.encode_limits
    monkeypatch.setattr(
        sandbox, "encode_limits", lambda size: replace(generous(size), seconds=0.025)
    )


@pytest.mark.usefixtures("hurried")
@table("name", BOMBS)
def test_a_document_that_sets_a_tokenizer_off_is_a_sentence(tmp_path: Path, name: str) -> None:
    builder = PromptBuilder(load_tokenizer(folder(tmp_path / name, BOMBS[name])))
    with pytest.raises(PromptError, match="tokenizer_failed"):
        builder.build((Message(Role.USER, "a", (Document("d", TEXT),)),))
    if name != "a word without end":
        assert len(builder.build((Message(Role.USER, "a"),)).ids)


@pytest.mark.usefixtures("hurried")
def test_a_count_that_sets_a_tokenizer_off_is_a_sentence(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", BOMBS["a pattern that tries everything"])
    with pytest.raises(ModelError, match=r"tokenizer\.json' cannot be used"):
        TokenCounter(path).count([TEXT])


def test_dropout_does_not_act() -> None:
    spec = json.loads(tiny.byte_tokenizer((("a", "b"),)).to_str())
    spec["model"]["dropout"] = 0.99
    assert Encoders(json.dumps(spec)).count("ab" * 100) == 100


@pytest.mark.parametrize("text", ["a</s>ab", "a</s>b", "</s>", "ab", "ab</s>a</s>b"])
def test_each_token_has_its_place_in_a_text_with_special_tokens(text: str) -> None:
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁ab": 5}
    model = models.BPE(vocabulary, [("a", "b"), ("▁", "ab")], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.add_special_tokens(["</s>"])
    ids, bounds, uncovered = Encoders(tokenizer.to_str()).encode(text, True, "text", True)
    places = array("q", bounds)
    assert len(places) == 2 * len(array("i", ids))
    assert (places[0], places[-1], uncovered) == (0, len(text), 0)
    assert list(places[::2]) == sorted(places[::2])
