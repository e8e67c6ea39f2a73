"""Chat templates render in a sandbox with limited time and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.engine.model.chat_template import render_with
from app.models.embedded import draft_path, target_path
from app.sandbox import process as sandbox
from app.sandbox.process import RequestLimits, TextError, TextProcess
from tests.patience import PATIENCE
from tests.tables import table

MESSAGES = [
    {"role": "system", "content": "\ue0000\ue001"},
    {"role": "user", "content": "\ue0001\ue001"},
    {"role": "assistant", "content": "\ue0002\ue001", "reasoning_content": "because"},
    {"role": "user", "content": "\ue0003\ue001"},
]


@pytest.fixture(scope="module")
def process() -> Iterator[TextProcess]:
    process = TextProcess()
    yield process
    process.close()


def theirs(source: str, **more: Any) -> str:
    from transformers.utils import chat_template_utils

    rendered, _ = chat_template_utils.render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, **more
    )
    text: str = rendered[0]
    return text


def render(process: TextProcess, source: str, **more: Any) -> str:
    with render_with(process.render):
        return theirs(source, **more)


ORDINARY = [
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] }}{% if not loop.last %}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{%- set ns = namespace(last=0) %}{%- for m in messages[::-1] %}{% if m.role == 'user' and"
    " loop.index0 == 0 %}{% set ns.last = loop.length - 1 - loop.index0 %}{% endif %}{% endfor %}"
    "{{ ns.last }}{{ bos_token ~ messages|length ~ ('a' + 'b') }}",
    "{%- macro say(m, tag='x') -%}{{ tag }}:{{ m.content | trim }}{%- endmacro -%}"
    "{% for m in messages if m.role != 'system' %}{{ say(m, tag=m.role.upper()) }}"
    "{{ loop.index % 2 }}{% else %}none{% endfor %}",
    "{{ messages[0].content.split('x')[-1].strip() }}"
    "{{ messages | map(attribute='role') | join(',') }}{{ {'a': [1]} | tojson }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{% for k, v in messages[2].items() %}{{ k }}={{ v | string | indent(2) }};{% endfor %}"
    "{% set text %}{{ 'x' * 3 }}{{ 7 // 2 }}{% endset %}{{ text }}{{ 'a-b'.replace('-', '+') }}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}{{ loop.index }}"
    "{% endfor %}{% for row in [[1, [2]], [3]] recursive %}"
    "{{ row if row is number else loop(row) }}{% endfor %}{{ '{:>4}'.format(7) }}"
    "{{ '%03d' % 5 }}{{ undefined_thing ~ 'y' }}",
    "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{% generation %}"
    "{% set x = 'y' %}{{ m.content }}{% endgeneration %}{{ x }}{% endfor %}",
    "{{ dict(a=1) }}{{ dict.fromkeys(['b'], 2) }}{{ namespace(c=3).c }}{{ strftime_now('%Y') }}",
    "{{ {'a': '<é&>', 'b': [1, none]} | tojson }}{{ [{'k': '\\''}] | tojson(indent=2) }}"
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}",
    "  {% if true %}\n  x\n  {%- endif %}\n\n{# a comment #}\n  {{ '\\n' }}  \n",
    "{{ tools }}{{ documents }}{{ enable_thinking is defined and enable_thinking }}{{ bos_token }}",
    *(
        (folder / "chat_template.jinja").read_text("utf-8")
        for folder in (target_path(), draft_path())
    ),
]


@table("source", ORDINARY)
def test_ordinary_templates_render_as_in_transformers(process: TextProcess, source: str) -> None:
    given = {"bos_token": "<s>", "enable_thinking": True}
    assert render(process, source, **given) == theirs(source, **given)


FAILING = [
    "{{ raise_exception('no system, please') }}",
    "{{ namespace(_x=1) }}",
    "{{ 1 / 0 }}",
    "{%",
]


@table("source", FAILING)
def test_a_template_that_raises_reports_its_message(process: TextProcess, source: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (theirs are of many kinds)
        theirs(source)
    reason = str(caught.value).partition(",")[0].partition(" attributes")[0][:20]
    with pytest.raises(TextError) as ours:
        render(process, source)
    assert type(caught.value).__name__ in str(ours.value)
    assert reason in str(ours.value) or "namespace" in str(ours.value)


NESTED = (
    "{% set ns = namespace(d=[1], e=[1]) %}{% for i in range(60) %}{% set ns.d = [ns.d, ns.d] %}"
    "{% set ns.e = [ns.e, ns.e] %}{% endfor %}"
)
BOMBS = [
    "{{ 'x' * 10 ** 10 }}",
    "{{ '%1000000000d' % 1 }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    NESTED + "{{ ns.d }}",
    NESTED + "{{ ns.d == ns.e }}",
    NESTED + "{{ ns.d | tojson }}",
    NESTED + "{{ ns.d | pprint }}",
    "{{ (['x' * 199999] * 10000) | join }}",
    "{{ [" + "1," * 400_000 + "1] }}",
    "{% if a == 0 %}x" + "".join(f"{{% elif a == {n} %}}x" for n in range(50_000)) + "{% endif %}",
]
MORE_BOMBS = [
    "{{ [0] * 10 ** 9 }}",
    "{{ 99999999 * 'x' }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 1000000000) }}",
    "{{ 'x'.ljust(10000000000) }}",
    "{{ 'x'.zfill(10000000000) }}",
    "{{ 'x' | center(10000000000) }}",
    "{{ 'x\n' | indent(1000000000, first=true) }}",
    "{{ {'a': 1} | tojson(indent=1000000000) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}{{ ns.x | length }}",
    "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x | length }}",
    "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}"
    "{% set ns.x = ns.x.replace('x', ns.x) %}{% endfor %}{{ ns.x | length }}",
    "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}"
    "{% set ns.x = ns.x | replace('x', ns.x) %}{% endfor %}{{ ns.x | length }}",
    "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}"
    "{% set ns.x = ns.x.join(ns.x) %}{% endfor %}{{ ns.x | length }}",
    "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x | length }}",
    "{% for a in range(99999) %}" + "long text " * 1000 + "{% endfor %}",
    "{% set t %}{% for a in range(49000) %}{{ 'long text ' * 1000 }}{% endfor %}{% endset %}",
    "{% macro m() %}{% for i in range(1000) %}{{ caller() }}{% endfor %}{% endmacro %}"
    "{% call m() %}{% call m() %}{% call m() %}x{% endcall %}{% endcall %}{% endcall %}",
    "{{ lipsum(n=100000) }}",
    "{{ range(99999) | map('string') | map('center', 99999) | join }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "x" * 2_000_000,
    *(
        NESTED + use
        for use in (
            "{{ ns.d < ns.e }}",
            "{{ 7 in [ns.d] }}{{ ns.e in [ns.d] }}",
            "{{ [ns.d, ns.e] | sort }}",
            "{{ [ns.d, ns.e] | max }}",
            "{{ [ns.d, ns.e] | unique | list }}",
            "{{ ns.d | string | length }}",
            "{{ [ns.d] | sum(start='') }}",
            "{{ [ns.d] | join }}",
            "{{ '%s' % [ns.d] }}",
            "{{ '{}'.format(ns.d) }}",
            "{{ ns.d ~ '' }}",
            "{% for a in ns.d recursive %}{{ loop(a) if a is sequence }}{% endfor %}",
        )
    ),
    "{{ [['x' * 199999] * 100] * 100 }}",
    "{{ dict.fromkeys(range(99999), 'x' * 199999) }}",
    "{{ 'x y ' * 99999999 | wordwrap(1) }}",
    "{{ (range(99999) | list) * 99999 }}",
    "{{ range(99999) | batch(1) | list | length }}{% for i in range(99999) %}"
    "{{ range(99999) | list | length }}{% endfor %}",
    "{{ " + "+".join("1" * 9 for _ in range(90_000)) + " }}",
    "{{ " + "not " * 200_000 + "1 }}",
    "{% for i in [1] %}" * 20_000 + "{% endfor %}" * 20_000,
    "{{ messages" + "[0:]" * 200_000 + " }}",
]


@table("source", BOMBS)
def test_template_bombs_are_stopped(
    process: TextProcess, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_stopped(process, source, monkeypatch)


@pytest.mark.slow
@table("source", MORE_BOMBS)
def test_more_template_bombs_are_stopped(
    process: TextProcess, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_stopped(process, source, monkeypatch)


def check_stopped(process: TextProcess, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a real limit in seconds the test would take twenty times as long.
    monkeypatch.setattr(sandbox, "RENDER_LIMITS", RequestLimits(0.015, 256 << 20))
    began = time.monotonic()
    with pytest.raises(TextError) as caught:
        render(process, source)
    assert time.monotonic() - began < 5 * PATIENCE
    assert str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "long"),
        ("{{ (['x' * 199999] * 10000) | join }}", "memory"),
        ("{{ ['x' * 4999] * 1000 }}", "writes too much"),
        ("x" * 1_000_001, "it is too long"),
    ],
)
def test_the_limit_is_reported_and_the_next_template_works(
    process: TextProcess, source: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.2 if reason == "long" else 2.0
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "RENDER_LIMITS", RequestLimits(seconds, 256 << 20))
        with pytest.raises(TextError, match=reason):
            render(process, source)
    assert render(process, "{{ messages | length }}") == "4"


@table(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__['os'].system('true') }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ messages.append(1) }}",
        "{{ '{0.__class__}'.format(messages) }}",
    ],
)
def test_the_sandbox_holds(process: TextProcess, source: str) -> None:
    text = ""  # an undefined value writes nothing
    with suppress(TextError):
        text = render(process, source)
    assert text == ""


def test_transformers_is_restored_afterwards(process: TextProcess) -> None:
    from transformers.utils import chat_template_utils

    before = chat_template_utils._compile_jinja_template
    with pytest.raises(TextError):
        render(process, "{{ 1 / 0 }}")
    assert chat_template_utils._compile_jinja_template is before
    assert type(before("x").environment) is ImmutableSandboxedEnvironment


def test_two_threads_do_not_get_each_others_templates() -> None:
    from transformers.utils import chat_template_utils

    entered = threading.Event()

    def other() -> None:
        with render_with(lambda source, variables: "theirs"):
            entered.set()

    thread = threading.Thread(target=other)
    with render_with(lambda source, variables: "mine"):
        thread.start()
        assert not entered.wait(0.2)
        assert chat_template_utils._compile_jinja_template("x").render() == "mine"
    thread.join(30)
    assert entered.is_set()
