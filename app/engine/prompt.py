"""Turns a conversation into token ids with segments and character offsets.

The chat template is rendered around sentinels and split; every part is encoded on its own. Template
parts may contain special tokens. Contents may not: a pasted `<|im_end|>` stays text. So the
segments are exact, and the tokens of a prefix never change when the conversation grows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.protocol.options import TemplateValues
from app.protocol.prompt import Document, Message, Role, Segment, SegmentKind
from app.sandbox.process import Check, TextError, TextPiece, TextProcess

ALWAYS_PINNED = 4
"""The first tokens of a prompt are attention sinks; they are always read."""

PINNED_KINDS = frozenset(
    {SegmentKind.TEMPLATE, SegmentKind.SYSTEM, SegmentKind.QUESTION, SegmentKind.GENERATION}
)

DOCUMENT_FOOTER = "\n</document>\n\n"

# Private use characters, so that a template cannot produce them and no case mapping changes them.
_SENTINEL = "\ue000{}\ue001"
_THINKING = "\ue000t{}\ue001"
_SENTINELS = re.compile("\ue000(t?)(\\d+)\ue001")

_Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Ids, and of a text that may be skipped where they start and the last one ends."""
_MAY_BE_SKIPPED = frozenset({SegmentKind.DOCUMENT, SegmentKind.HISTORY})


