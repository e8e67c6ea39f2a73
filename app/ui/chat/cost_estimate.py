"""Tokens and seconds of the next message, estimated before it is sent."""

from __future__ import annotations

from collections.abc import Sequence

from app.chat.conversation import Question, Turn
from app.estimate.guard import asks_for_every_token
from app.estimate.plan import NextMessage
from app.protocol.cost_model import UNKNOWN_COSTS, Costs
from app.protocol.events import Loaded
from app.protocol.options import MAX_RETRIEVED, RETRIEVAL_SHARE, Mode, min_retrieved
from app.ui.attach.attachment import documents_of
from app.ui.chat.attachments import AttachmentReader
from app.ui.chat.chrome import ContextMeter
from app.ui.chat.composer import Composer
from app.ui.chat.model_loading import PairLoader
from app.ui.state.draft import NextMode
from app.ui.state.open_chats import OpenChats
from app.util import formatting
from app.util.sanitize import sanitize_line

ALL_CACHED = "saves nothing (all cached)"
CHARACTERS_PER_TOKEN = 4
"""An estimate for typed text, which is short compared with attachments, and shown in hundreds."""


class CostEstimate:
    def __init__(
        self,
        composer: Composer,
        open_chats: OpenChats,
        attachments: AttachmentReader,
        loader: PairLoader,
    ) -> None:
        self._composer, self._open_chats = composer, open_chats
        self._attachments, self._loader = attachments, loader
        self.costs: Costs = UNKNOWN_COSTS
        """Costs of the loaded pair, as the engine reports them."""

    @property
    def _pair(self) -> Loaded | None:
        return self._loader.pair

    def meter(self) -> ContextMeter:
        return self._meter(self._composer.draft.next_mode)

    def text_at(self, keep: float) -> str:
        """The estimate for the next message at this keep, in a few words."""
        last = self._last()
        if last is not None and not self._attached() and self._open_chats.is_fully_cached(last):
            return ALL_CACHED
        meter = self._meter(NextMode(keep, Mode.SPARSE))
        return "" if meter.seconds is None else f"est {formatting.seconds(meter.seconds)}"

    @property
    def warning(self) -> str:
        """A sentence, if the message exceeds the model's context even without any document."""
        pair, typed = self._pair, self._typed()
        if pair is None or not pair.target.context_length or not typed:
            return ""
        before = self._before()
        if typed + self._text_tokens(before) < pair.target.context_length:
            return ""
        name, limit = sanitize_line(pair.target.name), formatting.count(pair.target.context_length)
        if before:
            return (
                f"The conversation is too long for this question: {name} takes at most {limit}"
                " tokens. ^N starts a new one."
            )
        return (
            f"The question is too long: {name} takes at most {limit} tokens. Attach the text as a"
            " file."
        )

    @property
    def note(self) -> str:
        """What is attached and how it is read, if not all of it fits."""
        if not self._exceeds_context(self._last(), self._attached()):
            return ""
        attached = self._composer.chips.attached
        number = sum(each.tokens or 0 for each in attached)
        estimated = any(each.tokens_estimated for each in attached)
        tokens = f"about {formatting.short_count(number)}" if estimated else f"{number:,}"
        files = sum(len(each.texts) for each in attached)
        best = "best files" if files > 1 else "best parts"
        where = formatting.plural(files, "file")
        return f"{tokens} tokens in {where} · only the {best} are read (^F)"

    def _meter(self, next_mode: NextMode) -> ContextMeter:
        context = self._pair.target.context_length if self._pair else 0
        last = self._last()
        used = 0 if last is None else self._used(last)
        typed = self._typed()
        attached = self._attached()
        prompt = self._open_chats.shown.conversation.system_prompt
        if attached is None:  # no estimate without a token count
            return ContextMeter(used, 0 if self._attachments.counts.uncountable else None, context)
        chosen = last is not None and last.retrieved is not None
        if self._exceeds_context(last, attached) or (chosen and typed):
            attached = self._room(context - (used or 0))
        if last is None:
            typed += len(prompt) // CHARACTERS_PER_TOKEN
        elif used and self._is_live(last) and last.system != prompt:
            attached, used, last = attached + used, 0, None  # the changed system prompt comes first
        seconds = self._seconds(next_mode, last, typed, attached)
        return ContextMeter(used, typed + attached, context, seconds)

    def _exceeds_context(self, last: Turn | None, attached: int | None) -> bool:
        """Whether the documents attached do not all fit, as far as they are counted."""
        context = self._pair.target.context_length if self._pair else 0
        used = 0 if last is None else self._used(last) or 0
        return bool(context and attached) and used + self._typed() + (attached or 0) >= context

    def _room(self, left: int) -> int:
        """Tokens of documents that a question gets, out of those `left` in the context."""
        assert self._pair is not None
        context = self._pair.target.context_length
        left = context if RETRIEVAL_SHARE * left < min_retrieved(context) else left
        return min(int(RETRIEVAL_SHARE * left), MAX_RETRIEVED)

    def _typed(self) -> int:
        return -(-len(self._composer.box.text.strip()) // CHARACTERS_PER_TOKEN)

    def _text_tokens(self, turns: Sequence[Turn]) -> int:
        """Tokens of questions and answers, without documents. Thinking is not sent again."""
        if not turns:
            return 0
        texts = sum(len(turn.question.text) + len(turn.text) for turn in turns)
        estimate = texts // CHARACTERS_PER_TOKEN
        used = self._tokens(turns[-1])
        if used is None or any(turn.question.documents for turn in turns):
            return estimate
        statistics = turns[-1].statistics
        if turns[-1].thinking and statistics is not None:
            used -= statistics.generated_tokens
        return used

    def _is_live(self, turn: Turn) -> bool:
        """Whether the engine may still have the turn in a cache, and not only in a snapshot."""
        return turn.progress.started_at is not None and not turn.progress.restored

    def _last(self) -> Turn | None:
        """The turn that the next message would follow."""
        return next(reversed(self._before()), None)

    def _before(self) -> list[Turn]:
        """The turns that the next message would follow."""
        conversation = self._open_chats.shown.conversation
        if (edited := self._composer.edited) is not None:
            return conversation.earlier_turns(edited)
        running = conversation.running
        return [turn for turn in conversation.branch if turn.in_context or turn is running]

    def _tokens(self, last: Turn) -> int | None:
        """Tokens up to the end of a turn; None if unknown."""
        progress = last.progress
        if (statistics := progress.statistics) is not None:
            return statistics.prompt_tokens + statistics.generated_tokens
        return (
            None
            if progress.planned is None
            else progress.planned.prompt_tokens + progress.generated_tokens
        )

    def _used(self, last: Turn) -> int | None:
        """Tokens up to the end of a turn that stay: without versions of files that the attachments
        replace."""
        used, attached = self._tokens(last), documents_of(self._composer.chips.attached)
        if used is None or not any(each.origin for each in attached):
            return used
        conversation = self._open_chats.shown.conversation
        question = conversation.with_versions(Question("", attached), self._composer.edited)
        replaced = (each.replaces.text for each in question.documents if each.replaces)
        return max(0, used - sum(map(len, replaced)) // CHARACTERS_PER_TOKEN)

    def _attached(self) -> int | None:
        """Tokens of the attachments; None while a file is being read or counted."""
        items = self._composer.chips.items
        attachments = self._composer.chips.attached
        tokens = [each.tokens for each in attachments if each.tokens is not None]
        return sum(tokens) if len(tokens) == len(items) else None

    def _seconds(
        self, next_mode: NextMode, last: Turn | None, typed: int, attached: int
    ) -> float | None:
        if self._pair is None or not typed + attached:
            return None
        mode = next_mode.mode
        if self._pair.dense_only is not None:
            mode = Mode.FULL
        typed_text = self._composer.box.text
        if mode is Mode.AUTO and asks_for_every_token(typed_text) is not None:
            return None  # then all of it may be read
        before = None
        if last is not None:
            before = self._open_chats.cached_stats(last)
            if before is None:
                return None  # unknown what the engine still has cached
        rereads = self._pair.recall_is_expensive
        message = NextMessage(mode, next_mode.keep, typed, attached, before, rereads)
        return message.seconds(self.costs)
