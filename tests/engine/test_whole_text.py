"""Tokenizers that truncate, pad or drop text are overridden or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.model.chat_template import PromptError
from app.engine.model.prompt import PromptBuilder
from app.models.tokenizers import TokenCounter
from app.protocol.prompt import Document, Message, Role, SegmentKind
from app.protocol.reasons import FailureKind
from benchmarks.quality.tokens import FolderTokens
from tests import tiny

TEXT = "The lease ends on 30 June. " * 200
ASKED = (Message(Role.USER, "When does it end?", (Document("lease.txt", TEXT),)),)

TRUNCATION = {"direction": "Right", "max_length": 50, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 20_000},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<|endoftext|>",
}
SECTIONS: dict[str, dict[str, Any]] = {
    "truncation": {"truncation": TRUNCATION},
    "truncation from the left": {"truncation": {**TRUNCATION, "direction": "Left"}},
    "truncation that overlaps": {"truncation": {**TRUNCATION, "stride": 10}},
    "padding": {"padding": PADDING},
    "padding to a multiple": {
        "padding": {**PADDING, "strategy": "BatchLongest", "pad_to_multiple_of": 4096}
    },
    "padding beyond all memory": {"padding": {**PADDING, "strategy": {"Fixed": 2_000_000_000}}},
    "both": {"truncation": TRUNCATION, "padding": PADDING},
}


def folder(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    tiny.save(path)
    content = json.loads((path / "tokenizer.json").read_text())
    change(content)
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


def test_a_tokenizers_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    plain = folder(tmp_path / "plain", lambda content: None)
    expected = PromptBuilder(load_tokenizer(plain)).build(ASKED)
    for name, sections in SECTIONS.items():
        other = folder(tmp_path / name, lambda content, sections=sections: content.update(sections))
        prompt = PromptBuilder(load_tokenizer(other)).build(ASKED)
        np.testing.assert_array_equal(prompt.ids, expected.ids, name)
        assert prompt.segments == expected.segments, name
        assert TokenCounter(other).count([TEXT]) == len(TEXT), name
        assert FolderTokens(other).count(TEXT) == len(TEXT), name


@pytest.mark.parametrize("limit", [16, 10**6])
def test_a_configs_maximum_length_does_not_truncate(tmp_path: Path, limit: int) -> None:
    path = folder(tmp_path / "model", lambda content: None)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings |= {"model_max_length": limit, "max_length": limit, "truncation": True}
    settings |= {"padding": "max_length", "truncation_side": "left"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    prompt = PromptBuilder(load_tokenizer(path)).build(ASKED)
    document = next(s for s in prompt.segments if s.kind is SegmentKind.DOCUMENT)
    assert document.end - document.start == len(TEXT)


def _drop_all_after(content: dict[str, Any]) -> None:
    """A tokenizer whose normaliser drops text."""
    pattern = {"Regex": r"(?<=.{50})[\s\S]+"}
    content["normalizer"] = {"type": "Replace", "pattern": pattern, "content": ""}


def _knows_few_words(content: dict[str, Any]) -> None:
    words = {"lease": 0, "ends": 1}
    content["model"] = {"type": "BPE", "vocab": words, "merges": []}
    content["pre_tokenizer"] = None
    content["decoder"] = None


@pytest.mark.parametrize("change", [_drop_all_after, _knows_few_words])
def test_a_tokenizer_that_drops_text_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    builder = PromptBuilder(load_tokenizer(folder(tmp_path / "model", change)))
    with pytest.raises(PromptError, match=FailureKind.TOKENIZER_DROPS_TEXT):
        builder.build(ASKED)


def test_white_space_and_combining_marks_may_be_dropped(tmp_path: Path) -> None:
    def strip(content: dict[str, Any]) -> None:
        pattern = {"Regex": r"[\s\p{P}\p{C}]+"}
        content["normalizer"] = {"type": "Replace", "pattern": pattern, "content": ""}

    builder = PromptBuilder(load_tokenizer(folder(tmp_path / "model", strip)))
    text = "a" + " " * 100 + "b" + "." * 100 + "\x00" * 100 + "\n" * 100
    prompt = builder.build((Message(Role.USER, "c", (Document("d", text),)),))
    assert prompt.offsets[0, 0].tolist() == [0, 101, len(text)]
