"""Counts the tokens of attachments on threads; the chips show them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from app.errors import UserError
from app.models.tokenizers import MAX_COUNTED, TokenCounter
from app.protocol.prompt import Document
from app.ui.attach.chips import Chips
from app.ui.background import in_background, start_task


class TokenCounts:
    def __init__(self, chips: Chips, target: str) -> None:
        """`target` is the folder of the model whose tokens are counted."""
        self._chips = chips
        self._target, self.counter = target, TokenCounter(Path(target))
        self._counting: list[tuple[Document, ...]] = []
        self.uncountable = False
        """Whether the model's tokenizer cannot be used."""

    def count_for(self, target: str) -> None:
        """Count all tokens again if this is another model."""
        if target == self._target:
            return
        self._target, self.counter = target, TokenCounter(Path(target))
        self.uncountable, self._counting = False, []
        for each in self._chips.attached:
            self._chips.replace(each, replace(each, tokens=None))
        self.count()

    def count(self) -> None:
        """Count the tokens of attachments where they are not known yet."""
        for each in self._chips.attached:
            counting = any(documents is each.documents for documents in self._counting)
            if each.tokens is None and not counting and not self.uncountable:
                self._counting.append(each.documents)
                start_task(self._chips, partial(self._count, each.documents))

    async def _count(self, documents: tuple[Document, ...]) -> None:
        chips, counter = self._chips, self.counter

        def cancelled() -> bool:
            return all(each.documents is not documents for each in chips.attached)

        texts = [document.text for document in documents]
        estimated = sum(map(len, texts)) > MAX_COUNTED
        count = counter.estimate if estimated else counter.count
        try:
            tokens = await in_background(lambda: count(texts, cancelled))
        except UserError:  # the chip shows the size instead
            self.uncountable = True
            return
        finally:
            self._counting = [each for each in self._counting if each is not documents]
        for each in chips.attached:
            if tokens is not None and counter is self.counter and each.documents is documents:
                known = replace(each, tokens=tokens, tokens_estimated=estimated)
                chips.replace(each, known)
