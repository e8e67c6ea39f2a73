"""Whatever a conversation can hold: exported, imported, and still the same."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat.export import to_json
from app.protocol.options import Mode
from app.protocol.prompt import Role, Span, SpanReason, SpanText
from app.protocol.reasons import Failure, FailureKind, Reason, ReasonCode
from app.protocol.stats import Phase, PhaseTime, Reading
from app.store.importing import from_json
from app.store.records import (
    AnswerStats,
    AttachmentRecord,
    ConversationRecord,
    MessageRecord,
    Overrides,
    ReadMap,
    State,
    Tree,
)
from app.store.store import Store
from tests.store.samples import attach

texts = st.text(st.characters(codec="utf-8"), max_size=20)
counts = st.integers(0, 2**40)
figures = st.floats(0, allow_nan=False, allow_infinity=False)
times = st.integers(0, 253402300799999).map(
    lambda milliseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
)
ranges = st.tuples(counts, counts)
documents = st.sampled_from(["", "short", "ä\r\n\u2028" * 50, "\0\x1b"])
spans = st.builds(Span, counts, counts, st.sampled_from(SpanReason), st.none() | figures)
data = st.dictionaries(texts, texts | counts | figures | st.lists(texts, max_size=2), max_size=2)
reasons = st.builds(Reason, st.sampled_from(ReasonCode), data)
failures = st.builds(Failure, st.sampled_from(FailureKind), data)
answer_stats = st.builds(
    AnswerStats,
    mode=st.sampled_from(Mode),
    reading=st.sampled_from(Reading),
    target=texts,
    reasons=st.lists(reasons, max_size=2).map(tuple),
    **dict.fromkeys(("keep_ratio", "ttft", "decode_seconds"), figures),
    phases=st.lists(st.builds(PhaseTime, st.sampled_from(Phase), figures), max_size=2).map(tuple),
    confidence=st.none() | figures,
    unsure=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    **{f"{name}_tokens": counts for name in ("prompt", "eligible", "read", "reused")},
    recalled_tokens=counts,
    generated_tokens=counts,
    peak_bytes=counts,
    **dict.fromkeys(("target_revision", "draft", "draft_revision"), st.none() | texts),
    **dict.fromkeys(("fallback", "guard"), st.none() | reasons),
)
choices = st.builds(
    Overrides,
    system=st.none() | texts,
    mode=st.none() | texts,
    keep=st.none() | figures,
    max_tokens=st.none() | counts,
    temperature=st.none() | figures,
    top_p=st.none() | figures,
    seed=st.none() | st.integers(0, 2**64 - 1),
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    folder = tmp_path_factory.mktemp("stores")
    with Store(folder / "one") as one, Store(folder / "two") as two:
        yield one, two


def maps(messages: int) -> st.SearchStrategy[ReadMap]:
    number = st.integers(0, messages - 1)
    return st.builds(
        ReadMap,
        st.lists(
            st.builds(Span, counts, counts, st.sampled_from(SpanReason), st.none() | figures),
            max_size=2,
        ).map(tuple),
        st.lists(st.builds(SpanText, counts, number, counts, counts, counts), max_size=2).map(
            tuple
        ),
        st.binary(max_size=9),
    )


@st.composite
def trees(draw: st.DrawFn, store: Store) -> Tree:
    """Of any shape, with documents that `store` holds."""

    def attachments() -> tuple[AttachmentRecord, ...]:
        drawn = draw(
            st.lists(st.tuples(documents, texts, st.lists(ranges, max_size=2)), max_size=2)
        )
        return tuple(
            replace(attach(store, text, name), pinned=tuple(pins)) for text, name, pins in drawn
        )

    messages = [
        MessageRecord(
            id=number,
            conversation=0,
            parent=draw(st.none() | st.integers(0, number - 1)) if number else None,
            role=draw(st.sampled_from(Role)),
            state=draw(st.sampled_from([s for s in State if s is not State.PARTIAL])),
            created_at=draw(times),
            text=draw(texts),
            token_ids=draw(st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple)),
            failure=draw(st.none() | failures),
            attachments=attachments(),
            stats=draw(st.none() | answer_stats),
            thinking=draw(texts),
            truncated=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 4)))
    ]
    count = len(messages)
    return Tree(
        ConversationRecord(
            id=0,
            title=draw(texts),
            pinned=draw(st.booleans()),
            created_at=draw(times),
            updated_at=draw(times),
            trashed_at=None,
            current=draw(st.none() | st.integers(0, count - 1)) if count else None,
            overrides=draw(choices),
        ),
        tuple(messages),
        draw(st.dictionaries(st.integers(0, count - 1), maps(count), max_size=2)) if count else {},
    )


def renumbered(tree: Tree) -> Tree:
    """With messages numbered from 0, as ids differ from store to store."""
    numbers = {message.id: number for number, message in enumerate(tree.messages)}

    def placed(read_map: ReadMap) -> ReadMap:
        placed = (replace(text, message=numbers[text.message]) for text in read_map.texts)
        return replace(read_map, texts=tuple(placed))

    current = tree.conversation.current
    return Tree(
        replace(tree.conversation, id=0, current=None if current is None else numbers[current]),
        tuple(
            replace(
                message,
                id=numbers[message.id],
                conversation=0,
                parent=None if message.parent is None else numbers[message.parent],
            )
            for message in tree.messages
        ),
        {numbers[id]: placed(read_map) for id, read_map in tree.maps.items()},
    )


@given(data=st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_all_that_a_conversation_can_hold_comes_back(
    data: st.DataObject, stores: tuple[Store, Store]
) -> None:
    one, two = stores
    tree = data.draw(trees(one))
    kept = one.add_tree(tree)
    assert renumbered(one.tree(kept.id)) == tree
    out = io.StringIO()
    to_json(one, kept.id, out)
    out.seek(0)
    imported = from_json(two, out)
    assert renumbered(two.tree(imported.id)) == tree
    for message in tree.messages:
        for attachment in message.attachments:
            assert two.text(attachment) == one.text(attachment)
