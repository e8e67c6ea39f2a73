"""A conversation -> token ids with segments and character offsets.

The chat template is rendered around sentinels and split; every piece is encoded on its own.
Template pieces may hold special tokens. Contents may not: a pasted `<|im_end|>` stays text. So the
segments are exact, and the tokens of a prefix never change when the conversation grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.engine.templates import render_with
from app.protocol.prompt import Document, Message, Role, Segment, SegmentKind
from app.sandbox.process import Check, TextError, TextPiece, TextProcess

ALWAYS_PINNED = 4
"""The first tokens of a prompt take up attention that goes nowhere else; they are always read."""

PINNED_KINDS = frozenset(
    {SegmentKind.TEMPLATE, SegmentKind.SYSTEM, SegmentKind.QUESTION, SegmentKind.GENERATION}
)

# Private use characters, so that a template cannot produce them and no case mapping changes them.
_SENTINEL = "\ue000{}\ue001"
_THINKING = "\ue000t{}\ue001"
_SENTINELS = re.compile("\ue000(t?)(\\d+)\ue001")

_Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]


class PromptError(ValueError):
    """The conversation cannot be rendered for this model; one sentence."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids` int32 (M,). `offsets` holds, for every document segment by (message, document), where
    each of its n tokens starts and where the last one ends, in characters of the document's text,
    int64 (n + 1,). `wanted` are tokens of documents `(start, end)` that the user pinned. The last
    `begun` tokens are of an answer that is to be continued; they count to the generation prompt."""

    ids: NDArray[np.int32]
    segments: tuple[Segment, ...]
    offsets: dict[tuple[int, int], NDArray[np.int64]]
    user_pins: tuple[tuple[int, int], ...] = ()
    answer_prefix_len: int = 0

    @property
    def pinned(self) -> NDArray[np.bool_]:
        """Tokens outside the budget, bool (M,): what is not a document or history, and what of
        documents the user pinned."""
        pinned = np.zeros(len(self.ids), bool)
        pinned[:ALWAYS_PINNED] = True
        pinned[-1:] = True
        for segment in self.segments:
            if segment.kind in PINNED_KINDS:
                pinned[segment.start : segment.end] = True
        for start, end in self.user_pins:
            pinned[start:end] = True
        return pinned

    @property
    def eligible_tokens(self) -> int:
        """How many tokens may be dropped."""
        return int(len(self.ids) - self.pinned.sum())

    @property
    def question_start(self) -> int:
        """Where what the user typed in this turn begins; everything after it is observed."""
        starts = [s.start for s in self.segments if s.kind is SegmentKind.QUESTION]
        return starts[-1] if starts else max(len(self.ids) - 1, 0)


@dataclass(frozen=True, slots=True)
class _SegmentDraft:
    kind: SegmentKind
    text: str
    message: int | None = None
    document: int | None = None
    ids: tuple[int, ...] | None = None
    special: bool = False
    """Whether special tokens in `text` are meant."""
    first: bool = False


class Prompts(Protocol):
    def build(self, messages: tuple[Message, ...], check: Check = ...) -> Prompt: ...


class PromptBuilder:
    """Builds prompts for one tokenizer (an mlx-lm `TokenizerWrapper` over a fast tokenizer)."""

    def __init__(self, tokenizer: Any, texts: TextProcess | None = None) -> None:
        """`texts`: where its text is encoded, if there is such a process already."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise PromptError("This model's tokenizer has no tokenizer.json to work with")
        self._tokenizer = tokenizer
        self._texts = texts or TextProcess()
        self._texts.load(backend.to_str())
        self._vocab_limit = 0
        self._stop_ids = frozenset(tokenizer.eos_token_ids)
        self._vocabulary = 1 + max(backend.get_vocab().values(), default=-1)
        self._documents: dict[str, _Tokens] = {}
        """How the documents of the last prompt were encoded: most turns ask about the same ones."""

    def set_vocab_limit(self, vocab_rows: int) -> None:
        """A model has that many rows for tokens (0: nobody knows), and reads any memory for others:
        no prompt is to have them."""
        self._vocab_limit = min(filter(None, (self._vocab_limit, vocab_rows)), default=0)

    def build(self, messages: tuple[Message, ...], check: Check = lambda: None) -> Prompt:
        """The prompt for answering the last message, a user's, or for continuing it, an answer.
        `check` is called now and then, and may raise. Raises PromptError."""
        answer = messages[-1] if messages and messages[-1].role is Role.ASSISTANT else None
        messages = messages if answer is None else messages[:-1]
        if not messages or messages[-1].role is not Role.USER:
            raise PromptError("The last message must be the user's")
        ids: list[NDArray[np.int32]] = []
        segments: list[Segment] = []
        offsets: dict[tuple[int, int], NDArray[np.int64]] = {}
        wanted: list[tuple[int, int]] = []
        at = 0
        pieces = list(self._pieces(messages))
        asked = len(pieces)
        if answer is not None:
            pieces += self._open(answer, pieces[-1])
        encoded = self._encoded(pieces, check)
        for piece, (tokens, starts) in zip(pieces, encoded, strict=True):
            if len(tokens) == 0:
                continue
            ids.append(tokens)
            end = at + len(tokens)
            segments.append(Segment(piece.kind, at, end, piece.message, piece.document))
            if piece.message is not None and piece.document is not None:
                offsets[piece.message, piece.document] = starts
                document = messages[piece.message].documents[piece.document]
                wanted += [
                    (at + first, at + last) for first, last in _pinned_tokens(document, starts)
                ]
            at = end
        begun = sum(len(tokens) for tokens, _ in encoded[asked:])
        if begun:  # the generation prompt and what was written after it are one segment
            start = next(s.start for s in segments if s.kind is SegmentKind.GENERATION)
            segments = [s for s in segments if s.end <= start]
            segments.append(Segment(SegmentKind.GENERATION, start, at))
        joined = np.concatenate(ids)
        if self._vocab_limit and joined.max(initial=0) >= self._vocab_limit:
            raise PromptError("This model's tokenizer has tokens that the model does not know")
        return Prompt(joined, tuple(segments), offsets, tuple(wanted), begun)

    def _encoded(self, pieces: list[_SegmentDraft], check: Check) -> list[_Tokens]:
        """Ids of each piece, and where its tokens start and the last one ends, if it is a
        document."""
        known = self._documents
        done = [self._known(piece, known) for piece in pieces]
        new = [piece for piece, tokens in zip(pieces, done, strict=True) if tokens is None]
        try:
            encoded, dropped = self._texts.encode([_encode_request(piece) for piece in new], check)
        except TextError as error:
            raise PromptError(f"This model's tokenizer failed ({_why(error)})") from error
        if dropped:
            raise PromptError(f"This model's tokenizer drops {dropped:,} letters of a text")
        rest = iter(
            (np.frombuffer(ids, np.int32), _starts(places, piece.text))
            for piece, (ids, places) in zip(new, encoded, strict=True)
        )
        found = [next(rest) if tokens is None else tokens for tokens in done]
        self._documents = {
            piece.text: tokens
            for piece, tokens in zip(pieces, found, strict=True)
            if piece.kind is SegmentKind.DOCUMENT
        }
        return found

    def _known(self, piece: _SegmentDraft, documents: dict[str, _Tokens]) -> _Tokens | None:
        if piece.kind is SegmentKind.DOCUMENT:
            return documents.get(piece.text)
        # Ids that another tokenizer gave, or nobody, are worth no more than the text beside them.
        if piece.ids is not None and all(0 <= i < self._vocabulary for i in piece.ids):
            ids = piece.ids
            if ids and ids[-1] in self._stop_ids:
                ids = ids[:-1]  # the template ends the message itself
            return np.array(ids, np.int32), np.zeros(0, np.int64)
        return None

    def _pieces(self, messages: tuple[Message, ...]) -> Iterator[_SegmentDraft]:
        rendered = self._render(messages)
        at, expected = 0, 0
        for match in _SENTINELS.finditer(rendered):
            if int(match[2]) != expected:
                break
            text = rendered[at : match.start()]
            yield _SegmentDraft(SegmentKind.TEMPLATE, text, special=True, first=at == 0)
            at = match.end()
            if match[1]:
                yield _SegmentDraft(
                    SegmentKind.HISTORY, messages[expected].thinking.strip("\n"), expected
                )
                continue
            yield from _content_pieces(messages, expected)
            expected += 1
        if expected != len(messages) or _SENTINELS.search(rendered, at):
            raise PromptError(
                "This model's chat template does not keep every message once and in order"
            )
        yield _SegmentDraft(SegmentKind.GENERATION, rendered[at:], special=True)

    def _open(self, answer: Message, generation: _SegmentDraft) -> Iterator[_SegmentDraft]:
        """An answer to be continued, behind the generation prompt: as it was generated, or, where
        that is not known for this model, as the model would have written it."""
        kind = SegmentKind.GENERATION
        if answer.token_ids is not None:
            yield _SegmentDraft(kind, answer.text, ids=answer.token_ids)
            return
        opens = self._tokenizer.think_start or ""
        is_open = bool(opens) and generation.text.rstrip().endswith(opens)
        if self._tokenizer.has_thinking:
            if answer.thinking and not is_open:
                yield _SegmentDraft(kind, f"{opens}\n", special=True)
            yield _SegmentDraft(kind, answer.thinking.strip("\n"))
            if answer.text and (answer.thinking or is_open):
                yield _SegmentDraft(kind, f"\n{self._tokenizer.think_end}\n\n", special=True)
        yield _SegmentDraft(kind, answer.text)

    def _render(self, messages: tuple[Message, ...]) -> str:
        turns = [
            {"role": str(m.role), "content": _SENTINEL.format(i)}
            | ({"reasoning_content": _THINKING.format(i)} if m.thinking else {})
            for i, m in enumerate(messages)
        ]
        if not self._tokenizer.has_chat_template:
            return "\n\n".join(turn["content"] for turn in turns) + "\n\n"
        try:
            with render_with(self._texts.render):
                rendered: str = self._tokenizer.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=True
                )
        except Exception as error:  # transformers raises whatever it likes
            problem = f"This model's chat template failed ({_why(error)})"
            raise PromptError(problem) from error
        return rendered


