"""A conversation -> token ids with segments and character offsets.

The chat template is rendered around sentinels and split; every piece is encoded on its own.
Template pieces may hold special tokens. Contents may not: a pasted `<|im_end|>` stays text. So the
segments are exact, and the tokens of a prefix never change when the conversation grows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.engine.messages import Document, Message, Role, Segment, SegmentKind
from app.engine.templates import Templates

FIRST_PINNED = 4
"""The first tokens of a prompt take up attention that goes nowhere else; they are always read."""

PINNED_KINDS = frozenset(
    {SegmentKind.TEMPLATE, SegmentKind.SYSTEM, SegmentKind.QUESTION, SegmentKind.GENERATION}
)

_MOST_DROPPED = 32
"""Letters in a row that may be in no token."""

# Private use characters, so that a template cannot produce them and no case mapping changes them.
_SENTINEL = "\ue000{}\ue001"
_THINKING = "\ue000t{}\ue001"
_SENTINELS = re.compile("\ue000(t?)(\\d+)\ue001")


class PromptError(ValueError):
    """The conversation cannot be rendered for this model; one sentence."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids` int32 (M,). `offsets` holds, for every document segment by (message, document), where
    each of its n tokens starts and where the last one ends, in characters of the document's text,
    int64 (n + 1,). `wanted` are tokens of documents `(start, end)` that the user pinned."""

    ids: NDArray[np.int32]
    segments: tuple[Segment, ...]
    offsets: dict[tuple[int, int], NDArray[np.int64]]
    wanted: tuple[tuple[int, int], ...] = ()

    @property
    def pinned(self) -> NDArray[np.bool_]:
        """Tokens outside the budget, bool (M,): what is not a document or history, and what of
        documents the user pinned."""
        pinned = np.zeros(len(self.ids), bool)
        pinned[:FIRST_PINNED] = True
        pinned[-1:] = True
        for segment in self.segments:
            if segment.kind in PINNED_KINDS:
                pinned[segment.start : segment.end] = True
        for start, end in self.wanted:
            pinned[start:end] = True
        return pinned

    @property
    def eligible(self) -> int:
        """How many tokens may be dropped."""
        return int(len(self.ids) - self.pinned.sum())

    @property
    def question_start(self) -> int:
        """Where what the user typed in this turn begins; everything after it is observed."""
        starts = [s.start for s in self.segments if s.kind is SegmentKind.QUESTION]
        return starts[-1] if starts else max(len(self.ids) - 1, 0)


@dataclass(frozen=True, slots=True)
class _Piece:
    kind: SegmentKind
    text: str
    message: int | None = None
    document: int | None = None
    ids: tuple[int, ...] | None = None
    special: bool = False
    """Whether special tokens in `text` are meant."""
    first: bool = False


class Prompts(Protocol):
    def build(self, messages: tuple[Message, ...]) -> Prompt: ...


class PromptBuilder:
    """Builds prompts for one tokenizer (an mlx-lm `TokenizerWrapper` over a fast tokenizer)."""

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise PromptError("This model's tokenizer has no tokenizer.json to work with")
        self._tokenizer = tokenizer
        self._templates = Templates()
        self._rows = 0
        self._stop_ids = frozenset(tokenizer.eos_token_ids)
        self._vocabulary = 1 + max(backend.get_vocab().values(), default=-1)
        # A tokenizer's own limits would read part of a text, or more than it, without a word.
        backend.no_truncation()
        backend.no_padding()
        self._template = backend
        self._inner = _twin(backend, text_only=False)
        self._content = _twin(backend, text_only=True)
        self._documents: dict[str, tuple[NDArray[np.int32], NDArray[np.int64]]] = {}
        """How the documents of the last prompt were encoded: most turns ask about the same ones."""

    def keep_below(self, rows: int) -> None:
        """A model has that many rows for tokens (0: nobody knows), and reads any memory for others:
        no prompt is to have them."""
        self._rows = min(filter(None, (self._rows, rows)), default=0)

    def build(self, messages: tuple[Message, ...]) -> Prompt:
        """The prompt for answering the last message, a user's. Raises PromptError."""
        if not messages or messages[-1].role is not Role.USER:
            raise PromptError("The last message must be the user's")
        ids: list[NDArray[np.int32]] = []
        segments: list[Segment] = []
        offsets: dict[tuple[int, int], NDArray[np.int64]] = {}
        wanted: list[tuple[int, int]] = []
        at = 0
        known, self._documents = self._documents, {}
        for piece in self._pieces(messages):
            if piece.kind is SegmentKind.DOCUMENT:
                encoded = known.get(piece.text) or self._encode(piece)
                self._documents[piece.text] = tokens, starts = encoded
            else:
                tokens, starts = self._encode(piece)
            if len(tokens) == 0:
                continue
            ids.append(tokens)
            end = at + len(tokens)
            segments.append(Segment(piece.kind, at, end, piece.message, piece.document))
            if piece.message is not None and piece.document is not None:
                offsets[piece.message, piece.document] = starts
                document = messages[piece.message].documents[piece.document]
                wanted += [(at + first, at + last) for first, last in _tokens(document, starts)]
            at = end
        joined = np.concatenate(ids)
        if self._rows and joined.max(initial=0) >= self._rows:
            raise PromptError("This model's tokenizer has tokens that the model does not know")
        return Prompt(joined, tuple(segments), offsets, tuple(wanted))

    def _encode(self, piece: _Piece) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        # Ids that another tokenizer gave, or nobody, are worth no more than the text beside them.
        if piece.ids is not None and all(0 <= i < self._vocabulary for i in piece.ids):
            ids = piece.ids
            if ids and ids[-1] in self._stop_ids:
                ids = ids[:-1]  # the template ends the message itself
            return np.array(ids, np.int32), np.zeros(0, np.int64)
        encoder = self._content
        if piece.special:
            encoder = self._template if piece.first else self._inner
        # `encode_batch` lets other threads run meanwhile; plain `encode` holds the GIL.
        encoding = encoder.encode_batch([piece.text], add_special_tokens=False)[0]
        check_covers(piece.text, encoding.offsets)
        starts = np.zeros(0, np.int64)
        if piece.kind is SegmentKind.DOCUMENT:
            starts = np.array([*(s for s, _ in encoding.offsets), len(piece.text)], np.int64)
        return np.array(encoding.ids, np.int32), starts

    def _pieces(self, messages: tuple[Message, ...]) -> Iterator[_Piece]:
        rendered = self._render(messages)
        at, expected = 0, 0
        for match in _SENTINELS.finditer(rendered):
            if int(match[2]) != expected:
                break
            text = rendered[at : match.start()]
            yield _Piece(SegmentKind.TEMPLATE, text, special=True, first=at == 0)
            at = match.end()
            if match[1]:
                yield _Piece(SegmentKind.HISTORY, messages[expected].thinking.strip("\n"), expected)
                continue
            yield from _content_pieces(messages, expected)
            expected += 1
        if expected != len(messages) or _SENTINELS.search(rendered, at):
            raise PromptError(
                "This model's chat template does not keep every message once and in order"
            )
        yield _Piece(SegmentKind.GENERATION, rendered[at:], special=True)

    def _render(self, messages: tuple[Message, ...]) -> str:
        turns = [
            {"role": str(m.role), "content": _SENTINEL.format(i)}
            | ({"reasoning_content": _THINKING.format(i)} if m.thinking else {})
            for i, m in enumerate(messages)
        ]
        if not self._tokenizer.has_chat_template:
            return "\n\n".join(turn["content"] for turn in turns) + "\n\n"
        try:
            with self._templates.limited():
                rendered: str = self._tokenizer.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=True
                )
        except Exception as error:  # templates raise whatever Jinja or their author likes
            why = " ".join(str(error).split())[:200] or type(error).__name__
            raise PromptError(f"This model's chat template refused the chat ({why})") from error
        return rendered


