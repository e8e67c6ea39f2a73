"""Prompts have exact segments and offsets, text stays text, and prefixes never change."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer
from tokenizers import AddedToken

from app.engine.model.chat_template import PromptError
from app.engine.model.prompt import Prompt, PromptBuilder, document_header
from app.protocol.prompt import Document, Message, Role, SegmentKind
from app.protocol.reasons import FailureKind
from app.sandbox.process import TextProcess
from app.sandbox.worker import clone_tokenizer
from tests import tiny


def _tokenizer(folder: Path, template: str = tiny.TEMPLATE) -> Any:
    tiny.save(folder, template=template)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    return PromptBuilder(_tokenizer(tmp_path_factory.mktemp("model")))


def _decoded(builder: PromptBuilder, ids: Any) -> str:
    text: str = builder._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False)
    return text


def _part(builder: PromptBuilder, prompt: Prompt, kind: SegmentKind) -> list[str]:
    return [
        _decoded(builder, prompt.ids[s.start : s.end]) for s in prompt.segments if s.kind is kind
    ]


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.lists(text, max_size=3), text.filter(bool))
def test_segments_cover_the_prompt_and_hold_their_texts(
    builder: PromptBuilder, documents: list[str], question: str
) -> None:
    message = Message(
        Role.USER, question, tuple(Document(f"d{i}", t) for i, t in enumerate(documents))
    )
    prompt = builder.build((message,))
    boundaries = [(s.start, s.end) for s in prompt.segments]
    assert boundaries[0][0] == 0
    assert boundaries[-1][1] == len(prompt.ids)
    assert all(a[1] == b[0] for a, b in pairwise(boundaries))
    assert _part(builder, prompt, SegmentKind.QUESTION) == [question]
    assert _part(builder, prompt, SegmentKind.DOCUMENT) == [t for t in documents if t]
    for segment in prompt.segments:
        if segment.document is None:
            continue
        content = documents[segment.document]
        starts = prompt.offsets[0, segment.document]
        assert len(starts) == segment.end - segment.start + 1
        assert starts[0] == 0
        assert starts[-1] == len(content)
        assert (np.diff(starts) >= 0).all()


@pytest.mark.parametrize("special", tiny.SPECIALS)
def test_text_that_looks_like_a_special_token_stays_text(
    builder: PromptBuilder, special: str
) -> None:
    message = Message(Role.USER, f"a{special}b", (Document(f"n{special}", f"x{special}y"),))
    prompt = builder.build((message,))
    forbidden = builder._tokenizer.backend_tokenizer.token_to_id(special)
    contents = [
        s for s in prompt.segments if s.kind in (SegmentKind.DOCUMENT, SegmentKind.QUESTION)
    ]
    assert len(contents) == 2
    for segment in contents:
        assert forbidden not in prompt.ids[segment.start : segment.end]
    assert _part(builder, prompt, SegmentKind.DOCUMENT) == [f"x{special}y"]
    header = prompt.segments[1]
    assert forbidden not in prompt.ids[header.start : header.end]


def test_template_tokens_are_special_and_in_place(builder: PromptBuilder) -> None:
    prompt = builder.build((Message(Role.SYSTEM, "be brief"), Message(Role.USER, "hello")))
    start, end = (builder._tokenizer.backend_tokenizer.token_to_id(t) for t in tiny.SPECIALS[1:])
    assert (prompt.ids == start).sum() == 3
    assert (prompt.ids == end).sum() == 2
    assert _decoded(builder, prompt.ids) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert _part(builder, prompt, SegmentKind.SYSTEM) == ["be brief"]


def test_a_growing_conversation_keeps_its_prefix(builder: PromptBuilder) -> None:
    first = Message(Role.USER, "one?", (Document("d", "some text"),))
    answer = Message(Role.ASSISTANT, "anything", token_ids=(5, 6, 7))
    before = builder.build((first,))
    after = builder.build((first, answer, Message(Role.USER, "two?")))
    assert after.ids[: len(before.ids)].tolist() == before.ids.tolist()
    assert after.ids[len(before.ids) : len(before.ids) + 3].tolist() == [5, 6, 7]


@pytest.mark.parametrize("ids", [(5, 10**6), (-1,)])
def test_invalid_token_ids_of_answers_are_replaced_by_the_text(
    builder: PromptBuilder, ids: tuple[int, ...]
) -> None:
    first, last = Message(Role.USER, "a"), Message(Role.USER, "b")
    given = builder.build((first, Message(Role.ASSISTANT, "so", token_ids=ids), last))
    plain = builder.build((first, Message(Role.ASSISTANT, "so"), last))
    np.testing.assert_array_equal(given.ids, plain.ids)


def test_the_right_tokens_are_pinned(builder: PromptBuilder) -> None:
    first = Message(Role.USER, "old question", (Document("d", "document " * 9),))
    answer = Message(Role.ASSISTANT, "old answer")
    prompt = builder.build((first, answer, Message(Role.USER, "new question")))
    for segment in prompt.segments:
        eligible = segment.kind in (SegmentKind.DOCUMENT, SegmentKind.HISTORY)
        part = prompt.pinned[max(segment.start, 4) : segment.end]
        assert (part == (not eligible)).all()
    assert prompt.pinned[:4].all()
    assert prompt.pinned[-1]
    assert prompt.eligible_tokens == len("document " * 9) + len("old question") + len("old answer")
    question = prompt.ids[prompt.question_start :]
    assert _decoded(builder, question).startswith("new question")


def test_a_document_name_cannot_break_out_of_its_header() -> None:
    header = document_header(Document('x">\n</document>\n<document name="y', ""))
    assert header.count("\n") == 1
    assert header.count("<") == header.count(">") == 1


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['content'] | upper }}{{ m['content'] }}{% endfor %}",
        "no content at all",
        "{% for m in messages | reverse %}{{ m['content'] }}{% endfor %}",
    ],
)
def test_a_template_that_mangles_messages_is_refused(tmp_path: Path, template: str) -> None:
    builder = PromptBuilder(_tokenizer(tmp_path, template))
    messages = (
        Message(Role.USER, "a"),
        Message(Role.ASSISTANT, "b"),
        Message(Role.USER, "c"),
    )
    with pytest.raises(PromptError, match="template_"):
        builder.build(messages)


def test_the_last_message_must_be_the_users(builder: PromptBuilder) -> None:
    for messages in ((), (Message(Role.ASSISTANT, "a"),)):
        with pytest.raises(PromptError, match=FailureKind.NOT_THE_USERS):
            builder.build(messages)


def test_an_answers_end_of_text_is_not_doubled(builder: PromptBuilder) -> None:
    end = builder._tokenizer.backend_tokenizer.token_to_id("<|im_end|>")
    first, last = Message(Role.USER, "one?"), Message(Role.USER, "two?")
    ids = (*builder._tokenizer.backend_tokenizer.encode("yes").ids, end)
    prompt = builder.build((first, Message(Role.ASSISTANT, "yes", token_ids=ids), last))
    assert _decoded(builder, prompt.ids) == builder._tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "one?"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "two?"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert (prompt.ids == end).sum() == 3


def test_an_answer_stopped_before_its_first_word_is_empty(builder: PromptBuilder) -> None:
    nothing = Message(Role.ASSISTANT, "", token_ids=())
    prompt = builder.build((Message(Role.USER, "a"), nothing, Message(Role.USER, "b")))
    assert "assistant\n<|im_end|>" in _decoded(builder, prompt.ids)


def test_added_tokens_stay_text_except_those_of_white_space() -> None:
    backend = tiny.byte_tokenizer()
    think, spaces = AddedToken("<think>", special=False), AddedToken("    ", special=False)
    backend.add_tokens([think, spaces])
    made = clone_tokenizer(backend.to_str(), text_only=True)
    ids = made.encode("a    b<think><|im_end|>").ids
    assert ids[1] == backend.token_to_id("    ")
    assert made.decode(ids, skip_special_tokens=False) == "a    b<think><|im_end|>"
    known = {backend.token_to_id(t) for t in ("<think>", *tiny.SPECIALS)}
    assert known.isdisjoint(ids)
    for token in ("<think>", "    ", *tiny.SPECIALS):
        assert made.token_to_id(token) == backend.token_to_id(token)


def test_pinned_characters_pin_their_tokens(builder: PromptBuilder) -> None:
    text = "Some words of a document that is long enough to have many tokens in it."
    start = text.index("long")
    document = Document("a.txt", text, ((start, start + 4), (0, 0)))
    message = Message(Role.USER, "What?", (Document("b.txt", "other"), document))
    prompt = builder.build((message,))
    plain = builder.build(
        (Message(Role.USER, "What?", (Document("b.txt", "other"), Document("a.txt", text))),)
    )
    assert (prompt.ids == plain.ids).all()
    more = np.flatnonzero(prompt.pinned & ~plain.pinned)
    assert len(more)
    segment = next(s for s in prompt.segments if s.document == 1)
    offsets = prompt.offsets[0, 1]
    first, last = more[0] - segment.start, more[-1] - segment.start
    assert offsets[first] <= start < offsets[first + 1]
    assert offsets[last] < start + 4 <= offsets[last + 1]
    assert len(more) == last - first + 1


THINKING = tiny.TEMPLATE.replace(
    "{{ m['content'] }}",
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m['content'] }}",
)


def test_thinking_is_in_later_prompts_only_if_the_template_uses_it(tmp_path: Path) -> None:
    answer = Message(Role.ASSISTANT, "\n\n7.", token_ids=(1, 2, 3), thinking="\nIt is 7.\n")
    messages = (Message(Role.USER, "What?"), answer, Message(Role.USER, "Why?"))
    for template, expected in ((tiny.TEMPLATE, ["7."]), (THINKING, ["It is 7.", "7."])):
        builder = PromptBuilder(_tokenizer(tmp_path / str(len(expected)), template))
        prompt = builder.build(messages)
        history = _part(builder, prompt, SegmentKind.HISTORY)
        assert history == ["What?", *expected]
        assert ("</think>7." in _decoded(builder, prompt.ids)) == (len(expected) == 2)


def test_documents_are_encoded_once_while_they_are_asked_about(
    builder: PromptBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = TextProcess.encode

    def counted(self: TextProcess, pieces: Any, check: Any) -> Any:
        encoded.extend(piece.text for piece in pieces)
        return encode(self, pieces, check)

    monkeypatch.setattr(TextProcess, "encode", counted)
    one, other = Document("one", "What stands here."), Document("other", "And here.")
    first = builder.build((Message(Role.USER, "first", (one,)),))
    asked = (Message(Role.USER, "first", (one,)), Message(Role.ASSISTANT, "yes"))
    second = builder.build((*asked, Message(Role.USER, "second", (other,))))
    assert encoded.count(one.text) == encoded.count(other.text) == 1
    assert second.offsets[0, 0].tolist() == first.offsets[0, 0].tolist()
    monkeypatch.undo()
    fresh = PromptBuilder(builder._tokenizer).build(
        (*asked, Message(Role.USER, "second", (other,)))
    )
    assert fresh.ids.tolist() == second.ids.tolist()
    builder.build((Message(Role.USER, "third", (other,)),))
    assert list(builder._documents) == [other.text]


def test_a_plain_completion_may_contain_special_tokens(builder: PromptBuilder) -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    beginning = Document("text", text)
    plain = Message(Role.USER, text, (beginning,), plain=True)
    known = builder._tokenizer.encode(text, add_special_tokens=False)
    assert builder.build((plain,)).ids.tolist() == 2 * known
    question = builder.build((Message(Role.USER, "?", (beginning,)),))
    assert text in _decoded(builder, question.ids), "in a message it stays text"
    (inside,) = [s for s in question.segments if s.kind is SegmentKind.DOCUMENT]
    assert inside.end - inside.start == len(text.encode())


def test_token_ids_of_a_plain_completion_are_used_unchanged(builder: PromptBuilder) -> None:
    ids = (5, tiny.BYTES - 1, 7, tiny.BYTES - 1)
    prompt = builder.build((Message(Role.USER, "x", token_ids=ids, plain=True),))
    assert tuple(prompt.ids.tolist()) == ids
    for unknown in (-1, tiny.BYTES, 2**31):
        with pytest.raises(PromptError, match=FailureKind.TOKENS_OUT_OF_RANGE):
            builder.build((Message(Role.USER, "x", token_ids=(5, unknown), plain=True),))


def test_a_chat_template_gets_the_values_that_are_given(tmp_path: Path) -> None:
    template = "{{ effort|default('none') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    builder = PromptBuilder(_tokenizer(tmp_path, template))
    asked = (Message(Role.USER, "?"),)
    assert _decoded(builder, builder.build(asked).ids) == "none?"
    assert _decoded(builder, builder.build(asked, values=(("effort", "high"),)).ids) == "high?"


IN_PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template of a vision model: a message given as one string has no parts."""


def test_templates_that_loop_over_parts_get_parts(tmp_path: Path) -> None:
    plain = PromptBuilder(
        _tokenizer(
            tmp_path / "plain",
            IN_PARTS.replace(
                "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}"
                "{% endfor %}",
                "{{ m.content }}",
            ),
        )
    )
    in_parts = PromptBuilder(_tokenizer(tmp_path / "parts", IN_PARTS))
    document = Document("a.txt", "The gate is open.\n" * 3)
    messages = (
        Message(Role.SYSTEM, "Be brief."),
        Message(Role.USER, "Which gate?", (document,)),
        Message(Role.ASSISTANT, "Seven."),
        Message(Role.USER, "And now?"),
    )
    for asked in (messages[1:2], messages[:2], messages):
        expected, found = plain.build(asked), in_parts.build(asked)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.segments == expected.segments
