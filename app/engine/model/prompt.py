"""Converts a conversation to token ids with segments and character offsets.

The chat template is rendered with placeholders, split at them, and each part is encoded on its own.
Only template parts may contain special tokens: a pasted `<|im_end|>` stays text. So segments are
exact, and the tokens of a prefix do not change when the conversation grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.engine.model.chat_template import ChatTemplate, PromptError
from app.engine.model.reasoning import Reasoning
from app.protocol.options import TemplateValues
from app.protocol.prompt import Document, Message, Role, Segment, SegmentKind, TemplateRule
from app.protocol.reasons import FailureKind
from app.protocol.stats import DocumentsRead
from app.sandbox.process import Check, TextError, TextPiece, TextProcess
from app.util.formatting import one_line

ALWAYS_PINNED = 4
"""Number of leading tokens that are always read: they act as attention sinks."""

PINNED_KINDS = frozenset(
    {SegmentKind.TEMPLATE, SegmentKind.SYSTEM, SegmentKind.QUESTION, SegmentKind.GENERATION}
)

DOCUMENT_FOOTER = "\n</document>\n\n"

_Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Token ids (n,) and their character offsets (n + 1,); see `PromptText.starts`. Texts that are
never skipped have no offsets."""
_MAY_BE_SKIPPED = frozenset({SegmentKind.DOCUMENT, SegmentKind.HISTORY})


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text of the prompt whose tokens may be skipped: a document, or a message's text or
    thinking. Its n tokens begin at token `first` of the prompt. `starts` int64 (n + 1,): the
    character at which each token starts, then the end of the last one."""

    message: int
    document: int | None
    thinking: bool
    first: int
    starts: NDArray[np.int64]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised conversation. `ids` int32 (M,): token ids. `offsets`: for each document by
    (message, document), the character at which each of its n tokens starts and the last one ends,
    int64 (n + 1,). `user_pins`: token ranges `(start, end)` that the user pinned. The last
    `answer_prefix_len` tokens belong to an answer that is continued; they count as part of the
    generation prompt. `texts` may be skipped. `for_draft`: the same conversation for a draft with
    another tokenizer. `rules`: rules of the chat template for which messages were rearranged.
    `documents`: those of the conversation, with nothing read; None if the prompt has none."""

    ids: NDArray[np.int32]
    segments: tuple[Segment, ...]
    offsets: dict[tuple[int, int], NDArray[np.int64]]
    user_pins: tuple[tuple[int, int], ...] = ()
    answer_prefix_len: int = 0
    texts: tuple[PromptText, ...] = ()
    for_draft: Prompt | None = None
    rules: frozenset[TemplateRule] = frozenset()
    documents: DocumentsRead | None = None

    @property
    def draft_prompt(self) -> Prompt:
        """The prompt that the draft reads."""
        return self.for_draft or self

    @property
    def pinned(self) -> NDArray[np.bool_]:
        """Tokens that are always read and do not count towards keep, bool (M,): everything but
        documents and history, plus what the user pinned."""
        pinned = np.zeros(len(self.ids), bool)
        pinned[:ALWAYS_PINNED] = True
        pinned[-1:] = True
        kinds = [(s.start, s.end) for s in self.segments if s.kind in PINNED_KINDS]
        for start, end in [*kinds, *self.user_pins]:
            pinned[start:end] = True
        return pinned

    @property
    def first_eligible(self) -> int:
        """Index of the first token that may be skipped; 0 if there is none."""
        return int(np.argmin(self.pinned))

    @property
    def first_text(self) -> int:
        """Index of the first token after the first documents (without any: after the instructions),
        where the user's own words begin."""
        texts = (SegmentKind.HISTORY, SegmentKind.QUESTION)
        first = next((s.start for s in self.segments if s.kind is SegmentKind.DOCUMENT), 0)
        found = (s.start for s in self.segments if s.kind in texts and s.start >= first)
        return next(found, self.question_start)

    def tokens_of(self, kind: SegmentKind) -> NDArray[np.bool_]:
        """Mask of the tokens in segments of this kind, bool (M,)."""
        found = np.zeros(len(self.ids), bool)
        for segment in self.segments:
            if segment.kind is kind:
                found[segment.start : segment.end] = True
        return found

    def documents_read(
        self, read: NDArray[np.integer], before: NDArray[np.integer] | None = None
    ) -> DocumentsRead | None:
        """How much of the documents is read, if the tokens at these positions are: `read` in all,
        and `before` earlier than this turn."""
        if self.documents is None:
            return None
        own = self.tokens_of(SegmentKind.DOCUMENT)
        count = int(np.count_nonzero(own[read[read < len(own)]]))
        known = 0 if before is None else int(np.count_nonzero(own[before[before < len(own)]]))
        return replace(self.documents, read=count, new=count - known)

    @property
    def eligible_tokens(self) -> int:
        """Number of tokens that may be skipped."""
        return int(len(self.ids) - self.pinned.sum())

    @property
    def question(self) -> tuple[int, int]:
        """Token range of this turn's question."""
        found = [(s.start, s.end) for s in self.segments if s.kind is SegmentKind.QUESTION]
        return found[-1] if found else (self.question_start, len(self.ids))

    @property
    def previous_answer(self) -> PromptText | None:
        """The answer right before the question, without its thinking; None in a first turn."""
        asked = [s.message for s in self.segments if s.kind is SegmentKind.QUESTION]
        before = (asked[-1] or 0) - 1 if asked else -1
        found = (
            t for t in self.texts if (t.message, t.document, t.thinking) == (before, None, False)
        )
        return next(found, None)

    @property
    def question_start(self) -> int:
        """Index of the first token of this turn's question. Scoring observes the attention of the
        tokens from there on."""
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
    """Whether special tokens in `text` are encoded as such."""
    thinking: bool = False
    spaces: str = ""
    """Spaces of the template before `text`; a tokenizer joins them with the first word."""
    after: str = "text"
    """What precedes it, as in `TextPiece`."""
    begins: bool = False
    """Whether it stands for the tokens that the tokenizer puts before every text (BOS)."""


