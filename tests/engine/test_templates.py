"""Chat templates get what they need, and no more time and memory than that."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils import chat_template_utils

from app.engine.templates import SECONDS, TemplateLimit, Templates

MESSAGES = [
    {"role": "system", "content": "\ue0000\ue001"},
    {"role": "user", "content": "\ue0001\ue001"},
    {"role": "assistant", "content": "\ue0002\ue001", "reasoning_content": "because"},
    {"role": "user", "content": "\ue0003\ue001"},
]


def render(source: str, **more: Any) -> str:
    with Templates().limited():
        rendered, _ = chat_template_utils.render_jinja_template(
            [MESSAGES], chat_template=source, add_generation_prompt=True, **more
        )
    text: str = rendered[0]
    return text


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
]


@pytest.mark.parametrize("source", ORDINARY)
def test_ordinary_templates_say_what_they_always_did(source: str) -> None:
    theirs, _ = chat_template_utils.render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert render(source, bos_token="<s>") == theirs[0]


BOMBS = [
    "{{ 'x' * 10 ** 10 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ (10 ** 6) ** 6 * (10 ** 6) ** 6 * 9999999999999999999999999999 }}",
    "{{ [0] * 10 ** 9 }}",
    "{{ 99999999 * 'x' }}",
    "{{ '%1000000000d' % 1 }}",
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
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}" + "long text " * 1000 + "{% endfor %}",
    "{% set t %}{% for a in range(49000) %}{{ 'long text ' * 1000 }}{% endfor %}{% endset %}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m() %}{% for i in range(1000) %}{{ caller() }}{% endfor %}{% endmacro %}"
    "{% call m() %}{% call m() %}{% call m() %}x{% endcall %}{% endcall %}{% endcall %}",
    "{{ lipsum(n=100000) }}",
    "{{ range(99999) | map('string') | map('center', 99999) | join }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "x" * 2_000_000,
]


@pytest.mark.parametrize("source", BOMBS, ids=lambda source: source[:40])
def test_bombs_do_not_go_off(source: str) -> None:
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises((TemplateLimit, RecursionError, TemplateError)) as caught:
            render(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(caught.value)
    assert peak < 200_000_000
    assert time.monotonic() - began < SECONDS + 3


def test_the_limit_is_ours() -> None:
    with pytest.raises(TemplateLimit, match="goes on for too long"):
        render(BOMBS[21])
    with pytest.raises(TemplateLimit, match="writes too much"):
        render(BOMBS[9])


@pytest.mark.parametrize(
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
def test_the_sandbox_holds(source: str) -> None:
    text = ""  # an undefined value writes nothing
    with suppress(TemplateError, TypeError, AttributeError):
        text = render(source)
    assert text == ""


def test_nothing_is_left_changed() -> None:
    before = chat_template_utils._compile_jinja_template
    with pytest.raises(TemplateLimit):
        render(BOMBS[0])
    assert chat_template_utils._compile_jinja_template is before
    assert type(before("x").environment) is ImmutableSandboxedEnvironment