class PromptError(ValueError):
    """The conversation cannot be rendered for this model; one sentence."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A document, or a message's text or thinking, whose tokens may be skipped: those of the prompt
    from `first` on. `starts` int64 (n + 1,): where each of them starts in the text, and the last
    one ends, in characters."""

    message: int
    document: int | None
    thinking: bool
    first: int
    starts: NDArray[np.int64]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids` int32 (M,). `offsets` has, for every document segment by (message, document), where
    each of its n tokens starts and where the last one ends, in characters of the document's text,
    int64 (n + 1,). `user_pins` are ranges `(start, end)` of document tokens that the user pinned.
    The last `answer_prefix_len` tokens are of an answer that is to be continued; they count as part
    of the generation prompt. `texts` are those that may be skipped. `for_draft` is the same
    conversation as a draft with another tokenizer reads it."""

    ids: NDArray[np.int32]
    segments: tuple[Segment, ...]
    offsets: dict[tuple[int, int], NDArray[np.int64]]
    user_pins: tuple[tuple[int, int], ...] = ()
    answer_prefix_len: int = 0
    texts: tuple[PromptText, ...] = ()
    for_draft: Prompt | None = None

    @property
    def draft_prompt(self) -> Prompt:
        """The prompt that the draft reads."""
        return self.for_draft or self

    @property
    def pinned(self) -> NDArray[np.bool_]:
        """Tokens outside the budget, bool (M,): all but documents and history, and what the user
        pinned of documents."""
        pinned = np.zeros(len(self.ids), bool)
        pinned[:ALWAYS_PINNED] = True
        pinned[-1:] = True
        kinds = [(s.start, s.end) for s in self.segments if s.kind in PINNED_KINDS]
        for start, end in [*kinds, *self.user_pins]:
            pinned[start:end] = True
        return pinned

    @property
    def first_eligible(self) -> int:
        """The first token that may be skipped; 0 if there is none."""
        return int(np.argmin(self.pinned))

    def tokens_of(self, kind: SegmentKind) -> NDArray[np.bool_]:
        """Which tokens are in segments of this kind, bool (M,)."""
        found = np.zeros(len(self.ids), bool)
        for segment in self.segments:
            if segment.kind is kind:
                found[segment.start : segment.end] = True
        return found

    @property
    def eligible_tokens(self) -> int:
        """How many tokens may be skipped."""
        return int(len(self.ids) - self.pinned.sum())

    @property
    def question(self) -> tuple[int, int]:
        """The tokens of the question that the user typed in this turn."""
        found = [(s.start, s.end) for s in self.segments if s.kind is SegmentKind.QUESTION]
        return found[-1] if found else (self.question_start, len(self.ids))

    @property
    def question_start(self) -> int:
        """Where the question starts that the user typed in this turn; everything from there on is
        observed."""
        starts = [s.start for s in self.segments if s.kind is SegmentKind.QUESTION]
        return starts[-1] if starts else max(len(self.ids) - 1, 0)


@dataclass(frozen=True, slots=True)
class _PromptPart:
    kind: SegmentKind
    text: str
    message: int | None = None
    document: int | None = None
    ids: tuple[int, ...] | None = None
    special: bool = False
    """Whether special tokens in `text` count as such."""
    first: bool = False
    thinking: bool = False


class Prompts(Protocol):
    def build(
        self,
        messages: tuple[Message, ...],
        check: Check = ...,
        thinking: bool = ...,
        values: TemplateValues = ...,
    ) -> Prompt: ...

    def count(self, documents: Sequence[Document], check: Check = ...) -> list[int]: ...


class PromptBuilder:
    """Builds prompts for one tokenizer (an mlx-lm `TokenizerWrapper` over a fast tokenizer)."""

    def __init__(
        self, tokenizer: Any, texts: TextProcess | None = None, *, wrote_answers: bool = True
    ) -> None:
        """`texts`: the process that encodes text, if there is one already. `wrote_answers`: the ids
        of answers are this tokenizer's."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise PromptError("This model's tokenizer has no tokenizer.json to work with")
        self._tokenizer, self._wrote_answers = tokenizer, wrote_answers
        self._texts = texts or TextProcess()
        self._texts.load(backend.to_str())
        self._vocab_limit = 0
        self._stop_ids = frozenset(tokenizer.eos_token_ids)
        self._vocab_size = 1 + max(backend.get_vocab().values(), default=-1)
        self._documents: dict[str, _Tokens] = {}
        """The last prompt's documents: most turns ask about the same ones."""

    def set_vocab_limit(self, vocab_rows: int) -> None:
        """Refuse token ids that a model has no embedding for, which would read arbitrary memory. It
        has `vocab_rows` of them (0: unknown)."""
        self._vocab_limit = min(filter(None, (self._vocab_limit, vocab_rows)), default=0)

    def build(
        self,
        messages: tuple[Message, ...],
        check: Check = lambda: None,
        thinking: bool = True,
        values: TemplateValues = (),
    ) -> Prompt:
        """The prompt for answering the last message, a user's, or for continuing it, an answer;
        with or without `thinking`, where the template has a switch for that, and with further
        `values` for it. `check` is called now and then, and may raise. Raises PromptError."""
        answer = messages[-1] if messages and messages[-1].role is Role.ASSISTANT else None
        messages = messages if answer is None else messages[:-1]
        if not messages or messages[-1].role is not Role.USER:
            raise PromptError("The last message must be the user's")
        ids: list[NDArray[np.int32]] = []
        segments: list[Segment] = []
        offsets: dict[tuple[int, int], NDArray[np.int64]] = {}
        texts: list[PromptText] = []
        user_pins: list[tuple[int, int]] = []
        at = 0
        parts = list(self._parts(messages, thinking, values))
        prompt_parts = len(parts)
        if answer is not None:
            parts += self._answer_parts(answer, parts[-1])
        encoded = self._encode(parts, check)
        for part, (tokens, starts) in zip(parts, encoded, strict=True):
            if len(tokens) == 0:
                continue
            ids.append(tokens)
            segments.append(Segment(part.kind, at, at + len(tokens), part.message, part.document))
            if part.message is not None and part.kind in _MAY_BE_SKIPPED:
                place = part.message, part.document, part.thinking
                texts.append(PromptText(*place, at, starts, part.text))
            if part.message is not None and part.document is not None:
                offsets[part.message, part.document] = starts
                document = messages[part.message].in_prompt[part.document]
                pins = _pinned_tokens(document, starts)
                user_pins += [(at + first, at + last) for first, last in pins]
            at += len(tokens)
        answer_prefix_len = sum(len(tokens) for tokens, _ in encoded[prompt_parts:])
        if answer_prefix_len:  # one segment with the generation prompt
            start = next(s.start for s in segments if s.kind is SegmentKind.GENERATION)
            segments = [s for s in segments if s.end <= start]
            segments.append(Segment(SegmentKind.GENERATION, start, at))
        joined = np.concatenate(ids)
        if self._vocab_limit and joined.max(initial=0) >= self._vocab_limit:
            raise PromptError("This model's tokenizer has tokens that the model does not know")
        return Prompt(
            joined, tuple(segments), offsets, tuple(user_pins), answer_prefix_len, tuple(texts)
        )

    def count(self, documents: Sequence[Document], check: Check = lambda: None) -> list[int]:
        """The tokens of each document in a prompt, with the lines around it. Raises
        PromptError."""
        message = Message(Role.USER, "", tuple(documents))
        parts = [part for part in _content_parts(message, 0, True) if part.text]
        sizes = [len(ids) for ids, _ in self._encode(parts, check)]
        counts, number = [0] * len(documents), 0
        for part, size in zip(parts, sizes, strict=True):
            counts[number] += size
            number += part.text == DOCUMENT_FOOTER
        return counts

    def _encode(self, parts: list[_PromptPart], check: Check) -> list[_Tokens]:
        known = [self._known_tokens(part) for part in parts]
        new = [part for part, tokens in zip(parts, known, strict=True) if tokens is None]
        try:
            encoded, uncovered = self._texts.encode([_text_piece(part) for part in new], check)
        except TextError as error:
            raise PromptError(f"This model's tokenizer failed ({_one_line(error)})") from error
        if uncovered:
            raise PromptError(f"This model's tokenizer drops {uncovered:,} letters of a text")
        rest = iter(
            (np.frombuffer(ids, np.int32), _starts(offsets, part.text))
            for part, (ids, offsets) in zip(new, encoded, strict=True)
        )
        found = [next(rest) if tokens is None else tokens for tokens in known]
        self._documents = {
            part.text: tokens
            for part, tokens in zip(parts, found, strict=True)
            if part.kind is SegmentKind.DOCUMENT and not part.special
        }
        return found

    def _known_tokens(self, part: _PromptPart) -> _Tokens | None:
        if part.kind is SegmentKind.DOCUMENT and not part.special:
            return self._documents.get(part.text)
        # Ids of another tokenizer, or of unknown origin, count no more than the text beside them.
        ids = part.ids if self._wrote_answers else None
        if ids is not None and all(0 <= i < self._vocab_size for i in ids):
            if ids and ids[-1] in self._stop_ids and not part.special:
                ids = ids[:-1]  # the template ends the message itself
            # Where each starts is not known, so they count as equally long.
            starts = np.linspace(0, len(part.text), len(ids) + 1).astype(np.int64)
            return np.array(ids, np.int32), starts
        if ids is not None and part.special:
            raise PromptError(f"This model has tokens 0 to {self._vocab_size - 1:,} only")
        return None

    def _parts(
        self, messages: tuple[Message, ...], may_think: bool, values: TemplateValues
    ) -> Iterator[_PromptPart]:
        if messages[-1].plain:
            yield from _plain_parts(messages[-1])
            return
        rendered = self._render(messages, may_think, values)
        at, expected = 0, 0
        for match in _SENTINELS.finditer(rendered):
            if int(match[2]) != expected:
                break
            text = rendered[at : match.start()]
            yield _PromptPart(SegmentKind.TEMPLATE, text, special=True, first=at == 0)
            at = match.end()
            if match[1]:
                thinking = messages[expected].thinking.strip("\n")
                yield _PromptPart(SegmentKind.HISTORY, thinking, expected, thinking=True)
                continue
            is_last = expected == len(messages) - 1
            yield from _content_parts(messages[expected], expected, is_last)
            expected += 1
        if expected != len(messages) or _SENTINELS.search(rendered, at):
            raise PromptError(
                "This model's chat template does not include every message once and in order"
            )
        yield _PromptPart(SegmentKind.GENERATION, rendered[at:], special=True)

    def _answer_parts(self, answer: Message, generation: _PromptPart) -> Iterator[_PromptPart]:
        """An answer to continue, after the generation prompt: as it was generated, or, where its
        ids are unknown, as the model would have written it."""
        kind = SegmentKind.GENERATION
        if answer.token_ids is not None:
            yield _PromptPart(kind, answer.text, ids=answer.token_ids)
            return
        opens = self._tokenizer.think_start or ""
        is_open = bool(opens) and generation.text.rstrip().endswith(opens)
        if self._tokenizer.has_thinking:
            if answer.thinking and not is_open:
                yield _PromptPart(kind, f"{opens}\n", special=True)
            yield _PromptPart(kind, answer.thinking.strip("\n"))
            if answer.text and (answer.thinking or is_open):
                yield _PromptPart(kind, f"\n{self._tokenizer.think_end}\n\n", special=True)
        yield _PromptPart(kind, answer.text)

    def _render(
        self, messages: tuple[Message, ...], may_think: bool, values: TemplateValues
    ) -> str:
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
                    turns,
                    tokenize=False,
                    add_generation_prompt=True,
                    **dict(values) | ({} if may_think else {"enable_thinking": False}),
                )
        except Exception as error:  # transformers raises any type
            problem = f"This model's chat template failed ({_one_line(error)})"
            raise PromptError(problem) from error
        return rendered


_RENDERING = threading.Lock()


@contextmanager
def render_with(render: Callable[[str, dict[str, Any]], str]) -> Iterator[None]:
    """Inside, transformers prepares a chat template's variables, and `render` gets its source and
    them: a template is a program that comes with a model. One thread at a time: a global of
    transformers is replaced meanwhile."""
    from transformers.utils import chat_template_utils

    class RemoteTemplate:
        """A compiled template, as far as transformers uses one."""

        def __init__(self, source: str) -> None:
            self._source = source

        def render(self, **variables: Any) -> str:
            return render(self._source, variables)

    with _RENDERING:
        original = chat_template_utils._compile_jinja_template
        chat_template_utils._compile_jinja_template = RemoteTemplate
        try:
            yield
        finally:
            chat_template_utils._compile_jinja_template = original


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _text_piece(part: _PromptPart) -> TextPiece:
    encoder = "text"
    if part.special:
        encoder = "whole" if part.first else "inner"
    return TextPiece(part.text, encoder, part.kind in _MAY_BE_SKIPPED)


def _starts(offsets: bytes, text: str) -> NDArray[np.int64]:
    starts = np.frombuffer(offsets, np.int64)[::2]
    return np.append(starts, len(text)) if offsets else np.zeros(0, np.int64)


def _content_parts(message: Message, index: int, is_last: bool) -> Iterator[_PromptPart]:
    if message.role is Role.SYSTEM:
        yield _PromptPart(SegmentKind.SYSTEM, message.text, index)
        return
    if message.role is Role.ASSISTANT:
        if message.thinking:
            # The generated ids include the thinking, which most templates omit.
            yield _PromptPart(SegmentKind.HISTORY, message.text.lstrip("\n"), index)
        else:
            yield _PromptPart(SegmentKind.HISTORY, message.text, index, ids=message.token_ids)
        return
    for number, document in enumerate(message.in_prompt):
        yield _PromptPart(SegmentKind.TEMPLATE, document_header(document), index)
        yield _PromptPart(SegmentKind.DOCUMENT, document.text, index, number)
        yield _PromptPart(SegmentKind.TEMPLATE, DOCUMENT_FOOTER, index)
    kind = SegmentKind.QUESTION if is_last else SegmentKind.HISTORY
    yield _PromptPart(kind, message.text, index)


def _plain_parts(message: Message) -> Iterator[_PromptPart]:
    """A text that is no message, in which special tokens count as such: whoever sent it may have
    applied a chat template. All but its end may be skipped."""
    if message.token_ids is None:
        yield _PromptPart(SegmentKind.TEMPLATE, "", special=True, first=True)
    for number, document in enumerate(message.in_prompt):
        yield _PromptPart(SegmentKind.DOCUMENT, document.text, 0, number, special=True)
    yield _PromptPart(SegmentKind.QUESTION, message.text, 0, ids=message.token_ids, special=True)


def _pinned_tokens(document: Document, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of the tokens that contain a document's pinned characters."""
    for start, end in document.pinned:
        first = int(np.searchsorted(starts[1:], start, side="right"))
        last = int(np.searchsorted(starts[:-1], end, side="left"))
        if first < last:
            yield first, last


def document_header(document: Document) -> str:
    """The line before a document's text."""
    name = re.sub(r'[\r\n"<>]', " ", document.name)
    line = f' line="{document.line}"' if document.line > 1 else ""
    return f'<document name="{name}"{line}>\n'
