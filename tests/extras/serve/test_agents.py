"""Requests as coding agents send them: what is the question, and what is always read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.model.prompt import PromptBuilder
from app.extras.serve.apis.chat import ChatRequest
from app.extras.serve.apis.messages import MessagesRequest
from app.extras.serve.apis.responses import Remembered, ResponsesRequest, conversation
from app.extras.serve.fields import BadRequest
from app.extras.serve.requests import (
    read_body,
    to_messages,
)
from app.extras.serve.tool_texts import ToolResult
from app.protocol.prompt import Message, Role
from app.util.places import place_of
from tests import tiny
from tests.extras.serve.running import ANSWER, client, events
from tests.fakes import FakeEngine
from tests.tables import table

RULES = "".join(f"- Rule {n}: leave file {n * 37 % 100} alone.\n" for n in range(150))
FILES = "\n".join(f"src/file{n}.py" for n in range(400))
CODE = "".join(f"def f{n}(x):\n    return x + {n}\n\n" for n in range(200))
REMINDER = (
    f"<system-reminder>\n# claudeMd\nContents of /repo/CLAUDE.md:\n\n{RULES}</system-reminder>"
)
AGENTS = f"# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\n{RULES}</INSTRUCTIONS>"
BILLING = "x-anthropic-billing-header: cc_version=2.1.197.e77; cc_entrypoint=cli;"
ASKED = "What does calc.py do?"


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def user(*words: str) -> dict[str, Any]:
    return {"role": "user", "content": [text(each) for each in words]}


CLAUDE_CODE: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 32_000,
    "stream": True,
    "system": [text(BILLING), text("You are Claude Code."), text("You help with software.")],
    "messages": [
        user(REMINDER, ASKED),
        {"role": "system", "content": f"Available agent types:\n{RULES}"},
    ],
    "tools": [{"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object"}}],
    "thinking": {"type": "adaptive"},
    "metadata": {"user_id": "user_1"},
    "context_management": {"edits": []},
}
CODEX: dict[str, Any] = {
    "model": "gpt-5-codex",
    "instructions": "You are Codex.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [
                {
                    "type": "input_text",
                    "text": "<permissions instructions>\nread-only\n</permissions instructions>",
                }
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": AGENTS}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {
                    "type": "input_text",
                    "text": "<environment_context>\n<cwd>/repo</cwd>\n</environment_context>",
                }
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASKED}]},
    ],
    "tools": [{"type": "function", "name": "shell", "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "text": {"verbosity": "low"},
    "prompt_cache_key": "a",
}
OPENCODE: dict[str, Any] = {
    "model": "any",
    "messages": [
        {"role": "system", "content": f"You are opencode.\n<env>\n/repo\n</env>\n{RULES}"},
        user(ASKED, "<system-reminder>\nPlan mode is active.\n</system-reminder>"),
    ],
    "tools": [{"type": "function", "function": {"name": "read", "parameters": {}}}],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}
QWEN_CODE: dict[str, Any] = {
    "model": "any",
    "messages": [
        {"role": "system", "content": f"You are Qwen Code.\n{RULES}"},
        {"role": "user", "content": "This is the Qwen Code. We set up the context for our chat."},
        {"role": "assistant", "content": "Got it. Thanks for the context!"},
        user(ASKED),
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "read_file", "parameters": {}}}],
}
PI: dict[str, Any] = {
    "model": "any",
    "messages": [
        {"role": "developer", "content": f"You are pi.\n# Project Context\n## AGENTS.md\n{RULES}"},
        user(ASKED),
    ],
    "stream": True,
    "store": False,
    "max_completion_tokens": 4_096,
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}],
}
AIDER: dict[str, Any] = {
    "model": "any",
    "messages": [
        {"role": "system", "content": f"Act as an expert developer.\n{RULES}"},
        {"role": "user", "content": f"I have *added these files*:\n\ncalc.py\n```\n{CODE}```"},
        {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
        {"role": "user", "content": ASKED},
        {"role": "system", "content": "# *SEARCH/REPLACE block* Rules:\nUse the full path."},
    ],
    "temperature": 0,
    "stream": True,
}
BODIES = {
    "Claude Code": (MessagesRequest, CLAUDE_CODE),
    "Codex": (ResponsesRequest, CODEX),
    "opencode": (ChatRequest, OPENCODE),
    "qwen-code": (ChatRequest, QWEN_CODE),
    "pi": (ChatRequest, PI),
    "aider": (ChatRequest, AIDER),
}


def messages_of(kind: Any, body: dict[str, Any]) -> tuple[Message, ...]:
    request = read_body(kind, json.dumps(body).encode())
    request.check()
    if isinstance(request, ResponsesRequest):
        return to_messages(conversation(request, Remembered()))
    return to_messages(request.all_messages if kind is MessagesRequest else request.messages)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    return PromptBuilder(load_tokenizer(tiny.save(tmp_path_factory.mktemp("model"))))


@table("name", BODIES)
def test_the_question_is_the_last_words_of_the_user(name: str) -> None:
    messages = messages_of(*BODIES[name])
    assert (messages[-1].role, messages[-1].text) == (Role.USER, ASKED)
    assert not messages[-1].documents


@table("name", BODIES)
def test_rules_and_reminders_are_always_read(name: str, prompts: PromptBuilder) -> None:
    messages = messages_of(*BODIES[name])
    following = (*messages, Message(Role.ASSISTANT, ANSWER), Message(Role.USER, "Go on."))
    for asked in (messages, following):
        prompt = prompts.build(asked)
        skippable = "".join(each.text for each in prompt.texts)
        assert "Rule 7:" not in skippable
        assert "system-reminder" not in skippable
        assert "environment_context" not in skippable


@table("name", BODIES)
def test_the_next_request_begins_as_the_first_one(name: str, prompts: PromptBuilder) -> None:
    kind, body = BODIES[name]
    first = prompts.build(messages_of(kind, body)).ids.tolist()
    place = "input" if kind is ResponsesRequest else "messages"
    answered = [*body[place], {"role": "assistant", "content": ANSWER}]
    then = body | {place: [*answered, {"role": "user", "content": "Go on."}]}
    assert prompts.build(messages_of(kind, then)).ids.tolist()[: len(first)] == first


@table("name", BODIES)
def test_every_agent_is_answered(name: str, address: str, engine: FakeEngine) -> None:
    kind, body = BODIES[name]
    paths = {ChatRequest: "/v1/chat/completions", ResponsesRequest: "/v1/responses"}
    with client(address) as http:
        reply = http.post(paths.get(kind, "/v1/messages"), json=body | {"stream": False})
        assert ANSWER in reply.text
        with http.stream("POST", paths.get(kind, "/v1/messages"), json=body) as streamed:
            assert streamed.status_code == 200
            assert len(events(streamed.iter_lines())) > 5
    assert engine.asks[-1].question == ASKED


def test_the_line_about_billing_is_no_part_of_the_prompt() -> None:
    for system in (
        [text(BILLING), text("Be kind.")],
        f"{BILLING}\nBe kind.",
        [text(f"{BILLING}\n\nBe kind.")],
    ):
        body = {"max_tokens": 5, "system": system, "messages": [user("Hi")]}
        assert messages_of(MessagesRequest, body)[0] == Message(Role.SYSTEM, "Be kind.")
    body = {"max_tokens": 5, "system": BILLING, "messages": [user("Hi")]}
    assert [each.role for each in messages_of(MessagesRequest, body)] == [Role.USER]


def chats(*messages: tuple[str, str]) -> list[tuple[str, str]]:
    body = {"messages": [{"role": role, "content": words} for role, words in messages]}
    return [(str(each.role), each.body) for each in messages_of(ChatRequest, body)]


@table(
    "given, expected",
    [
        ("user:a system:b", "system:b user:a"),
        ("user:a system:b system:c", "system:b system:c user:a"),
        ("user:a system:b user:c", "system:b user:a user:c"),
        (
            "system:s user:a assistant:b user:c system:d",
            "system:s user:a assistant:b system:d user:c",
        ),
        ("system:s system:t", "system:s user:t"),
        ("user:a assistant:b system:c", "user:a assistant:b user:c"),
        (
            "user:a assistant:b system:c assistant:d user:e",
            "user:a assistant:b user:c assistant:d user:e",
        ),
        ("system:s assistant:b user:c", "system:s assistant:b user:c"),
        ("user:a system:b assistant:begun", "system:b user:a assistant:begun"),
    ],
)
def test_system_prompts_stand_before_the_words_that_they_follow(given: str, expected: str) -> None:
    pairs = [tuple(each.split(":")) for each in given.split()]
    assert chats(*pairs) == [tuple(each.split(":")) for each in expected.split()]  # type: ignore[arg-type]


def test_a_message_of_reminders_alone_is_answered_if_there_is_nothing_else() -> None:
    (message,) = messages_of(ChatRequest, {"messages": [user(REMINDER)]})
    assert (message.text, message.context) == (REMINDER, "")
    body = {"messages": [user(ASKED), user(REMINDER)]}
    first, last = messages_of(ChatRequest, body)
    assert (first.context, first.text, last.text) == (REMINDER, "", ASKED)


def test_a_file_with_rules_is_pinned() -> None:
    source = {"type": "text", "data": RULES}
    part = {"type": "document", "title": "CLAUDE.md", "source": source}
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": [part, text(ASKED)]}]}
    (message,) = messages_of(MessagesRequest, body)
    assert message.documents[0].pinned == ((0, len(RULES)),)


# ------------------------------------------------- several messages without an answer between

LETTER = f"Dear Sir,\n\n{FILES}\n\nYours, A."
QUESTIONS = ("What is the notice period?", "Summarise the letter.", "Find all dates")
COMMAND = "<command-message>review</command-message>\n<command-name>/review</command-name>"
SKILL = f"<skill>\n<name>review</name>\n<path>/s/SKILL.md</path>\n{RULES}</skill>"


def in_each_api(*texts: str) -> Iterator[tuple[Message, ...]]:
    """The messages of a request with these user messages, in each API."""
    chat = [{"role": "user", "content": each} for each in texts]
    yield messages_of(ChatRequest, {"messages": chat})
    yield messages_of(MessagesRequest, {"max_tokens": 5, "messages": [*map(user, texts)]})
    parts = [[{"type": "input_text", "text": each}] for each in texts]
    yield messages_of(
        ResponsesRequest, {"input": [{"role": "user", "content": each} for each in parts]}
    )


@table("question", QUESTIONS)
def test_a_question_and_a_text_in_messages_of_their_own(question: str) -> None:
    for text in (LETTER, LETTER[:2_000], f"Here is the letter:\n\n{LETTER}"):
        for given in ((question, text), (text, question)):
            for *others, last in in_each_api(*given):
                assert (last.text, last.documents) == (question, ())
                assert text in (others[0].text, others[0].documents[0].text)
    for texts in in_each_api(LETTER, question, FILES):
        assert [each.text for each in texts] == ["", "", question]
        assert [each.documents[0].text for each in texts[:2]] == [LETTER, FILES]


def test_a_file_after_the_question_keeps_its_name() -> None:
    for block in (f'<file path="a.py">\n{CODE}</file>', f"Here it is:\n\na.py\n```\n{CODE}```"):
        for first, last in in_each_api(ASKED, block):
            assert last.text == ASKED
            assert first.documents[0].name == "a.py"


def test_a_second_question_is_the_question() -> None:
    for second in ("And who wrote it?", f"Now summarise this.\n\n{LETTER}", f"{LETTER}\n\nWhy?"):
        for first, last in in_each_api(ASKED, second):
            assert first.text == ASKED
            assert last.text
            assert all(last.text not in each.text for each in last.documents)


def test_commands_skills_and_interruptions_are_always_read(prompts: PromptBuilder) -> None:
    for given in (
        (COMMAND, RULES),
        (f"{COMMAND}\n{RULES}",),
        (COMMAND, f"Base directory for this skill: /s\n\n{RULES}"),
        (SKILL, ASKED),
        (f"{ASKED}\n\n# *SEARCH/REPLACE block* Rules:\n\n{RULES}",),
        (f"Files:\n\nCONVENTIONS.md\n```\n{RULES}```", ASKED),
        (ASKED, "<turn_aborted>\nRule 7: none.\n</turn_aborted>"),
    ):
        for messages in in_each_api(*given):
            prompt = prompts.build(messages)
            assert "Rule 7:" in "".join(each.body for each in messages)
            assert not any("Rule 7:" in each.text for each in messages[-1].documents)
            if given != (COMMAND, RULES):
                assert "Rule 7:" not in "".join(each.text for each in prompt.texts)
            assert messages[-1].text


def test_the_body_of_a_command_is_the_question() -> None:
    for messages in in_each_api(COMMAND, RULES):
        assert [each.text for each in messages] == [COMMAND, RULES]
        assert not any(each.documents for each in messages)


# ---------------------------------------------------------------------------- documents

DOCUMENTS: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"type": "document", "title": "Lease", "context": "Signed.", "source": source},
        "Lease",
        "one\n\ntwo",
        "[about Lease]\nSigned.",
    )
    for source in (
        {"type": "text", "media_type": "text/plain", "data": "one\n\ntwo"},
        {"type": "content", "content": [text("one"), text("two")]},
        {"type": "content", "content": "one\n\ntwo"},
        {"type": "base64", "media_type": "text/plain", "data": "b25lCgp0d28="},
    )
]
DOCUMENTS += [
    (
        {"type": "search_result", "title": "Fees", "source": "https://a.b", "content": [text("x")]},
        "Fees",
        "x",
        "[about Fees]\nSource: https://a.b",
    ),
    (
        {"type": "document", "source": {"type": "content", "content": [text("x")]}},
        "document 1",
        "x",
        "",
    ),
]


def with_part(part: dict[str, Any], role: str = "user") -> Iterator[tuple[Any, dict[str, Any]]]:
    """A request of each API with a part and a question."""
    messages = [{"role": role, "content": [part, text(ASKED)]}, user(ASKED)]
    messages = messages[: 1 if role == "user" else 2]
    yield ChatRequest, {"messages": messages}
    yield MessagesRequest, {"max_tokens": 5, "messages": messages}
    yield ResponsesRequest, {"input": messages}


@table("part, name, content, context", DOCUMENTS)
def test_documents_have_their_names_and_contexts(
    part: dict[str, Any], name: str, content: str, context: str
) -> None:
    for kind, body in with_part(part):
        (message,) = messages_of(kind, body)
        (document,) = message.documents
        assert (document.name, document.text.strip()) == (name, content)
        assert (message.text, message.context) == (ASKED, context)
    for role in ("system", "assistant"):
        for kind, body in with_part(part, role):
            assert content.partition("\n")[0] in messages_of(kind, body)[0].text


@table(
    "part, words",
    [
        ({"type": "hologram", "data": "x"}, "leave out parts of type 'hologram'"),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}},
            "leave out blocks of type 'image'",
        ),
        (
            {"type": "search_result", "title": "a", "source": "b", "content": [{"type": "video"}]},
            "leave out blocks of type 'video'",
        ),
        ({"type": "search_result", "title": "a", "source": "b"}, "send it as `content`"),
        ({"type": "document", "source": {"type": "url", "url": "x"}}, "content in base64"),
    ],
)
def test_a_part_that_is_not_read_is_named(part: dict[str, Any], words: str) -> None:
    for kind, body in with_part(part):
        with pytest.raises(BadRequest, match=words):
            messages_of(kind, body)


# ---------------------------------------------------------------------------- tool calls

ARGUMENTS = '{"path": "a.py"}'
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}
USER = {"role": "user", "content": "Read a.py"}
CALLED, RESULT = f"[called read with {ARGUMENTS}]", "[result of read a.py]\na = 1"
HISTORY = [("user", "Read a.py"), ("assistant", CALLED), ("user", RESULT)]
HISTORIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (
        ChatRequest,
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "a = 1"},
            ]
        },
    ),
    "chat in parts": (
        ChatRequest,
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [], "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": [text("a = 1")]},
            ]
        },
    ),
    "functions": (
        ChatRequest,
        {
            "messages": [
                USER,
                {"role": "assistant", "function_call": CALL["function"]},
                {"role": "function", "name": "read", "content": "a = 1"},
            ]
        },
    ),
    "custom": (
        ChatRequest,
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "custom",
                            "custom": {"name": "read", "input": ARGUMENTS},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "a = 1"},
            ]
        },
    ),
    "Messages": (
        MessagesRequest,
        {
            "max_tokens": 5,
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a.py"}}
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": [text("a = 1")]}
                    ],
                },
            ],
        },
    ),
    "Responses": (
        ResponsesRequest,
        {
            "input": [
                USER,
                {"type": "function_call", "call_id": "c1", "name": "read", "arguments": ARGUMENTS},
                {"type": "function_call_output", "call_id": "c1", "output": "a = 1"},
            ]
        },
    ),
    "Responses, custom": (
        ResponsesRequest,
        {
            "input": [
                USER,
                {"type": "custom_tool_call", "call_id": "c1", "name": "read", "input": ARGUMENTS},
                {
                    "type": "custom_tool_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_text", "text": "a = 1"}],
                },
            ]
        },
    ),
}


@table("name", HISTORIES)
def test_calls_and_results_are_read_as_text(name: str) -> None:
    messages = messages_of(*HISTORIES[name])
    assert [(str(each.role), each.body) for each in messages] == HISTORY


def test_calls_without_results_and_results_without_calls_are_read() -> None:
    body: dict[str, Any] = {
        "messages": [
            USER,
            {"role": "assistant", "content": "Well.", "tool_calls": [CALL, CALL | {"id": "c2"}]},
            {"role": "tool", "tool_call_id": "c2", "content": "b"},
            {"role": "tool", "tool_call_id": "c9", "content": "c"},
            {"role": "user", "content": "And?"},
        ]
    }
    assert [each.text for each in messages_of(ChatRequest, body)] == [
        "Read a.py",
        f"Well.\n\n{CALLED}\n\n{CALLED}",
        "[result of read a.py]\nb",
        "[result of a tool call]\nc",
        "And?",
    ]


def test_results_and_words_in_one_message() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": CODE},
        {"type": "tool_result", "tool_use_id": "c1", "content": "No such file.", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image", "source": {}}]},
    ]
    body = dict(HISTORIES["Messages"][1])
    answer = body["messages"][:2]
    body["messages"] = [
        *answer,
        {"role": "user", "content": [*results, text(REMINDER), text("Now?")]},
    ]
    messages = messages_of(MessagesRequest, body)
    assert [each.text for each in messages[2:]] == [
        "[result of read a.py]",
        "[error of read a.py]\nNo such file.",
        "[result of read a.py]\n[image]",
        "Now?",
    ]
    (document,) = messages[2].documents
    assert (document.name, document.text) == ("read a.py", CODE)
    assert messages[-1].context == REMINDER


def test_results_in_parts_are_read_with_words_for_images() -> None:
    body: dict[str, Any] = json.loads(json.dumps(HISTORIES["chat"][1]))
    body["messages"][2]["content"] = [text("a = 1"), {"type": "image_url", "image_url": {}}]
    assert messages_of(ChatRequest, body)[-1].text == f"{RESULT}\n[image]"
    found = [{"type": "search_result", "title": "A", "source": "x", "content": [text("b")]}]
    body["messages"] = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "s1", "name": "search", "input": {"q": "a"}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": found},
                text("It is b."),
            ],
        },
        {"role": "user", "content": "Sure?"},
    ]
    assert messages_of(MessagesRequest, body | {"max_tokens": 5})[1].text == (
        '[called search with {"q": "a"}]\n\nIt is b.\n\n[result of search a]\nA\nb'
    )


def test_arguments_with_half_a_character_are_read(address: str) -> None:
    body: dict[str, Any] = json.loads(json.dumps(HISTORIES["chat"][1]))
    call = body["messages"][1]["tool_calls"][0]["function"]
    call["arguments"] = json.dumps({"path": "\ud800"})
    body["messages"][2]["content"] = CODE
    with client(address) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_a_file_in_a_result_is_a_word() -> None:
    body: dict[str, Any] = json.loads(json.dumps(HISTORIES["Messages"][1]))
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    plain = {"type": "text", "media_type": "text/plain", "data": "plain"}
    results = body["messages"][-1]["content"]
    results[0]["content"] = [{"type": "document", "source": each} for each in (source, plain)]
    last = messages_of(MessagesRequest, body)[-1]
    assert last.text == "[result of read a.py]\n[document]\nplain"


def test_calls_of_other_kinds_are_read() -> None:
    shell = {"command": ["ls"]}
    items = [
        {"role": "user", "content": "List."},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So:"}],
        },
        {"type": "local_shell_call", "call_id": "s1", "action": shell, "status": "completed"},
        {"type": "web_search_call", "id": "w1", "action": {"query": "b"}},
        {"type": "local_shell_call_output", "call_id": "s1", "output": "a.py"},
        {"type": "mcp_call", "id": "m1", "name": "find", "arguments": "{}", "output": "c"},
        {"role": "user", "content": "And?"},
    ]
    assert [each.text for each in messages_of(ResponsesRequest, {"input": items})] == [
        "List.",
        'So:\n\n[called local_shell with {"command": ["ls"]}]\n\n'
        '[called web_search with {"query": "b"}]',
        "[result of local_shell]\na.py",
        "[called find with {}]",
        "[result of find]\nc",
        "And?",
    ]


def test_images_of_results_are_named_in_the_note(address: str) -> None:
    body: dict[str, Any] = json.loads(json.dumps(HISTORIES["Messages"][1]))
    body["messages"][-1]["content"][0]["content"] = [{"type": "image", "source": {}}]
    with client(address) as http:
        usage = http.post("/v1/messages", json=body).json()["usage"]
        assert "Images and files in tool results were ignored" in usage["specchat"]["note"]
        body["messages"][-1]["content"] = [{"type": "image", "source": {}}]
        refused = http.post("/v1/messages", json=body)
    assert refused.status_code == 400
    assert "images and sounds are not" in refused.json()["error"]["message"]


def test_a_reminder_in_a_long_result_is_always_read() -> None:
    reminder = "<system-reminder>\nThe file may be hostile.\n</system-reminder>"
    lines = "def f():\n    return 1\n" * 400
    result = ToolResult("Read a.py", f"{lines}\n{reminder}").message
    assert (result.text, result.context) == ("[result of Read a.py]", reminder)
    assert [(each.name, each.text) for each in result.documents] == [("Read a.py", lines[:-1])]


def test_rules_in_a_long_result_are_always_read() -> None:
    (document,) = ToolResult("Read CLAUDE.md", RULES).message.documents
    assert document.pinned == ((0, len(RULES)),)
    (document,) = ToolResult("Bash ls", f"[Page 99]\n{FILES}").message.documents
    assert place_of(document.text, 50, name=document.name).part == ""


def test_a_document_in_a_result_has_its_title_and_context() -> None:
    body: dict[str, Any] = json.loads(json.dumps(HISTORIES["Messages"][1]))
    source = {"type": "content", "content": [text("one"), text("two")]}
    part = {"type": "document", "title": "Lease", "context": "Signed.", "source": source}
    body["messages"][-1]["content"][0]["content"] = [part]
    last = messages_of(MessagesRequest, body)[-1]
    assert last.text == "[result of read a.py]\nLease\nSigned.\none\ntwo"
