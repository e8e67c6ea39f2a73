"""What the store's tests keep in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from app.protocol.options import DEMO_DRAFT, DEMO_MODEL, Mode
from app.protocol.prompt import Role, Span, SpanReason, SpanText
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase, PhaseTime, Reading
from app.store.records import AnswerStats, AttachmentRecord, Overrides, ReadMap
from app.store.store import Store

CHOICES = Overrides("Be brief.", "sparse", 0.35, 64, 0.7, 0.9, seed=2**64 - 1)
DOCUMENT = "The tenant pays.\nThe landlord may terminate — with notice.\n" * 50


def answer_stats(**changes: Any) -> AnswerStats:
    stats = AnswerStats(
        mode=Mode.AUTO,
        reading=Reading.SPARSE,
        keep_ratio=0.2,
        reasons=(Reason(ReasonCode.FASTER, {"sparse": 1.5, "full": 20.0}),),
        prompt_tokens=1000,
        eligible_tokens=900,
        read_tokens=250,
        reused_tokens=30,
        recalled_tokens=12,
        generated_tokens=3,
        seed=2**64 - 1,
        ttft=1.25,
        phases=(PhaseTime(Phase.TOKENISE, 0.25), PhaseTime(Phase.PREFILL, 1.0)),
        decode_seconds=0.1,
        peak_bytes=2**33,
        proposed_tokens=9,
        accepted_tokens=2,
        verified_steps=3,
        plain_rate=12.5,
        confidence=0.75,
        unsure=True,
        target=DEMO_MODEL,
        target_revision="abc",
        draft=DEMO_DRAFT,
    )
    return replace(stats, **changes)


def attach(store: Store, text: str = DOCUMENT, name: str = "contract.txt") -> AttachmentRecord:
    return store.attach(name, text.encode())


def answered(store: Store, question: str = "Who pays?", answer: str = "The tenant.") -> int:
    """A conversation with a document, a question and its answer; returns its id."""
    conversation = store.create().id
    asked = store.add_message(conversation, Role.USER, question, [attach(store)])
    reply = store.begin_reply(asked.id)
    reply.append(answer, (1, 70_000, 2**32 - 1), thinking="Who signed it?")
    texts = (SpanText(0, asked.id, 0, 4, 10), SpanText(1, asked.id, 0, 17, 33))
    spans = (Span(0, 32, SpanReason.PINNED), Span(64, 96, SpanReason.IMPORTANT, 2.5))
    reply.finish(answer_stats(), ReadMap(spans, texts, bytes([0, 128, 255])))
    return conversation


def versions(store: Store, message: int) -> tuple[int, ...]:
    """The ids of all versions of a message, including itself."""
    return store.forks(store.message(message).conversation).get(message, (message,))


def all_texts(folder: Path) -> list[str]:
    """Every message that a fresh store finds in this folder, in the order of writing."""
    with Store(folder) as store:
        found = [*store.conversations(), *store.conversations(trashed=True)]
        trees = [store.tree(conversation.id) for conversation in found]
        messages = [message for tree in trees for message in tree.messages]
        return [message.text for message in sorted(messages, key=lambda message: message.id)]
