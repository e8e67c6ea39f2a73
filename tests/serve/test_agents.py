"""Requests as coding agents send them: what is the question, and what is always read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from app.engine.model.prompt import PromptBuilder
from app.protocol.prompt import Message, Role
from app.serve.formats import Remembered, conversation
from app.serve.requests import (
    ChatRequest,
    MessagesRequest,
    ResponsesRequest,
    read_body,
    to_messages,
)
from app.serve.tool_texts import ToolResult
from tests import tiny
from tests.fakes import FakeEngine
from tests.serve.running import ANSWER, client, events
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
