"""The tokenizer of a text encoder: token ids with exact character offsets, part by part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.protocol.options import MULTILINGUAL_FROM
from app.sandbox.process import TextPiece, TextProcess
from app.util.regular_files import read_file

PART, PARTS = 1 << 14, 8
"""Minimum characters tokenised in one call, and parts per batch. Reading the result of a part holds
the GIL for about a millisecond."""
_BORDERS = {
    "WordPiece": re.compile(r"(?=[ \n\t\u3002\u4e00-\u9fff])"),
    "Unigram": re.compile(r"(?<=[\w.,:;!?)\u3002])(?=[ \n\t])"),
    "BPE": re.compile(r"(?<=\w)(?= \w)|(?<=\n)(?=\w)"),
}
"""Where a text can be split without changing its tokens, by the kind of tokenizer."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a part of a text: their `ids` (n,), and where each starts and ends, `bounds`
    (n, 2), in characters of the whole text."""

    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]


class EncoderTokenizer:
    """A `tokenizer.json`. `start` and `end` are the special tokens around a text. If it is
    multilingual, it cuts words of any language into tokens that it knows. All its ids are below
    `size`. One that is not specchat's own runs in the limited process `texts`. Raises
    ValueError for a kind that encoders do not have, and TextError."""

    def __init__(self, file: Path, texts: TextProcess | None = None) -> None:
        content, self._texts = json.loads(read_file(file)), texts
        try:
            self._parse(content)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError("its tokenizer.json is damaged") from error
        if texts is not None:
            texts.open(file.parent)  # the first text that is encoded waits for it
            return
        self._tokenizer = Tokenizer.from_str(json.dumps(content))

    def _parse(self, content: dict[str, Any]) -> None:
        model = content["model"]
        kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
        if kind not in _BORDERS:
            raise ValueError(f"it has a tokenizer of the kind {kind!r}")
        self._border = _BORDERS[kind]
        vocabulary = model["vocab"]
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        if isinstance(vocabulary, dict):
            self.unknown = vocabulary.get(model.get("unk_token"))
            ids = [*vocabulary.values(), *added.values()]
        else:
            self.unknown, ids = model.get("unk_id"), [len(vocabulary) - 1, *added.values()]
        self.start, self.end = _special_ids(content.get("post_processor") or {})
        ids += [*self.start, *self.end, *([] if self.unknown is None else [self.unknown])]
        if any(type(each) is not int or each < 0 for each in ids):
            raise ValueError("its tokenizer.json has a token id that is no number from 0 on")
        self.size = max(ids) + 1
        self.is_multilingual = kind == "Unigram" or self.size >= MULTILINGUAL_FROM

    def tokenise(self, text: str) -> Iterator[Tokens]:
        """Yield a text's tokens part by part; they are those of the whole text. `encode_batch` on
        parts releases the GIL, so that the screen can draw."""
        borders = [0]
        while found := self._border.search(text, borders[-1] + PART):
            borders.append(found.start())
        for at in range(0, len(borders), PARTS):
            starts, ends = borders[at : at + PARTS], borders[at + 1 : at + PARTS + 1]
            parts = [text[a:b] for a, b in zip_longest(starts, ends)]
            for start, tokens in zip(starts, self.encode(parts), strict=True):
                yield Tokens(tokens.ids, tokens.bounds + start)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text."""
        if self._texts is None:
            encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
            return [_tokens(each.ids, each.offsets) for each in encoded]
        pieces = [TextPiece(text, after="nothing", offsets=True) for text in texts]
        return [
            _tokens(np.frombuffer(ids, np.int32), np.frombuffer(bounds, np.int64))
            for ids, bounds in self._texts.encode(pieces)[0]
        ]


def _tokens(ids: Any, bounds: Any) -> Tokens:
    return Tokens(np.asarray(ids, np.int32), np.asarray(bounds, np.int64).reshape(-1, 2))


def _special_ids(processor: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The token ids that a post-processor puts before and after a text."""
    for step in (processor, *processor.get("processors", ())):
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            return [step["cls"][1]], [step["sep"][1]]
        if step.get("type") == "TemplateProcessing":
            around: tuple[list[int], list[int]] = ([], [])
            after = False
            for part in step["single"]:
                after = after or "Sequence" in part
                if "SpecialToken" in part:
                    name = part["SpecialToken"]["id"]
                    around[after].extend(step["special_tokens"][name]["ids"])
            return around
    raise ValueError("its tokenizer puts no special tokens around a text")