def _content_pieces(messages: tuple[Message, ...], index: int) -> Iterator[_Piece]:
    message = messages[index]
    if message.role is Role.SYSTEM:
        yield _Piece(SegmentKind.SYSTEM, message.text, index)
        return
    if message.role is Role.ASSISTANT:
        if message.thinking:
            # The ids that were generated hold the thinking, which most templates leave out.
            yield _Piece(SegmentKind.HISTORY, message.text.lstrip("\n"), index)
        else:
            yield _Piece(SegmentKind.HISTORY, message.text, index, ids=message.token_ids)
        return
    last = index == len(messages) - 1
    frame = SegmentKind.QUESTION if last else SegmentKind.HISTORY
    for number, document in enumerate(message.documents):
        yield _Piece(SegmentKind.TEMPLATE, document_header(document), index)
        yield _Piece(SegmentKind.DOCUMENT, document.text, index, number)
        yield _Piece(SegmentKind.TEMPLATE, DOCUMENT_FOOTER, index)
    yield _Piece(frame, message.text, index)


def _tokens(document: Document, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The tokens that hold what is pinned of a document, by where its tokens start and end."""
    for start, end in document.pinned:
        first = int(np.searchsorted(starts[1:], start, side="right"))
        last = int(np.searchsorted(starts[:-1], end, side="left"))
        if first < last:
            yield first, last


def check_covers(text: str, offsets: Sequence[tuple[int, int]]) -> None:
    """Whether tokens with these `offsets` hold the whole text. Raises PromptError where a run of it
    is in no token; white space, marks and the odd unknown character may be."""
    if not text:
        return
    starts, ends = np.array([*offsets, (len(text), len(text))], np.int64).T
    reached = np.maximum.accumulate(np.concatenate(([0], ends[:-1])))
    for gap in np.flatnonzero(starts - reached > _MOST_DROPPED):
        lost = sum(map(str.isalnum, text[reached[gap] : starts[gap]]))
        if lost > _MOST_DROPPED:
            raise PromptError(f"This model's tokenizer drops {lost:,} letters of a text")


DOCUMENT_FOOTER = "\n</document>\n\n"


def document_header(document: Document) -> str:
    """The line before a document's text."""
    name = re.sub(r'[\r\n"<>]', " ", document.name)
    return f'<document name="{name}">\n'


def _twin(backend: Tokenizer, text_only: bool) -> Tokenizer:
    """A twin of `backend` for pieces that do not begin a prompt.

    None of its pieces gets the leading space that some tokenizers put before a text's first word.
    With `text_only` it never yields a token that stands for more than its text: what looks like a
    special token is text. Only added tokens that are white space still count, since they carry
    meaning in code. All tokens keep their ids.
    """
    spec = json.loads(backend.to_str())
    spec["post_processor"] = None
    _drop_leading_space(spec)
    for token in spec["added_tokens"] if text_only else ():
        token["special"] = not token["content"].isspace()
    twin = Tokenizer.from_str(json.dumps(spec))
    twin.encode_special_tokens = text_only
    return twin


def _drop_leading_space(spec: dict[str, Any]) -> None:
    normalizer, pre_tokenizer = spec.get("normalizer"), spec.get("pre_tokenizer")
    if normalizer and normalizer["type"] == "Prepend":
        spec["normalizer"] = None
    elif normalizer and normalizer["type"] == "Sequence":
        kept = [n for n in normalizer["normalizers"] if n["type"] != "Prepend"]
        normalizer["normalizers"] = kept
    for step in (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer]):
        if step and step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