def _why(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _encode_request(piece: _SegmentDraft) -> TextPiece:
    """What is to be encoded of it, and how."""
    encoder = "text"
    if piece.special:
        encoder = "whole" if piece.first else "inner"
    return TextPiece(piece.text, encoder, piece.kind is SegmentKind.DOCUMENT)


def _starts(places: bytes, text: str) -> NDArray[np.int64]:
    starts = np.frombuffer(places, np.int64)[::2]
    return np.append(starts, len(text)) if places else np.zeros(0, np.int64)


def _content_pieces(messages: tuple[Message, ...], index: int) -> Iterator[_SegmentDraft]:
    message = messages[index]
    if message.role is Role.SYSTEM:
        yield _SegmentDraft(SegmentKind.SYSTEM, message.text, index)
        return
    if message.role is Role.ASSISTANT:
        if message.thinking:
            # The ids that were generated hold the thinking, which most templates leave out.
            yield _SegmentDraft(SegmentKind.HISTORY, message.text.lstrip("\n"), index)
        else:
            yield _SegmentDraft(SegmentKind.HISTORY, message.text, index, ids=message.token_ids)
        return
    last = index == len(messages) - 1
    frame = SegmentKind.QUESTION if last else SegmentKind.HISTORY
    for number, document in enumerate(message.documents):
        yield _SegmentDraft(SegmentKind.TEMPLATE, document_header(document), index)
        yield _SegmentDraft(SegmentKind.DOCUMENT, document.text, index, number)
        yield _SegmentDraft(SegmentKind.TEMPLATE, DOCUMENT_FOOTER, index)
    yield _SegmentDraft(frame, message.text, index)


def _pinned_tokens(document: Document, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The tokens that hold what is pinned of a document, by where its tokens start and end."""
    for start, end in document.pinned:
        first = int(np.searchsorted(starts[1:], start, side="right"))
        last = int(np.searchsorted(starts[:-1], end, side="left"))
        if first < last:
            yield first, last


DOCUMENT_FOOTER = "\n</document>\n\n"


def document_header(document: Document) -> str:
    """The line before a document's text."""
    name = re.sub(r'[\r\n"<>]', " ", document.name)
    return f'<document name="{name}">\n'
