"""Conversations as Markdown and JSON, and JSON back again."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.chat.export import to_file, to_json, to_markdown
from app.protocol.options import Mode
from app.protocol.prompt import Origin, Role
from app.protocol.reasons import Failure, FailureKind, Reason, ReasonCode
from app.protocol.stats import Reading
from app.store import importing
from app.store.importing import from_json
from app.store.records import AttachmentRecord, ReadMap, ReplyEnd, State, StoreError
from app.store.store import Store
from tests.store.samples import answer_stats, answered, attach
from tests.tables import table


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "one") as store:
        yield store


def exported(store: Store, conversation: int, how: Callable[..., None] = to_json) -> str:
    out = io.StringIO()
    how(store, conversation, out)
    return out.getvalue()


FAILED = Reason(ReasonCode.SPARSE_FAILED, {"error": "no draft"})


def rich(store: Store) -> int:
    """A conversation with forks, two documents, one of them twice, and every kind of ending."""
    conversation = answered(store)
    question, answer = store.branch(conversation)
    store.edit(question.id, 'Odd </pre><script>alert(1)</script> "text" \x1b[31m \u202e 中文')
    again = store.begin_reply(question.id, Mode.SPARSE, 0.35)
    again.append("Sto", [5])
    again.end(ReplyEnd(State.STOPPED)).result()
    failed = ReplyEnd(State.FAILED, failure=Failure(FailureKind.NO_MODEL))
    store.begin_reply(question.id).end(failed).result()
    store.set_branch(answer.id)
    more = [attach(store), attach(store, "ä" * 1_000_001, "second.txt")]
    follow_up = store.add_message(conversation, Role.USER, "And this?", more)
    reply = store.begin_reply(follow_up.id)
    reply.append("", ())
    reply.finish(
        answer_stats(reading=Reading.DENSE, fallback=FAILED, read_tokens=1000),
        ReadMap(),
    )
    store.pin(conversation)
    return conversation


def test_json_comes_back_exactly_with_its_documents(store: Store, tmp_path: Path) -> None:
    conversation = rich(store)
    first = exported(store, conversation)
    with Store(tmp_path / "two") as other:
        answered(other)  # so that ids differ
        imported = from_json(other, io.StringIO(first))
        assert exported(other, imported.id) == first
        assert imported.pinned
        old, new = store.branch(conversation), other.branch(imported.id)
        assert [(m.text, m.token_ids, m.stats, m.state) for m in old] == [
            (m.text, m.token_ids, m.stats, m.state) for m in new
        ]
        assert other.text(new[2].attachments[1]) == "ä" * 1_000_001
    assert len(json.loads(first)["documents"]) == 2


def test_an_empty_conversation_comes_back(store: Store) -> None:
    text = exported(store, store.create("Empty").id)
    assert exported(store, from_json(store, io.StringIO(text)).id) == text


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(plain: Any) -> None:
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in way:
            plain = plain[part]
        plain[last] = value

    return change


def test_statistics_have_the_names_that_they_always_had_in_exports(store: Store) -> None:
    plain = json.loads(exported(store, answered(store)))
    (run,) = [each["run"] for each in plain["messages"] if each["run"] is not None]
    assert (run["keep_ratio"], run["read_tokens"], run["reading"]) == (0.2, 250, "sparse")
    assert run["phases"] == [["tokenise", 0.25], ["prefill", 1.0]]
    imported = from_json(store, io.StringIO(json.dumps(plain)))
    assert store.branch(imported.id)[-1].stats == answer_stats()


SPOILT = [
    _set("messages.1.run.reading", "unknown"),
    _set("messages.1.run.reasons.0.code", "unknown"),
    _set("messages.1.run.phases.0.0", "unknown"),
    _set("messages.1.read_map.spans.0.reason", "unknown"),
    _set("messages.1.failure", {"kind": "unknown", "data": {}}),
    _set("format", "other"),
    _set("version", "1"),
    _set("title", 5),
    _set("title", "\ud800"),
    _set("pinned", 1),
    _set("created_at", "yesterday"),
    _set("created_at", "2026-01-01T00:00:00"),
    _set("created_at", "9999-12-31T23:59:59-01:00"),
    _set("updated_at", "9999-12-31T23:59:59-01:00"),
    _set("choices", {"system": "\ud800"}),
    _set("choices", {"keep": math.nan}),
    _set("current", 99),
    _set("current", -1),
    _set("messages", {}),
    _set("messages.1.parent", 1),
    _set("messages.1.role", "tool"),
    _set("messages.1.state", "odd"),
    _set("messages.1.text", None),
    _set("messages.1.text", "\udfff"),
    _set("messages.1.token_ids", [2**32]),
    _set("messages.1.token_ids", [True]),
    _set("messages.1.run.prompt_tokens", 2**70),
    _set("messages.1.run.prompt_tokens", "many"),
    _set("messages.1.run.ttft", math.nan),
    _set("messages.1.run.keep_ratio", math.inf),
    _set("messages.1.run.phases", [["x", math.nan]]),
    _set("messages.1.read_map.spans.1.score", math.nan),
    _set("messages.1.run.reasons", ["\ud800"]),
    _set("messages.1.run.reasons.0.data", {"error": "\ud800"}),
    _set("messages.1.run.reasons.0.data", {"keep": math.nan}),
    _set("messages.1.run.reasons.0.code", 5),
    _set("messages.1.run.fallback", "It broke."),
    _set("messages.1.run.guard", {"code": "faster"}),
    _set("messages.1.failure", "It broke."),
    _set("messages.1.failure", {"kind": "no_model", "data": {"error": "\ud800"}}),
    _set("messages.1.run.phases", [["x"]]),
    _set("messages.1.run", {}),
    _set("messages.1.read_map.texts.0.message", 99),
    _set("messages.1.read_map.importance", "?"),
    _set("messages.0.attachments.0.sha256", "../../etc"),
    _set("messages.0.attachments.0.size", 1),
    _set("messages.0.attachments.0", None),
    _set("documents", {}),
    _set("documents", None),
]


@pytest.fixture
def export(store: Store) -> str:
    """The exported text of the only conversation in `store`."""
    return exported(store, answered(store))


@table("spoil", SPOILT)
def test_a_damaged_export_is_refused(store: Store, export: str, spoil: Callable[..., None]) -> None:
    plain = json.loads(export)
    spoil(plain)
    with pytest.raises(StoreError, match="not a complete conversation exported by specchat"):
        from_json(store, io.StringIO(json.dumps(plain)))
    assert len(store.conversations()) == 1


EMPTY = ", ".join(["{}"] * 100_001)


@table("text", ["", "[]", "5", "{", "[" * 100_000, f"[{EMPTY}]", '{"format": "x"}'])
def test_another_file_is_refused(store: Store, text: str) -> None:
    with pytest.raises(StoreError, match="not a complete conversation exported by specchat"):
        from_json(store, io.StringIO(text))


def test_an_export_of_mainly_empty_objects_is_refused_before_it_is_parsed(
    store: Store, export: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bloated = export.replace('"choices": {', f'"more": [{EMPTY}], "choices": {{', 1)
    json.loads(bloated)
    monkeypatch.setattr(json, "loads", lambda *given, **named: pytest.fail("it was parsed"))
    with pytest.raises(StoreError, match="not a complete conversation exported by specchat"):
        from_json(store, io.StringIO(bloated))


def test_brackets_in_texts_are_no_lists(store: Store) -> None:
    answered(store, answer="[{" * 100_001)
    text = exported(store, 1)
    assert exported(store, from_json(store, io.StringIO(text)).id) == text


def test_a_cut_export_is_refused(store: Store) -> None:
    text = exported(store, answered(store))
    for length in range(0, len(text) - 2, 397):
        with pytest.raises(StoreError, match="not a complete conversation"):
            from_json(store, io.StringIO(text[:length]))
    assert len(store.conversations()) == 1


def test_what_another_program_has_written_anew_is_read_up_to_a_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(json.loads(exported(store, answered(store))))
    assert from_json(store, io.StringIO(text)).title == "Who pays?"
    monkeypatch.setattr(importing, "MAX_CHARACTERS", 500)
    with pytest.raises(StoreError, match=r"more than 500 characters: import a smaller one"):
        from_json(store, io.StringIO(text))
    assert len(store.conversations()) == 2


def _in_the_documents(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        head, line, documents = text.partition(' "documents": {\n')
        return head + line + documents.replace(old, new, 1)

    return change


@table(
    "spoil",
    [
        _in_the_documents("V", "W"),
        _in_the_documents("V", "é"),
        _in_the_documents('": "', '": "AAAA'),
        _in_the_documents('  "', '  "0'),
        _in_the_documents(" }\n}", ""),
        _in_the_documents(" }\n}", " },\n}"),
        lambda text: text.replace('"size": 3050', '"size": 3051'),
        lambda text: text.replace('"size": 3050', '"size": -1'),
    ],
)
def test_damaged_documents_are_refused(
    store: Store, export: str, spoil: Callable[[str], str]
) -> None:
    assert spoil(export) != export
    with pytest.raises(StoreError, match="not a complete conversation"):
        from_json(store, io.StringIO(spoil(export)))
    assert len(store.conversations()) == 1


def test_a_newer_export_asks_for_an_update(store: Store) -> None:
    plain = json.loads(exported(store, answered(store))) | {"version": 2}
    with pytest.raises(StoreError, match="newer specchat: update"):
        from_json(store, io.StringIO(json.dumps(plain)))


def test_markdown_reads_like_the_conversation(store: Store) -> None:
    text = exported(store, rich(store), to_markdown)
    assert text.startswith("# Who pays?\n\n## You · 20")
    assert "- contract.txt (3,050 bytes)\n\nWho pays?\n" in text
    assert "\n## Demo model · 20" in text, "the demo pair answered"
    assert "\nThe tenant.\n\n*Read 25% of the conversation in 1.2 s · The model was unsure" in text
    fell_back = "Sparse reading failed (no draft), so everything is read."
    assert f"\n*Read everything in 1.2 s · {fell_back} " in text


def test_markdown_keeps_the_lines_of_quoted_code(store: Store) -> None:
    code = "def pay():\n    return 3"
    text = exported(store, answered(store, answer=code), to_markdown)
    assert f"\n```\n{code}\n```\n" in text


def test_a_document_and_its_parts_are_in_one_line(store: Store) -> None:
    def part(text: str, line: int, asked: str = "") -> AttachmentRecord:
        origin = Origin("/files/contract.md", part=asked) if asked else None
        return replace(attach(store, text, "contract.md"), line=line, origin=origin)

    letter = attach(store, "Dear Sir", "letter.txt")
    parts = [part("a" * 10, 13), letter, part("b" * 20, 1_040)]
    first = store.begin("Who pays?", parts)
    named = [part("a" * 10, 13, "13,40"), part("b" * 20, 40, "13,40")]
    store.add_message(first.conversation, Role.USER, "And now?", named)
    text = exported(store, first.conversation, to_markdown)
    assert text.count("contract.md (") == 1
    assert "contract.md (2 parts, from lines 13 and 1,040, 30 bytes)" in text
    assert "contract.md#13,40 (30 bytes)" in text
    assert "letter.txt (8 bytes)" in text


@table("name", ["contract.html", "contract.HTM"])
def test_a_web_page_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not exported as HTML: name the file"):
        to_file(store, answered(store), tmp_path / name)
    assert not (tmp_path / name).exists()