class PromptBuilder:
    """Builds prompts for one tokenizer (an mlx-lm `TokenizerWrapper` over a fast tokenizer)."""

    def __init__(
        self, tokenizer: Any, texts: TextProcess | None = None, *, wrote_answers: bool = True
    ) -> None:
        """`texts`: an existing process that encodes text. `wrote_answers`: whether token ids of
        past answers are those of this tokenizer. Raises PromptError."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise PromptError(FailureKind.TOKENIZER_UNUSABLE)
        self._tokenizer, self._wrote_answers = tokenizer, wrote_answers
        self._texts = texts or TextProcess()
        self._texts.load(backend.to_str())
        self._reasoning = Reasoning(tokenizer)
        self._template = ChatTemplate(tokenizer, self._texts, self._reasoning)
        added = backend.get_added_tokens_decoder().values()
        self._special = tuple(token.content for token in added if token.content.strip())
        self._space_eating = tuple(token.content for token in added if token.rstrip)
        self._vocab_limit = 0
        self._vocab_size = 1 + max(backend.get_vocab().values(), default=-1)
        self._documents: dict[str, _Tokens] = {}
        """Encoded documents of the last prompt, by text: most turns ask about the same ones."""

    def set_vocab_limit(self, vocab_rows: int) -> None:
        """Refuse token ids beyond the model's `vocab_rows` embeddings (0: unknown): MLX would read
        arbitrary memory for them."""
        self._vocab_limit = min(filter(None, (self._vocab_limit, vocab_rows)), default=0)

    def build(
        self,
        messages: tuple[Message, ...],
        check: Check = lambda: None,
        thinking: bool = True,
        values: TemplateValues = (),
    ) -> Prompt:
        """Build the prompt that answers the last message (a user's) or continues it (an answer).
        `thinking` and `values` are passed to the chat template. `check` is called regularly and
        may raise to cancel. Raises PromptError."""
        answer = messages[-1] if messages and messages[-1].role is Role.ASSISTANT else None
        messages = messages if answer is None else messages[:-1]
        if not messages or messages[-1].role is not Role.USER:
            raise PromptError(FailureKind.NOT_THE_USERS)
        ids: list[NDArray[np.int32]] = []
        segments: list[Segment] = []
        offsets: dict[tuple[int, int], NDArray[np.int64]] = {}
        texts: list[PromptText] = []
        user_pins: list[tuple[int, int]] = []
        at = 0
        parts, rules = self._render(messages, thinking, values)
        prompt_parts = len(parts)
        if answer is not None:
            parts += self._answer_parts(answer, parts[-1])
        parts = list(self._placed(parts))
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
            raise PromptError(FailureKind.TOKENS_UNKNOWN)
        return Prompt(
            joined,
            tuple(segments),
            offsets,
            tuple(user_pins),
            answer_prefix_len,
            tuple(texts),
            rules=rules,
            documents=_documents(messages, segments),
        )

    def count(self, documents: Sequence[Document], check: Check = lambda: None) -> list[int]:
        """Number of tokens of each document in a prompt, including its header and footer. Raises
        PromptError."""
        message = Message(Role.USER, "", tuple(documents))
        parts = [part for part in _content_parts(message, 0, True) if part.text]
        sizes = [len(ids) for ids, _ in self._encode(parts, check)]
        counts, number = [0] * len(documents), 0
        for part, size in zip(parts, sizes, strict=True):
            counts[number] += size
            number += part.text == DOCUMENT_FOOTER
        return counts

    def turn_ends(self) -> frozenset[int]:
        """Token ids that end an answer: the special token that the chat template writes after one,
        or those of the model's reasoning format."""
        found, written = self._reasoning.format, self._template.around_answers[1].lstrip()
        if found is not None and found.ends:  # such templates write the same after reasoning
            names: Sequence[str] = found.ends
        else:
            names = sorted(filter(written.startswith, self._special), key=len)[-1:]
        ids = map(self._tokenizer.backend_tokenizer.token_to_id, names)
        return frozenset(number for number in ids if number is not None)

    def _encode(self, parts: list[_PromptPart], check: Check) -> list[_Tokens]:
        known = [self._known_tokens(part) for part in parts]
        new = [part for part, tokens in zip(parts, known, strict=True) if tokens is None]
        try:
            encoded, uncovered = self._texts.encode([_text_piece(part) for part in new], check)
        except TextError as error:
            data = {"error": one_line(error)}
            raise PromptError(FailureKind.TOKENIZER_FAILED, data) from error
        if uncovered:
            raise PromptError(FailureKind.TOKENIZER_DROPS_TEXT, {"letters": int(uncovered)})
        rest = iter(
            (np.frombuffer(ids, np.int32), _starts(offsets, part))
            for part, (ids, offsets) in zip(new, encoded, strict=True)
        )
        found = [next(rest) if tokens is None else tokens for tokens in known]
        self._documents = {
            part.text: tokens for part, tokens in zip(parts, found, strict=True) if _is_kept(part)
        }
        if parts and parts[0].begins:
            found[0] = self._beginning(found[1:])
        return found

    def _beginning(self, rest: list[_Tokens]) -> _Tokens:
        """The tokens that the tokenizer puts before a text, unless it begins with them already."""
        begin = np.array(self._texts.begin_ids, np.int32)
        first = next((tokens for tokens, _ in rest if len(tokens)), begin[:0])
        has_it = np.array_equal(first[: len(begin)], begin)
        return begin[: 0 if has_it else None], np.zeros(0, np.int64)

    def _known_tokens(self, part: _PromptPart) -> _Tokens | None:
        if _is_kept(part):
            return self._documents.get(part.text)
        if part.ids is None:
            return None
        # The offsets of past answers' tokens are unknown, so assume equal lengths.
        starts = np.linspace(0, len(part.text), len(part.ids) + 1).astype(np.int64)
        return np.array(part.ids, np.int32), starts

    def _render(
        self, messages: tuple[Message, ...], may_think: bool, values: TemplateValues
    ) -> tuple[list[_PromptPart], frozenset[TemplateRule]]:
        """The parts of the prompt, and the template's rules for which messages were rearranged."""
        if messages[-1].plain:
            ids = messages[-1].token_ids if self._wrote_answers else None
            if ids is not None and not self._are_known(ids):
                highest = self._vocab_size - 1
                raise PromptError(FailureKind.TOKENS_OUT_OF_RANGE, {"highest": highest})
            return [*_plain_parts(messages[-1], ids)], frozenset()
        rendered = self._template.render(messages, may_think, values)
        parts = [] if self._tokenizer.has_chat_template else [_BEGINNING]
        for place in rendered.places:
            index, message = place.message, place.trim(messages[place.message])
            if place.thinking:
                text = message.thinking.strip("\n")
                contents = [_PromptPart(SegmentKind.HISTORY, text, index, thinking=True)]
            elif message.role is Role.ASSISTANT:
                contents = [self._past_answer(message, index)]
            else:
                contents = [*_content_parts(message, index, index == len(messages) - 1)]
            before, spaces = self._split_spaces(place.before)
            if contents[0].ids is None:
                contents[0] = replace(contents[0], spaces=spaces)
            elif rendered.generation.endswith(" "):  # the answer was generated after that space
                before = place.before
            parts += [_PromptPart(SegmentKind.TEMPLATE, before, special=True), *contents]
        parts.append(_PromptPart(SegmentKind.GENERATION, rendered.generation, special=True))
        return parts, rendered.rules

    def _split_spaces(self, text: str) -> tuple[str, str]:
        """Split trailing spaces off a template's text, unless a special token absorbs them."""
        stripped = text.rstrip(" ")
        if stripped.endswith(self._space_eating):
            return text, ""
        return stripped, text[len(stripped) :]

    def _placed(self, parts: list[_PromptPart]) -> Iterator[_PromptPart]:
        """The parts with `after` set."""
        after = "nothing"
        for part in parts:
            yield replace(part, after=after)
            if part.special and part.text:
                of_token = part.text.endswith(self._special)
                of_token = of_token or part.text.rstrip().endswith(self._space_eating)
                after = "token" if of_token else "text"
            elif part.spaces or part.text or part.ids:
                after = "text"

    def _usable_ids(self, answer: Message) -> tuple[int, ...] | None:
        """An answer's token ids without the end-of-text token; None if they are another tokenizer's
        or out of range, so that its text must be encoded instead."""
        ids = answer.token_ids if self._wrote_answers else None
        if ids is None or not self._are_known(ids):
            return None
        # The template writes the end of the message.
        return ids[:-1] if ids and ids[-1] in self._tokenizer.eos_token_ids else ids

    def _are_known(self, ids: tuple[int, ...]) -> bool:
        return all(0 <= i < self._vocab_size for i in ids)

    def _past_answer(self, message: Message, index: int) -> _PromptPart:
        """A past answer by its generated ids; by its text if they contain thinking, which templates
        omit."""
        kind, ids = SegmentKind.HISTORY, self._usable_ids(message)
        if message.thinking or (ids is not None and self._reasoning.is_in(ids)):
            return _PromptPart(kind, message.text.lstrip("\n"), index)
        return _PromptPart(kind, message.text, index, ids=ids)

    def _answer_parts(self, answer: Message, generation: _PromptPart) -> Iterator[_PromptPart]:
        """The parts of an answer to continue: its generated ids, or, if they are unknown, its
        thinking and text in the model's format."""
        kind, found = SegmentKind.GENERATION, self._reasoning.format
        if (ids := self._usable_ids(answer)) is not None:
            yield _PromptPart(kind, answer.text, ids=ids)
            return
        spaces = ""
        if found is not None:
            is_open = generation.text.rstrip().endswith(found.starts)
            if answer.thinking and not is_open:
                yield _PromptPart(kind, found.opens, special=True)
            yield _PromptPart(kind, answer.thinking.strip("\n"))
            if answer.text:
                reasoned = answer.thinking or is_open
                yield _PromptPart(kind, found.closes if reasoned else found.begins, special=True)
        elif generation.kind is kind and not generation.text.endswith(" "):
            _, spaces = self._split_spaces(self._template.around_answers[0])
        yield _PromptPart(kind, answer.text, spaces=spaces)


_BEGINNING = _PromptPart(SegmentKind.TEMPLATE, "", begins=True)


class PairPrompts:
    """Builds the prompts of a target and of a draft with another tokenizer."""

    def __init__(self, target: PromptBuilder, draft: PromptBuilder) -> None:
        self._target, self._draft = target, draft

    def build(
        self,
        messages: tuple[Message, ...],
        check: Check = lambda: None,
        thinking: bool = True,
        values: TemplateValues = (),
    ) -> Prompt:
        """See `PromptBuilder.build`."""
        prompt = self._target.build(messages, check, thinking, values)
        return replace(prompt, for_draft=self._draft.build(messages, check, thinking, values))

    def count(self, documents: Sequence[Document], check: Check = lambda: None) -> list[int]:
        """See `PromptBuilder.count`; in tokens of the target."""
        return self._target.count(documents, check)


Prompts = PromptBuilder | PairPrompts


def _documents(messages: Sequence[Message], segments: Sequence[Segment]) -> DocumentsRead | None:
    """The documents in a prompt."""
    tokens, names = 0, dict[str, None]()
    for segment in segments:
        if segment.message is not None and segment.document is not None:
            tokens += segment.end - segment.start
            names[messages[segment.message].in_prompt[segment.document].name] = None
    return DocumentsRead.of(names, tokens, tokens) if tokens else None


def _is_kept(part: _PromptPart) -> bool:
    """Whether a part's tokens are kept for the next prompt. They depend on `after` and `special`,
    so only the usual case is kept."""
    return part.kind is SegmentKind.DOCUMENT and part.after == "text" and not part.special


def _text_piece(part: _PromptPart) -> TextPiece:
    text = part.spaces + part.text
    return TextPiece(text, part.special, part.after, part.kind in _MAY_BE_SKIPPED)


def _starts(offsets: bytes, part: _PromptPart) -> NDArray[np.int64]:
    """`PromptText.starts` of a part. Its first token includes the spaces before it."""
    starts = np.maximum(np.frombuffer(offsets, np.int64)[::2] - len(part.spaces), 0)
    return np.append(starts, len(part.text)) if offsets else np.zeros(0, np.int64)


def _content_parts(message: Message, index: int, is_last: bool) -> Iterator[_PromptPart]:
    if message.role is Role.SYSTEM:
        yield _PromptPart(SegmentKind.SYSTEM, message.text, index)
        return
    for number, document in enumerate(message.in_prompt):
        yield _PromptPart(SegmentKind.TEMPLATE, document_header(document), index)
        yield _PromptPart(SegmentKind.DOCUMENT, document.text, index, number)
        yield _PromptPart(SegmentKind.TEMPLATE, DOCUMENT_FOOTER, index)
    if message.context:
        context = message.body.removesuffix(message.text)
        yield _PromptPart(SegmentKind.SYSTEM, context, index)
    kind = SegmentKind.QUESTION if is_last else SegmentKind.HISTORY
    yield _PromptPart(kind, message.text, index)


def _plain_parts(message: Message, ids: tuple[int, ...] | None) -> Iterator[_PromptPart]:
    """A plain completion, not a chat message. Special tokens are encoded as such, because the
    caller may have applied a chat template. `ids`: its token ids if the caller sent them."""
    if message.token_ids is None:
        yield _BEGINNING
    for number, document in enumerate(message.in_prompt):
        yield _PromptPart(SegmentKind.DOCUMENT, document.text, 0, number, special=True)
    yield _PromptPart(SegmentKind.QUESTION, message.text, 0, ids=ids, special=True)


def _pinned_tokens(document: Document, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Token ranges that contain a document's pinned characters."""
    for start, end in document.pinned:
        first = int(np.searchsorted(starts[1:], start, side="right"))
        last = int(np.searchsorted(starts[:-1], end, side="left"))
        if first < last:
            yield first, last


def document_header(document: Document) -> str:
    name = re.sub(r'[\r\n"<>]', " ", document.name)
    line = f' line="{document.line}"' if document.line > 1 else ""
    return f'<document name="{name}"{line}>\n'
